//! libnbd's tools and bindings: nbdinfo, nbdcopy, nbdsh; nbdkit's sparse-random as the oracle that
//! answers an error to every byte that is not its own.

use sojourn_tests::{Home, Server, clients, content, require, tool::shell, tool::shell_json};

const MIB: usize = 48;
/// The same in bytes.
const SIZE: &str = "50331648";

/// A disk of an imported image, and a raw file: the same clients must be content with both.
fn subjects(test: impl Fn(&Home, &Server, &str)) {
    let home = Home::new();
    home.import("golden:1", &content::image(1, MIB));
    home.disk("d", "golden");
    let server = home.serve();
    test(&home, &server, "d");
    server.stop();

    let path = home.path("file.raw");
    content::write_sparse(&path, &content::image(2, MIB));
    let server = home.serve_file(&path, &[]);
    test(&home, &server, "");
    server.stop();
}

/// Runs a script with `$U`, the export's address, and `$SZ`, its size.
fn script(home: &Home, server: &Server, export: &str, script: &str) -> String {
    shell(home.dir(), &[("U", &server.uri(export)), ("SZ", SIZE)], script)
}

/// The same, of a script that prints JSON.
fn json(home: &Home, server: &Server, export: &str, text: &str) -> serde_json::Value {
    shell_json(home.dir(), &[("U", &server.uri(export))], text)
}

#[test]
fn nbdinfo_tells_size_abilities_and_map() {
    clients::each(|| {
        require!("nbdinfo");
        let size = (MIB << 20) as u64;
        subjects(|home, server, export| {
            script(home, server, export, r#"[ "$(nbdinfo --size "$U")" = "$SZ" ]"#);
            let info = json(home, server, export, r#"nbdinfo --json "$U""#);
            let info = &info["exports"][0];
            assert_eq!(info["export-size"], size, "{info}");
            assert_eq!(info["is_read_only"], false, "{info}");
            assert_eq!(info["contexts"], serde_json::json!(["base:allocation"]), "{info}");
            for ability in
                ["write", "flush", "fua", "trim", "zero", "fast-zero", "multi-conn", "cache", "df"]
            {
                script(home, server, export, &format!(r#"nbdinfo --can {ability} "$U""#));
            }
            let map = json(home, server, export, r#"nbdinfo --map --json "$U""#);
            let map = map.as_array().unwrap();
            let bytes = |data: bool| {
                let extents = map.iter().filter(|extent| (extent["type"] == 0) == data);
                extents.map(|extent| extent["length"].as_u64().unwrap()).sum::<u64>()
            };
            assert_eq!(bytes(true) + bytes(false), size);
            assert!(bytes(true) > 0 && bytes(false) >= size / 8, "{map:?}");
        });
    });
}

#[test]
fn nbdinfo_lists_disks_and_images() {
    clients::each(|| {
        require!("nbdinfo");
        let home = Home::new();
        home.import("golden:1", &content::image(1, MIB));
        home.disk("alice", "golden");
        home.disk("bob", "golden:1");
        let server = home.serve();
        let list = json(&home, &server, "", r#"nbdinfo --list --json "$U""#);
        let names: Vec<&str> = list["exports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|export| export["export-name"].as_str().unwrap())
            .collect();
        for name in ["alice", "bob", "golden:1"] {
            assert!(names.contains(&name), "{names:?}");
        }
        script(
            &home,
            &server,
            "golden:1",
            r#"nbdinfo --is read-only "$U" && ! nbdinfo --can write "$U""#,
        );
        script(&home, &server, "alice", r#"nbdinfo --can write "$U""#);
        server.stop();
    });
}

#[test]
fn nbdcopy_carries_every_byte_in_and_out() {
    clients::each(|| {
        require!("nbdcopy", "nbdkit");
        subjects(|home, server, export| {
            let oracle = |copy: &str| {
                let copy = copy.replace('\'', "'\\''");
                let line = format!(
                    "nbdkit -U - sparse-random size=$SZ seed=7 percent=40 --run 'export uri; {copy}'"
                );
                script(home, server, export, &line);
            };
            oracle(r#"nbdcopy "$uri" "$U""#);
            oracle(r#"nbdcopy --allocated "$U" "$uri""#);
            oracle(
                "nbdcopy --connections=8 --threads=8 --requests=64 --request-size=65536 --allocated \
             \"$U\" \"$uri\"",
            );
            oracle(r#"nbdcopy --synchronous --allocated "$U" "$uri""#);
            oracle(r#"nbdcopy --connections=8 --threads=8 "$uri" "$U""#);
            oracle(r#"nbdcopy --allocated "$U" "$uri""#);
        });
    });
}

#[test]
fn nbdcopy_of_a_file_comes_back_the_same() {
    clients::each(|| {
        require!("nbdcopy");
        subjects(|home, server, export| {
            let bytes = content::image(33, MIB);
            content::write_sparse(&home.path("in.raw"), &bytes);
            script(
                home,
                server,
                export,
                r#"rm -f out.raw; nbdcopy in.raw "$U"; nbdcopy "$U" out.raw"#,
            );
            content::assert_same("copy", &std::fs::read(home.path("out.raw")).unwrap(), &bytes);
        });
    });
}

#[test]
fn wrong_requests_get_an_error_and_the_connection_stays_in_step() {
    clients::each(|| {
        require!("nbdsh");
        subjects(|home, server, export| {
            script(
                home,
                server,
                export,
                r#"nbdsh --base-allocation -u "$U" -c '
import os, errno
sz = h.get_size(); assert sz == int(os.environ["SZ"])
h.set_strict_mode(0)                      # send what the library would refuse
def err(f):
    try: f(); return 0
    except nbd.Error as e: return e.errnum
assert err(lambda: h.pread(1024, sz - 512)) == errno.EINVAL
assert err(lambda: h.pwrite(bytes(1024), sz - 512)) in (errno.EINVAL, errno.ENOSPC)
assert err(lambda: h.pread(512, 1 << 62)) == errno.EINVAL
assert err(lambda: h.trim(1024, sz - 512)) == errno.EINVAL
assert err(lambda: h.zero(1024, sz - 512)) in (errno.EINVAL, errno.ENOSPC)
assert err(lambda: h.zero(4096, 1 << 63)) in (errno.EINVAL, errno.ENOSPC)
assert h.pread(512, 0) is not None        # still in step
h.pwrite(b"q" * 512, 512, nbd.CMD_FLAG_FUA)
assert h.pread(512, 512) == b"q" * 512
h.pwrite(b"odd", 4095); assert h.pread(3, 4095) == b"odd"
h.flush()
h.zero(65536, 0); assert h.pread(65536, 0) == bytes(65536)
h.pwrite(b"z" * 65536, 0)
h.zero(65536, 0, nbd.CMD_FLAG_NO_HOLE); assert h.pread(65536, 0) == bytes(65536)
h.zero(32768, 0, nbd.CMD_FLAG_FUA)
assert err(lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO)) in (0, errno.ENOTSUP)
h.trim(65536, 65536)
h.cache(65536, 0)
seen = []
h.block_status(1 << 20, 0, lambda ctx, off, ents, e: seen.append((ctx, off, list(ents))))
assert seen and seen[0][0] == "base:allocation" and seen[0][1] == 0
ents = seen[0][2]
assert sum(ents[0::2]) > 0 and all(l > 0 for l in ents[0::2])
one = []
h.block_status(1 << 20, 0, lambda ctx, off, ents, e: one.append(list(ents)), nbd.CMD_FLAG_REQ_ONE)
assert len(one[0]) == 2 and one[0][0] <= 1 << 20
assert h.pread_structured(4096, 0, lambda b, off, s, e: 0, nbd.CMD_FLAG_DF) == bytes(4096)
'"#,
            );
        });
    });
}

#[test]
fn sixty_four_requests_are_in_flight_and_each_gets_its_own_bytes() {
    clients::each(|| {
        require!("nbdsh");
        subjects(|home, server, export| {
            script(
                home,
                server,
                export,
                r#"nbdsh -u "$U" -c '
data = [bytes([i + 1]) * 4096 for i in range(64)]
w = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(d)), i * 8192) for i, d in enumerate(data)]
while h.aio_in_flight(): h.poll(-1)
assert all(h.aio_command_completed(c) for c in w)
buf = [nbd.Buffer(4096) for _ in range(64)]
ck = [h.aio_pread(b, i * 8192) for i, b in enumerate(buf)]
while h.aio_in_flight(): h.poll(-1)
assert all(h.aio_command_completed(c) for c in ck)
assert [bytes(b.to_bytearray()) for b in buf] == data
'"#,
            );
        });
    });
}

#[test]
fn what_one_connection_flushed_another_of_the_same_client_reads() {
    clients::each(|| {
        require!("nbdsh");
        subjects(|home, server, export| {
            script(
                home,
                server,
                export,
                r#"nbdsh -c '
import os
a, b = nbd.NBD(), nbd.NBD()
a.connect_uri(os.environ["U"]); b.connect_uri(os.environ["U"])
assert a.can_multi_conn() and b.can_multi_conn()
for i in range(200):
    p = bytes([i]) * 4096
    a.pwrite(p, 4096 * i); a.flush()
    assert b.pread(4096, 4096 * i) == p
a.shutdown(); b.shutdown()
'"#,
            );
        });
    });
}
