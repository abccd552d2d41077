//! Which files a system swaps to, by its own configuration.

use std::collections::BTreeSet;

/// Where installers put swap files, whatever the configuration says.
const USUAL: [&str; 4] = ["/swapfile", "/swap.img", "/swap/swapfile", "/swapfile1"];
/// No more than these are looked for on a machine.
const MOST: usize = 1024;

/// Paths that swap files of one machine may have on any of its file systems.
#[derive(Debug)]
pub(crate) struct SwapFiles(BTreeSet<String>);

impl SwapFiles {
    /// The usual ones.
    pub(crate) fn new() -> Self {
        Self(USUAL.iter().map(|path| (*path).to_owned()).collect())
    }

    /// Adds a path of the running system. Where the file systems were mounted that it leads through is
    /// not known, so it may be any end of it on any of them.
    pub(crate) fn add(&mut self, path: &str) {
        let slashes = path.match_indices('/').map(|(at, _)| at);
        for end in slashes.map(|at| &path[at..]).filter(|end| end.len() > 1) {
            if self.0.len() < MOST {
                self.0.insert(end.to_owned());
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The swap files of a file system table (`fstab(5)`).
pub(crate) fn listed_in_table(table: &str) -> impl Iterator<Item = String> + '_ {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (device, kind) = (fields.next()?, fields.nth(1)?);
        (kind == "swap").then(|| unescaped(device)).filter(|path| is_file(path))
    })
}

/// The swap file of a unit of systemd (`systemd.swap(5)`).
pub(crate) fn listed_in_unit(unit: &str) -> Option<String> {
    let values = unit.lines().filter_map(|line| line.trim().strip_prefix("What"));
    let value = values.filter_map(|rest| rest.trim_start().strip_prefix('=')).next_back()?;
    Some(value.trim().trim_matches('"').to_owned()).filter(|path| is_file(path))
}

/// Whether a file of this name is a unit that swaps.
pub(crate) fn is_unit(name: &str) -> bool {
    name.ends_with(".swap")
}

fn is_file(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("/dev/")
}

/// A field with its octal escapes (`\040` is a blank) resolved.
fn unescaped(field: &str) -> String {
    let bytes = field.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let number =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(number.unwrap_or(bytes[at]));
        at += if number.is_some() { 4 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_files_are_those_lines_whose_type_is_swap_and_which_name_no_device() {
        let table = "# comment\nUUID=1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n\
                     /dev/sda2 none swap sw 0 0\n/a/b\tswap\tswap\n/x\n\
                     /my\\040swap\\134file none swap sw\n/tail\\04 none swap\n";
        let listed: Vec<String> = listed_in_table(table).collect();
        assert_eq!(listed, ["/swapfile", "/a/b", "/my swap\\file", "/tail\\04"]);
    }

    #[test]
    fn a_unit_names_its_swap_file() {
        assert_eq!(
            listed_in_unit("[Swap]\nWhat = /var/s\nPriority=1\n").as_deref(),
            Some("/var/s")
        );
        assert_eq!(listed_in_unit("[Swap]\nWhat=/dev/sda1\n"), None);
        assert_eq!(listed_in_unit("[Unit]\nWhatever=1\n"), None);
    }

    #[test]
    fn a_path_may_be_any_end_of_it_on_a_file_system() {
        let mut files = SwapFiles(BTreeSet::new());
        files.add("/mnt/data/swap");
        assert_eq!(files.iter().collect::<Vec<_>>(), ["/data/swap", "/mnt/data/swap", "/swap"]);
        for i in 0..2 * MOST {
            files.add(&format!("/{i}"));
        }
        assert_eq!(files.len(), MOST);
    }
}
