//! Images of others, in and out.

use sojourn_tests::{Home, clients, content, require, tool::shell};
use std::process::Stdio;

const MIB: usize = 40;

#[test]
fn an_image_of_every_format_equals_the_raw_one() {
    clients::each(|| {
        require!("qemu-img");
        let home = Home::new();
        let bytes = content::image(11, MIB);
        content::write_sparse(&home.path("golden.raw"), &bytes);
        home.run(&["image", "import", "golden.raw", "raw:1"]);
        shell(
            home.dir(),
            &[],
            r#"
        qemu-img convert -O qcow2 golden.raw a.qcow2
        qemu-img convert -O qcow2 -c golden.raw b.qcow2
        qemu-img convert -O vmdk golden.raw c.vmdk
        qemu-img convert -O vmdk -o subformat=streamOptimized golden.raw d.vmdk
        qemu-img convert -O vpc -o force_size=on golden.raw e.vhd
        qemu-img convert -O vhdx golden.raw f.vhdx
        qemu-img convert -O vdi golden.raw g.vdi"#,
        );
        let mut failures = Vec::new();
        for file in ["a.qcow2", "b.qcow2", "c.vmdk", "d.vmdk", "e.vhd", "f.vhdx", "g.vdi"] {
            let name = format!("{}:1", &file[..1]);
            let out = home.command().args(["image", "import", file, &name]).output().unwrap();
            if !out.status.success() {
                failures.push(format!("{file}: {}", String::from_utf8_lossy(&out.stderr)));
                continue;
            }
            let raw = home.path("out.raw");
            home.run(&["image", "export", &name, &raw.to_string_lossy()]);
            content::assert_same(file, &std::fs::read(&raw).unwrap(), &bytes);
            std::fs::remove_file(raw).unwrap();
        }
        assert!(failures.is_empty(), "{failures:#?}");
        // The same content was stored once: one store's packs for eight images.
        home.run(&["image", "verify", "g:1"]);
        let stored = shell(home.dir(), &[], "du -sm home/store | cut -f 1");
        assert!(stored.trim().parse::<usize>().unwrap() < MIB, "{stored} MiB stored");
    });
}

#[test]
fn an_export_to_qcow2_is_what_qemu_img_makes_of_the_raw_image() {
    clients::each(|| {
        require!("qemu-img");
        let home = Home::new();
        let bytes = content::image(12, MIB);
        content::write_sparse(&home.path("golden.raw"), &bytes);
        home.run(&["image", "import", "golden.raw", "golden:1"]);
        home.run(&["image", "export", "golden:1", "out.qcow2", "--format", "qcow2"]);
        shell(
            home.dir(),
            &[],
            r#"
        qemu-img check -q out.qcow2
        qemu-img compare -f raw -F qcow2 golden.raw out.qcow2"#,
        );
        home.run(&["image", "export", "golden:1", "out.raw"]);
        let blocks = shell(home.dir(), &[], "stat -c %b out.raw").trim().parse::<u64>().unwrap();
        assert!(blocks * 512 < (MIB as u64) << 20, "the holes of the image were written out");
    });
}

#[test]
fn an_image_comes_from_standard_input_and_odd_sizes_are_kept() {
    let home = Home::new();
    let mut bytes = content::image(13, 9);
    bytes.extend(content::random(14, 3 * 512));
    let mut child = home
        .command()
        .args(["image", "import", "-", "piped:1"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::Write;
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    home.run(&["image", "export", "piped:1", "out.raw"]);
    content::assert_same("piped", &std::fs::read(home.path("out.raw")).unwrap(), &bytes);

    std::fs::write(home.path("odd.raw"), vec![1; 1000]).unwrap();
    let message = home.fails(2, &["image", "import", "odd.raw", "odd:1"]);
    assert!(message.contains("512"), "{message}");
    home.fails(3, &["image", "show", "odd:1"]);
}

#[test]
fn images_travel_over_nbd_from_and_to_another_server() {
    clients::each(|| {
        require!("nbdkit", "nbdcopy", "cmp");
        let home = Home::new();
        let binary = sojourn_tests::tool::sojourn();
        // The oracle refuses every byte that is not its own, so a wrong export fails.
        shell(
            home.dir(),
            &[("SOJOURN", &binary.to_string_lossy())],
            r#"
        nbdkit -U - sparse-random size=24M seed=3 percent=50 --run '
            "$SOJOURN" --home home image import "$uri" remote:1 &&
            "$SOJOURN" --home home image export remote:1 "$uri" &&
            nbdcopy "$uri" original.raw'
        "$SOJOURN" --home home image export remote:1 out.raw
        cmp original.raw out.raw"#,
        );
    });
}

#[test]
fn a_qcow2_with_a_backing_file_is_refused_and_says_what_to_do() {
    clients::each(|| {
        require!("qemu-img");
        let home = Home::new();
        shell(
            home.dir(),
            &[],
            r#"
        qemu-img create -q -f raw secret.raw 8M
        qemu-img create -q -f qcow2 -b secret.raw -F raw overlay.qcow2"#,
        );
        let output =
            home.command().args(["image", "import", "overlay.qcow2", "x:1"]).output().unwrap();
        assert!(!output.status.success());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            message.contains("backing file") && message.contains("qemu-img convert"),
            "{message}"
        );
        home.fails(3, &["image", "show", "x:1"]);
    });
}
