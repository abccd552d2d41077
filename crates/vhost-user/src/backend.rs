//! One connection: what the front end negotiates, and which rings run. Nothing here touches the guest's
//! memory.

use crate::allowance::{Allotment, Allowances};
use crate::carry::Mailbox;
use crate::config::{self, QUEUE_SIZE, QUEUES, feature};
use crate::counters::LiveCounters;
use crate::export_use::ExportUse;
use crate::held::HeldBytes;
use crate::inflight::{self, Inflight};
use crate::memory::{GuestRam, REGIONS, RamPart, SharedRam};
use crate::notifier;
use crate::request;
use crate::ring::{RingSetup, RunningRing};
use block::{Device, Durability, Error, Observer, Result};
use nbd::server::{BusyPoll, Processors};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::runtime::Handle;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error as Refusal, GpuBackend, VhostUserBackendReqHandlerMut};
use virtio_queue::{Queue, QueueT};

/// What the refusal of a message is called in the protocol: the front end gets a number at best, so the
/// reason is in the log.
type BackendResult<T> = std::result::Result<T, Refusal>;

/// What a connection serves.
pub(crate) struct BackendSetup {
    pub(crate) name: String,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) usage: Arc<ExportUse>,
    /// What tells the disk from all others.
    pub(crate) identity: String,
    /// What the disk holds as a whole.
    pub(crate) content: Option<String>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) counts: Arc<LiveCounters>,
    pub(crate) allowances: Arc<Allowances>,
    /// What all rings of its client may hold together.
    pub(crate) held: Arc<HeldBytes>,
    pub(crate) busy_poll: BusyPoll,
    pub(crate) processors: Processors,
    pub(crate) runtime: Handle,
}

/// A connection's state.
pub(crate) struct Backend {
    terms: BackendSetup,
    offered: u64,
    features: u64,
    memory: GuestRam,
    /// What the memory takes.
    _allotted: Option<[Allotment; 3]>,
    inflight: Option<Inflight>,
    /// Both, as the rings use them; nothing before one does.
    shared: Option<Arc<SharedRam>>,
    /// Whether a part of them was torn under an earlier guard.
    torn: bool,
    rings: Vec<Vring>,
    /// No ring is served any more.
    closed: bool,
}

/// What a front end says of a ring.
struct Vring {
    size: u16,
    base: u16,
    /// Addresses of descriptors, available ring and used ring, where the front end has them.
    addresses: Option<[u64; 3]>,
    kick: Option<OwnedFd>,
    enabled: bool,
    mailbox: Arc<Mailbox>,
    running: Option<RunningRing>,
    _allotted: [Allotment; 2],
}

impl Vring {
    fn new(allotted: [Allotment; 2]) -> Result<Self> {
        Ok(Self {
            _allotted: allotted,
            size: 0,
            base: 0,
            addresses: None,
            kick: None,
            enabled: false,
            mailbox: Arc::new(Mailbox::new()?),
            running: None,
        })
    }
}

impl Backend {
    /// Nothing negotiated yet.
    pub(crate) fn new(terms: BackendSetup) -> Self {
        let offered = config::features(terms.device.read_only());
        let (memory, inflight, rings) = (GuestRam::default(), None, Vec::new());
        let (shared, torn, closed, _allotted) = (None, false, false, None);
        Self {
            terms,
            offered,
            features: 0,
            memory,
            _allotted,
            inflight,
            shared,
            torn,
            rings,
            closed,
        }
    }

    /// Whether rings are being served.
    pub(crate) fn is_serving(&self) -> bool {
        self.rings.iter().any(|ring| ring.running.is_some())
    }

    /// Ends all rings, once what is in flight is done.
    pub(crate) fn stop(&mut self) {
        // All at once, then one after the other.
        self.rings
            .iter()
            .filter(|ring| ring.running.is_some())
            .for_each(|ring| ring.mailbox.stop());
        (0..self.rings.len()).for_each(|index| {
            let _ = self.stop_ring(index);
        });
    }

    /// Ends all rings for good, once what is in flight is done; whether any was being served.
    pub(crate) fn close(&mut self) -> bool {
        let serving = self.is_serving();
        self.closed = true;
        self.stop();
        serving
    }

    /// Closes all files of the front end's. To close one may take for ever, where its file system hangs: that is
    /// for a thread of the connection's own.
    pub(crate) fn close_files(&mut self) {
        self.rings.clear();
        (self.memory, self.inflight, self.shared) = (GuestRam::default(), None, None);
        self._allotted = None;
    }

    /// Ends a ring; it stands where it stands.
    fn stop_ring(&mut self, index: usize) -> BackendResult<()> {
        let ring = &mut self.rings[index];
        let Some(running) = ring.running.take() else { return Ok(()) };
        self.terms.counts.rings.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        match running.stop() {
            Some(base) => ring.base = base,
            None => {
                let export = &self.terms.name;
                tracing::error!(
                    export,
                    ring = index,
                    "a virtqueue was lost by a fault of the program"
                );
                return Err(Refusal::BackendInternalError);
            }
        }
        // A new one: this one's ring has been told to stop.
        let mailbox = Arc::new(Mailbox::new().map_err(|e| self.refuse(&e))?);
        let ring = &mut self.rings[index];
        mailbox.take_over(&ring.mailbox);
        ring.mailbox = mailbox;
        Ok(())
    }

    fn refuse(&self, error: &Error) -> Refusal {
        tracing::warn!(export = self.terms.name, error = error.message(), "vhost-user");
        Refusal::InvalidParam
    }

    /// What a ring tells by, or is told by.
    fn event(&self, file: File) -> BackendResult<OwnedFd> {
        notifier::event(file).map_err(|e| self.refuse(&e))
    }

    /// A ring that the front end speaks of.
    fn ring(&mut self, index: u32) -> BackendResult<usize> {
        let index = usize::try_from(index).map_err(|_| Refusal::InvalidParam)?;
        if index >= usize::from(QUEUES) {
            return Err(Refusal::InvalidParam);
        }
        while self.rings.len() <= index {
            let ring = self.terms.allowances.ring().and_then(Vring::new);
            let ring = ring.map_err(|e| self.refuse(&e))?;
            self.rings.push(ring);
        }
        Ok(index)
    }

    /// A ring that is to be changed, which it is not while it is served.
    fn still(&mut self, index: u32) -> BackendResult<&mut Vring> {
        let index = self.ring(index)?;
        if self.rings[index].running.is_some() {
            let why = Error::invalid("a virtqueue that is being served is not to be changed");
            return Err(self.refuse(&why));
        }
        Ok(&mut self.rings[index])
    }

    /// The memory as all rings use it.
    fn shared(&mut self) -> Result<Arc<SharedRam>> {
        if let Some(shared) = &self.shared {
            return Ok(Arc::clone(shared));
        }
        let beside = self.inflight.as_ref().map(|inflight| Arc::clone(inflight.region()));
        let shared = Arc::new(SharedRam::new(Arc::clone(self.memory.map()), beside, self.torn)?);
        self.shared = Some(Arc::clone(&shared));
        Ok(shared)
    }

    /// Has rings that are started from now on use the memory as it is then. None is served.
    fn share_anew(&mut self) {
        self.torn |= self.shared.take().is_some_and(|shared| shared.is_torn());
    }

    /// Serves a ring if all is known of it that it takes.
    fn start_ring(&mut self, index: usize) -> BackendResult<()> {
        let ring = &self.rings[index];
        let (Some(addresses), true) = (ring.addresses, ring.kick.is_some()) else { return Ok(()) };
        if self.closed || ring.running.is_some() || !ring.enabled || ring.size == 0 {
            return Ok(());
        }
        let running = self.serve(index as u16, addresses).map_err(|e| self.refuse(&e))?;
        self.terms.counts.rings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.rings[index].running = Some(running);
        Ok(())
    }

    fn serve(&mut self, index: u16, addresses: [u64; 3]) -> Result<RunningRing> {
        let memory = self.shared()?;
        let ring = &self.rings[usize::from(index)];
        let outside = || Error::invalid("a virtqueue does not lie in the memory that is shared");
        let [descriptors, available, used] =
            addresses.map(|user| self.memory.guest_address(user).ok_or_else(outside));
        let wrong = |e: virtio_queue::Error| Error::invalid(format!("a virtqueue is wrong: {e}"));
        let mut queue = Queue::new(QUEUE_SIZE).map_err(wrong)?;
        queue.try_set_size(ring.size).map_err(wrong)?;
        queue.try_set_desc_table_address(descriptors?).map_err(wrong)?;
        queue.try_set_avail_ring_address(available?).map_err(wrong)?;
        queue.try_set_used_ring_address(used?).map_err(wrong)?;
        queue.set_event_idx(self.features & feature::EVENT_IDX != 0);
        let inflight = self.inflight.as_ref().and_then(|inflight| inflight.ring(index, ring.size));
        if inflight.is_none() {
            let (export, size) = (&self.terms.name, ring.size);
            tracing::debug!(export, ring = index, size, "requests in flight are not tracked");
        }
        let kick =
            ring.kick.as_ref().ok_or_else(|| Error::invalid("a virtqueue without a kick"))?;
        let kick = kick.try_clone().map_err(|e| Error::io("a virtqueue's kick", e))?;
        let flushes = self.features & feature::FLUSH != 0;
        RunningRing::start(RingSetup {
            name: self.terms.name.clone(),
            index,
            queue,
            base: ring.base,
            memory,
            inflight,
            kick,
            mailbox: Arc::clone(&ring.mailbox),
            device: Arc::clone(&self.terms.device),
            usage: Arc::clone(&self.terms.usage),
            durability: if flushes { Durability::Buffered } else { Durability::Durable },
            id: request::id(&self.terms.identity),
            content: self.terms.content.as_deref().map(inflight::content_number),
            observer: self.terms.observer.clone(),
            counts: Arc::clone(&self.terms.counts),
            held: Arc::clone(&self.terms.held),
            busy_poll: self.terms.busy_poll,
            processors: self.terms.processors.clone(),
            runtime: self.terms.runtime.clone(),
        })
    }

    /// Takes what so much memory needs, before it is mapped.
    fn allot(&self, bytes: u64, regions: usize) -> BackendResult<[Allotment; 3]> {
        self.terms.allowances.memory(bytes, regions).map_err(|e| self.refuse(&e))
    }

    /// Goes on with other memory; whether all of it `is_new`.
    fn change_memory(
        &mut self,
        memory: GuestRam,
        allotted: [Allotment; 3],
        is_new: bool,
    ) -> BackendResult<()> {
        let running: Vec<usize> =
            (0..self.rings.len()).filter(|index| self.rings[*index].running.is_some()).collect();
        running.iter().try_for_each(|index| self.stop_ring(*index))?;
        self.share_anew();
        (self.memory, self._allotted) = (memory, Some(allotted));
        if is_new && std::mem::take(&mut self.torn) {
            // A page of this may be the one.
            let again = self.inflight.as_ref().map(Inflight::map_again).transpose();
            self.inflight = again.map_err(|e| self.refuse(&e))?;
        }
        running.into_iter().try_for_each(|index| self.start_ring(index))
    }
}

fn part(region: &VhostUserMemoryRegion) -> RamPart {
    RamPart {
        guest: region.guest_phys_addr,
        len: region.memory_size,
        user: region.user_addr,
        offset: region.mmap_offset,
    }
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> BackendResult<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> BackendResult<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> BackendResult<()> {
        self.stop();
        self.rings.clear();
        self.features = 0;
        Ok(())
    }

    fn get_features(&mut self) -> BackendResult<u64> {
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> BackendResult<()> {
        if features & !self.offered != 0 {
            let more = features & !self.offered;
            let why = format!("the front end takes features that are not offered: {more:#x}");
            return Err(self.refuse(&Error::invalid(why)));
        }
        self.features = features;
        // Without that feature rings are not enabled one by one.
        if features & feature::PROTOCOL_FEATURES == 0 {
            for index in 0..self.rings.len() {
                self.rings[index].enabled = true;
                self.start_ring(index)?;
            }
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> BackendResult<Option<Vec<u64>>> {
        let lens = regions.iter().map(|region| region.memory_size);
        let allotted = self.allot(lens.fold(0, u64::saturating_add), regions.len())?;
        let mut memory = GuestRam::default();
        for (region, file) in regions.iter().zip(files) {
            memory = memory.with(part(region), file).map_err(|e| self.refuse(&e))?;
        }
        self.change_memory(memory, allotted, true).map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> BackendResult<()> {
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two());
        let size = size.filter(|size| *size <= QUEUE_SIZE).ok_or(Refusal::InvalidParam)?;
        self.still(index)?.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> BackendResult<()> {
        self.still(index)?.addresses = Some([descriptor, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> BackendResult<()> {
        let base = u16::try_from(base).map_err(|_| Refusal::InvalidParam)?;
        self.still(index)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> BackendResult<VhostUserVringState> {
        let at = self.ring(index)?;
        self.stop_ring(at)?;
        // It begins again with the next one.
        self.rings[at].kick = None;
        Ok(VhostUserVringState::new(index, u32::from(self.rings[at].base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> BackendResult<()> {
        let all_enabled = self.features & feature::PROTOCOL_FEATURES == 0;
        let Some(kick) = fd else {
            let why = "a virtqueue that is polled, not kicked, is not served";
            return Err(self.refuse(&Error::unsupported(why)));
        };
        let kick = notifier::kick(kick).map_err(|e| self.refuse(&e))?;
        let ring = self.still(u32::from(index))?;
        ring.kick = Some(kick);
        ring.enabled |= all_enabled;
        self.start_ring(usize::from(index))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> BackendResult<()> {
        let call = fd.map(|call| self.event(call)).transpose()?;
        let at = self.ring(u32::from(index))?;
        self.rings[at].mailbox.set_call(call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> BackendResult<()> {
        let fault = fd.map(|fault| self.event(fault)).transpose()?;
        let at = self.ring(u32::from(index))?;
        self.rings[at].mailbox.set_fault(fault);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> BackendResult<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _features: u64) -> BackendResult<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> BackendResult<u64> {
        Ok(u64::from(QUEUES))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> BackendResult<()> {
        let at = self.ring(index)?;
        self.rings[at].enabled = enable;
        match enable {
            true => self.start_ring(at),
            false => self.stop_ring(at),
        }
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> BackendResult<Vec<u8>> {
        Ok(config::read(&*self.terms.device, offset, size))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> BackendResult<()> {
        // The one field that a driver may write is not offered.
        Err(Refusal::InvalidParam)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> BackendResult<()> {
        Err(Refusal::InvalidOperation("a disk has no display"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> BackendResult<File> {
        Err(Refusal::InvalidOperation("a disk shares no objects"))
    }

    fn get_inflight_fd(
        &mut self,
        wanted: &VhostUserInflight,
    ) -> BackendResult<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if queues > QUEUES || size > QUEUE_SIZE || self.is_serving() {
            return Err(Refusal::InvalidParam);
        }
        let (inflight, file, len) = Inflight::create(queues).map_err(|e| self.refuse(&e))?;
        self.share_anew();
        self.inflight = Some(inflight);
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, of: &VhostUserInflight, file: File) -> BackendResult<()> {
        if of.num_queues > QUEUES || of.queue_size > QUEUE_SIZE || self.is_serving() {
            return Err(Refusal::InvalidParam);
        }
        let opened =
            Inflight::open(file, of.mmap_offset, of.mmap_size, of.num_queues, of.queue_size);
        let opened = opened.map_err(|e| self.refuse(&e))?;
        self.share_anew();
        self.inflight = Some(opened);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> BackendResult<u64> {
        Ok(REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> BackendResult<Option<u64>> {
        let (len, regions) = (self.memory.len(), self.memory.regions());
        let allotted = self.allot(len.saturating_add(region.memory_size), regions + 1)?;
        let memory = self.memory.with(part(region), fd).map_err(|e| self.refuse(&e))?;
        self.change_memory(memory, allotted, false).map(|()| None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> BackendResult<()> {
        let RamPart { guest, user, len, .. } = part(region);
        let memory = self.memory.without(guest, user, len).map_err(|e| self.refuse(&e))?;
        let allotted = self.allot(memory.len(), memory.regions())?;
        self.change_memory(memory, allotted, false)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> BackendResult<Option<File>> {
        Err(Refusal::InvalidOperation("a disk's state is not transferred"))
    }

    fn check_device_state(&mut self) -> BackendResult<()> {
        Err(Refusal::InvalidOperation("a disk's state is not transferred"))
    }

    fn get_shmem_config(&mut self) -> BackendResult<VhostUserShMemConfig> {
        Err(Refusal::InvalidOperation("a disk has no memory of its own"))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> BackendResult<()> {
        Err(Refusal::InvalidOperation("dirty memory is not logged"))
    }
}
