//! `sojourn borrow scan` on images: what it says, to people and to programs, and that it writes
//! nothing.

use crate::common::{Lab, MIB};
use std::process::{Command, Stdio};

/// A clean ext4 file system.
fn ext4(lab: &Lab, name: &str) -> Vec<u8> {
    let path = lab.file(name, b"");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .arg(&path)
        .arg("16M")
        .stdin(Stdio::null())
        .status();
    assert!(made.unwrap().success(), "mke2fs; scripts/setup test installs it");
    std::fs::read(path).unwrap()
}

#[test]
fn scan_says_what_can_be_borrowed_and_writes_nothing() {
    let lab = Lab::empty();
    let clean = ext4(&lab, "clean.img");
    let mut luks = vec![0; 4 << 20];
    luks[..6].copy_from_slice(b"LUKS\xba\xbe");
    lab.file("luks.img", &luks);

    let text = lab.line("borrow scan --why --map clean.img luks.img").ok();
    let row = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    };
    assert!(row("clean.img").contains("ext4") && row("clean.img").ends_with("accepted"), "{text}");
    assert!(row("luks.img").ends_with("refused: encrypted"), "{text}");
    assert!(text.contains("can be borrowed") && text.contains("it is encrypted (LUKS)"), "{text}");

    let view = lab.line("--json borrow scan --extents --size 2M clean.img luks.img").json();
    let part = &view["disks"][0]["parts"][0];
    assert_eq!((&part["verdict"], &part["holds"]), (&"accepted".into(), &"ext4".into()));
    assert_eq!(view["lendable_bytes"], 2 * MIB);
    let ranges = part["ranges"].as_array().unwrap();
    let lens: u64 = ranges.iter().map(|range| range[1].as_u64().unwrap()).sum();
    assert_eq!(lens, 2 * MIB);
    for range in ranges {
        let (offset, len) = (range[0].as_u64().unwrap(), range[1].as_u64().unwrap());
        assert!(offset >= MIB && offset + len <= 15 * MIB, "{range}");
        let lent = &clean[offset as usize..(offset + len) as usize];
        assert!(lent.iter().all(|byte| *byte == 0), "mke2fs wrote to {range}");
    }
    let refused = &view["disks"][1]["parts"][0];
    assert_eq!((&refused["verdict"], &refused["code"]), (&"refused".into(), &"encrypted".into()));
    assert!(refused["sentence"].as_str().unwrap().contains("LUKS"));

    // What is refused is an answer; what is not there is a failure.
    lab.line("borrow scan luks.img").ok();
    lab.line("borrow scan nothing.img").fails(3, &["nothing.img"]);
    lab.line("borrow scan --svg map.svg clean.img").ok();
    assert!(std::fs::read_to_string(lab.path("map.svg")).unwrap().starts_with("<svg"));
    lab.line("borrow scan --svg clean.img luks.img").fails(4, &["clean.img", "another name"]);

    assert!(std::fs::read(lab.path("clean.img")).unwrap() == clean, "clean.img was written");
    assert!(std::fs::read(lab.path("luks.img")).unwrap() == luks, "luks.img was written");
}
