//! QEMU's tools as clients: qemu-img, qemu-io.

use sojourn_tests::{Home, clients, content, require, tool::shell, tool::shell_json};

const MIB: usize = 40;

/// What a script about the export `$U` prints, which is JSON.
fn json(home: &Home, uri: &str, script: &str) -> serde_json::Value {
    shell_json(home.dir(), &[("U", uri)], script)
}

#[test]
fn qemu_img_sees_size_and_content_and_converts_both_ways() {
    clients::each(|| {
        require!("qemu-img");
        let home = Home::new();
        let bytes = content::image(5, MIB);
        content::write_sparse(&home.path("golden.raw"), &bytes);
        home.run(&["image", "import", "golden.raw", "golden:1"]);
        home.disk("d", "golden");
        let server = home.serve();
        let (disk, image) = (server.uri("d"), server.uri("golden:1"));
        shell(
            home.dir(),
            &[("U", &disk), ("I", &image)],
            r#"
        qemu-img compare -f raw -F raw golden.raw "$U"
        qemu-img compare -f raw -F raw golden.raw "$I"
        qemu-img convert -f raw -O qcow2 "$U" out.qcow2
        qemu-img compare -f raw -F qcow2 golden.raw out.qcow2"#,
        );
        let info = json(&home, &disk, r#"qemu-img info --output json "$U""#);
        assert_eq!(info["virtual-size"], bytes.len() as u64);
        let other = content::image(6, MIB);
        content::write_sparse(&home.path("other.raw"), &other);
        shell(
            home.dir(),
            &[("U", &disk), ("I", &image)],
            r#"
        qemu-img convert -n -f raw -O raw other.raw "$U"
        qemu-img compare -f raw -F raw other.raw "$U"
        qemu-img compare -f raw -F raw golden.raw "$I"
        qemu-img convert -m 16 -W -f raw -O raw "$U" back.raw"#,
        );
        let map = json(&home, &disk, r#"qemu-img map --output json -f raw "$U""#);
        let extents = map.as_array().unwrap();
        let covered: u64 = extents.iter().map(|extent| extent["length"].as_u64().unwrap()).sum();
        assert_eq!(covered, bytes.len() as u64);
        assert!(extents.iter().any(|extent| extent["zero"] == true), "{map}");
        content::assert_same("back", &std::fs::read(home.path("back.raw")).unwrap(), &other);
        server.stop();
    });
}

#[test]
fn qemu_io_patterns_hold_through_writes_zeroes_and_discards() {
    clients::each(|| {
        require!("qemu-io");
        let home = Home::new();
        home.import("golden", &content::image(7, MIB));
        home.disk("d", "golden");
        let server = home.serve();
        let patterns = r#"
        qemu-io -t none -f raw \
            -c "aio_write -P 0x11 0 64k" -c "aio_write -P 0x22 1M 128k" -c aio_flush \
            -c "write -z 32k 16k" -c "write -z -u 1M 64k" -c "discard 512k 64k" \
            -c "read -P 0x11 0 32k" -c "read -P 0 32k 16k" -c "read -P 0x11 48k 16k" \
            -c "read -P 0 1M 64k" -c "read -P 0x22 1114112 64k" \
            -c "write -f -P 0x33 123 777" -c "read -P 0x33 123 777" -c "read -P 0x11 900 100" \
            -c "write -P 0x44 2097151 2" -c "read -P 0x44 2097151 2" \
            -c "writev -P 0x55 3M 4k 8k 512" -c "read -P 0x55 3M 12800" \
            -c "flush" "$U" > qio.txt 2>&1
        ! grep -iE "error|fail|mismatch|invalid" qio.txt"#;
        shell(home.dir(), &[("U", &server.uri("d"))], patterns);
        server.stop();
        // And after a restart.
        let server = home.serve();
        shell(
            home.dir(),
            &[("U", &server.uri("d"))],
            r#"
        qemu-io -t none -f raw -c "read -P 0x33 123 777" -c "read -P 0 1M 64k" \
            -c "read -P 0x44 2097151 2" -c "read -P 0x55 3M 12800" "$U" > qio.txt 2>&1
        ! grep -iE "error|fail|mismatch" qio.txt"#,
        );
        server.stop();
    });
}
