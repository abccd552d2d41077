//! Machines without a disk boot from the network, beside a DHCP server that is not ours, in a network
//! namespace of their own. The laboratory (`lab/guest-test`) makes the network and the machines.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "figures of a long test")]

use sojourn_tests::{require, tool};
use std::path::Path;
use std::process::Command;

/// Runs a scenario of the laboratory in a network of its own; `None` where that cannot be had.
fn scenario(name: &str) -> Option<serde_json::Value> {
    let own_network =
        Command::new("unshare").args(["--net", "ip", "tuntap", "add", "t", "mode", "tap"]).output();
    if !own_network.is_ok_and(|done| done.status.success()) {
        tool::skip("netboot", "no network namespaces or no tap devices here");
        return None;
    }
    let firmware = ["/usr/lib/ipxe/qemu/efi-virtio.rom", "/usr/share/OVMF/OVMF_CODE_4M.fd"];
    if let Some(missing) = firmware.into_iter().find(|path| !Path::new(path).exists()) {
        tool::skip("netboot", &format!("{missing} is not here; run scripts/setup netboot"));
        return None;
    }
    if !tool::sojourn().with_file_name("static/sojourn-diskless").exists() {
        tool::skip(
            "netboot",
            "the program of machines without a disk is not here; run scripts/diskless dev",
        );
        return None;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new("unshare")
        .arg("--net")
        .arg(tests.join("../lab/guest-test"))
        .args([name, "--sojourn"])
        .arg(tool::sojourn())
        .output()
        .unwrap();
    let (out, err) = tool::texts(&done);
    assert!(done.status.success(), "{err}");
    Some(serde_json::from_str(&out).unwrap())
}

/// Fails unless every machine came to its login, from its own disk, and the stranger got nothing of ours.
fn check(facts: &serde_json::Value, machines: &[(&str, &str, bool, &str)]) {
    assert_eq!(facts["known_offers"], serde_json::json!(["10.77.0.1", "10.77.0.2"]));
    assert_eq!(
        facts["stranger_offers"],
        serde_json::json!(["10.77.0.2"]),
        "an address, and nothing of ours"
    );
    assert_eq!(facts["waiting"], serde_json::json!(["52:54:00:77:00:99"]));
    assert_eq!(facts["machines"].as_object().unwrap().len(), machines.len(), "{facts}");
    for (name, method, uefi, driver) in machines {
        let found = &facts["machines"][name];
        let (root, disk) = match *method {
            "nbd" => ("/dev/nbd0p1", format!("lab-{name}")),
            _ => ("/dev/sda1", String::new()),
        };
        assert_eq!(
            (&found["root"], &found["disk"]),
            (&root.into(), &disk.into()),
            "{name}: {facts}"
        );
        assert_eq!(
            (&found["uefi"], &found["driver"]),
            (&(*uefi).into(), &(*driver).into()),
            "{name}"
        );
        assert_eq!(found["login"], "active", "{name}: {facts}");
        assert!(found["written"].as_u64() > Some(0), "{name}: {facts}");
    }
}

#[test]
fn blank_machines_boot_beside_another_dhcp_server_and_a_stranger_gets_nothing() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare");
    let Some(facts) = scenario("blank-machines") else { return };
    let machines = [
        ("nbd", "nbd", false, "virtio_net"),
        ("iscsi", "iscsi", false, "virtio_net"),
        ("uefi-http", "nbd", true, "virtio_net"),
    ];
    check(&facts, &machines);
}

#[test]
#[ignore = "some ten minutes, and an image of its own: make test-netboot"]
fn blank_machines_boot_with_every_pair_of_firmware_card_and_method() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare");
    let Some(facts) = scenario("more-blank-machines") else { return };
    let machines = [
        ("uefi-pxe-nbd", "nbd", true, "virtio_net"),
        ("uefi-pxe-iscsi", "iscsi", true, "virtio_net"),
        ("uefi-http-iscsi", "iscsi", true, "virtio_net"),
        ("uefi-ipxe-nbd", "nbd", true, "virtio_net"),
        ("e1000-nbd", "nbd", false, "e1000"),
        ("e1000-iscsi", "iscsi", false, "e1000"),
        ("e1000-uefi-iscsi", "iscsi", true, "e1000"),
    ];
    check(&facts, &machines);
}

#[test]
#[ignore = "four boots through firmware: make test-netboot"]
fn machines_that_are_to_be_left_alone_start_from_their_own_disks() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare");
    let Some(facts) = scenario("own-disk") else { return };
    let root = "/dev/vda1";
    let expected = serde_json::json!({
        "bios-ipxe": root, "uefi-ipxe": root, "uefi-pxe": root, "uefi-http": root,
    });
    assert_eq!(facts, expected);
}

#[test]
#[ignore = "three boots with somebody at the machine: make test-netboot"]
fn who_knows_the_secret_of_a_machine_chooses_what_it_starts_and_an_image_forgets() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare");
    let Some(facts) = scenario("menu") else { return };
    let image = serde_json::json!({"disk": "menu-lab-menu", "marked": false});
    assert_eq!((&facts["image"], &facts["image_again"]), (&image, &image), "{facts}");
    let own = serde_json::json!({"disk": "lab-menu", "marked": false});
    assert_eq!(facts["nobody"], own, "{facts}");
}

/// Fails unless the root of a machine without a disk went on behind each outage.
fn check_outages(facts: &serde_json::Value) {
    let outages = [
        "restarted_server",
        "killed_server",
        "cut_connections",
        "lost_packets",
        "link_down",
        "moved_disk",
    ];
    let survived = facts["survived"].as_object().unwrap();
    assert_eq!(survived.len(), outages.len(), "{facts}");
    for outage in outages {
        assert!(survived[outage].is_number(), "{facts}");
    }
    assert_eq!(facts["errors"], 0, "{facts}");
    assert!(facts["files"].as_u64() > Some(1000), "{facts}");
    // It is spared when memory runs out.
    assert!(facts["keeper"].as_str().unwrap().starts_with("1 VmRSS: "), "{facts}");
    println!("{}, {}", facts["survived"], facts["keeper"]);
}

#[test]
fn the_root_of_a_machine_without_a_disk_goes_on_behind_outages_of_its_server_and_its_network() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare", "ss", "qemu-img");
    let Some(facts) = scenario("diskless-root") else { return };
    check_outages(&facts);
}

#[test]
#[ignore = "outages as long as real ones: make test-outages"]
fn the_root_of_a_machine_without_a_disk_goes_on_behind_long_outages() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare", "ss", "qemu-img");
    let Some(facts) = scenario("diskless-root-for-long") else { return };
    check_outages(&facts);
}

#[test]
#[ignore = "an image of its own: make test-netboot"]
fn the_root_of_a_machine_whose_ram_disk_is_of_dracut_goes_on_behind_outages() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare", "ss", "qemu-img");
    let Some(facts) = scenario("diskless-root-of-dracut") else { return };
    check_outages(&facts);
}

#[test]
#[ignore = "a guest of its own: make test-outages"]
fn the_root_of_a_machine_without_a_disk_goes_on_at_another_server_when_its_own_is_lost() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare", "qemu-img");
    let Some(facts) = scenario("diskless-root-taken-over") else { return };
    assert_eq!(facts["errors"], 0, "{facts}");
    assert!(facts["files"].as_u64() > Some(1000), "{facts}");
    // Its server was away for good: the machine waited for the end of its lease, five seconds more at the most,
    // and for its own processor, which is emulated.
    let (waited, lease) = (facts["longest_wait"].as_f64(), facts["lease"].as_f64().unwrap());
    assert!(waited > Some(1.0) && waited < Some(lease + 5.0 + 30.0), "{facts}");
    println!("{facts}");
}

#[test]
#[ignore = "thirty machines, four of them guests: make test-netboot"]
fn a_classroom_comes_to_its_login_while_its_server_is_killed_and_then_lost() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "nbdkit", "ip", "unshare", "qemu-img");
    let Some(facts) = scenario("classroom") else { return };
    assert_eq!(facts["emulated"], 26, "{facts}");
    // Each of them lost its server twice, and was not told any reason.
    assert!(facts["reconnected_at_least"].as_u64() >= Some(2), "{facts}");
    assert!(facts["writes"].as_u64() > Some(1000), "{facts}");
    assert_eq!(
        facts["stranger_offers"],
        serde_json::json!(["10.77.0.2"]),
        "an address, and nothing of ours"
    );
    assert_eq!(facts["waiting"], serde_json::json!(["52:54:00:77:00:99"]));
    let guests = facts["guests"].as_object().unwrap();
    assert_eq!(guests.len(), 4, "{facts}");
    for (name, found) in guests {
        assert_eq!(
            (&found["login"], &found["errors"]),
            (&"active".into(), &0.into()),
            "{name}: {facts}"
        );
    }
    println!("{facts}");
}

#[test]
#[ignore = "three boots of two machines: make test-netboot"]
fn machines_whose_power_is_cut_start_again_at_once_with_all_that_they_flushed() {
    require!("qemu-system-x86_64", "mmdebstrap", "dnsmasq", "ip", "unshare", "qemu-img");
    let Some(facts) = scenario("power-cuts") else { return };
    assert_eq!(facts["refused"], serde_json::json!([]), "none was told to ask again");
    let machines = facts["machines"].as_object().unwrap();
    assert_eq!(machines.keys().collect::<Vec<_>>(), ["cut-iscsi", "cut-nbd"], "{facts}");
    for found in machines.values() {
        assert_eq!(found["seconds"].as_array().unwrap().len(), 3, "{facts}");
        assert_eq!(found["counted"].as_array().unwrap().len(), 3, "{facts}");
    }
    println!("{facts}");
}
