//! The file system as one process sees it.

use super::bytes::PAGE;
use super::names::Node;
use super::state::{MachineState, absolute};
use crate::fs::{Creation, DirectoryEntry, File, FileSystem, FileType, Metadata, Open, OpenFile};
use crate::page_cache::PageCacheId;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file system of a [`Machine`](super::Machine) as one process sees it, until it is killed.
#[derive(Debug, Clone)]
pub struct SimulatedFs {
    machine: Arc<Mutex<MachineState>>,
    process: u64,
}

/// An open file.
#[derive(Debug)]
struct SimulatedFile {
    fs: SimulatedFs,
    node: Node,
    number: u64,
    write: bool,
}

impl SimulatedFs {
    pub(super) fn new(machine: Arc<Mutex<MachineState>>, process: u64) -> Self {
        Self { machine, process }
    }

    fn enter(&self, what: &str) -> io::Result<MutexGuard<'_, MachineState>> {
        let mut state = self.machine.lock();
        state.enter(self.process, what)?;
        Ok(state)
    }

    fn enter_changing(&self, what: &str) -> io::Result<MutexGuard<'_, MachineState>> {
        let mut state = self.machine.lock();
        state.enter_changing(self.process, what)?;
        Ok(state)
    }
}

impl FileSystem for SimulatedFs {
    fn open(&self, path: &Path, how: Open) -> io::Result<File> {
        let makes = how.creation != Creation::Never;
        let mut state = match makes {
            true => self.enter_changing("open"),
            false => self.enter("open"),
        }?;
        let node = match state.find(path) {
            Ok(_) if how.creation == Creation::New => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Ok(node) => {
                if how.write && state.is_directory(node) {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                if how.creation == Creation::Replace {
                    state.change(node, |bytes, _| bytes.set_len(0))?;
                }
                node
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && makes => {
                let key = state.place(path)?;
                state.need(1)?;
                let node = state.make(false);
                state.change_names(vec![(key, Some(node))]);
                node
            }
            Err(e) => return Err(e),
        };
        state.hold(node);
        let number = state.number();
        drop(state);
        Ok(File::other(Arc::new(SimulatedFile {
            fs: self.clone(),
            node,
            number,
            write: how.write,
        })))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let state = self.enter("read_dir")?;
        let node = state.find(path)?;
        if !state.is_directory(node) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let entry = |(name, node): (&std::ffi::OsString, Node)| DirectoryEntry {
            name: name.clone(),
            kind: if state.is_directory(node) { FileType::Directory } else { FileType::File },
        };
        Ok(state.names.within(node).map(entry).collect())
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let state = self.enter("stat")?;
        state.metadata(state.find(path)?)
    }

    fn page_cache(&self, path: &Path) -> io::Result<Option<PageCacheId>> {
        let state = self.enter("stat")?;
        state.find(path)?;
        let mut id = [0; 32];
        id[..8].copy_from_slice(&state.power_cuts.to_le_bytes());
        Ok(Some(PageCacheId(id)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.enter_changing("rename")?;
        let node = state.find(from)?;
        let (from, to) = (state.place(from)?, state.place(to)?);
        let replaced = state.names.get(&to);
        match replaced {
            Some(same) if same == node => return Ok(()),
            Some(other) if state.is_directory(other) != state.is_directory(node) => {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Some(other) if state.names.within(other).next().is_some() => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            _ => {}
        }
        state.need(1)?;
        state.change_names(vec![(to, Some(node)), (from, None)]);
        if let Some(replaced) = replaced {
            state.forget_if_gone(replaced);
        }
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.enter_changing("rename")?;
        let node = state.find(from)?;
        let (from, to) = (state.place(from)?, state.place(to)?);
        if state.names.get(&to).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.need(1)?;
        state.change_names(vec![(to, Some(node)), (from, None)]);
        Ok(())
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let mut state = self.enter_changing("rename")?;
        let nodes = (state.find(one)?, state.find(other)?);
        let (one, other) = (state.place(one)?, state.place(other)?);
        state.need(1)?;
        state.change_names(vec![(one, Some(nodes.1)), (other, Some(nodes.0))]);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter_changing("unlink")?;
        let node = state.find(path)?;
        if state.is_directory(node) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let key = state.place(path)?;
        state.change_names(vec![(key, None)]);
        state.forget_if_gone(node);
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter_changing("mkdir")?;
        if state.find(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let key = state.place(path)?;
        state.need(1)?;
        let node = state.make(true);
        state.change_names(vec![(key, Some(node))]);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter_changing("rmdir")?;
        let node = state.find(path)?;
        if !state.is_directory(node) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if state.names.within(node).next().is_some() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let key = state.place(path)?;
        state.change_names(vec![(key, None)]);
        state.forget_if_gone(node);
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter_changing("fsync directory")?;
        let node = state.find(path)?;
        if !state.directory_sync_fails() {
            state.names.sync_directory(node);
            return Ok(());
        }
        let MachineState { names, random, .. } = &mut *state;
        if names.fail_to_sync_directory(node, random) {
            state.end();
        }
        Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        let state = self.enter("realpath")?;
        state.find(path)?;
        Ok(absolute(path))
    }
}

impl SimulatedFile {
    fn changing(&self, what: &str) -> io::Result<MutexGuard<'_, MachineState>> {
        if !self.write {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::BADF.raw_os_error()));
        }
        self.fs.enter_changing(what)
    }
}

impl OpenFile for SimulatedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.fs.enter("read")?;
        Ok(state.bytes(self.node)?.read(buf, offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.changing("write")?;
        let range = offset..offset + data.len() as u64;
        let needed = state.pages_needed(self.node, range)?;
        // A process is killed, and a disk is full, in the middle of a long write, too: between two pages,
        // where the kernel looks.
        let end = offset + data.len() as u64;
        let pages = end.div_ceil(PAGE).saturating_sub(offset / PAGE + 1);
        let part = match data.len() {
            len if pages > 0 && len as u64 > PAGE && state.random.below(4) == 0 => {
                let page = offset / PAGE + 1 + state.random.below(pages);
                (page * PAGE - offset) as usize
            }
            len => len,
        };
        if needed > 0 {
            let needed = state.pages_needed(self.node, offset..offset + part as u64)?;
            state.need(needed)?;
        }
        state.change(self.node, |bytes, _| bytes.write(&data[..part], offset))?;
        Ok(part)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.fs.enter("fstat")?.metadata(self.node)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.changing("truncate")?;
        state.change(self.node, |bytes, _| bytes.set_len(len))
    }

    fn zero(&self, offset: u64, len: u64, keep_room: bool) -> io::Result<()> {
        let mut state = self.changing("fallocate")?;
        let range = offset..offset + len;
        if keep_room {
            let needed = state.pages_needed(self.node, range.clone())?;
            state.need(needed)?;
        }
        state.change(self.node, |bytes, _| bytes.zero(range, keep_room))
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(self.fs.enter("seek")?.bytes(self.node)?.seek_data(offset))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<u64> {
        Ok(self.fs.enter("seek")?.bytes(self.node)?.seek_hole(offset))
    }

    fn sync(&self, all: bool) -> io::Result<()> {
        let mut state = self.fs.enter_changing("fsync")?;
        if state.sync_fails() {
            state.change(self.node, |bytes, random| bytes.fail_to_sync(random))?;
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        state.change(self.node, |bytes, _| bytes.sync())?;
        state.names.sync_file(self.node, all);
        Ok(())
    }

    fn drop_clean(&self) -> io::Result<()> {
        let mut state = self.fs.enter("fadvise")?;
        state.change(self.node, |bytes, _| bytes.drop_clean())
    }

    fn try_lock(&self, alone: bool) -> io::Result<bool> {
        let mut state = self.fs.enter("flock")?;
        let lock = state.locks.entry(self.node).or_default();
        let others = lock.shared.iter().any(|holder| *holder != self.number);
        let free = lock.alone.is_none_or(|holder| holder == self.number) && !(alone && others);
        if free {
            lock.shared.remove(&self.number);
            lock.alone = alone.then_some(self.number);
            if !alone {
                lock.shared.insert(self.number);
            }
        }
        Ok(free)
    }

    fn unlock(&self) -> io::Result<()> {
        let mut state = self.fs.enter("flock")?;
        if let Some(lock) = state.locks.get_mut(&self.node) {
            lock.shared.remove(&self.number);
            lock.alone = lock.alone.filter(|holder| *holder != self.number);
        }
        Ok(())
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        self.fs.machine.lock().let_go(self.fs.process, self.node, self.number);
    }
}
