//! A borrowed disk as a real block device of this machine: the kernel's device-mapper, `linear` over
//! the lent ranges and `crypt` over that.
//!
//! The kernel then does what [`Stitched`](crate::Stitched) does elsewhere, and holds the owner's
//! disks itself. Two differences: a block that was never written reads as noise, and not as zeroes;
//! and the disk stays until it is taken down or the machine stops. The key is handed over by the
//! kernel's keyring, never in a table that somebody could read.

mod host;
mod ioctl;
#[cfg(test)]
mod tests;
mod uuid;

pub use ioctl::MapTarget;

use crate::{DiskKey, Lent, Plan, Watch};
use block::{Error, ErrorKind, Result, Span};
use host::{MapperHost, ThisMachine, node_path};
use ioctl::{MapCommand, Message, SECURE_DATA, STATUS_TABLE};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::MappedIdentity;

/// Bytes of a sector in tables.
const SECTOR: u64 = 512;
/// How often a node is made while something else makes it lead elsewhere.
const NODE_ATTEMPTS: u32 = 4;
/// Room for a first try of a reply.
const ROOM: usize = 64 << 10;

/// The kernel's device-mapper.
#[derive(Debug)]
pub struct Mapper {
    host: Box<dyn MapperHost>,
}

/// A borrowed disk that the kernel holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Its name.
    pub name: String,
    /// Its block device.
    pub node: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Programs and file systems that have it open.
    pub users: u32,
    /// The lent ranges, and the device that each is on.
    pub lent: Vec<(u64, Span)>,
    /// Its number.
    pub device: u64,
    /// What it was [carved](Mapper::carve) into.
    pub parts: Vec<Carved>,
    /// Only the device below the encrypted one is left of it: an `up` or a `down` was killed. It has no key and no
    /// content, and still holds the owner's disks.
    pub remnant: bool,
    /// The mark of the state that it carries, when that goes back to where it came from.
    pub state: Option<String>,
}

impl Mapped {
    /// The block device for a file system or the state of a disk, and its size in bytes: the disk itself when it
    /// was not carved.
    pub fn files(&self) -> (&Path, u64) {
        self.part(Purpose::Files).map_or((&self.node, self.size), |part| (&part.node, part.size))
    }

    /// The part for swap space.
    pub fn swap(&self) -> Option<&Carved> {
        self.part(Purpose::Swap)
    }

    /// The part for a purpose.
    pub fn part(&self, purpose: Purpose) -> Option<&Carved> {
        self.parts.iter().find(|part| part.purpose == purpose)
    }
}

/// A part of a borrowed disk, as a block device of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carved {
    /// What it is for.
    pub purpose: Purpose,
    /// Its block device.
    pub node: PathBuf,
    /// Its number.
    pub device: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Programs and file systems that have it open.
    pub users: u32,
}

/// What a part of a borrowed disk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Swap space.
    Swap,
    /// A file system, or the state of a disk.
    Files,
}

impl Purpose {
    pub(crate) const ALL: [Self; 2] = [Self::Swap, Self::Files];

    /// The word that names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Swap => "swap",
            Self::Files => "files",
        }
    }
}

impl Mapper {
    /// Opens the control device; its node is made where no udev did.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the kernel has none,
    /// [`Denied`](ErrorKind::Denied) without the right to.
    pub fn open() -> Result<Self> {
        Ok(Self { host: Box::new(ThisMachine::open()?) })
    }

    /// Refuses the name of a borrowed disk that is up, of what is left of one, and of somebody else's device.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict).
    pub fn must_be_free(&self, name: &str) -> Result<()> {
        match self.look(name) {
            Ok(_) => {
                return Err(Error::conflict(format!(
                    "a borrowed disk {name} is up; take it down first (`sojourn borrow down {name}`), or choose \
                     another --name"
                )));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let own = [MappedIdentity::Whole { name, state: None }, MappedIdentity::Below { name }];
        for device in own.map(MappedIdentity::device_name) {
            if self.status(&device)?.is_some() {
                return Err(Error::conflict(format!(
                    "{} is a mapped device of another program; choose another --name",
                    node_path(&device).display()
                )));
            }
        }
        Ok(())
    }

    /// Makes the device `name` of `size` bytes of a plan; its identity says that it carries the state of that mark,
    /// if any. The plan's own hold of the disks is handed over: between, every file system is looked at once more.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for image files, [`Conflict`](ErrorKind::Conflict)
    /// when the name is taken or a file system has changed; any error from the kernel. Nothing is left
    /// behind.
    pub fn create(
        &self,
        name: &str,
        state: Option<&str>,
        plan: Plan,
        size: u64,
        key: &DiskKey,
    ) -> Result<Mapped> {
        let table = linear(&plan, size)?;
        self.build(MappedIdentity::Whole { name, state }, &table, size, key, || plan.release())
    }

    /// Makes a device on `table`, whose disks are free once `release` was called.
    fn build(
        &self,
        whole: MappedIdentity<'_>,
        table: &[MapTarget],
        size: u64,
        key: &DiskKey,
        release: impl FnOnce() -> Arc<Watch>,
    ) -> Result<Mapped> {
        let mut made = Vec::new();
        let built = self.fill(&mut made, whole, table, size, key, release);
        if built.is_err() {
            // Only what was made here: a device of the same name may be somebody else's.
            for device in made.iter().rev() {
                let _ = self.call(MapCommand::Remove, Message::new(device, 0, 0)?);
            }
        }
        built
    }

    /// Notes in `made` which devices it has made.
    fn fill(
        &self,
        made: &mut Vec<String>,
        whole: MappedIdentity<'_>,
        table: &[MapTarget],
        size: u64,
        key: &DiskKey,
        release: impl FnOnce() -> Arc<Watch>,
    ) -> Result<Mapped> {
        let name = &whole.device_name();
        let below = MappedIdentity::Below { name };
        self.make(below)?;
        let below = below.device_name();
        made.push(below.clone());
        // The kernel takes the disks for itself: until it has, nobody holds them. So the stamps are
        // read again after that, and before anything can be written.
        let watch = release();
        watch.expire();
        self.call(MapCommand::Load, Message::with_table(&below, 0, table)?)?;
        watch.look()?;
        let lent = self.call(MapCommand::Suspend, Message::new(&below, 0, 0)?)?;

        self.make(whole)?;
        made.push(name.clone());
        let description = format!("sojourn:{name}");
        let handed = CString::new(description.clone())
            .map_err(|_| Error::invalid("a name with a zero byte"))?;
        let _handed = self
            .host
            .hand_key(&handed, key.bytes()?)
            .map_err(|e| Error::io("cannot hand the key to the kernel's keyring", e))?;
        let (major, minor) = (rustix::fs::major(lent.device()), rustix::fs::minor(lent.device()));
        let parameters = format!(
            "aes-xts-plain64 :64:logon:{description} 0 {major}:{minor} 0 2 sector_size:4096 \
             iv_large_sectors"
        );
        let crypt =
            MapTarget { start: 0, length: size / SECTOR, kind: "crypt".to_owned(), parameters };
        self.call(MapCommand::Load, Message::with_table(name, SECURE_DATA, &[crypt])?)?;
        let ready = self.call(MapCommand::Suspend, Message::new(name, 0, 0)?)?;
        self.node(name, ready.device())?;
        self.look(name)
    }

    /// The borrowed disk `name`, or what is left of it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none of ours.
    pub fn look(&self, name: &str) -> Result<Mapped> {
        let below = MappedIdentity::Below { name };
        let mut lent = Vec::new();
        let left = self.status(&below.device_name())?;
        let left = left.filter(|status| MappedIdentity::parse(&status.uuid()) == Some(below));
        if left.is_some() {
            for target in self.table(&below.device_name())? {
                lent.push(parse_linear(&target)?);
            }
        }
        let mut state = None;
        let whole = self.status(name)?.filter(|status| {
            let uuid = status.uuid();
            let Some(MappedIdentity::Whole { name: own, state: mark }) =
                MappedIdentity::parse(&uuid)
            else {
                return false;
            };
            state = mark.map(str::to_owned);
            own == name
        });
        let (status, remnant) = match (whole, left) {
            (Some(whole), _) => (whole, false),
            (None, Some(left)) => (left, true),
            (None, None) => {
                return Err(Error::not_found(format!("no borrowed disk {name} in the kernel")));
            }
        };
        let device = if remnant { below.device_name() } else { name.to_owned() };
        let size = self.table(&device)?.iter().map(|target| target.length * SECTOR).sum();
        let node = node_path(&device);
        let parts = if remnant { Vec::new() } else { self.parts(name)? };
        let users = status.open_count().saturating_sub(parts.len() as u32)
            + parts.iter().map(|part| part.users).sum::<u32>();
        let (name, device) = (name.to_owned(), status.device());
        Ok(Mapped { name, node, size, users, lent, device, parts, remnant, state })
    }

    fn parts(&self, name: &str) -> Result<Vec<Carved>> {
        let mut parts = Vec::new();
        for purpose in Purpose::ALL {
            let identity = MappedIdentity::Part { name, purpose };
            let part = identity.device_name();
            let Some(status) = self.status(&part)? else { continue };
            if status.uuid() != identity.uuid() {
                continue;
            }
            let size = self.table(&part)?.iter().map(|target| target.length * SECTOR).sum();
            let node = node_path(&part);
            let (device, users) = (status.device(), status.open_count());
            parts.push(Carved { purpose, node, device, size, users });
        }
        Ok(parts)
    }

    /// Cuts the first `swap` bytes of the borrowed disk `name` off as swap space: both pieces become
    /// block devices of their own, `name-swap` and `name-files`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a size that is not in blocks, or leaves nothing;
    /// [`Conflict`](ErrorKind::Conflict) when a name is taken; any error from the kernel.
    pub fn carve(&self, name: &str, swap: u64) -> Result<Mapped> {
        let whole = self.look(name)?;
        if swap == 0 || swap >= whole.size || !swap.is_multiple_of(block::BLOCK) {
            return Err(Error::invalid(format!(
                "{swap} bytes of swap space cannot be cut off a borrowed disk of {}; give a multiple \
                 of 4 KiB that leaves something",
                whole.size
            )));
        }
        let (major, minor) = (rustix::fs::major(whole.device), rustix::fs::minor(whole.device));
        let pieces =
            [(Purpose::Swap, Span::whole(swap)), (Purpose::Files, Span::between(swap, whole.size))];
        for (purpose, span) in pieces {
            let part = MappedIdentity::Part { name, purpose };
            self.make(part)?;
            let part = part.device_name();
            let target = MapTarget {
                start: 0,
                length: span.len() / SECTOR,
                kind: "linear".to_owned(),
                parameters: format!("{major}:{minor} {}", span.offset() / SECTOR),
            };
            self.call(MapCommand::Load, Message::with_table(&part, 0, &[target])?)?;
            let made = self.call(MapCommand::Suspend, Message::new(&part, 0, 0)?)?;
            self.node(&part, made.device())?;
        }
        self.look(name)
    }

    /// All borrowed disks that the kernel holds, and what is left of others, by name.
    ///
    /// # Errors
    /// Any error from the kernel.
    pub fn list(&self) -> Result<Vec<Mapped>> {
        let mut ours = BTreeSet::new();
        for device in self.ask(MapCommand::List, "", 0)?.names()? {
            let Some(status) = self.status(&device)? else { continue };
            match MappedIdentity::parse(&status.uuid()) {
                Some(MappedIdentity::Whole { name, .. } | MappedIdentity::Below { name }) => {
                    ours.insert(name.to_owned());
                }
                Some(MappedIdentity::Part { .. }) | None => {}
            }
        }
        let found = ours.iter().filter_map(|name| match self.look(name) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            other => Some(other),
        });
        found.collect()
    }

    /// Takes the borrowed disk `name`, or what is left of it, down: its key is gone, and the owner's disks are
    /// free. One that failed goes on where it was.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) while it is in use.
    pub fn remove(&self, name: &str) -> Result<()> {
        let mapped = self.look(name)?;
        for part in &mapped.parts {
            let part = MappedIdentity::Part { name, purpose: part.purpose }.device_name();
            self.call(MapCommand::Remove, Message::new(&part, 0, 0)?)?;
            self.remove_node(&part)?;
        }
        if !mapped.remnant {
            self.call(MapCommand::Remove, Message::new(name, 0, 0)?)?;
            self.remove_node(name)?;
        }
        let below = MappedIdentity::Below { name }.device_name();
        self.call(MapCommand::Remove, Message::new(&below, 0, 0)?).map(drop)
    }

    /// Has the node of a mapped device lead to it: makes it where udev does not, and makes it anew where an
    /// earlier device has left one, whose number may be another disk's by now.
    fn node(&self, name: &str, device: u64) -> Result<()> {
        let failed = |e| Error::io(node_path(name).display(), e);
        // udev may do the same meanwhile.
        for _ in 0..NODE_ATTEMPTS {
            if self.host.node(name).map_err(failed)? == Some(device) {
                return Ok(());
            }
            self.remove_node(name)?;
            match self.host.make_node(name, device) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
                _ => {}
            }
        }
        Err(Error::conflict(format!(
            "{} leads to another device; remove it, then try again",
            node_path(name).display()
        )))
    }

    /// Has the nodes of a borrowed disk and of its parts lead to them; to be called right before any is opened.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when something else makes one lead elsewhere.
    pub fn settle_nodes(&self, mapped: &Mapped) -> Result<()> {
        let name = mapped.name.as_str();
        for part in &mapped.parts {
            let own = MappedIdentity::Part { name, purpose: part.purpose }.device_name();
            self.node(&own, part.device)?;
        }
        if mapped.remnant { Ok(()) } else { self.node(name, mapped.device) }
    }

    /// Removes the node of a mapped device where udev has not.
    fn remove_node(&self, name: &str) -> Result<()> {
        match self.host.remove_node(name) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(node_path(name).display(), e))
            }
            _ => Ok(()),
        }
    }

    fn make(&self, identity: MappedIdentity<'_>) -> Result<()> {
        let message = Message::new(&identity.device_name(), 0, 0)?.identity(&identity.uuid())?;
        self.call(MapCommand::Create, message).map(drop)
    }

    /// What the kernel says of a mapped device, if there is one of that name.
    fn status(&self, device: &str) -> Result<Option<Message>> {
        match self.call(MapCommand::Status, Message::new(device, 0, 0)?) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    fn table(&self, name: &str) -> Result<Vec<MapTarget>> {
        self.ask(MapCommand::Table, name, STATUS_TABLE)?.targets()
    }

    /// Asks for what may need room.
    fn ask(&self, command: MapCommand, name: &str, flags: u32) -> Result<Message> {
        let mut room = ROOM;
        loop {
            let reply = self.call(command, Message::new(name, flags, room)?)?;
            match reply.grown() {
                Some(more) => room = more,
                None => return Ok(reply),
            }
        }
    }

    fn call(&self, command: MapCommand, mut message: Message) -> Result<Message> {
        match self.host.call(command, &mut message) {
            Ok(()) => Ok(message),
            Err(e) => Err(match e.raw_os_error() {
                Some(libc::ENXIO) => Error::not_found("the kernel has no such mapped device"),
                Some(libc::EBUSY) => Error::conflict(
                    "the kernel says busy: the mapped device is in use or its name taken, or a \
                     disk below it is mounted; see `sojourn borrow status`",
                ),
                _ => Error::io(format_args!("device-mapper ({command:?})"), e),
            }),
        }
    }
}

/// The table of the lent ranges, cut at `size`.
fn linear(plan: &Plan, size: u64) -> Result<Vec<MapTarget>> {
    let devices = plan
        .disks()
        .iter()
        .map(|disk| {
            let meta = disk.file().metadata().map_err(|e| Error::io(disk.path().display(), e))?;
            if meta.file_type().is_block_device() {
                disk.must_be_writable()?;
                return Ok(format!(
                    "{}:{}",
                    rustix::fs::major(meta.rdev()),
                    rustix::fs::minor(meta.rdev())
                ));
            }
            Err(Error::unsupported(format!(
                "{} is an image file, and the kernel maps block devices only; use --as nbd",
                disk.path().display()
            )))
        })
        .collect::<Result<Vec<_>>>()?;
    if size == 0 || size > plan.capacity() || !size.is_multiple_of(block::BLOCK) {
        return Err(Error::invalid(format!(
            "a mapped disk of {size} bytes cannot be made of {} lent ones; give a multiple of 4 KiB",
            plan.capacity()
        )));
    }
    let mut table = Vec::new();
    let mut start = 0;
    for Lent { member, span } in plan.lent() {
        let length = span.len().min(size - start);
        if length == 0 {
            break;
        }
        table.push(MapTarget {
            start: start / SECTOR,
            length: length / SECTOR,
            kind: "linear".to_owned(),
            parameters: format!("{} {}", devices[*member], span.offset() / SECTOR),
        });
        start += length;
    }
    Ok(table)
}

/// The device and the range of a `linear` target.
fn parse_linear(target: &MapTarget) -> Result<(u64, Span)> {
    let parsed = (|| {
        let (device, sector) = target.parameters.split_once(' ')?;
        let (major, minor) = device.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let start = sector.parse::<u64>().ok()?.checked_mul(SECTOR)?;
        let end = start.checked_add(target.length.checked_mul(SECTOR)?)?;
        (target.kind == "linear").then(|| (device, Span::between(start, end)))
    })();
    parsed.ok_or_else(|| Error::corrupt(format!("{target:?} is not of a borrowed disk")))
}
