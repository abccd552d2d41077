//! Guest memory as a file on FUSE: QEMU maps it, a page comes when the guest touches it, and what the guest
//! changes comes back by the kernel's write-back.
//!
//! Reads that need the store, and writes that wait for room on the local disk, are answered by tasks; the thread
//! that takes the kernel's requests never waits for either, so that one page that is slow keeps no other waiting.

use crate::{GuestRam, PAGE};
use block::{Error, Result, Span};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, Session,
    WriteFlags,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The name of the file.
const FILE: &str = "memory";
const ROOT_NODE: INodeNo = INodeNo(1);
const FILE_NODE: INodeNo = INodeNo(2);
/// Attributes never change.
const FOR_LONG: Duration = Duration::from_secs(24 * 3600);
/// Threads that take the kernel's requests: one writes to the local file while another one hands on reads.
const THREADS: usize = 2;

/// A mounted memory. It is unmounted when this is dropped; end QEMU before.
#[derive(Debug)]
pub struct MountedRam {
    directory: PathBuf,
    session: Option<BackgroundSession>,
    _reads: JoinSet<()>,
}

/// A request that has to wait.
enum Wait {
    /// For the store.
    Read { span: Span, reply: ReplyData },
    /// For room on the local disk.
    Write { span: Span, data: Vec<u8>, reply: ReplyWrite },
}

impl MountedRam {
    /// Mounts `ram` at `directory`, which is made.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) where FUSE cannot be used, with the reason.
    pub fn new(directory: &Path, ram: Arc<GuestRam>) -> Result<Self> {
        // What a keeper that was killed left mounted.
        detach(directory);
        std::fs::create_dir_all(directory).map_err(|e| Error::io(directory.display(), e))?;
        let (waits, asked) = mpsc::unbounded_channel();
        let mut reads = JoinSet::new();
        reads.spawn(answer(Arc::clone(&ram), asked));
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("sojourn-vm".into()),
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoExec,
        ];
        config.n_threads = Some(THREADS);
        let session =
            Session::new(RamFiles { ram, waits }, directory, &config).and_then(Session::spawn);
        let session = session.map_err(|e| {
            Error::unsupported(format!(
                "FUSE cannot be used here: mounting {} failed: {e}",
                directory.display()
            ))
        })?;
        Ok(Self { directory: directory.to_owned(), session: Some(session), _reads: reads })
    }

    /// The file that is the memory.
    pub fn file(&self) -> PathBuf {
        self.directory.join(FILE)
    }
}

/// Has the kernel write back what the guest changed in its memory, a file on FUSE.
///
/// Another process waits for it (`sync` of coreutils). A thread of this one that waits in the kernel for
/// this one's own file system could never end if the process were killed: the kernel does not interrupt it,
/// and gives it up only when the process, which waits for its threads, has ended.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) with the program's reason, when not all was written back.
pub async fn write_back(file: &Path) -> Result<()> {
    let done =
        Command::new("sync").arg(file).stdin(Stdio::null()).kill_on_drop(true).output().await;
    let done = done.map_err(|e| Error::io("cannot run sync", e))?;
    if done.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(Error::unavailable(format!(
        "the guest's memory cannot be written back: {why}; see the keeper's log"
    )))
}

impl Drop for MountedRam {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && session.umount_and_join().is_err()
        {
            detach(&self.directory);
        }
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// Unmounts what a process that was killed left mounted at a directory.
pub fn detach(directory: &Path) {
    let dead = |e: std::io::Error| e.raw_os_error() == Some(libc::ENOTCONN);
    if std::fs::metadata(directory).err().is_some_and(dead) {
        let _ = std::process::Command::new("fusermount3")
            .args(["-u", "-z", "-q"])
            .arg(directory)
            .stderr(Stdio::null())
            .status();
    }
}

/// Answers the requests that wait, each in a task.
async fn answer(ram: Arc<GuestRam>, mut asked: mpsc::UnboundedReceiver<Wait>) {
    let mut running = JoinSet::new();
    while let Some(wait) = asked.recv().await {
        while running.try_join_next().is_some() {}
        let ram = Arc::clone(&ram);
        running.spawn(async move {
            match wait {
                Wait::Read { span, reply } => read(&ram, span, reply).await,
                Wait::Write { span, data, reply } => write(&ram, span, &data, reply).await,
            }
        });
    }
}

async fn read(ram: &GuestRam, span: Span, reply: ReplyData) {
    let mut buf = vec![0; span.len() as usize];
    match ram.read_when_it_can_be_had(span, &mut buf).await {
        Ok(()) => reply.data(&buf),
        Err(error) => {
            // The guest cannot go on without this page: QEMU gets a bus error.
            tracing::error!(offset = span.offset(), %error, "guest memory cannot be read");
            reply.error(Errno::EIO);
        }
    }
}

async fn write(ram: &GuestRam, span: Span, data: &[u8], reply: ReplyWrite) {
    match ram.write_when_there_is_room(span, data).await {
        Ok(()) => reply.written(data.len() as u32),
        Err(error) => {
            tracing::error!(offset = span.offset(), %error, "guest memory cannot be written back");
            reply.error(Errno::EIO);
        }
    }
}

/// A directory with one file.
struct RamFiles {
    ram: Arc<GuestRam>,
    waits: mpsc::UnboundedSender<Wait>,
}

impl RamFiles {
    fn attributes(&self, node: INodeNo) -> FileAttr {
        let is_file = node == FILE_NODE;
        let size = if is_file { self.ram.size() } else { 0 };
        FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: PAGE as u32,
            flags: 0,
        }
    }

    /// The bytes of a request, in whole pages inside the memory.
    fn span(&self, offset: u64, len: u64) -> Option<Span> {
        let len = len.min(self.ram.size().checked_sub(offset)?);
        let span = Span::within(offset, len, self.ram.size()).ok()?;
        (offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE)).then_some(span)
    }
}

impl Filesystem for RamFiles {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // One page at a time: a whole extent comes into the cache with it, and the kernel's read-around
        // would be of pages that nobody asked for.
        let _ = config.set_max_readahead(1);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == ROOT_NODE && name == FILE {
            reply.entry(&FOR_LONG, &self.attributes(FILE_NODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match node {
            ROOT_NODE | FILE_NODE => reply.attr(&FOR_LONG, &self.attributes(node)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    // QEMU sets the size, which is what it is already; the kernel sets times at write-back.
    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if node == FILE_NODE && size.is_none_or(|size| size == self.ram.size()) {
            reply.attr(&FOR_LONG, &self.attributes(node));
        } else {
            reply.error(Errno::EPERM);
        }
    }

    fn open(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match node {
            FILE_NODE => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            _ => reply.error(Errno::EISDIR),
        }
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
        let Some(span) = self.span(offset, size.into()) else {
            return reply.error(Errno::EINVAL);
        };
        let mut buf = vec![0; span.len() as usize];
        match self.ram.try_read(span, &mut buf) {
            Ok(true) => reply.data(&buf),
            // When nobody takes it any more, the reply is dropped, which answers with an error.
            Ok(false) => drop(self.waits.send(Wait::Read { span, reply })),
            Err(error) => {
                tracing::error!(offset, %error, "guest memory cannot be read");
                reply.error(Errno::EIO);
            }
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
        let span =
            self.span(offset, data.len() as u64).filter(|span| span.len() == data.len() as u64);
        let Some(span) = span else { return reply.error(Errno::EINVAL) };
        match self.ram.write(span, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => drop(self.waits.send(Wait::Write { span, data: data.to_vec(), reply })),
        }
    }

    // The kernel asks for security labels; there are none.
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // The kernel wrote back before it asked. Nobody needs the local file after a crash.
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [
            (ROOT_NODE, FileType::Directory, "."),
            (ROOT_NODE, FileType::Directory, ".."),
            (FILE_NODE, FileType::RegularFile, FILE),
        ];
        for (index, (node, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(node, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_written_through_the_file_comes_back_as_changed_pages() {
        let dir = tempfile::tempdir().unwrap();
        let ram = GuestRam::new(dir.path(), 1 << 20, None).unwrap();
        let mounted = match MountedRam::new(&dir.path().join("ram"), Arc::clone(&ram)) {
            Ok(mounted) => mounted,
            Err(e) if e.kind() == block::ErrorKind::Unsupported => return, // no FUSE here
            Err(e) => panic!("{e}"),
        };
        let path = mounted.file();
        let write = move || {
            let file = File::options().read(true).write(true).open(&path).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 1 << 20);
            file.write_all_at(&[7; 4096], 8192).unwrap();
            Ok(file)
        };
        let file = block::offload(write).await.unwrap();
        write_back(&mounted.file()).await.unwrap();
        let read = move || {
            let mut buf = [1; 4096];
            file.read_exact_at(&mut buf, 8192).unwrap();
            assert_eq!(buf, [7; 4096]);
            file.read_exact_at(&mut buf, 0).unwrap();
            assert_eq!(buf, [0; 4096]);
            Ok(())
        };
        block::offload(read).await.unwrap();
        assert_eq!(ram.written(), 4096);
        let directory = dir.path().join("ram");
        let unmount = move || {
            drop(mounted);
            Ok(())
        };
        block::offload(unmount).await.unwrap();
        assert!(!directory.exists());
    }
}
