//! A borrowed disk in the kernel, made ready for use: swap space, a file system, a place to mount it,
//! the state of a disk; and all of that undone.

use super::place::key;
use super::state_record::{StateRecord, StateStage};
use block::{BLOCK, CopyOptions, Device, Durability, Error, ErrorKind, Result, Span};
use engine::home::Home;
use formats::{Format, OpenOptions};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use transient::Plan;
use transient::dm::{Mapped, Mapper, Purpose};

/// What is compared at a time when state is written back, in bytes.
const PIECE: u64 = 1 << 20;

/// How often the removal of a disk is tried while it is in use, and the time between two attempts: those of
/// `dmsetup remove --retry`.
const REMOVAL_ATTEMPTS: u32 = 25;
const REMOVAL_PAUSE: Duration = Duration::from_millis(200);

/// The file systems that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewFileSystem {
    /// Without reserved blocks, its tables made ready in the background
    Ext4,
    /// XFS
    Xfs,
}

/// What is to become of a borrowed disk.
#[derive(Debug, Default)]
pub struct KernelUse {
    /// Bytes of swap space.
    pub swap: Option<u64>,
    /// The file system that is made.
    pub make: Option<NewFileSystem>,
    /// Where it is mounted.
    pub mount: Option<PathBuf>,
}

/// The state that a borrowed disk starts with.
pub struct NewState<'a> {
    /// What it is copied from.
    pub device: &'a dyn Device,
    /// Where it goes back to at the end; `None` when it does not.
    pub record: Option<StateRecord>,
}

/// Refuses the name of a borrowed disk that is up, or what is left of one.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the name is taken; any error from the kernel.
pub async fn must_be_free(name: &str) -> Result<()> {
    let name = name.to_owned();
    block::offload(move || Mapper::open()?.must_be_free(&name)).await
}

/// Gives a disk of `size` bytes to the kernel and makes it ready. Nothing is left of it when that
/// fails.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the name is taken; any error from the kernel and from the tools.
pub async fn up(
    home: &Home,
    name: &str,
    plan: Plan,
    size: u64,
    setup: &KernelUse,
    state: Option<NewState<'_>>,
) -> Result<Mapped> {
    must_be_free(name).await?;
    // In place of what an earlier disk of this name left, when the machine stopped under it. The record is there
    // before the disk is: no `down` can meet a disk that carries a state and does not say so.
    match state.as_ref().and_then(|state| state.record.as_ref()) {
        Some(record) => record.save(home, name)?,
        None => StateRecord::remove(home, name)?,
    }
    let made = make(home, name, plan, size, setup, state).await;
    if made.is_err() && must_be_free(name).await.is_ok() {
        // One that stays is of no disk.
        let _ = StateRecord::remove(home, name);
    }
    made
}

async fn make(
    home: &Home,
    name: &str,
    plan: Plan,
    size: u64,
    setup: &KernelUse,
    state: Option<NewState<'_>>,
) -> Result<Mapped> {
    let own = name.to_owned();
    let mark = state.as_ref().and_then(|state| Some(state.record.as_ref()?.mark.clone()));
    let mapped =
        block::offload(move || Mapper::open()?.create(&own, mark.as_deref(), plan, size, &key()?))
            .await?;
    let made = async {
        let mapped = match setup.swap {
            Some(swap) => block::offload(move || Mapper::open()?.carve(&mapped.name, swap)).await?,
            None => mapped,
        };
        if let Err(error) = prepare(home, &mapped, setup, state).await {
            // What was mounted or switched on is taken back.
            let _ = stop_users(&mapped).await;
            return Err(error);
        }
        Ok(mapped)
    };
    let made = made.await;
    if made.is_err() {
        // A disk that stays all the same shows in `borrow status`.
        let _ = remove(name).await;
    }
    made
}

/// Takes a borrowed disk that nobody uses any more, or what is left of it, down. udev looks at each node whose last
/// writer has just closed it, and has it open meanwhile: that ends by itself.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) while it is in use; any error from the kernel.
pub async fn remove(name: &str) -> Result<()> {
    while_busy(|| {
        let name = name.to_owned();
        block::offload(move || Mapper::open()?.remove(&name))
    })
    .await
}

/// Tries again for a while as long as the kernel says busy.
async fn while_busy<F: Future<Output = Result<()>>>(mut attempt: impl FnMut() -> F) -> Result<()> {
    for _ in 1..REMOVAL_ATTEMPTS {
        match attempt().await {
            Err(e) if e.kind() == ErrorKind::Conflict => tokio::time::sleep(REMOVAL_PAUSE).await,
            done => return done,
        }
    }
    attempt().await
}

async fn prepare(
    home: &Home,
    mapped: &Mapped,
    setup: &KernelUse,
    state: Option<NewState<'_>>,
) -> Result<()> {
    let (files, _) = mapped.files();
    settle_nodes(mapped).await?;
    if let Some(state) = state {
        let place = open(files).await?;
        block::copy(state.device, &*place, CopyOptions::default(), &|_| {}).await?;
        // Before anybody may change it.
        if let Some(mut record) = state.record {
            record.stage = StateStage::InUse;
            record.save(home, &mapped.name)?;
        }
    }
    if let Some(part) = mapped.swap() {
        tool("mkswap", &[part.node.as_os_str()]).await?;
        tool("swapon", &[part.node.as_os_str()]).await?;
    }
    if let Some(kind) = setup.make {
        let (program, options) = match kind {
            // What is left for later needs no care: after a crash nobody can read any of it.
            NewFileSystem::Ext4 => {
                ("mkfs.ext4", "-q -F -m 0 -E nodiscard,lazy_itable_init=1,lazy_journal_init=1")
            }
            NewFileSystem::Xfs => ("mkfs.xfs", "-q -f -K"),
        };
        let mut args: Vec<&OsStr> = options.split(' ').map(OsStr::new).collect();
        args.push(files.as_os_str());
        tool(program, &args).await?;
    }
    if let Some(place) = &setup.mount {
        tool("mount", &[files.as_os_str(), place.as_os_str()]).await?;
    }
    Ok(())
}

/// Switches swap space off and unmounts, wherever it is mounted.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when a file there is in use.
pub async fn stop_users(mapped: &Mapped) -> Result<()> {
    let devices: BTreeSet<u64> =
        mapped.parts.iter().map(|part| part.device).chain(std::iter::once(mapped.device)).collect();
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    for path in swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
        if number(Path::new(path)).is_some_and(|device| devices.contains(&device)) {
            tool("swapoff", &[OsStr::new(path)]).await?;
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // What is mounted on top goes first.
    for (device, place) in mounts.lines().rev().filter_map(mounted) {
        if devices.contains(&device) {
            tool("umount", &[place.as_os_str()])
                .await
                .map_err(|e| Error::conflict(format!("{e}; end what uses it, then try again")))?;
        }
    }
    Ok(())
}

/// The device and the place of a line of mountinfo.
fn mounted(line: &str) -> Option<(u64, PathBuf)> {
    let mut fields = line.split(' ');
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    Some((device, PathBuf::from(unescape(fields.nth(1)?))))
}

/// Undoes the kernel's `\040` and the like.
fn unescape(text: &str) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    std::ffi::OsString::from_vec(bytes)
}

fn number(path: &Path) -> Option<u64> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let meta = std::fs::metadata(path).ok()?;
    meta.file_type().is_block_device().then(|| meta.rdev())
}

/// Writes to `state` what is different on the borrowed disk; returns the bytes written. The record says when all of
/// it went back.
///
/// # Errors
/// Any error from either, and from the home; the borrowed disk still has all of it.
pub async fn write_back(
    home: &Home,
    mapped: &Mapped,
    mut record: StateRecord,
    state: &dyn Device,
) -> Result<u64> {
    let (node, offset) = place_of_state(mapped, &record)?;
    settle_nodes(mapped).await?;
    let place = open(node).await?;
    let written = bring_back(&*place, offset, state, &mut record).await?;
    record.save(home, &mapped.name)?;
    Ok(written)
}

/// The node that has the state, and where on it that begins: the part that was made for it, or the same bytes of the
/// whole disk when a `down` was refused after it had removed the parts.
fn place_of_state<'a>(mapped: &'a Mapped, record: &StateRecord) -> Result<(&'a Path, u64)> {
    let start = match mapped.part(Purpose::Files) {
        // Its end is the whole disk's.
        Some(part) => mapped.size.checked_sub(part.size),
        None => Some(record.offset),
    };
    let end = record.offset.checked_add(record.size);
    if start != Some(record.offset) || end.is_none_or(|end| end > mapped.size) {
        return Err(Error::corrupt(format!(
            "the {} bytes of state at {} do not lie there on {}, which has {}",
            record.size, record.offset, mapped.name, mapped.size
        )));
    }
    Ok(match mapped.part(Purpose::Files) {
        Some(part) => (&part.node, 0),
        None => (&mapped.node, record.offset),
    })
}

/// Writes to `state` what is different at `offset` of `place`; returns the bytes written.
///
/// The kernel does not say what was changed, so both are read. What went back once is not written a second time
/// unless it was changed since: the source may have been used meanwhile.
async fn bring_back(
    place: &dyn Device,
    offset: u64,
    state: &dyn Device,
    record: &mut StateRecord,
) -> Result<u64> {
    if let StateStage::WrittenBack(before) = &record.stage
        && *before == compare(place, offset, state.size(), None).await?.0
    {
        return Ok(0);
    }
    let (hash, written) = compare(place, offset, state.size(), Some(state)).await?;
    state.flush().await?;
    record.stage = StateStage::WrittenBack(hash);
    Ok(written)
}

/// Reads `size` bytes at `offset` of `place`, and writes what is different to `state`, if that is given. Returns their
/// hash, and the bytes written.
async fn compare(
    place: &dyn Device,
    offset: u64,
    size: u64,
    state: Option<&dyn Device>,
) -> Result<(String, u64)> {
    let mut hash = blake3::Hasher::new();
    let mut written = 0;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let grain = state.map_or(BLOCK, |state| u64::from(state.limits().minimum).max(BLOCK));
    for piece in Span::whole(size).pieces(PIECE) {
        ours.resize(piece.len() as usize, 0);
        place.read(Span::between(offset + piece.offset(), offset + piece.end()), &mut ours).await?;
        hash.update(&ours);
        let Some(state) = state else { continue };
        theirs.resize(piece.len() as usize, 0);
        state.read(piece, &mut theirs).await?;
        for changed in differences(piece, &ours, &theirs, grain) {
            let data = &ours[changed.index_in(piece)];
            state.write(changed, data, Durability::Buffered).await?;
            written += changed.len();
        }
    }
    Ok((hash.finalize().to_hex().to_string(), written))
}

/// Runs of blocks of `grain` bytes of `piece` that differ.
fn differences(piece: Span, ours: &[u8], theirs: &[u8], grain: u64) -> Vec<Span> {
    let mut runs: Vec<Span> = Vec::new();
    for block in piece.pieces(grain) {
        let place = block.index_in(piece);
        if ours[place.clone()] != theirs[place] {
            match runs.last_mut() {
                Some(last) if last.end() == block.offset() => {
                    *last = Span::between(last.offset(), block.end());
                }
                _ => runs.push(block),
            }
        }
    }
    runs
}

/// Has no node of the disk lead to another one when it is opened next.
async fn settle_nodes(mapped: &Mapped) -> Result<()> {
    let mapped = mapped.clone();
    block::offload(move || Mapper::open()?.settle_nodes(&mapped)).await
}

async fn open(node: &Path) -> Result<Arc<dyn Device>> {
    let options =
        OpenOptions { format: Some(Format::Raw), read_only: false, scratch: std::env::temp_dir() };
    formats::open(node, options).await
}

/// Runs another program to its end.
async fn tool(program: &str, args: &[&OsStr]) -> Result<()> {
    // Where they are installed does not depend on who calls.
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.args(args).env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null());
    let output = command.output().await.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Error::not_found(format!("there is no {program}; install it"))
        }
        _ => Error::io(program, e),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect::<String>();
    Err(Error::unavailable(format!("{program} failed ({}): {text}", output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Fault, Operation, ScriptedDevice};
    use transient::dm::Carved;

    #[test]
    fn a_line_of_mountinfo_gives_the_device_and_the_place() {
        let line = r"36 35 253:5 / /mnt/a\040b rw,noatime shared:1 - ext4 /dev/mapper/x rw";
        let (device, place) = mounted(line).unwrap();
        assert_eq!(device, rustix::fs::makedev(253, 5));
        assert_eq!(place, Path::new("/mnt/a b"));
        for broken in ["", "36 35", "36 35 x:y / /mnt", "36 35 253 / /mnt"] {
            assert_eq!(mounted(broken), None);
        }
        assert_eq!(unescape(r"a\04"), r"a\04");
        assert_eq!(unescape(r"a\134b"), r"a\b");
    }

    #[test]
    fn only_blocks_that_differ_are_written_back() {
        let piece = Span::between(1 << 20, (1 << 20) + 5 * 4096 + 100);
        let ours = vec![1; piece.len() as usize];
        let mut theirs = ours.clone();
        assert_eq!(differences(piece, &ours, &theirs, BLOCK), []);
        for at in [4096, 8191, 8192, 5 * 4096 + 99] {
            theirs[at] = 2;
        }
        let start = piece.offset();
        let expected = [
            Span::between(start + 4096, start + 3 * 4096),
            Span::between(start + 5 * 4096, piece.end()),
        ];
        assert_eq!(differences(piece, &ours, &theirs, BLOCK), expected);
    }

    #[tokio::test]
    async fn a_source_of_larger_blocks_is_written_in_whole_ones() {
        let (disk, source, mut record) = carried();
        let limits = block::Limits { minimum: 16 << 10, preferred: 16 << 10, maximum: 1 << 20 };
        let plan = |operation: Operation| match operation.span() {
            Some(span) if !span.is_aligned(16 << 10) && span.end() != STATE => {
                Fault::Fail(ErrorKind::Invalid)
            }
            _ => Fault::None,
        };
        let source = ScriptedDevice::new(source, plan).with_limits(limits);
        write(&disk, SWAP + (32 << 10) + 4096, 0xaa).await;
        write(&disk, SWAP + STATE - 4096, 0xbb).await;
        let written = bring_back(&disk, SWAP, &source, &mut record).await.unwrap();
        assert_eq!(written, (16 << 10) + 12_288);
        let carried = &disk.to_vec()[SWAP as usize..(SWAP + STATE) as usize];
        assert!(source.inner().to_vec() == carried);
    }

    #[tokio::test(start_paused = true)]
    async fn a_removal_waits_for_who_has_the_disk_for_a_moment_and_not_for_ever() {
        let mut busy = 3;
        let removed = while_busy(|| {
            busy -= 1;
            std::future::ready(if busy == 0 { Ok(()) } else { Err(Error::conflict("busy")) })
        });
        removed.await.unwrap();
        assert_eq!(busy, 0);
        let mut attempts = 0;
        let held = while_busy(|| {
            attempts += 1;
            std::future::ready(Err(Error::conflict("busy")))
        });
        assert_eq!(held.await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(attempts, REMOVAL_ATTEMPTS);
        let mut attempts = 0;
        let denied = while_busy(|| {
            attempts += 1;
            std::future::ready(Err(Error::denied("no")))
        });
        assert_eq!((denied.await.unwrap_err().kind(), attempts), (ErrorKind::Denied, 1));
    }

    const SWAP: u64 = 64 << 10;
    const STATE: u64 = (1 << 20) + 12_288;

    /// A borrowed disk that begins with swap space and carries a state, its source, and its record.
    fn carried() -> (block::Memory, block::Memory, StateRecord) {
        let mut disk = vec![0xdd; (SWAP + STATE + 4096) as usize];
        let state: Vec<u8> = (0..STATE).map(|at| (at / 4096) as u8).collect();
        disk[SWAP as usize..(SWAP + STATE) as usize].copy_from_slice(&state);
        let record = StateRecord {
            mark: "0123456789abcdef".to_owned(),
            source: "nbd://lab/alice".to_owned(),
            identity: None,
            format: None,
            size: STATE,
            offset: SWAP,
            stage: StateStage::InUse,
        };
        (disk.into(), state.into(), record)
    }

    async fn write(device: &dyn Device, at: u64, byte: u8) {
        device
            .write(Span::between(at, at + 4096), &[byte; 4096], Durability::Buffered)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_state_goes_back_from_where_it_lies_and_once() {
        let (disk, source, mut record) = carried();
        write(&disk, SWAP + (1 << 20), 0xaa).await;
        assert_eq!(bring_back(&disk, SWAP, &source, &mut record).await.unwrap(), 4096);
        let end = (SWAP + STATE) as usize;
        assert!(source.to_vec() == disk.to_vec()[SWAP as usize..end], "it is the state");
        // The source is used again before a second `down` ends what the first one could not.
        write(&source, 0, 0xbb).await;
        let used = source.to_vec();
        assert_eq!(bring_back(&disk, SWAP, &source, &mut record).await.unwrap(), 0);
        assert!(source.to_vec() == used, "what went back is not written a second time");
        // Or the disk is.
        write(&disk, SWAP + 4096, 0xcc).await;
        assert_eq!(bring_back(&disk, SWAP, &source, &mut record).await.unwrap(), 8192);
        assert!(source.to_vec() == disk.to_vec()[SWAP as usize..end], "it is the state");
    }

    #[test]
    fn a_state_is_found_on_its_part_and_on_the_whole_disk_without_it() {
        let (.., record) = carried();
        let part = |purpose, size| Carved {
            purpose,
            node: PathBuf::from(format!("/dev/mapper/x-{}", Purpose::as_str(purpose))),
            device: 8,
            size,
            users: 0,
        };
        let size = SWAP + STATE + 4096;
        let carved = Mapped {
            name: "x".to_owned(),
            node: PathBuf::from("/dev/mapper/x"),
            size,
            users: 0,
            lent: Vec::new(),
            device: 7,
            parts: vec![part(Purpose::Swap, SWAP), part(Purpose::Files, size - SWAP)],
            remnant: false,
            state: Some(record.mark.clone()),
        };
        let found = place_of_state(&carved, &record).unwrap();
        assert_eq!(found, (Path::new("/dev/mapper/x-files"), 0));
        // A `down` was refused after it had removed the parts.
        let whole = Mapped { parts: Vec::new(), ..carved.clone() };
        assert_eq!(place_of_state(&whole, &record).unwrap(), (Path::new("/dev/mapper/x"), SWAP));
        let other = vec![part(Purpose::Files, size - SWAP - 4096)];
        for wrong in
            [Mapped { size: SWAP + STATE - 1, ..whole.clone() }, Mapped { parts: other, ..carved }]
        {
            let error = place_of_state(&wrong, &record).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{wrong:?}");
        }
    }
}
