//! What boot loaders would start from a disk's parts.

use super::entry::{self, BootEntry};
use super::file_systems::FoundPart;
use super::tree::FileTree;
use super::uki::{self, UnifiedKernel};
use block::{Error, ErrorKind, Result};
use std::cmp::Ordering;
use std::ops::Range;

/// The most entries of the Boot Loader Specification that are looked at in one directory.
const MOST_ENTRIES: usize = 64;

/// Where entries of the Boot Loader Specification lie.
const ENTRIES: [&str; 2] = ["/loader/entries", "/boot/loader/entries"];
/// Where unified kernel images lie, which are such entries, too.
const UNIFIED: &str = "/EFI/Linux";
/// Where GRUB's configuration lies.
const GRUB: [&str; 4] =
    ["/boot/grub/grub.cfg", "/boot/grub2/grub.cfg", "/grub/grub.cfg", "/grub2/grub.cfg"];
/// Where kernels lie.
const DIRECTORIES: [&str; 2] = ["/boot", ""];

/// A file, or a range of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootPiece {
    /// The file.
    pub path: String,
    /// Its bytes, when it is not the whole file.
    pub range: Option<Range<u64>>,
}

/// A kernel and what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootPlan {
    /// The kernel.
    pub kernel: BootPiece,
    /// Initial RAM disks, in order.
    pub initrds: Vec<BootPiece>,
    /// The kernel's parameters.
    pub arguments: Vec<String>,
}

impl From<BootEntry> for BootPlan {
    fn from(BootEntry { kernel, initrds, arguments }: BootEntry) -> Self {
        let whole = |path| BootPiece { path, range: None };
        Self { kernel: whole(kernel), initrds: initrds.into_iter().map(whole).collect(), arguments }
    }
}

impl BootPlan {
    fn of_unified(path: &str, unified: UnifiedKernel) -> Self {
        let piece = |range| BootPiece { path: path.to_owned(), range: Some(range) };
        Self {
            kernel: piece(unified.kernel),
            initrds: unified.initrds.into_iter().map(piece).collect(),
            arguments: unified.arguments,
        }
    }
}

/// What is started, and where it lies.
pub struct FirstChoice<'a> {
    /// The number of the part.
    pub part: u32,
    /// The files of that.
    pub tree: &'a dyn FileTree,
    /// What is started.
    pub boot: BootPlan,
}

/// An entry of the Boot Loader Specification.
struct SpecifiedEntry<'a> {
    version: String,
    /// Its file.
    name: String,
    choice: FirstChoice<'a>,
}

impl SpecifiedEntry<'_> {
    fn order(&self, other: &Self) -> Ordering {
        let by_version = entry::by_version(&self.version, &other.version);
        by_version.then_with(|| entry::by_version(&self.name, &other.name))
    }
}

/// What a disk would start: the newest entry of the Boot Loader Specification, wherever that is, or else what GRUB or
/// the kernels' names say, on the first part where they do. Damage of one part matters only when nothing is found on
/// the others.
///
/// # Errors
/// Damage, and any error from reading.
pub fn first_choice(parts: &[FoundPart]) -> Result<Option<FirstChoice<'_>>> {
    let mut damage = None;
    let mut newest: Option<SpecifiedEntry<'_>> = None;
    for (part, tree) in trees(parts) {
        for candidate in passed(specified(part, tree), &mut damage)?.unwrap_or_default() {
            if newest.as_ref().is_none_or(|newest| newest.order(&candidate).is_lt()) {
                newest = Some(candidate);
            }
        }
    }
    if let Some(SpecifiedEntry { choice, .. }) = newest {
        return Ok(Some(choice));
    }
    for (part, tree) in trees(parts) {
        if let Some(entry) = passed(unspecified(tree), &mut damage)?.flatten() {
            return Ok(Some(FirstChoice { part, tree, boot: entry.into() }));
        }
    }
    damage.map_or(Ok(None), Err)
}

fn trees(parts: &[FoundPart]) -> impl Iterator<Item = (u32, &dyn FileTree)> {
    parts.iter().filter_map(|found| Some((found.part.number, found.tree()?)))
}

/// What was found; `None` for damage, the first of which is kept.
fn passed<T>(found: Result<T>, damage: &mut Option<Error>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Invalid) => {
            damage.get_or_insert(e);
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// The entries of the Boot Loader Specification in a file system.
fn specified(part: u32, tree: &dyn FileTree) -> Result<Vec<SpecifiedEntry<'_>>> {
    let mut found = Vec::new();
    for directory in ENTRIES {
        for name in names(tree, directory, ".conf")? {
            let Some(text) = text(tree, &format!("{directory}/{name}"))? else { continue };
            let Some((version, entry)) = entry::of_specification(&name, &text) else { continue };
            if is_whole(tree, &entry) {
                let choice = FirstChoice { part, tree, boot: entry.into() };
                found.push(SpecifiedEntry { version, name, choice });
            }
        }
    }
    for name in names(tree, UNIFIED, ".efi")? {
        let path = format!("{UNIFIED}/{name}");
        // A torn one, such as of an update that was interrupted, is passed over, as boot loaders do.
        let mut torn = None;
        let Some(Some(mut unified)) = passed(uki::read(tree, &path), &mut torn)? else { continue };
        let version = unified.version.take();
        let version = version.unwrap_or_else(|| name[..name.len() - ".efi".len()].to_owned());
        let choice = FirstChoice { part, tree, boot: BootPlan::of_unified(&path, unified) };
        found.push(SpecifiedEntry { version, name, choice });
    }
    Ok(found)
}

/// The names in a directory that end so, whatever their case.
fn names(tree: &dyn FileTree, directory: &str, end: &str) -> Result<Vec<String>> {
    let mut names = tree.names(directory)?;
    names.retain(|name| {
        let start = name.len().checked_sub(end.len());
        start.and_then(|at| name.get(at..)).is_some_and(|last| last.eq_ignore_ascii_case(end))
    });
    names.truncate(MOST_ENTRIES);
    Ok(names)
}

/// What is started from a file system without such entries.
fn unspecified(tree: &dyn FileTree) -> Result<Option<BootEntry>> {
    for path in GRUB {
        let Some(text) = text(tree, path)? else { continue };
        if let Some(entry) = entry::of_grub(&text).filter(|entry| is_whole(tree, entry)) {
            return Ok(Some(entry));
        }
    }
    for directory in DIRECTORIES {
        let names = tree.names(if directory.is_empty() { "/" } else { directory })?;
        let entry = entry::of_names(directory, &names);
        if let Some(entry) = entry.filter(|entry| is_whole(tree, entry)) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

fn is_whole(tree: &dyn FileTree, entry: &BootEntry) -> bool {
    tree.has(&entry.kernel) && entry.initrds.iter().all(|initrd| tree.has(initrd))
}

fn text(tree: &dyn FileTree, path: &str) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let is_there = tree.append(path, entry::LONGEST, &mut bytes)?;
    Ok(is_there.then(|| String::from_utf8_lossy(&bytes).into_owned()))
}
