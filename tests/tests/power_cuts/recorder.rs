//! The recorded disk: one file on a file system of ours (FUSE), which a loop device is put on. Every
//! write, hole and flush that the kernel sends is kept, in its order.
//!
//! The server has one thread: a request is answered before the next one is taken. So what stands before
//! a flush in the record was answered before that flush, and a real disk would have had to keep it.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

const NAME: &str = "disk";
const INODE: INodeNo = INodeNo(2);
const FOREVER: Duration = Duration::from_secs(1 << 20);
/// `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE`: what is there reads as zeroes afterwards.
const ZEROING: i32 = 0x02 | 0x10;

/// What the kernel asked of the disk.
pub(crate) enum Event {
    Write { offset: u64, data: Box<[u8]> },
    Zeroes { offset: u64, length: u64 },
    Flush,
}

/// All that happened to a disk, in order. A position in it is the number of events before.
#[derive(Default)]
pub(crate) struct Record {
    events: Mutex<Vec<Event>>,
    length: AtomicUsize,
}

impl Record {
    /// How much was recorded up to now.
    pub(crate) fn position(&self) -> usize {
        self.length.load(SeqCst)
    }

    fn add(&self, event: Event) {
        let mut events = self.events.lock().expect("the record");
        events.push(event);
        self.length.store(events.len(), SeqCst);
    }

    /// Takes what was recorded.
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().expect("the record"))
    }
}

/// A recorded disk that is mounted. Dropping it ends it; nobody may use it then.
pub(crate) struct RecordedDisk {
    session: Option<BackgroundSession>,
    file: PathBuf,
    record: Arc<Record>,
}

impl RecordedDisk {
    /// Shows `content` as a file in the directory `at`, and records what is done to it.
    pub(crate) fn mount(content: File, at: &Path) -> Self {
        let size = content.metadata().expect("the disk's size").len();
        let record = Arc::new(Record::default());
        let disk = Disk { content, size, record: record.clone() };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("recorded".into())];
        let session = fuser::spawn_mount(disk, at, &config).expect("a file system of our own");
        Self { session: Some(session), file: at.join(NAME), record }
    }

    /// The disk, as a file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// What is recorded.
    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Unmounts it.
    pub(crate) fn end(mut self) {
        if let Some(session) = self.session.take() {
            session.umount_and_join().expect("the end of the recorded disk");
        }
    }
}

struct Disk {
    content: File,
    size: u64,
    record: Arc<Record>,
}

impl Disk {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let file = inode == INODE;
        FileAttr {
            ino: inode,
            size: if file { self.size } else { 0 },
            blocks: if file { self.size / 512 } else { 0 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if file { FileType::RegularFile } else { FileType::Directory },
            perm: if file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&FOREVER, &self.attributes(INODE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Nothing of it stays in the page cache: each request comes here, as large as it was.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut data = vec![0; u64::from(size).min(self.size.saturating_sub(offset)) as usize];
        match self.content.read_exact_at(&mut data, offset) {
            Ok(()) => reply.data(&data),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.content.write_all_at(data, offset) {
            Ok(()) => {
                self.record.add(Event::Write { offset, data: data.into() });
                reply.written(data.len() as u32);
            }
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & ZEROING == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match zero(&self.content, offset, length) {
            Ok(()) => {
                self.record.add(Event::Zeroes { offset, length });
                reply.ok();
            }
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.record.add(Event::Flush);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok(); // of a descriptor that is closed: no flush of the disk
    }
}

/// Makes a hole in a file.
pub(crate) fn zero(file: &File, offset: u64, length: u64) -> std::io::Result<()> {
    use rustix::fs::FallocateFlags;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, length)?)
}
