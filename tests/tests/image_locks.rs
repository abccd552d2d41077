//! Images and devices that somebody else has: a virtual machine, the kernel. Never two writers.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use sojourn_tests::tool::{shell, shell_fails, skip};
use sojourn_tests::{Home, clients, require};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A virtual machine that has an image as its disk until it is dropped. It does not run.
struct Guest(Child);

impl Guest {
    fn start(image: &Path, read_only: bool) -> Self {
        let on = if read_only { "on" } else { "off" };
        let image = image.display();
        let mut child = Command::new(clients::current().program("qemu-system-x86_64"))
            .args(["-S", "-nodefaults", "-display", "none", "-accel", "tcg", "-monitor", "stdio"])
            .args(["-device", "virtio-blk-pci,drive=d", "-drive"])
            .arg(format!("if=none,id=d,format=raw,readonly={on},file={image}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(b"info status\n").unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("VM status")), "it does not start");
        Self(child)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.stdin.as_mut().unwrap().write_all(b"quit\n");
        let _ = self.0.wait();
    }
}

#[test]
fn an_image_that_a_virtual_machine_has_is_neither_written_nor_read_but_beside_another_reader() {
    require!("qemu-system-x86_64", "mke2fs");
    clients::each(|| {
        let home = Home::new();
        shell(
            home.dir(),
            &[],
            "truncate -s 16M image; truncate -s 64M disk; mke2fs -q -F -t ext4 disk",
        );
        let commands: [&[&str]; 4] = [
            &["serve", "--file", "image", "--run", "true"],
            &["image", "import", "image", "golden"],
            &["borrow", "up", "disk", "--state", "image", "--run", "true"],
            &["borrow", "up", "disk", "--state", "image", "--no-write-back", "--run", "true"],
        ];
        let guest = Guest::start(&home.path("image"), false);
        for command in commands {
            let error = home.fails(4, command);
            assert!(error.contains("in use by QEMU"), "{command:?}: {error}");
        }
        drop(guest);
        let guest = Guest::start(&home.path("image"), true);
        for command in [commands[0], commands[2]] {
            let error = home.fails(4, command);
            assert!(error.contains("in use by QEMU"), "{command:?}: {error}");
        }
        for command in [commands[1], commands[3]] {
            home.run(command);
        }
        drop(guest);
        home.run(commands[0]);
        home.run(commands[2]);
    });
}

#[test]
fn an_image_that_is_served_gets_no_second_writer() {
    require!("qemu-nbd");
    clients::each(|| {
        let home = Home::new();
        shell(home.dir(), &[], "truncate -s 16M image");
        let server = home.serve_file(&home.path("image"), &[]);
        for options in ["", "--read-only"] {
            let script = "qemu-nbd $O -f raw -k \"$PWD/socket\" image";
            let error = shell_fails(home.dir(), &[("O", options)], script);
            assert!(error.contains("lock"), "{error}");
        }
        server.stop();
    });
}

#[test]
fn a_device_that_is_mounted_is_neither_written_nor_read() {
    require!("losetup", "mke2fs", "mount", "umount");
    let home = Home::new();
    let make = r#"truncate -s 16M image; mke2fs -q -F -t ext4 image; mkdir mounted
        truncate -s 64M disk; mke2fs -q -F -t ext4 disk
        losetup --find --show image 2>/dev/null || true"#;
    let device = shell(home.dir(), &[], make).trim().to_owned();
    if device.is_empty() {
        return skip("image_locks", "no loop device can be made here");
    }
    let variables = [("D", device.as_str())];
    shell(home.dir(), &variables, r#"mount "$D" mounted"#);
    let commands: [&[&str]; 4] = [
        &["serve", "--file", &device, "--run", "true"],
        &["image", "import", &device, "golden"],
        &["borrow", "up", "disk", "--state", &device, "--run", "true"],
        &["borrow", "up", "disk", "--state", &device, "--no-write-back", "--run", "true"],
    ];
    let errors = commands.map(|command| home.fails(4, command));
    shell(home.dir(), &variables, "umount mounted");
    for command in commands {
        // Whoever looks at all disks of this machine has it for a moment.
        let end = Instant::now() + Duration::from_secs(60);
        while !home.command().args(command).output().unwrap().status.success() {
            assert!(Instant::now() < end, "{command:?} does not get the device");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    shell(home.dir(), &variables, r#"losetup --detach "$D""#);
    assert!(errors.iter().all(|error| error.contains("mounted")), "{errors:?}");
}
