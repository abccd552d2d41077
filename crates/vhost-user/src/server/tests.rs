//! Connections that come and go, with a front end that goes on where its last connection left it.

use super::*;
use crate::carry::PIECE;
use crate::held::HeldBytes;
use crate::inflight::Inflight;
use crate::ring::tests::{
    AVAILABLE, BUFFER, BUFFERS, DESCRIPTORS, DISK, Driver, MEMORY, SIZE, USED,
};
use block::{Device, Fault, Memory, Operation, ScriptedDevice, Span};
use nbd::{ExportSummary, Session};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream as Socket;
use std::sync::atomic::{AtomicUsize, Ordering};

const PATIENCE: Duration = Duration::from_secs(60);
/// A while in which what must not happen would have happened.
const WHILE: Duration = Duration::from_millis(200);

/// Messages of a front end.
mod message {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SET_INFLIGHT_FD: u32 = 32;
}
use message::*;

type Endings = Arc<Mutex<Vec<SessionEnding>>>;

/// A disk, how many sessions with it have not ended, how the others did, and another disk, of no plan.
struct OneDisk {
    device: Arc<dyn Device>,
    sessions: Arc<AtomicUsize>,
    endings: Endings,
    content: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl Exports for OneDisk {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        Ok(Vec::new())
    }

    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        if name == "other" {
            let (device, sessions) = (Arc::new(Memory::new(DISK)), Arc::new(AtomicUsize::new(1)));
            let endings = Endings::default();
            return Ok(Box::new(CountedSession { device, sessions, endings, content: 0 }));
        }
        self.sessions.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(CountedSession {
            device: Arc::clone(&self.device),
            sessions: Arc::clone(&self.sessions),
            endings: Arc::clone(&self.endings),
            content: self.content.load(Ordering::SeqCst),
        }))
    }
}

struct CountedSession {
    device: Arc<dyn Device>,
    sessions: Arc<AtomicUsize>,
    endings: Endings,
    content: usize,
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        self.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl Session for CountedSession {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn name(&self) -> &str {
        "disk"
    }

    fn content(&self) -> Option<String> {
        Some(format!("disk {}", self.content))
    }

    async fn close(self: Box<Self>, ending: SessionEnding) {
        self.endings.lock().unwrap().push(ending);
    }
}

type PlannedDisk = ScriptedDevice<Arc<Memory>, fn(Operation) -> Fault>;

/// A server of one disk, which does as planned: where nothing else is said, its first write is held until it is let
/// go.
struct Rig {
    server: VhostUserServer,
    device: Arc<PlannedDisk>,
    sessions: Arc<AtomicUsize>,
    endings: Endings,
    /// What the disk holds as a whole.
    content: Arc<AtomicUsize>,
    dir: tempfile::TempDir,
    driver: Driver,
    inflight: (File, u64),
}

/// The server while it serves.
struct Serving {
    stop: oneshot::Sender<()>,
    serving: JoinSet<Result<()>>,
}

impl Serving {
    async fn stop(mut self) -> Result<()> {
        self.stop.send(()).unwrap();
        self.serving.join_next().await.unwrap().unwrap()
    }
}

impl Rig {
    fn new(stop_deadline: Duration) -> Self {
        let limits = FrontEndLimits { stop_deadline, ..FrontEndLimits::default() };
        Self::within(limits, DISK, |operation| match operation {
            Operation::Write(span) if span == Span::between(0, 512) => Fault::Hold,
            _ => Fault::None,
        })
    }

    /// One with these limits, and with a disk of `size` bytes.
    fn within(limits: FrontEndLimits, size: u64, plan: fn(Operation) -> Fault) -> Self {
        let device = Arc::new(ScriptedDevice::new(Arc::new(Memory::new(size)), plan));
        let sessions = Arc::new(AtomicUsize::new(0));
        let (endings, content) = (Endings::default(), Arc::new(AtomicUsize::new(0)));
        let exports = OneDisk {
            device: Arc::clone(&device) as _,
            sessions: Arc::clone(&sessions),
            endings: Arc::clone(&endings),
            content: Arc::clone(&content),
        };
        let server = VhostUserServer::new(Arc::new(exports), limits, Processors::new(2));
        let (_, file, len) = Inflight::create(1).unwrap();
        let (dir, driver) = (tempfile::tempdir().unwrap(), Driver::new());
        Self { server, device, sessions, endings, content, dir, driver, inflight: (file, len) }
    }

    async fn serve(&self) -> Serving {
        let (_, names) = watch::channel(BTreeSet::from(["disk", "other"].map(str::to_owned)));
        self.serve_names(names).await
    }

    async fn serve_names(&self, names: watch::Receiver<BTreeSet<String>>) -> Serving {
        let (stop, stopped) = oneshot::channel();
        let (opened, open) = oneshot::channel();
        let (server, dir) = (self.server.clone(), self.dir.path().to_owned());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let opened = || opened.send(()).unwrap();
            server.serve(&dir, names, opened, async { stopped.await.unwrap_or(()) }).await
        });
        open.await.unwrap();
        Serving { stop, serving }
    }

    /// Connects as a front end that has its ring served where it stands. The ring is known to be when this
    /// returns.
    fn connect(&self) -> FrontEnd {
        let front = FrontEnd(Socket::connect(self.dir.path().join("disk")).unwrap());
        let (driver, (inflight, len)) = (&self.driver, &self.inflight);
        front.start(driver, inflight, *len);
        front
    }

    /// How the last session has ended.
    fn last_ending(&self) -> Option<SessionEnding> {
        self.endings.lock().unwrap().last().copied()
    }

    fn writes(&self) -> usize {
        self.device.calls.log().count(|call| matches!(call, Operation::Write(_)))
    }
}

async fn until(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it does not come");
}

struct FrontEnd(Socket);

impl FrontEnd {
    fn send(&self, request: u32, body: &[&[u8]], file: Option<BorrowedFd<'_>>) {
        let body = body.concat();
        let header = [request, 1, body.len() as u32].map(u32::to_ne_bytes).concat();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let files: Vec<_> = file.into_iter().collect();
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(&body)];
        let sent = sendmsg(&self.0, &parts, &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, header.len() + body.len());
    }

    fn ask(&self, request: u32) -> u64 {
        self.send(request, &[], None);
        self.answer()
    }

    fn answer(&self) -> u64 {
        let mut answer = [0; 20];
        (&self.0).read_exact(&mut answer).unwrap();
        u64::from_ne_bytes(answer[12..].try_into().unwrap())
    }

    /// Waits until the server has closed the connection.
    fn refused(&self) {
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = (&self.0).read(&mut [0; 64]);
        assert!(
            matches!(&read, Ok(0)) || read.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
        );
    }

    fn share(&self, driver: &Driver) {
        let memory = [1, 0].map(u32::to_ne_bytes).concat();
        let region = [0, MEMORY, 0, 0].map(u64::to_ne_bytes).concat();
        self.send(SET_MEM_TABLE, &[&memory, &region], Some(driver.file.as_fd()));
    }

    /// Has the ring stop, as one does whose machine is paused.
    fn pause(&self) {
        self.send(GET_VRING_BASE, &[&[0; 8]], None);
        self.answer();
    }

    /// Has the ring stop, as it is broken, and begin again.
    fn start_again(&self, driver: &Driver) {
        self.pause();
        self.send(SET_VRING_KICK, &[&[0; 8]], Some(driver.kick.as_fd()));
        self.ask(GET_FEATURES);
    }

    fn start(&self, driver: &Driver, inflight: &File, len: u64) {
        let (word, long) = (u32::to_ne_bytes, u64::to_ne_bytes);
        let offered = self.ask(GET_FEATURES);
        self.send(SET_FEATURES, &[&long(offered)], None);
        self.ask(GET_PROTOCOL_FEATURES);
        self.send(SET_PROTOCOL_FEATURES, &[&long(1 << 12)], None);
        self.share(driver);
        let rings = [1, SIZE].map(u16::to_ne_bytes).concat();
        let area = [len, 0].map(long).concat();
        self.send(SET_INFLIGHT_FD, &[&area, &rings, &[0; 4]], Some(inflight.as_fd()));
        self.send(SET_VRING_NUM, &[&word(0), &word(u32::from(SIZE))], None);
        self.send(SET_VRING_BASE, &[&word(0), &word(0)], None);
        let addresses = [DESCRIPTORS, USED, AVAILABLE, 0].map(long).concat();
        self.send(SET_VRING_ADDR, &[&word(0), &word(0), &addresses], None);
        self.send(SET_VRING_ERR, &[&long(0)], Some(driver.fault.as_fd()));
        self.send(SET_VRING_KICK, &[&long(0)], Some(driver.kick.as_fd()));
        self.send(SET_VRING_ENABLE, &[&word(0), &word(1)], None);
        // Whoever answers this has done all of that.
        self.ask(GET_FEATURES);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_nobody_any_more_ends_with_its_last_connection() {
    let mut rig = Rig::new(PATIENCE);
    let (tell, names) = watch::channel(BTreeSet::from(["disk".to_owned()]));
    let mut serving = rig.serve_names(names).await;
    let front = rig.connect();
    tell.send_replace(BTreeSet::new());
    drop(tell);
    until(|| !rig.dir.path().join("disk").exists()).await;
    rig.driver.offer(1, 1, 8, 512, false);
    assert_eq!(rig.driver.answer().await, (1, 1, 0), "it is served");
    assert!(serving.serving.try_join_next().is_none());
    drop(front);
    let ended = tokio::time::timeout(PATIENCE, serving.serving.join_next()).await;
    ended.expect("it does not end").unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_cannot_be_opened_is_tried_again() {
    let rig = Rig::new(PATIENCE);
    let path = rig.dir.path().join("disk");
    std::fs::write(&path, "in the way").unwrap();
    let serving = rig.serve().await;
    let is_there = |name| Socket::connect(rig.dir.path().join(name)).is_ok();
    assert!(is_there("other") && !is_there("disk"));
    std::fs::remove_file(&path).unwrap();
    until(|| is_there("disk")).await;
    serving.stop().await.unwrap();
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_locks_the_directory_holds_up_neither_each_socket_nor_the_end() {
    let rig = Rig::new(PATIENCE);
    let lock = File::open(rig.dir.path()).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let many = BTreeSet::from_iter((0..100).map(|number| format!("disk{number}")));
    let (tell, names) = watch::channel(many);
    let began = tokio::time::Instant::now();
    let serving = rig.serve_names(names).await;
    // A second for each of them, it was.
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!((0..100).all(|number| rig.dir.path().join(format!("disk{number}")).exists()));
    // In the middle of another pass.
    tell.send_replace(BTreeSet::from(["disk".to_owned()]));
    until(|| !rig.dir.path().join("disk0").exists()).await;
    serving.stop().await.unwrap();
    assert_eq!(std::fs::read_dir(rig.dir.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_stops_its_rings_and_hangs_up_has_left() {
    use SessionEnding::{Clean, Lost};
    let rig = Rig::new(PATIENCE);
    let serving = rig.serve().await;
    let until_gone = async || until(|| rig.server.counters().connections == 0).await;
    for (pauses, ending) in [(false, Lost), (true, Clean)] {
        let front = rig.connect();
        if pauses {
            front.pause();
        }
        drop(front);
        until_gone().await;
        assert_eq!(rig.last_ending(), Some(ending), "paused: {pauses}");
    }
    // What is no kick is refused.
    let front = rig.connect();
    front.pause();
    front.send(SET_VRING_KICK, &[&0_u64.to_ne_bytes()], Some(rig.driver.file.as_fd()));
    front.refused();
    until_gone().await;
    assert_eq!(rig.last_ending(), Some(Lost), "hung up on");
    // A paused machine's connection, which the server ends.
    let front = rig.connect();
    front.pause();
    rig.endings.lock().unwrap().clear();
    serving.stop().await.unwrap();
    assert_eq!(rig.last_ending(), Some(Lost), "a stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_is_taken_up_again_waits_for_what_the_last_one_has_at_the_disk() {
    let mut rig = Rig::new(PATIENCE);
    let serving = rig.serve().await;
    let lost = rig.connect();
    rig.driver.put(Driver::data(0), &[1; 512]);
    rig.driver.offer(0, 1, 0, 512, false);
    rig.device.calls.until(|log| log.held == 1).await;
    // The front end has lost its connection, and makes another one; the guest goes on.
    drop(lost);
    until(|| rig.server.counters().rings == 0).await; // it takes nothing more
    let front = rig.connect();
    rig.driver.put(Driver::data(1), &[2; 512]);
    rig.driver.offer(1, 1, 8, 512, false);
    tokio::time::sleep(WHILE).await;
    assert_eq!((rig.writes(), rig.driver.used()), (1, 0), "two threads serve one ring");
    rig.device.calls.release(1);
    assert_eq!(rig.driver.answer().await, (0, 1, 0), "by the ring that ends");
    assert_eq!(rig.driver.answer().await, (1, 1, 0));
    assert_eq!(rig.writes(), 2, "nothing was done twice");
    drop(front);
    serving.stop().await.unwrap();
    assert_eq!(rig.sessions.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stop_cut_off_holds_the_disk_and_answers_no_guest() {
    let mut rig = Rig::new(Duration::from_millis(50));
    let serving = rig.serve().await;
    let front = rig.connect();
    rig.driver.put(Driver::data(0), &[1; 512]);
    rig.driver.offer(0, 1, 0, 512, false);
    rig.device.calls.until(|log| log.held == 1).await;
    assert!(serving.stop().await.is_err());
    assert_eq!(rig.sessions.load(Ordering::SeqCst), 1, "others could change the disk");
    drop(front);
    // As after a hand-over that failed: the same server goes on.
    let serving = rig.serve().await;
    let front = rig.connect();
    rig.driver.put(Driver::data(1), &[2; 512]);
    rig.driver.offer(1, 1, 8, 512, false);
    tokio::time::sleep(WHILE).await;
    assert_eq!((rig.writes(), rig.driver.used()), (1, 0), "two threads serve one ring");
    rig.device.calls.release(1);
    // It landed, was not answered, and is done again before anything else.
    rig.device.calls.until(|log| log.held == 1 && log.asked.len() == 3).await;
    assert_eq!(rig.driver.answer().await, (1, 1, 0));
    rig.device.calls.release(1);
    assert_eq!(rig.driver.answer().await, (0, 1, 0));
    until(|| rig.sessions.load(Ordering::SeqCst) == 1).await;
    drop(front);
    serving.stop().await.unwrap();
    assert_eq!(rig.sessions.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_changed_meanwhile_is_not_given_to_a_guest_that_knows_another() {
    let mut rig = Rig::new(Duration::from_millis(50));
    let serving = rig.serve().await;
    let front = rig.connect();
    rig.driver.offer(0, 1, 0, 512, false);
    rig.device.calls.until(|log| log.held == 1).await;
    assert!(serving.stop().await.is_err());
    drop(front);
    rig.device.calls.release(1);
    until(|| rig.sessions.load(Ordering::SeqCst) == 0).await;
    // It is rolled back before the machine comes again.
    rig.content.store(1, Ordering::SeqCst);
    let serving = rig.serve().await;
    let front = rig.connect();
    rig.driver.broken().await;
    assert_eq!((rig.writes(), rig.driver.used()), (1, 0), "it was done again");
    // The front end stops it. When the machine is reset, its memory of what is in flight is, too.
    front.pause();
    drop(front);
    until(|| rig.server.counters().connections == 0).await;
    let (_, file, len) = Inflight::create(1).unwrap();
    rig.inflight = (file, len);
    rig.device.calls.release(1);
    let _front = rig.connect();
    assert_eq!(rig.driver.answer().await, (0, 1, 0));
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_at_its_deadline_also_where_a_ring_waits_for_an_older_one() {
    let mut rig = Rig::new(Duration::from_millis(50));
    let serving = rig.serve().await;
    let lost = rig.connect();
    rig.driver.offer(0, 1, 0, 512, false);
    rig.device.calls.until(|log| log.held == 1).await;
    drop(lost);
    let _front = rig.connect();
    assert!(serving.stop().await.is_err());
    assert_eq!(rig.driver.used(), 0);
    rig.device.calls.release(1);
    until(|| rig.sessions.load(Ordering::SeqCst) == 0).await;
    assert_eq!(rig.driver.used(), 0, "it is the next server's");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_torn_is_so_for_all_rings_until_the_front_end_shares_it_anew() {
    let mut rig = Rig::new(PATIENCE);
    rig.device.calls.release(1);
    let serving = rig.serve().await;
    let front = rig.connect();
    rig.driver.file.set_len(BUFFERS + BUFFER).unwrap();
    rig.driver.offer_data_at(BUFFERS + BUFFER);
    rig.driver.broken().await;
    // The server has zeroes of its own there, which no other ring may take for the guest's either.
    rig.driver.file.set_len(MEMORY).unwrap();
    rig.driver.put(BUFFERS + BUFFER, &[7; 512]);
    front.start_again(&rig.driver);
    rig.driver.broken().await;
    assert_eq!((rig.writes(), rig.driver.used()), (0, 0));
    front.share(&rig.driver);
    assert_eq!(rig.driver.answer().await, (0, 1, 0));
    assert_eq!(rig.device.inner().to_vec()[..512], [7; 512]);
    drop(front);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_leaves_its_ring_full_and_takes_nothing_harms_nobody() {
    let mut rig = Rig::new(PATIENCE);
    let serving = rig.serve().await;
    let front = rig.connect();
    // Whoever interrupts this guest waits for it.
    let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    front.send(SET_VRING_CALL, &[&0_u64.to_ne_bytes()], Some(full.as_fd()));
    front.ask(GET_FEATURES);
    // All descriptors of the ring; one of the requests waits for the disk.
    for slot in 0..SIZE / 3 {
        rig.driver.offer(slot, 1, u64::from(slot), 512, false);
    }
    rig.device.calls.until(|log| log.held == 1).await;
    until(|| rig.driver.used() > 0).await;
    // It offers all of them once more, and has taken none of the answers.
    for slot in 0..SIZE / 3 {
        rig.driver.offer(slot, 1, u64::from(slot), 512, false);
    }
    let other = FrontEnd(Socket::connect(rig.dir.path().join("other")).unwrap());
    let (mut guest, (_, inflight, len)) = (Driver::new(), Inflight::create(1).unwrap());
    other.start(&guest, &inflight, len);
    for round in 0..50 {
        guest.offer(round % 5, u32::from(round % 2), 8, 512, round % 2 == 0);
        assert_eq!(guest.answer().await.2, 0, "another guest's request");
    }
    rig.device.calls.release(1);
    let stopped = tokio::time::timeout(PATIENCE, serving.stop()).await;
    stopped.expect("the server does not stop").unwrap();
    assert_eq!(rig.sessions.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_its_front_end_whatever_that_has_sent() {
    let rig = Rig::new(PATIENCE);
    let serving = rig.serve().await;
    for message in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
        let front = FrontEnd(Socket::connect(rig.dir.path().join("disk")).unwrap());
        front.ask(GET_FEATURES);
        let own_end = front.0.as_fd().try_clone_to_owned().unwrap();
        front.send(message, &[&0_u64.to_ne_bytes()], Some(own_end.as_fd()));
        drop((front, own_end));
        until(|| rig.server.counters().connections == 0).await;
    }
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_is_no_kick() {
    let rig = Rig::new(PATIENCE);
    let serving = rig.serve().await;
    let (_reads, writes) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    for (message, is_taken) in [(SET_VRING_CALL, true), (SET_VRING_KICK, false)] {
        let front = FrontEnd(Socket::connect(rig.dir.path().join("disk")).unwrap());
        front.ask(GET_FEATURES);
        front.send(message, &[&0_u64.to_ne_bytes()], Some(writes.as_fd()));
        if is_taken {
            front.ask(GET_FEATURES);
        } else {
            front.refused();
        }
    }
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_of_the_front_ends_is_left_to_the_runtime() {
    let rig = Rig::new(PATIENCE);
    let (ours, theirs) = Socket::pair().unwrap();
    let usage = rig
        .server
        .inner
        .uses
        .enter("disk", theirs.try_clone().unwrap(), Handle::current())
        .unwrap();
    let terms = BackendSetup {
        name: "disk".into(),
        device: Arc::clone(&rig.device) as _,
        usage: usage.0,
        identity: "disk".into(),
        content: None,
        observer: None,
        counts: Arc::default(),
        allowances: Arc::new(Allowances::with_descriptors(u64::MAX)),
        held: HeldBytes::new(u64::MAX / 2),
        busy_poll: BusyPoll::Never,
        processors: Processors::new(1),
        runtime: Handle::current(),
    };
    let backend = Arc::new(Mutex::new(Backend::new(terms)));
    let handled = Arc::clone(&backend);
    let mut thread = JoinSet::new();
    thread.spawn(block::offload(move || Ok(serve(theirs, handled, "disk"))));
    let front = FrontEnd(ours);
    front.start(&rig.driver, &rig.inflight.0, rig.inflight.1);
    let (reads, writes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    front.send(SET_VRING_CALL, &[&0_u64.to_ne_bytes()], Some(writes.as_fd()));
    front.ask(GET_FEATURES);
    drop((front, writes));
    thread.join_next().await.unwrap().unwrap().unwrap();
    // As a future of the connection's holds it to its end: what is left in it is closed by a thread of the runtime.
    let mut sink = [0; 64];
    while rustix::io::read(&reads, &mut sink).expect("the pipe is open") > 0 {}
    let of_front_end = |link: std::io::Result<std::fs::DirEntry>| {
        let file = std::fs::metadata(link.unwrap().path()).ok()?;
        let guest = rig.driver.file.metadata().unwrap();
        (file.ino() == guest.ino() && file.dev() == guest.dev()).then_some(())
    };
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(of_front_end).count();
    assert_eq!(open, 2, "the test's own, and its map's");
    drop(backend);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_end_takes_neither_all_addresses_nor_all_connections() {
    let rig = Rig::new(PATIENCE);
    let serving = rig.serve().await;
    let connect = || FrontEnd(Socket::connect(rig.dir.path().join("disk")).unwrap());
    // The file is short; the mapping would not be.
    let greedy = connect();
    greedy.ask(GET_FEATURES);
    let memory = [1, 0].map(u32::to_ne_bytes).concat();
    let region = [0, 1 << 46, 0, 0].map(u64::to_ne_bytes).concat();
    greedy.send(SET_MEM_TABLE, &[&memory, &region], Some(rig.driver.file.as_fd()));
    greedy.refused();
    until(|| rig.server.counters().connections == 0).await;
    let held: Vec<_> = (0..4).map(|_| connect()).collect();
    for front in &held {
        front.ask(GET_FEATURES);
    }
    connect().refused();
    let other = FrontEnd(Socket::connect(rig.dir.path().join("other")).unwrap());
    other.ask(GET_FEATURES);
    drop(held);
    until(|| rig.server.counters().connections == 1).await;
    connect().ask(GET_FEATURES);
    drop(other);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_connections_of_one_machine_hold_half_of_what_there_is() {
    let limits =
        FrontEndLimits { held_bytes: 4 * PIECE, stop_deadline: PATIENCE, ..Default::default() };
    let rig = Rig::within(limits, PIECE, |operation| match operation {
        Operation::Read(_) => Fault::Hold,
        _ => Fault::None,
    });
    let serving = rig.serve().await;
    let mut guests = Vec::new();
    for _ in 0..2 {
        let (driver, (_, inflight, len)) = (Driver::new(), Inflight::create(1).unwrap());
        let front = FrontEnd(Socket::connect(rig.dir.path().join("disk")).unwrap());
        front.start(&driver, &inflight, len);
        guests.push((front, driver));
    }
    for (_, driver) in &mut guests {
        for slot in 0..2 {
            driver.put_in_pieces(slot, 0, PIECE / (MEMORY / 2), (MEMORY / 2) as u32);
        }
        driver.kick();
    }
    rig.device.calls.until(|log| log.held >= 2).await;
    tokio::time::sleep(WHILE).await;
    assert_eq!(rig.device.calls.log().held, 2, "one machine has more than its half");
    rig.device.calls.release(4);
    for (_, driver) in &mut guests {
        for _ in 0..2 {
            assert_eq!(driver.answer().await.2, 0);
        }
    }
    drop(guests);
    serving.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_front_end_for_which_there_are_no_descriptors_is_hung_up_on() {
    // Of one region and one ring.
    let limits = FrontEndLimits { descriptors: 8, stop_deadline: PATIENCE, ..Default::default() };
    let rig = Rig::within(limits, DISK, |_| Fault::None);
    let serving = rig.serve().await;
    let front = rig.connect();
    let other = FrontEnd(Socket::connect(rig.dir.path().join("other")).unwrap());
    other.ask(GET_FEATURES);
    other.share(&rig.driver);
    other.refused();
    drop((front, other));
    until(|| rig.server.counters().connections == 0).await;
    let front = rig.connect();
    drop(front);
    serving.stop().await.unwrap();
}
