//! fio's nbd engine with verification: every block that comes back carries the checksum that was
//! written. All jobs run as threads of one process, which is one client.
//!
//! Trims run at depth 1: at a larger depth fio itself lets a trim and a write of one block overtake
//! each other, and then misses its own data.

use sojourn_tests::{Home, content, require, tool::shell};

const FIO: &str = r#"fio --output=fio.txt --ioengine=nbd --uri="$U" --thread --randrepeat=0 \
    --verify_fatal=1 --name=job"#;

fn fio(jobs: &[&str]) {
    let home = Home::new();
    home.import("golden", &content::image(3, 64));
    home.disk("d", "golden");
    let server = home.serve();
    for job in jobs {
        let script = format!("{FIO} {job} || {{ cat fio.txt; exit 1; }}");
        shell(home.dir(), &[("U", &server.uri("d"))], &script);
    }
    server.stop();
}

#[test]
fn random_writes_at_depth_32_verify() {
    require!("fio");
    fio(&[
        "--rw=randwrite --bs=4k --iodepth=32 --size=32m --verify=crc32c --do_verify=1",
        "--rw=randwrite --bsrange=4k-64k --iodepth=32 --size=32m --verify=crc32c",
        "--rw=randwrite --bs=512 --iodepth=32 --size=2m --verify=crc32c",
    ]);
}

#[test]
fn random_writes_among_flushes_verify() {
    require!("fio");
    fio(&[
        "--rw=randwrite --bs=4k --iodepth=32 --size=8m --verify=crc32c --fsync=32",
        "--rw=randwrite --bs=16k --iodepth=8 --size=8m --verify=crc32c --fsync=1",
    ]);
}

#[test]
fn trims_among_writes_verify() {
    require!("fio");
    fio(&["--rw=randtrimwrite --bs=64k --iodepth=1 --size=32m --verify=crc32c"]);
}

#[test]
fn four_connections_of_one_client_verify_while_they_write() {
    require!("fio");
    fio(&["--rw=randwrite --bs=8k --iodepth=32 --size=8m --offset_increment=8m --numjobs=4 \
           --verify=crc32c --verify_backlog=64"]);
}
