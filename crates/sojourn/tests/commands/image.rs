//! Images through the command line: in, listed, out again, checked, removed.

use crate::common::{BINARY, Done, Lab, MIB, content, have, listing};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn an_image_comes_out_as_it_went_in() {
    let (lab, golden) = Lab::with_image();
    let out = lab.line("image export debian out.raw").ok();
    assert!(out.contains("debian:1"), "{out}");
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
    lab.line("image verify debian").ok();
}

#[test]
fn versions_get_numbers_or_tags_and_the_newest_is_found_by_name() {
    let (lab, _) = Lab::with_image();
    lab.file("second.raw", &content(8 * MIB, 2));
    lab.line("image import second.raw debian").ok();
    lab.line("image import second.raw debian:stable").ok();
    let list = lab.json("image list");
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|v| v["image"].as_str().unwrap()).collect();
    assert_eq!(names, ["debian:1", "debian:2", "debian:stable"]);
    let first = lab.json("image show debian:1");
    assert_eq!(first["size"], 8 * MIB);
    assert_eq!(first["source"], "golden.raw");
    assert!(first["stored_bytes"].as_u64().unwrap() > 0);
    assert_eq!(lab.json("image show debian")["manifest"], list[2]["manifest"]);
    let text = lab.line("image list").ok();
    assert!(text.starts_with("IMAGE") && text.contains("8 MiB"), "{text}");
}

#[test]
fn importing_the_same_again_stores_nothing_new() {
    let (lab, _) = Lab::with_image();
    let again = lab.json("image import golden.raw other");
    assert_eq!(again["stats"]["new_chunks"], 0);
    assert_eq!(again["manifest"], lab.json("image show debian")["manifest"]);
}

#[test]
fn an_image_is_taken_from_standard_input() {
    let lab = Lab::new();
    let golden = content(3 * MIB, 5);
    let mut child =
        lab.command(["image", "import", "-", "piped"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&golden).unwrap();
    assert!(child.wait().unwrap().success());
    lab.line("image export piped:1 out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
}

#[test]
fn qcow2_comes_in_and_goes_out() {
    if !have("qemu-img") {
        return;
    }
    let (lab, golden) = Lab::with_image();
    lab.line("image export debian out.qcow2").ok();
    let qemu = |args: &[&str]| {
        let status = Command::new("qemu-img").args(args).current_dir(lab.path("")).output();
        assert!(status.unwrap().status.success(), "{args:?}");
    };
    qemu(&["check", "-q", "out.qcow2"]);
    qemu(&["compare", "-q", "-f", "raw", "-F", "qcow2", "golden.raw", "out.qcow2"]);
    let back = lab.json("image import out.qcow2 back");
    assert_eq!(back["manifest"], lab.json("image show debian")["manifest"]);
    lab.line("image export back --format raw out.img").ok();
    assert!(std::fs::read(lab.path("out.img")).unwrap() == golden);
}

#[test]
fn a_qcow2_image_of_an_odd_size_is_refused_with_what_makes_it_longer() {
    if !have("qemu-img") {
        return;
    }
    let lab = Lab::new();
    let qemu = |args: &[&str]| {
        let done = Command::new("qemu-img").args(args).current_dir(lab.path("")).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
    };
    qemu(&["create", "-q", "-f", "qcow2", "odd.qcow2", "1M"]);
    // The size of the disk, which the tool itself rounds up.
    let file = std::fs::File::options().write(true).open(lab.path("odd.qcow2")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &(MIB - 100).to_be_bytes(), 24).unwrap();
    let remedy = format!("qemu-img resize -f qcow2 odd.qcow2 {MIB}");
    lab.line("image import odd.qcow2 x").fails(2, &["odd.qcow2", &remedy]);
    qemu(&["resize", "-q", "-f", "qcow2", "odd.qcow2", &MIB.to_string()]);
    lab.line("image import odd.qcow2 x").ok();
}

#[test]
fn an_image_travels_over_nbd() {
    let (lab, golden) = Lab::with_image();
    let server = lab.serve(&[]);
    lab.run(["image", "import", &server.uri("debian"), "copy"]).ok();
    lab.line("disk create target --from debian").ok();
    lab.file("other.raw", &content(8 * MIB, 9));
    lab.line("image import other.raw other").ok();
    lab.run(["image", "export", "other", &server.uri("target")]).ok();
    lab.run(["image", "import", &server.uri("target"), "back"]).ok();
    assert_eq!(server.stop(), 0);
    let manifest = |name: &str| lab.json(&format!("image show {name}"))["manifest"].clone();
    assert_eq!(manifest("copy"), manifest("debian"));
    assert_eq!(manifest("back"), manifest("other"));
    lab.line("image export copy copy.raw").ok();
    assert!(std::fs::read(lab.path("copy.raw")).unwrap() == golden);
}

#[test]
fn an_export_replaces_a_file_only_when_told() {
    let (lab, golden) = Lab::with_image();
    lab.file("out.raw", b"precious");
    lab.line("image export debian out.raw").fails(4, &["out.raw", "--force"]);
    assert_eq!(std::fs::read(lab.path("out.raw")).unwrap(), b"precious");
    lab.line("image export debian out.raw --force").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == golden);
}

#[test]
fn a_boot_list_is_exported_over_a_file_only_when_told() {
    let (lab, _) = Lab::with_image();
    lab.file("ranges.txt", b"0 65536\n");
    lab.line("image boot-list record debian ranges.txt").ok();
    lab.file("boot.txt", b"precious");
    let export = "image boot-list export debian boot.txt";
    lab.line(export).fails(4, &["boot.txt", "--force"]);
    assert_eq!(std::fs::read(lab.path("boot.txt")).unwrap(), b"precious");
    lab.line(&format!("{export} --force")).ok();
    lab.line("image boot-list export debian new.txt").ok();
    let [replaced, new] =
        ["boot.txt", "new.txt"].map(|name| std::fs::read(lab.path(name)).unwrap());
    assert!(replaced == new && new.starts_with(b"0 "), "{replaced:?}");
}

#[test]
fn a_version_is_given_a_kernel_and_loses_it_again() {
    let (lab, _) = Lab::with_image();
    let none = &["debian:1", "no kernel was given"][..];
    lab.line("image boot show debian").fails(3, none);
    lab.line("image boot unset debian").fails(3, none);
    lab.file("vmlinuz-6.1", &content(3 * MIB, 4));
    lab.file("initrd.img", &content(2 * MIB, 5));
    let set = "image boot set debian --kernel vmlinuz-6.1";
    let append = ["--initrd", "initrd.img", "--append", "-- ro  console=ttyS0"];
    let said = lab.run(set.split(' ').chain(append)).ok();
    assert!(said.contains("debian:1") && said.contains("vmlinuz-6.1"), "{said}");
    let shown = lab.json("image boot show debian:1");
    assert_eq!(shown["image"], "debian:1");
    assert_eq!(shown["kernel"], serde_json::json!({ "name": "vmlinuz-6.1", "bytes": 3 * MIB }));
    assert_eq!(shown["initrd"]["bytes"], 2 * MIB);
    assert_eq!(shown["append"], serde_json::json!(["--", "ro", "console=ttyS0"]));
    assert!(lab.line("image boot show debian").ok().contains("ro console=ttyS0"));
    // Another version has none.
    lab.line("image import golden.raw debian").ok();
    lab.line("image boot show debian").fails(3, &["debian:2"]);

    lab.line("image boot set debian:1 --kernel initrd.img").ok();
    let shown = lab.json("image boot show debian:1");
    assert_eq!(shown["kernel"]["name"], "initrd.img");
    assert!(shown["initrd"].is_null() && shown["append"] == serde_json::json!([]), "{shown}");
    lab.line("image boot unset debian:1").ok();
    lab.line("image boot show debian:1").fails(3, none);
}

#[test]
fn a_kernel_that_cannot_be_given_is_refused() {
    let (lab, _) = Lab::with_image();
    lab.file("empty", b"");
    lab.file("vmlinuz", b"kernel");
    lab.line("image boot set debian --kernel missing").fails(3, &["missing"]);
    lab.line("image boot set debian --kernel empty").fails(2, &["empty"]);
    lab.line("image boot set other --kernel vmlinuz").fails(3, &["other"]);
    lab.line("image boot set debian:7 --kernel vmlinuz").fails(3, &["debian:7"]);
    let quoted = ["image", "boot", "set", "debian", "--kernel", "vmlinuz", "--append", "a=\"b\""];
    lab.run(quoted).fails(2, &["--append"]);
    lab.line("image boot show debian").fails(3, &["debian:1"]);
    // One that was given stays when its version is removed, and can be taken back.
    lab.line("image boot set debian:1 --kernel vmlinuz").ok();
    lab.line("image remove debian:1").ok();
    lab.line("image boot unset debian:1").ok();
    lab.line("image boot unset debian:1").fails(3, &["debian:1"]);
}

#[test]
fn an_export_keeps_the_permissions_of_what_it_replaces() {
    let (lab, golden) = Lab::with_image();
    let path = lab.file("out.raw", b"private");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    lab.line("image export debian out.raw --force").ok();
    assert!(std::fs::read(&path).unwrap() == golden);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn an_export_through_a_link_replaces_the_file_and_not_the_link() {
    let (lab, golden) = Lab::with_image();
    std::fs::create_dir(lab.path("far")).unwrap();
    std::fs::write(lab.path("far/real.raw"), b"precious").unwrap();
    symlink("far/real.raw", lab.path("link.raw")).unwrap();
    symlink("far/new.raw", lab.path("nowhere.raw")).unwrap();
    lab.line("image export debian link.raw").fails(4, &["link.raw", "--force"]);
    assert_eq!(std::fs::read(lab.path("far/real.raw")).unwrap(), b"precious");
    lab.line("image export debian link.raw --force").ok();
    lab.line("image export debian nowhere.raw").ok();
    for (link, file) in [("link.raw", "far/real.raw"), ("nowhere.raw", "far/new.raw")] {
        assert!(lab.path(link).is_symlink(), "{link} was replaced");
        assert!(!lab.path(file).is_symlink() && std::fs::read(lab.path(file)).unwrap() == golden);
    }
    assert_eq!(std::fs::read_dir(lab.path("far")).unwrap().count(), 2, "something else is left");
}

#[test]
fn what_is_no_file_is_refused_as_the_target_of_an_export_and_stays() {
    let (lab, _) = Lab::with_image();
    std::fs::create_dir(lab.path("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(lab.path("pipe")).status().unwrap().success());
    let _listener = std::os::unix::net::UnixListener::bind(lab.path("socket")).unwrap();
    symlink("pipe", lab.path("link")).unwrap();
    for (target, what) in [
        ("/dev/null", "a character device"),
        ("folder", "a directory"),
        ("pipe", "a pipe"),
        ("link", "a pipe"),
        ("socket", "a socket"),
    ] {
        lab.line(&format!("image export debian {target}")).fails(2, &[target, what]);
        // A build that fails this must not take the machine's /dev/null away.
        if !target.starts_with('/') {
            lab.line(&format!("image export debian {target} --force")).fails(2, &[target, what]);
        }
    }
    let kind = |name: &str| std::fs::symlink_metadata(lab.path(name)).unwrap().file_type();
    assert!(kind("pipe").is_fifo() && kind("socket").is_socket() && kind("link").is_symlink());
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn an_image_goes_to_standard_output_and_nothing_else_does() {
    let (lab, golden) = Lab::with_image();
    for flags in [&[][..], &["--json"]] {
        let args = flags.iter().chain(&["image", "export", "debian", "-"]);
        let output = lab.command(args).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{flags:?}");
        assert!(output.stdout == golden, "{flags:?}: {} bytes", output.stdout.len());
    }
    assert!(!lab.path("-").exists());
    lab.line("image export debian - --format qcow2").fails(2, &["--format", "standard output"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = lab.command(["image", "export", "debian", "-"]).stdout(full).output().unwrap();
    Done::from(output).fails(8, &["standard output"]);
}

#[test]
fn an_image_is_not_written_to_a_terminal() {
    if !have("script") {
        return;
    }
    let (lab, _) = Lab::with_image();
    let line = format!("{BINARY} --home {} image export debian -", lab.home().display());
    let mut command = Command::new("script");
    let shown = command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(shown.status.code(), Some(2));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("standard output is a terminal") && shown.len() < 1000, "{shown}");
}

#[test]
fn a_format_that_is_not_written_is_refused_by_the_name_of_the_file() {
    let (lab, golden) = Lab::with_image();
    for name in ["out.vhdx", "out.VMDK", "out.vdi", "out.vhd"] {
        lab.line(&format!("image export debian {name}")).fails(10, &[name, "raw or qcow2"]);
    }
    lab.line("image export debian out.img --format vdi").fails(10, &["out.img", "raw or qcow2"]);
    lab.line("image export debian out.raw.gz")
        .fails(10, &["sojourn image export debian - | gzip > out.raw.gz"]);
    assert_eq!(exported(&lab), 0, "something was written");
    // Whoever says the format may call the file as he likes.
    lab.line("image export debian out.vhdx --format raw").ok();
    assert!(std::fs::read(lab.path("out.vhdx")).unwrap() == golden);
    lab.line("image export debian out.QCOW2").ok();
    assert!(std::fs::read(lab.path("out.QCOW2")).unwrap().starts_with(b"QFI\xfb"));
}

/// How many files are called as an export, or as what is left of one.
fn exported(lab: &Lab) -> usize {
    let names = std::fs::read_dir(lab.path("")).unwrap().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().contains("out.")).count()
}

#[test]
fn an_export_that_cannot_be_written_names_the_file_that_the_user_named() {
    let (lab, _) = Lab::with_image();
    symlink("nodir/real.raw", lab.path("link.raw")).unwrap();
    for (target, begin) in [("nodir/out.raw", "nodir/out.raw: "), ("link.raw", "link.raw: ")] {
        let done = lab.line(&format!("image export debian {target}"));
        assert!(done.stderr.starts_with(&format!("sojourn: {begin}")), "{}", done.stderr);
        assert!(!done.stderr.contains("partial"), "{}", done.stderr);
        done.fails(3, &[]);
    }
}

/// What `sojourn image import - NAME` makes of bytes.
fn piped(lab: &Lab, bytes: &[u8], name: &str, more: &[&str]) -> Done {
    let args = ["image", "import", "-", name];
    let mut command = lab.command(args.iter().chain(more));
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    Done::from(child.wait_with_output().unwrap())
}

#[test]
fn a_stream_that_is_no_raw_disk_is_refused_unless_it_is_said_to_be_one() {
    let lab = Lab::new();
    let begin = |magic: &[u8], at: usize| {
        let mut bytes = vec![0; 4096];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        bytes
    };
    for (magic, at, what) in [
        (&b"QFI\xfb"[..], 0, "qcow2"),
        (b"KDMV", 0, "vmdk"),
        (b"vhdxfile", 0, "vhdx"),
        (b"conectix", 0, "vhd"),
        (b"\x7f\x10\xda\xbe", 64, "vdi"),
    ] {
        let remedy = "sojourn image import FILE q";
        piped(&lab, &begin(magic, at), "q", &[]).fails(10, &["standard input", what, remedy]);
    }
    for (magic, at, remedy) in
        [(&b"ustar"[..], 257, "tar -xf FILE DISK"), (b"QED\0", 0, "qemu-img convert -f qed")]
    {
        piped(&lab, &begin(magic, at), "q", &[]).fails(10, &["standard input", remedy]);
        lab.file("disk.img", &begin(magic, at));
        let remedy = remedy.replace("FILE", "disk.img");
        lab.line("image import disk.img debian").fails(10, &["disk.img", &remedy]);
        lab.line("serve --file disk.img --run true").fails(10, &["disk.img", &remedy]);
    }
    for (magic, unpacker) in PACKED {
        let remedy = format!("{unpacker} FILE | sojourn image import - q");
        piped(&lab, &begin(magic, 0), "q", &[]).fails(10, &["standard input", &remedy]);
    }
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 0);
    let bytes = begin(b"QFI\xfb", 0);
    piped(&lab, &bytes, "q", &["--format", "raw"]).ok();
    lab.line("image export q out.raw").ok();
    assert!(std::fs::read(lab.path("out.raw")).unwrap() == bytes);
    // A stream that is shorter than what is looked at.
    piped(&lab, b"\x1f\x8b", "short", &[]).fails(2, &["standard input", "512"]);
    piped(&lab, b"", "empty", &[]).fails(2, &["standard input"]);
}

/// How packed files begin, and what unpacks them.
const PACKED: [(&[u8], &str); 6] = [
    (b"\x1f\x8b\x08", "zcat"),
    (b"\xfd7zXZ\0", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "zstdcat"),
    (b"BZh91AY&SY", "bzcat"),
    (b"PK\x03\x04", "unzip -p"),
    (b"7z\xbc\xaf\x27\x1c", "7z e -so"),
];

#[test]
fn a_packed_file_is_not_imported_or_served_unless_it_is_said_to_be_raw() {
    let lab = Lab::new();
    // Of any length: the remedy is not to pad it.
    for len in [1000, 1024] {
        for (magic, unpacker) in PACKED {
            let mut bytes = magic.to_vec();
            bytes.resize(len, 0);
            lab.file("disk.img", &bytes);
            let remedy = format!("{unpacker} disk.img | sojourn image import - debian");
            lab.line("image import disk.img debian").fails(10, &["disk.img", &remedy]);
            let remedy = format!("{unpacker} disk.img > FILE");
            lab.line("serve --file disk.img --run true").fails(10, &["disk.img", &remedy]);
        }
    }
    lab.line("image import disk.img debian --format raw").ok();
    lab.line("serve --file disk.img --format raw --run true").ok();
}

#[test]
fn a_truncated_image_is_neither_imported_nor_served() {
    if !have("qemu-img") {
        return;
    }
    let lab = Lab::new();
    lab.file("golden.raw", &content(8 * MIB, 1));
    for format in ["vdi", "vmdk"] {
        let convert = ["convert", "-O", format, "golden.raw", "golden.image"];
        let made = Command::new("qemu-img").args(convert).current_dir(lab.path("")).status();
        assert!(made.unwrap().success(), "{format}");
        let file = std::fs::File::options().write(true).open(lab.path("golden.image")).unwrap();
        let whole = file.metadata().unwrap().len();
        lab.line(&format!("image import golden.image {format}")).ok();
        file.set_len(whole / 2).unwrap();
        for line in
            ["image import golden.image x", "serve --file golden.image --read-only --run true"]
        {
            lab.line(line).fails(7, &["golden.image", "truncated"]);
        }
    }
}

#[test]
fn nothing_is_left_of_an_import_that_is_killed_while_it_converts() {
    let lab = Lab::new();
    lab.file("disk.vhdx", b"vhdxfile");
    // In the place of qemu-img: something that never ends.
    let tools = lab.path("tools");
    std::fs::create_dir(&tools).unwrap();
    let script = "#!/bin/sh\necho $$ >started.new\nmv started.new started\nexec sleep 1000\n";
    // By another process: a file that this one writes is held open by whatever another test starts meanwhile, and
    // cannot be run then.
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let mut writer = Command::new("sh");
    let wrote = writer.args(["-c", write]).arg(tools.join("qemu-img")).arg(script).status();
    assert!(wrote.unwrap().success());
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let import = ["image", "import", "disk.vhdx", "x"];
    let mut import = lab.command(import).env("PATH", path).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let until = |is: &dyn Fn() -> bool, what: &str| {
        while !is() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(&|| lab.path("started").exists(), "the tool is not started");
    let tool = std::fs::read_to_string(lab.path("started")).unwrap();
    import.kill().unwrap();
    import.wait().unwrap();
    let command_line = Path::new("/proc").join(tool.trim()).join("cmdline");
    // That of a process which ended, and nobody has waited for, is empty.
    until(&|| std::fs::read(&command_line).unwrap_or_default().is_empty(), "the tool goes on");
    assert_eq!(listing(&lab.home().join("tmp")), []);
}

#[test]
fn a_version_with_a_disk_on_it_is_not_removed() {
    let (lab, _) = Lab::with_image();
    lab.line("disk create alice --from debian").ok();
    lab.line("image remove debian:1").fails(4, &["debian:1", "disk alice"]);
    assert_eq!(lab.json("image show debian:1")["used_by"][0], "disk alice");
    lab.line("disk remove alice").ok();
    lab.line("image remove debian:1").ok();
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 0);
    lab.line("image show debian:1").fails(3, &["debian:1", "image list"]);
}

#[test]
fn damage_in_the_store_is_found_and_named() {
    let (lab, _) = Lab::with_image();
    let packs = crate::common::listing(&lab.home().join("store/packs"));
    let (pack, len) = packs.first().unwrap();
    let mut bytes = std::fs::read(pack).unwrap();
    bytes[*len as usize / 3] ^= 1;
    std::fs::write(pack, bytes).unwrap();
    let done = lab.line("image verify debian");
    assert!(done.stdout.contains("1 damaged"), "{}", done.stdout);
    done.fails(7, &["debian:1", "packs/"]);
    lab.line("image export debian out.raw").fails(7, &["packs/"]);
    assert!(!lab.path("out.raw").exists(), "a damaged image was exported");
    let left = crate::common::listing(&lab.path("")).into_iter().any(|(p, _)| {
        p.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".partial"))
    });
    assert!(!left, "a partial file was left");
}

#[test]
fn a_damaged_version_is_listed_with_its_error_and_hides_no_other() {
    let (lab, _) = Lab::with_image();
    for name in ["debian:2", "other:1"] {
        lab.run(["image", "import", "golden.raw", name]).ok();
    }
    let record = lab.home().join("store/refs/image/debian:2/00000000000000000001");
    std::fs::write(record, b"garbage").unwrap();
    let list = lab.json("image list");
    let rows: Vec<_> =
        list.as_array().unwrap().iter().map(|v| (&v["image"], &v["error"])).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[0].0 == "debian:1" && rows[0].1.is_null(), "{list}");
    assert!(rows[1].0 == "other:1" && rows[1].1.is_null(), "{list}");
    assert!(rows[2].0 == "debian:2" && rows[2].1.as_str().unwrap().contains("debian:2"), "{list}");
    assert!(lab.line("image list").ok().contains("damaged"));
    // Nobody can tell whether the damaged one is the newest.
    lab.line("image show debian").fails(7, &["debian:2", "backup"]);
    lab.line("disk create a --from debian").fails(7, &["debian:2"]);
    lab.line("disk create a --from debian:1").ok();
    lab.line("disk create b --from other").ok();
    assert_eq!(lab.json("image import golden.raw debian")["image"], "debian:3");
}
