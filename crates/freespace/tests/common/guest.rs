//! A virtual machine of QEMU's that has a disk, and does not run.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// It has its disk open for writing until it is dropped.
pub(crate) struct Guest(Child);

impl Guest {
    /// `None` when its disk is locked.
    pub(crate) fn start(disk: &Path) -> Option<Self> {
        let mut child = Command::new("qemu-system-x86_64")
            .args(["-S", "-nodefaults", "-display", "none", "-accel", "tcg", "-monitor", "stdio"])
            .args(["-device", "virtio-blk-pci,drive=d", "-drive"])
            .arg(format!("if=none,id=d,format=raw,file={}", disk.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("qemu-system-x86_64: {e}; scripts/setup test installs it"));
        let _ = child.stdin.as_mut().unwrap().write_all(b"info status\n");
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        if lines.any(|line| line.unwrap().contains("VM status")) {
            return Some(Self(child));
        }
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("lock"), "{error}");
        None
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.stdin.as_mut().unwrap().write_all(b"quit\n");
        let _ = self.0.wait();
    }
}
