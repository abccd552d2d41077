//! Servers of others that are clients of ours: nbdkit's nbd plugin and qemu-nbd hand on what they
//! get, with requests of their own making.

use sojourn_tests::{Home, clients, content, require, tool::shell};

const MIB: usize = 16;

/// A home with the disk `d`, and the content of its image.
fn disk() -> (Home, Vec<u8>) {
    let home = Home::new();
    let bytes = content::image(5, MIB);
    home.import("golden:1", &bytes);
    home.disk("d", "golden");
    (home, bytes)
}

#[test]
fn through_nbdkits_nbd_plugin_every_byte_and_every_hole_is_the_same() {
    clients::each(|| {
        require!("nbdkit", "nbdcopy", "nbdinfo", "nbdsh");
        let (home, bytes) = disk();
        let server = home.serve();
        let uri = server.uri("d");
        shell(
            home.dir(),
            &[("U", &uri)],
            r#"nbdkit -U - nbd uri="$U" shared=true --run '
            nbdcopy "$uri" out.raw
            nbdinfo --map --json "$uri" > through.json
            nbdsh -u "$uri" -c "
h.pwrite(b\"n\" * 65536, 1 << 20)
h.zero(65536, 3 << 20)
h.trim(65536, 5 << 20)
h.flush()
assert h.pread(65536, 1 << 20) == b\"n\" * 65536
assert h.pread(65536, 3 << 20) == bytes(65536)
"'"#,
        );
        content::assert_same("copy", &std::fs::read(home.path("out.raw")).unwrap(), &bytes);
        let direct = home.path("direct.raw");
        shell(home.dir(), &[("U", &uri)], r#"nbdcopy "$U" direct.raw"#);
        let direct = std::fs::read(direct).unwrap();
        assert!(direct[1 << 20..][..65536].iter().all(|byte| *byte == b'n'));
        assert!(direct[3 << 20..][..65536].iter().all(|byte| *byte == 0));
        let map = std::fs::read_to_string(home.path("through.json")).unwrap();
        assert!(map.contains("\"type\": 3"), "holes are told on: {map}");
        server.stop();
    });
}

#[test]
fn through_nbdkits_filters_that_split_retry_and_read_ahead() {
    clients::each(|| {
        require!("nbdkit", "nbdcopy");
        let (home, bytes) = disk();
        let server = home.serve();
        let uri = server.uri("d");
        shell(
            home.dir(),
            &[("U", &uri)],
            r#"nbdkit -U - --filter=blocksize --filter=retry --filter=readahead nbd uri="$U" \
            maxdata=4k maxlen=64k retries=1 --run 'nbdcopy "$uri" out.raw; nbdcopy out.raw "$uri"'"#,
        );
        content::assert_same("copy", &std::fs::read(home.path("out.raw")).unwrap(), &bytes);
        server.stop();
    });
}

#[test]
fn through_qemu_nbd_in_front() {
    clients::each(|| {
        require!("qemu-nbd", "qemu-io", "qemu-img", "nbdcopy", "nbdinfo");
        let (home, bytes) = disk();
        let server = home.serve();
        let uri = server.uri("d");
        shell(
            home.dir(),
            &[("U", &uri)],
            r#"qemu-nbd -f raw -k "$PWD/front" -x d -t "$U" & front=$!
            trap "kill $front" EXIT
            F="nbd+unix:///d?socket=$PWD/front"
            for i in $(seq 1200); do nbdinfo --size "$F" > /dev/null 2>&1 && break; sleep 0.05; done
            nbdcopy "$F" out.raw
            qemu-io -f raw -c "write -P 7 1M 64k" -c flush -c "read -P 7 1M 64k" "$F""#,
        );
        content::assert_same("copy", &std::fs::read(home.path("out.raw")).unwrap(), &bytes);
        server.stop();
    });
}
