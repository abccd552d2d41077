//! A disk that checks what it is asked for, and has the guest change its memory meanwhile.

use super::GuestMemory;
use async_trait::async_trait;
use block::{Attempt, Device, Durability, Error, Extent, Limits, Result, Span, ZeroMode};
use nbd::{ExportSummary, Exports, Peer, Purpose, Session, SessionEnding};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// The size of the disk, in bytes.
pub const DISK_SIZE: u64 = 256 << 10;
/// Its name.
pub const ONE: &str = "disk";

/// What a disk is like.
#[derive(Debug, Clone, Copy)]
pub struct DiskPlan {
    /// It does nothing at once.
    pub slow: bool,
    /// It refuses what would change it.
    pub read_only: bool,
    /// Every third call fails.
    pub fails: bool,
    /// Its grain is 4 KiB.
    pub coarse: bool,
}

/// A disk of bytes.
pub struct CheckedDisk {
    plan: DiskPlan,
    bytes: Mutex<Vec<u8>>,
    calls: Mutex<u32>,
    /// What the guest writes into its memory when the disk is asked for something next: where, what.
    pub changes: Mutex<VecDeque<(u64, Vec<u8>)>>,
    /// Whether requests that wait go on.
    pub open: watch::Sender<bool>,
    guest: Arc<GuestMemory>,
}

impl CheckedDisk {
    /// A disk of zeroes.
    pub fn new(plan: DiskPlan, guest: Arc<GuestMemory>) -> Self {
        let (bytes, calls) = (Mutex::new(vec![0; DISK_SIZE as usize]), Mutex::new(0));
        let (changes, open) = (Mutex::default(), watch::Sender::new(true));
        Self { plan, bytes, calls, changes, open, guest }
    }

    /// Checks a call, and lets the guest have its turn.
    fn call(&self, span: Span, changes: bool) -> Result<()> {
        assert!(span.end() <= DISK_SIZE, "{span:?} is outside the disk");
        assert!(span.is_aligned(u64::from(self.limits().minimum)), "{span:?} is not aligned");
        if let Some((at, bytes)) = self.changes.lock().expect("a lock").pop_front() {
            self.guest.put(at, &bytes);
        }
        let mut calls = self.calls.lock().expect("a lock");
        *calls += 1;
        if self.plan.read_only && changes {
            return Err(Error::denied("it may only be read"));
        }
        if self.plan.fails && calls.is_multiple_of(3) {
            return Err(Error::no_space("it is full"));
        }
        Ok(())
    }

    async fn wait(&self) {
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|open| *open).await;
    }

    fn with<T>(&self, span: Span, work: impl FnOnce(&mut [u8]) -> T) -> T {
        work(&mut self.bytes.lock().expect("a lock")[span.index_in(Span::whole(DISK_SIZE))])
    }
}

#[async_trait]
impl Device for CheckedDisk {
    fn size(&self) -> u64 {
        DISK_SIZE
    }

    fn limits(&self) -> Limits {
        Limits { minimum: if self.plan.coarse { 4096 } else { 512 }, ..Limits::default() }
    }

    fn read_only(&self) -> bool {
        self.plan.read_only
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        if self.plan.slow {
            return Ok(Attempt::WouldWait);
        }
        self.call(span, false)?;
        self.with(span, |bytes| buf.copy_from_slice(bytes));
        Ok(Attempt::Done)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        if self.plan.slow {
            return Ok(Attempt::WouldWait);
        }
        self.call(span, true)?;
        self.with(span, |bytes| bytes.copy_from_slice(data));
        Ok(Attempt::Done)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.wait().await;
        self.call(span, false)?;
        self.with(span, |bytes| buf.copy_from_slice(bytes));
        Ok(())
    }

    async fn write(&self, span: Span, data: &[u8], _: Durability) -> Result<()> {
        self.wait().await;
        self.call(span, true)?;
        self.with(span, |bytes| bytes.copy_from_slice(data));
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.wait().await;
        self.call(Span::whole(0), false)
    }

    async fn discard(&self, span: Span, _: Durability) -> Result<()> {
        self.wait().await;
        self.call(span, true)
    }

    async fn extents(&self, span: Span, _: usize) -> Result<Vec<Extent>> {
        Err(Error::internal(format!("nobody asks for extents: {span:?}")))
    }

    async fn zero(&self, span: Span, _: ZeroMode, _: Durability) -> Result<()> {
        self.wait().await;
        self.call(span, true)?;
        self.with(span, |bytes| bytes.fill(0));
        Ok(())
    }
}

/// The disk as an export. There is one use of it at a time, also where a front end connects again.
pub struct OneDisk(pub Arc<CheckedDisk>);

struct OpenDisk(Arc<dyn Device>);

#[async_trait]
impl Exports for OneDisk {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(Vec::new())
    }

    async fn open(&self, _: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        Ok(Box::new(OpenDisk(Arc::clone(&self.0) as _)))
    }
}

#[async_trait]
impl Session for OpenDisk {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        ONE
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}
