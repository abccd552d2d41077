//! Real guests: QEMU boots Debian from disks that the real binary serves, once by the installed QEMU
//! and once by the newer one: their NBD clients differ. The laboratory (`lab/guest-test`) does the work
//! and reports as JSON; what it reports is judged here.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::{clients, require, tool};
use std::path::Path;
use std::process::Command;

/// Runs a scenario of the laboratory to its end, with this thread's QEMU.
fn scenario(name: &str) -> serde_json::Value {
    scenario_with(name, &[("LAB_QEMU", clients::current().program("qemu-system-x86_64").as_path())])
}

/// Runs a scenario with more in its environment.
fn scenario_with(name: &str, environment: &[(&str, &Path)]) -> serde_json::Value {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new(tests.join("../lab/guest-test"))
        .args([name, "--sojourn"])
        .arg(tool::sojourn())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let (out, err) = tool::texts(&done);
    assert!(done.status.success(), "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_guest_finds_after_its_reboot_what_it_wrote() {
    require!("qemu-system-x86_64", "mmdebstrap");
    clients::each(|| {
        let facts = scenario("private-disk");
        assert!(facts["written_bytes"].as_u64().unwrap() > 1 << 20, "{facts}");
        assert!(facts["checked"].as_str().unwrap().starts_with("files "), "{facts}");
    });
}

#[test]
fn the_kernel_nbd_driver_keeps_a_file_system_whole_over_two_connections() {
    require!("qemu-system-x86_64", "mmdebstrap");
    clients::each(|| {
        let facts = scenario("kernel-nbd");
        assert_eq!(facts["connections"], 2, "{facts}");
        assert_eq!(facts["checked"], facts["loaded"], "{facts}");
        assert!(facts["trims"].as_u64().unwrap() > 0, "{facts}");
    });
}

#[test]
fn a_file_system_on_a_kept_device_survives_restarts_crashes_cuts_stalls_and_its_keepers_death() {
    require!("qemu-system-x86_64", "mmdebstrap");
    // The client is the guest's kernel: the same under any QEMU.
    let facts = scenario("kept-device");
    let survived = facts["survived"].as_object().unwrap();
    assert_eq!(survived.len(), 5, "{facts}");
    assert!(survived.values().all(|connections| connections.as_u64() >= Some(1)), "{facts}");
    assert_eq!(facts["errors"], 0, "{facts}");
    assert!(facts["listed"].as_str().unwrap().contains("/dev/nbd0"), "{facts}");
    assert!(facts["checked"].as_str().unwrap().starts_with("files "), "{facts}");
}

#[test]
fn an_attached_disk_is_a_device_through_kills_of_its_keeper_and_its_agent_and_goes_back_whole() {
    require!("qemu-system-x86_64", "mmdebstrap");
    // The client is the guest's kernel: the same under any QEMU.
    let facts = scenario("attached-device");
    assert_eq!(facts["survived"].as_array().unwrap().len(), 4, "{facts}");
    assert_eq!(facts["errors"], 0, "{facts}");
    assert_eq!(facts["status"].as_str().unwrap().trim(), "is /dev/nbd0 is /dev/nbd1", "{facts}");
    assert!(facts["listed"].as_str().unwrap().contains("no NBD device"), "{facts}");
    assert_eq!(facts["checked"], facts["loaded"], "{facts}");
}

#[test]
#[ignore = "outages of two minutes together: make test-outages"]
fn the_root_of_a_real_guest_on_an_attached_device_survives_what_befalls_its_server_and_its_link() {
    require!("qemu-system-x86_64", "mmdebstrap");
    let facts = scenario("attached-root");
    println!("{facts}");
    assert_eq!(facts["survived"].as_object().unwrap().len(), 5, "{facts}");
    assert!(facts["files"].as_u64().unwrap() > 1000, "{facts}");
    assert_eq!(facts["errors"], 0, "{facts}");
}

#[test]
#[ignore = "it makes a package of the binary: make test-dist"]
fn a_package_is_installed_anew_under_its_clients_and_leaves_nothing_but_disks() {
    require!("qemu-system-x86_64", "mmdebstrap", "dpkg-shlibdeps");
    // The client is the guest's kernel: the same under any QEMU.
    let facts = scenario("packaged");
    assert_ne!(facts["first"], facts["second"], "the service has another main process: {facts}");
    assert_eq!(facts["errors"], 0, "{facts}");
    assert!(facts["checked"].as_str().unwrap().starts_with("files "), "{facts}");
    assert_eq!(facts["stopped"], "success", "it was killed: {facts}");
    assert_eq!(facts["left"], "inactive inactive alice", "{facts}");
}

#[test]
fn a_guest_boots_from_its_disk_alone_through_bios_and_grub() {
    require!("qemu-system-x86_64", "mmdebstrap");
    clients::each(|| {
        let facts = scenario("firmware");
        assert!(facts["boot_seconds"].as_f64().unwrap() > 0.0, "{facts}");
    });
}

#[test]
fn what_the_kernel_borrows_leaves_all_else_as_it_was() {
    require!("qemu-system-x86_64", "mmdebstrap");
    clients::each(|| {
        let facts = scenario("device-mapper");
        assert!(facts["extents"].as_u64().unwrap() > 5, "{facts}");
        assert!(facts["files"].as_u64().unwrap() > 100, "{facts}");
        assert!(facts["status"].as_str().unwrap().contains("/dev/mapper/lent"), "{facts}");
        assert!(facts["down"].as_str().unwrap().contains("as it was before"), "{facts}");
        // Three blocks of 4 KiB were changed.
        assert!(facts["state"].as_str().unwrap().contains("12288"), "{facts}");
    });
}

#[test]
fn a_machine_hops_between_two_homes_and_two_qemus_and_counts_on_without_a_gap() {
    require!("qemu-system-x86_64", "mmdebstrap");
    let qemus = std::cell::RefCell::new(Vec::new());
    clients::each(|| qemus.borrow_mut().push(clients::current().program("qemu-system-x86_64")));
    let (here, elsewhere) = (qemus.borrow()[0].clone(), qemus.borrow().last().unwrap().clone());
    let facts = scenario_with(
        "hop",
        &[("LAB_QEMU", here.as_path()), ("LAB_QEMU_ELSEWHERE", elsewhere.as_path())],
    );
    let hops = facts["hops"].as_array().unwrap();
    assert_eq!(hops.len(), 3, "{facts}");
    assert!(facts["numbers"].as_u64().unwrap() > 12, "{facts}");
    // The first suspension stores what is in memory and not on the disk, the later ones what changed; the second one
    // copies of what its resume read first, too, once.
    let of = |hop: usize, what: &str| hops[hop][what].as_u64().unwrap();
    assert!(of(1, "changed") * 4 < of(0, "changed"), "{facts}");
    assert!(of(2, "store_bytes") * 4 < of(0, "store_bytes"), "{facts}");
    assert_eq!(facts["killed"]["attempts"], 2, "{facts}");
}

#[test]
#[ignore = "32 ways to set an initiator, some eight minutes: make test-initiators"]
fn the_kernels_iscsi_initiator_works_however_it_is_set_and_goes_on_when_the_server_was_killed() {
    require!("qemu-system-x86_64", "mmdebstrap");
    let facts = scenario("initiators");
    let passed = facts["passed"].as_array().unwrap();
    assert_eq!((passed.len(), &facts["killed"]), (32, &32.into()), "{facts}");
    assert_eq!(facts["errors"], 0, "{facts}");
}
