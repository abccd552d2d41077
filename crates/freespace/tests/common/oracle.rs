//! What other people's tools say of a file system: the judges of what its reader yields.

use super::{must, run};
use block::Span;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The numbers in a line of text.
pub(crate) fn numbers(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Sorts and joins ranges that touch.
pub(crate) fn joined(mut list: Vec<Span>) -> Vec<Span> {
    list.sort_unstable();
    let mut whole: Vec<Span> = Vec::new();
    for span in list {
        match whole.last_mut() {
            Some(last) if last.end() == span.offset() => {
                *last = Span::between(last.offset(), span.end());
            }
            _ => whole.push(span),
        }
    }
    whole
}

/// The free ranges of a bitmap in which a set bit is a unit in use.
pub(crate) fn clear_bits(map: &[u8], count: u64, unit: u64) -> Vec<Span> {
    let clear = (0..count).filter(|bit| map[(bit / 8) as usize] >> (bit % 8) & 1 == 0);
    joined(clear.map(|bit| Span::between(bit * unit, (bit + 1) * unit)).collect())
}

/// What mtools says that the files of a FAT use, as ranges of clusters.
pub(crate) fn clusters_of_files(image: &Path) -> Vec<(u64, u64)> {
    let all = ["-/", "-b", "-a", "-i", text(image), "::/"];
    let listed = run(60, "mdir", &all);
    // So it says that the root directory is empty.
    if String::from_utf8_lossy(&listed.stderr).contains("File \"::/\" not found") {
        return Vec::new();
    }
    let list = must(60, "mdir", &all);
    let mut ranges = Vec::new();
    for name in list.lines().map(|line| line.trim_end_matches('/')) {
        let shown = must(60, "mshowfat", &["-i", text(image), name]);
        for range in shown.split('<').skip(1) {
            let range = numbers(range.split('>').next().unwrap());
            ranges.push((range[0], *range.last().unwrap()));
        }
    }
    ranges
}

/// The free blocks that xfs_db lists, in bytes; among them those that are kept for the trees, and
/// how many these are.
pub(crate) fn xfs_db(image: &Path) -> (Vec<Span>, u64) {
    let print = |what: &str| {
        must(60, "xfs_db", &["-r", "-c", "sb 0", "-c", &format!("p {what}"), text(image)])
    };
    let [block, group, groups] =
        ["blocksize", "agblocks", "agcount"].map(|what| numbers(&print(what))[0]);
    let mut list = Vec::new();
    for line in must(60, "xfs_db", &["-r", "-c", "freesp -d", text(image)]).lines().skip(1) {
        let line = numbers(line);
        // The rows of the histogram behind the list have more columns.
        if let [number, start, len] = line[..] {
            let start = (number * group + start) * block;
            list.push(Span::between(start, start + len * block));
        }
    }
    let kept = (0..groups).map(|number| {
        let count = must(
            60,
            "xfs_db",
            &["-r", "-c", &format!("agf {number}"), "-c", "p flcount", text(image)],
        );
        numbers(&count)[0] * block
    });
    (list, kept.sum())
}

/// What `btrfs inspect-internal dump-tree` says is in use: every extent at every place of its
/// chunk, the first MiB, and the copies of the superblock.
pub(crate) fn btrfs_in_use(image: &Path, node: u64) -> Vec<Span> {
    let dump = |tree: &str| {
        must(120, "btrfs", &["inspect-internal", "dump-tree", "-t", tree, text(image)])
    };
    // Logical start, length, places.
    let mut chunks: Vec<(u64, u64, Vec<u64>)> = Vec::new();
    for line in dump("chunk").lines() {
        if let Some(rest) = line.split("CHUNK_ITEM ").nth(1) {
            chunks.push((numbers(rest)[0], 0, Vec::new()));
        } else if let Some(rest) = line.trim_start().strip_prefix("length ") {
            chunks.last_mut().unwrap().1 = numbers(rest)[0];
        } else if line.trim_start().starts_with("stripe ") {
            chunks.last_mut().unwrap().2.push(numbers(line)[2]);
        }
    }
    let mut used = vec![Span::whole(1 << 20), Span::between(64 << 20, (64 << 20) + 65536)];
    for line in dump("extent").lines().filter(|line| line.contains("item ")) {
        let Some(key) = line.split('(').nth(1).map(|key| key.split(')').next().unwrap()) else {
            continue;
        };
        let values = numbers(key);
        let len = if key.contains("METADATA_ITEM") {
            node
        } else if key.contains(" EXTENT_ITEM") {
            values[1]
        } else {
            continue;
        };
        let (logical, _, places) = chunks
            .iter()
            .find(|(start, size, _)| (*start..start + size).contains(&values[0]))
            .unwrap();
        used.extend(places.iter().map(|place| {
            let start = place + values[0] - logical;
            Span::between(start, start + len)
        }));
    }
    used
}

/// Sorts and joins ranges that touch or overlap.
pub(crate) fn merged(mut list: Vec<Span>) -> Vec<Span> {
    list.sort_unstable();
    let mut whole: Vec<Span> = Vec::new();
    for span in list {
        match whole.last_mut() {
            Some(last) if last.end() >= span.offset() => {
                *last = Span::between(last.offset(), last.end().max(span.end()));
            }
            _ => whole.push(span),
        }
    }
    whole
}
