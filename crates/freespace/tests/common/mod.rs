//! Images for the tests: found in `$SOJOURN_SHARED/fsimages`, or `../shared` beside the workspace;
//! unpacked into a folder of the test's own. Other people's tools, with a time limit.

#![allow(dead_code)] // each test file uses its part
#![allow(clippy::print_stderr)] // says what was skipped and what was counted

pub(crate) mod exfat;
pub(crate) mod guest;
pub(crate) mod make;
pub(crate) mod mutate;
pub(crate) mod oracle;
pub(crate) mod sparse;

use block::Span;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The folder of images, or `None` after saying that it is not there.
pub(crate) fn images() -> Option<PathBuf> {
    let shared = std::env::var_os("SOJOURN_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let dir = shared.join("fsimages");
    if dir.join("README.md").exists() {
        return Some(dir);
    }
    eprintln!("skipped: there are no images at {} (set SOJOURN_SHARED)", dir.display());
    None
}

/// Says that a test, or a part of one, is skipped for want of what CI has; there that fails it.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "nothing is skipped for that in CI: {why}");
    eprintln!("skipped: {why}");
}

/// Unpacks `packed` (.gz, .bz2, .xz, .zst, or plain) into `dir`, with holes; the new file.
pub(crate) fn unpack(packed: &Path, dir: &Path) -> PathBuf {
    let name = packed.file_name().unwrap().to_str().unwrap();
    let (stem, tool): (&str, &[&str]) = match name.rsplit_once('.') {
        Some((stem, "gz")) => (stem, &["gzip", "-dc"]),
        Some((stem, "bz2")) => (stem, &["bzip2", "-dc"]),
        Some((stem, "xz")) => (stem, &["xz", "-dc"]),
        Some((stem, "zst")) => (stem, &["zstd", "-q", "-dc", "--long=27"]),
        _ => (name, &["cat"]),
    };
    let target = dir.join(stem);
    let mut unpacker = Command::new(tool[0])
        .args(&tool[1..])
        .arg(packed)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}; scripts/setup test installs it", tool[0]));
    let mut input = unpacker.stdout.take().unwrap();
    let mut file = File::create(&target).unwrap();
    write_sparse(&mut input, &mut file);
    assert!(unpacker.wait().unwrap().success(), "cannot unpack {}", packed.display());
    target
}

/// Copies, leaving holes where there are only zeroes.
fn write_sparse(input: &mut impl std::io::Read, file: &mut File) {
    use std::os::unix::fs::FileExt;
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    loop {
        let mut len = 0;
        while len < buf.len() {
            match input.read(&mut buf[len..]).unwrap() {
                0 => break,
                n => len += n,
            }
        }
        if buf[..len].iter().any(|byte| *byte != 0) {
            file.write_all_at(&buf[..len], at).unwrap();
        }
        at += len as u64;
        if len < buf.len() {
            break;
        }
    }
    file.set_len(at).unwrap();
}

/// A copy of a file with the same holes.
pub(crate) fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("--sparse=always").args([from, to]).status().unwrap();
    assert!(done.success());
}

/// Runs a tool for at most `seconds`.
pub(crate) fn run(seconds: u32, tool: &str, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "1", &seconds.to_string(), tool])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{tool}: {e}; scripts/setup test installs it"))
}

/// Runs a tool that must succeed, as [`run`] does; gives what it printed.
pub(crate) fn must(seconds: u32, tool: &str, args: &[&str]) -> String {
    let output = run(seconds, tool, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{tool} {args:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// The hash of a file's data and its length; blocks of zeroes are skipped, holes or not.
pub(crate) fn hash(path: &Path) -> blake3::Hash {
    use rustix::fs::SeekFrom;
    use std::os::unix::fs::FileExt;
    const BLOCK: u64 = 64 << 10;
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut hasher = blake3::Hasher::new();
    let mut buf = vec![0; BLOCK as usize];
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(data)).unwrap();
        // Where data begins and ends may change without a write: whole blocks do not depend on it.
        at = at.max(data / BLOCK * BLOCK);
        while at < end {
            let len = buf.len().min((size - at) as usize);
            file.read_exact_at(&mut buf[..len], at).unwrap();
            if buf[..len].iter().any(|byte| *byte != 0) {
                hasher.update(&at.to_le_bytes()).update(&buf[..len]);
            }
            at += len as u64;
        }
    }
    hasher.update(&size.to_le_bytes());
    hasher.finalize()
}

/// Does `work` on every item, two at a time.
pub(crate) fn each<T: Send + Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(item) = items.get(n) else { return };
                    work(item);
                }
            });
        }
    });
}

/// The same on items that it changes.
pub(crate) fn each_mut<T: Send>(items: &mut [T], work: impl Fn(&mut T) + Sync) {
    let half = items.len().div_ceil(2).max(1);
    std::thread::scope(|scope| {
        for part in items.chunks_mut(half) {
            scope.spawn(|| part.iter_mut().for_each(&work));
        }
    });
}

/// Says what a test counted.
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

/// The free ranges that dumpe2fs lists, in bytes.
pub(crate) fn dumpe2fs(image: &Path) -> Vec<Span> {
    let text = must(60, "dumpe2fs", &[image.to_str().unwrap()]);
    let number = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split(':').nth(1)?.trim().parse::<u64>().ok()
    };
    let size = number("Block size:").unwrap();
    let blocks = number("Block count:").unwrap();
    let cluster = number("Cluster size:").map_or(1, |bytes| bytes / size);
    let mut list: Vec<Span> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in line.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
            // With bigalloc, a range ends at the first block of its last cluster.
            let end = (last + cluster).min(blocks);
            match list.last_mut() {
                Some(span) if span.end() == first * size => {
                    *span = Span::between(span.offset(), end * size);
                }
                _ => list.push(Span::between(first * size, end * size)),
            }
        }
    }
    list
}
