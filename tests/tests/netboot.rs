//! Machines without a disk boot from the network, beside a DHCP server that is not ours, in a network
//! namespace of their own. The laboratory (`lab/guest-test`) makes the network and the machines.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::{require, tool};
use std::path::Path;
use std::process::Command;

#[test]
fn blank_machines_boot_beside_another_dhcp_server_and_a_stranger_gets_nothing() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare");
    let own_network =
        Command::new("unshare").args(["--net", "ip", "tuntap", "add", "t", "mode", "tap"]).output();
    if !own_network.is_ok_and(|done| done.status.success()) {
        return tool::skip("netboot", "no network namespaces or no tap devices here");
    }
    if !Path::new("/usr/lib/ipxe/qemu/efi-virtio.rom").exists() {
        return tool::skip("netboot", "ipxe-qemu is not installed");
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new("unshare")
        .arg("--net")
        .arg(tests.join("../lab/guest-test"))
        .args(["blank-machines", "--sojourn"])
        .arg(tool::sojourn())
        .output()
        .unwrap();
    let (out, err) = tool::texts(&done);
    assert!(done.status.success(), "{err}");
    let facts: serde_json::Value = serde_json::from_str(&out).unwrap();
    println!("netboot: {facts}");
    assert_eq!(facts["known_offers"], serde_json::json!(["10.77.0.1", "10.77.0.2"]));
    assert_eq!(
        facts["stranger_offers"],
        serde_json::json!(["10.77.0.2"]),
        "an address, and nothing of ours"
    );
    assert_eq!(facts["waiting"], serde_json::json!(["52:54:00:77:00:99"]));
    assert_eq!(facts["nbd"]["root"], "/dev/nbd0p1");
    assert_eq!(facts["nbd"]["disk"], "lab-nbd");
    assert_eq!(facts["iscsi"]["root"], "/dev/sda1");
    for method in ["nbd", "iscsi"] {
        assert_eq!(facts[method]["login"], "active", "{facts}");
        assert!(facts["written"][method].as_u64() > Some(0), "{facts}");
    }
}
