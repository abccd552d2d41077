//! How fast borrowing is, beside the tools and the limits it is to be judged by:
//! `bench_borrow DIRECTORY [IMAGE]`, called by `scripts/bench-borrow`. Prints ratios and their targets;
//! the exit code is 1 when one is missed.
//!
//! | figure | beside |
//! |---|---|
//! | reads and writes of a stitched disk without encryption | the same on one plain file |
//! | encryption of 4 KiB sectors | `openssl speed` of the same cipher |
//! | discovery of the free blocks of IMAGE (ext4) | `dumpe2fs` |
//! | the deep check of IMAGE | `e2fsck -fn` |
//!
//! Every pair is measured in turns, and the best of each side is taken: other load of the machine
//! only ever adds time.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "the table is this program's result")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark stops when it cannot go on"
)]

use block::conformance::Sequence;
use block::{Attempt, BLOCK, Device, Durability, Memory, Span};
use freespace::{FileSystem, FreeSpaceOptions, Level, Window};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;
use transient::{DiskKey, HostDisk, Layout, Lent, Member, Stitched, Watch};

/// Bytes of the disk whose reads and writes are measured: it fits into the page cache.
const SIZE: u64 = 256 << 20;
/// Ranges that it is stitched of.
const RANGES: u64 = 1024;
/// Short turns, many of them: some then fall between other work of the machine.
const SHORT: u32 = 600;
const TURNS: u32 = 11;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let directory = arguments.next().expect("a directory for files of 600 MiB");
    println!("{:<44} {:>12} {:>12} {:>7} {:>9}", "", "ours", "beside", "ratio", "target");
    let mut reached = stitched(&directory);
    reached &= encryption();
    if let Some(image) = arguments.next() {
        reached &= discovery(&image);
    }
    if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A ratio that is to be reached.
#[derive(Clone, Copy)]
enum Target {
    Most(f64),
    Least(f64),
}

/// Prints a figure; whether its target is reached.
fn row(name: &str, ours: f64, beside: f64, unit: &str, target: Target) -> bool {
    let ratio = ours / beside;
    let (sign, limit, reached) = match target {
        Target::Most(limit) => ("<=", limit, ratio <= limit),
        Target::Least(limit) => (">=", limit, ratio >= limit),
    };
    println!(
        "{name:<44} {:>12} {:>12} {ratio:>7.3} {:>9}{}",
        format!("{ours:.3} {unit}"),
        format!("{beside:.3} {unit}"),
        format!("{sign} {limit}"),
        if reached { "" } else { "  missed" }
    );
    reached
}

/// The best time of each of two pieces of work, done in turns, in seconds.
fn in_turns(turns: u32, mut ours: impl FnMut(u32), mut beside: impl FnMut(u32)) -> (f64, f64) {
    let mut best = (f64::MAX, f64::MAX);
    let time = |work: &mut dyn FnMut(u32), turn| {
        let start = Instant::now();
        work(turn);
        start.elapsed().as_secs_f64()
    };
    for turn in 0..turns {
        best.0 = best.0.min(time(&mut ours, turn));
        best.1 = best.1.min(time(&mut beside, turn));
    }
    best
}

fn key() -> DiskKey {
    let mut random = Sequence::new(1);
    DiskKey::generate(|bytes| {
        bytes.fill_with(|| random.number() as u8);
        Ok(())
    })
    .unwrap()
}

/// A file that is held and open for writing, as lent disks are.
fn member(path: &Path, size: u64) -> Arc<dyn Device> {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    let watch = Watch::new(&[]).unwrap();
    Arc::new(Member::open(Arc::new(HostDisk::open(path).unwrap()), watch).unwrap())
}

/// Reads or writes spans on the caller's thread, as the server's fast path does. Once a second a write waits for
/// a look at the lenders, of which there are none.
fn drive(device: &dyn Device, spans: &[Span], write: bool, buf: &mut [u8]) {
    for span in spans {
        let buf = &mut buf[..span.len() as usize];
        let attempt = match write {
            true => device.try_write(*span, buf),
            false => device.try_read(*span, buf),
        };
        if write && attempt.as_ref().is_ok_and(|attempt| *attempt == Attempt::WouldWait) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(device.write(*span, buf, Durability::Buffered)).unwrap();
            continue;
        }
        assert_eq!(attempt.unwrap(), Attempt::Done, "the page cache holds all of it");
    }
}

fn stitched(directory: &Path) -> bool {
    let plain = member(&directory.join("plain"), SIZE);
    let owner = member(&directory.join("owner"), 2 * SIZE);
    let piece = SIZE / RANGES;
    let range = |i| Lent { member: 0, span: Span::between(2 * i * piece, (2 * i + 1) * piece) };
    let ranges: Vec<Lent> = (0..RANGES).map(range).collect();
    let layout = || Layout::new(&ranges, &[2 * SIZE]).unwrap();
    let bare = Stitched::new(vec![Arc::clone(&owner)], layout(), SIZE, None).unwrap();
    let mut random = Sequence::new(1);
    let scattered: Vec<Span> = (0..20_000)
        .map(|_| random.below(SIZE / BLOCK) * BLOCK)
        .map(|at| Span::between(at, at + BLOCK))
        .collect();
    let in_order: Vec<Span> = Span::whole(SIZE).pieces(128 << 10).collect();
    let mut buf = vec![7; 128 << 10];
    drive(&*plain, &in_order, true, &mut buf);
    drive(&bare, &in_order, true, &mut buf);
    let mut reached = true;
    for (name, spans, write) in [
        ("4 KiB random reads, stitched / plain", &scattered, false),
        ("4 KiB random writes, stitched / plain", &scattered, true),
        ("128 KiB sequential reads, stitched / plain", &in_order, false),
        ("128 KiB sequential writes, stitched / plain", &in_order, true),
    ] {
        let (mut ours, mut theirs) = (buf.clone(), buf.clone());
        let parts: Vec<&[Span]> = spans.chunks_exact(spans.len() / 20).collect();
        let part = |turn| parts[turn as usize % parts.len()];
        let (ours, beside) = in_turns(
            SHORT,
            |turn| drive(&bare, part(turn), write, &mut ours),
            |turn| drive(&*plain, part(turn), write, &mut theirs),
        );
        let each = |seconds: f64| seconds / parts[0].len() as f64 * 1e6;
        reached &= row(name, each(ours), each(beside), "us", Target::Most(1.05));
    }
    reached
}

/// Encryption by itself: a stitched disk in memory, with a key and without one.
fn encryption() -> bool {
    let disk = |key: Option<&DiskKey>| {
        let member: Arc<dyn Device> = Arc::new(Memory::new(1 << 20));
        let lent = [Lent { member: 0, span: Span::whole(1 << 20) }];
        Stitched::new(vec![member], Layout::new(&lent, &[1 << 20]).unwrap(), 1 << 20, key).unwrap()
    };
    let (encrypted, bare) = (disk(Some(&key())), disk(None));
    let spans: Vec<Span> = Span::whole(1 << 20).pieces(128 << 10).collect();
    let (mut ours, mut theirs) = (vec![7; 128 << 10], vec![7; 128 << 10]);
    drive(&encrypted, &spans, true, &mut ours);
    let (with, without) = in_turns(
        SHORT,
        |_| drive(&encrypted, &spans, true, black_box(&mut ours)),
        |_| drive(&bare, &spans, true, black_box(&mut theirs)),
    );
    let ours = f64::from(1u32 << 20) / (with - without).max(1e-9) / 1e9;
    let Some(beside) = (0..3).filter_map(|_| openssl()).reduce(f64::max) else {
        println!("AES-256-XTS, 4 KiB sectors: {ours:.3} GB/s; no openssl to compare with");
        return true;
    };
    row("AES-256-XTS, 4 KiB sectors / OpenSSL", ours, beside, "GB/s", Target::Least(0.5))
}

/// GB/s of OpenSSL, in processor time.
fn openssl() -> Option<f64> {
    let command = "speed -seconds 1 -bytes 4096 -mr -evp aes-256-xts";
    let output = Command::new("openssl").args(command.split(' ')).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("+F:"))?;
    Some(line.rsplit(':').next()?.parse::<f64>().ok()? / 1e9)
}

fn discovery(image: &Path) -> bool {
    let look = |level| {
        let disk = HostDisk::open(image).unwrap();
        let options = FreeSpaceOptions { level: Some(level), ..FreeSpaceOptions::default() };
        let found = freespace::read(FileSystem::EXT4, &Window::whole(&disk), &options).unwrap();
        assert!(!found.free.is_empty());
        black_box(found.free.len());
    };
    let tool = |command: &[&str]| {
        let mut tool = Command::new(command[0]);
        tool.args(&command[1..]).arg(image).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(tool.status().unwrap().success(), "{command:?}");
    };
    let (ours, beside) = in_turns(TURNS, |_| look(Level::Fast), |_| tool(&["dumpe2fs"]));
    let mut reached = row("discovery / dumpe2fs", ours, beside, "s", Target::Most(0.125));
    let (ours, beside) = in_turns(TURNS, |_| look(Level::Deep), |_| tool(&["e2fsck", "-fn"]));
    reached &= row("deep check / e2fsck -fn", ours, beside, "s", Target::Most(1.0));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: f64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    reached
        & row("most memory of this process / allowed", kib / 1024.0, 64.0, "MiB", Target::Most(1.0))
}
