//! A virtual machine and its front end, on a real connection: messages and files in any order, any content of
//! the guest's memory, changed at any time, also while the disk does what a request asks for, and what a server left in
//! flight. The disk checks what it is asked for, and the memory what it is not to be touched at. Where the
//! driver keeps the rules (one bit of the input), every request is answered, and once, however often the front end
//! connects again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::server::{BusyPoll, Processors};
use rustix::fs::{MemfdFlags, memfd_create};
use sojourn_fuzz::vhost_user::message::*;
use sojourn_fuzz::vhost_user::{
    AVAILABLE, AnyFile, CheckedDisk, DESCRIPTORS, DiskPlan, FrontEnd, GuestMemory, InputBytes, ONE,
    OneDisk, QUEUE_SIZE, SLOTS, USED, data, rest,
};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vhost_user::{FrontEndLimits, VhostUserServer};

/// Steps of one input.
const STEPS: usize = 48;
/// Connections that one export may have at a time.
const CONNECTIONS: usize = 4;
/// What a step may take that is to end by itself.
const PATIENCE: Duration = Duration::from_secs(15);
/// What is offered, and taken.
const EVENT_IDX: u64 = 1 << 29;
const FLUSH: u64 = 1 << 9;
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 28;

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
        // As in a program of Rust's, whose `main` is not the fuzzer's: a pipe that nobody reads is an error.
        let ignored = runtime.block_on(async { signal(SignalKind::pipe()) });
        let _ = ignored.expect("a handler");
        runtime
    })
}

/// What one input plays with.
struct Scene {
    server: VhostUserServer,
    memory: Arc<GuestMemory>,
    disk: Arc<CheckedDisk>,
    inflight: File,
    features: u64,
    /// Whether what is in flight is noted.
    tracks: bool,
    front: FrontEnd,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
    /// Connections that the front end has left.
    left: Vec<JoinHandle<()>>,
    /// The file was cut short.
    cut: bool,
}

impl Scene {
    fn new(how: u8, disk: u8) -> Self {
        let memory = Arc::new(GuestMemory::new());
        let plan = DiskPlan {
            slow: disk & 1 != 0,
            read_only: disk & 2 != 0,
            fails: disk & 4 != 0,
            coarse: disk & 8 != 0,
        };
        let disk = Arc::new(CheckedDisk::new(plan, Arc::clone(&memory)));
        let limits = FrontEndLimits { busy_poll: BusyPoll::Never, ..FrontEndLimits::default() };
        let exports = Arc::new(OneDisk(Arc::clone(&disk)));
        let server = VhostUserServer::new(exports, limits, Processors::new(2));
        let inflight = File::from(memfd_create("inflight", MemfdFlags::CLOEXEC).expect("a memfd"));
        inflight.set_len(4096).expect("room");
        let flag = |bit, feature| if how & bit != 0 { feature } else { 0 };
        let features = FEATURES | flag(4, EVENT_IDX) | flag(8, FLUSH);
        let (front, stop, serving) = connect(&server);
        let (tracks, stop) = (how & 2 != 0, Some(stop));
        let (left, cut) = (Vec::new(), false);
        Self { server, memory, disk, inflight, features, tracks, front, stop, serving, left, cut }
    }

    /// Has the front end set everything up as the rules have it.
    fn start(&self) {
        let inflight = self.tracks.then_some(&self.inflight);
        self.front.start(&self.memory, self.features, inflight, self.memory.used());
    }

    /// Connects again; the connection that there is has been `lost`, or ends then.
    fn connect_again(&mut self, lost: bool) {
        if lost {
            self.front.hang_up();
            self.wait_for_some();
        }
        let (front, stop, serving) = connect(&self.server);
        self.front = front;
        self.left.push(std::mem::replace(&mut self.serving, serving));
        self.stop = Some(stop);
    }

    /// Waits until there are so few connections that another one is not refused.
    fn wait_for_some(&mut self) {
        let began = Instant::now();
        loop {
            self.left.retain(|connection| !connection.is_finished());
            if self.left.len() < CONNECTIONS - 1 {
                return;
            }
            self.disk.open.send_replace(true);
            assert!(began.elapsed() < PATIENCE, "connections do not end");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A step of a driver that keeps the rules, and of a front end that does.
    fn step_by_the_rules(&mut self, input: &mut InputBytes) {
        match input.byte() % 8 {
            0..3 => {
                let slot = u16::from(input.byte()) % SLOTS;
                let kind = [0, 1, 4, 8, 11, 13, 99, 0][usize::from(input.byte() & 7)];
                let len = match kind {
                    11 | 13 => 16 * (1 + u32::from(input.byte() % 3)),
                    _ => 512 * (1 + u32::from(input.byte() % 64)),
                };
                if matches!(kind, 11 | 13) {
                    self.memory.put(data(slot), input.bytes(len as usize));
                }
                let sector = u64::from(input.byte()) * 2;
                self.memory.offer_by_the_rules(slot, kind, sector, len);
            }
            3 => self.front.kick(),
            4 => {
                let _ = self.disk.open.send_replace(input.byte() & 1 != 0);
            }
            5 => {
                self.front.kick();
                rest();
                let _ = self.memory.take_answers();
            }
            6 => {
                // It stops, and begins again; what is in flight is waited for.
                self.disk.open.send_replace(true);
                let word: fn(u32) -> _ = u32::to_ne_bytes;
                self.front.tell(GET_VRING_BASE, &[0, 0], word, None);
                self.front.tell(
                    SET_VRING_KICK,
                    &[0_u64],
                    u64::to_ne_bytes,
                    Some(self.front.kick.as_fd()),
                );
            }
            _ => {
                self.connect_again(true);
                self.start();
            }
        }
    }

    /// Whatever is left to be answered is answered.
    fn end_by_the_rules(&mut self) {
        self.disk.open.send_replace(true);
        let began = Instant::now();
        self.front.kick();
        while !self.memory.take_answers() {
            assert!(began.elapsed() < PATIENCE, "a request is not answered");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn step(&mut self, input: &mut InputBytes) {
        match input.byte() % 20 {
            0 => {
                let at = u64::from(input.word()) * 4;
                let len = usize::from(input.byte());
                self.memory.put(at, input.bytes(len));
            }
            1..4 => {
                let at = match input.byte() {
                    index @ 0..32 => DESCRIPTORS + u64::from(index) * 16,
                    index => 0x3000 + u64::from(index) * 16,
                };
                let address = self.address(input);
                let len = match input.byte() {
                    len @ 0..64 => u32::from(len) * 16,
                    len @ 64..128 => (u32::from(len) - 63) * 512,
                    128..192 => input.number() as u32,
                    len => u32::from(len) - 192,
                };
                let (flags, next) = (input.byte(), input.byte());
                self.memory.descriptor(at, address, len, u16::from(flags), u16::from(next % 33));
            }
            4 => {
                let at = self.address(input);
                let kind = [0, 1, 4, 8, 11, 13][usize::from(input.byte() % 6)];
                let sector = match input.byte() {
                    255 => input.number(),
                    sector => u64::from(sector) * 4,
                };
                let header = [&u32::to_le_bytes(kind)[..], &[0; 4], &sector.to_le_bytes()].concat();
                self.memory.put(at, &header);
            }
            5 | 6 => self.memory.offer(u16::from(input.byte() % 18)),
            7 => {
                let slot = u16::from(input.byte()) % SLOTS;
                let kind = [0, 1, 4, 8, 11, 13, 99, 0][usize::from(input.byte() & 7)];
                let (sector, len) = (u64::from(input.word()), u32::from(input.word()) * 16);
                let head = self.memory.request(slot, kind, sector, len, input.byte() & 1 == 0);
                self.memory.offer(head);
            }
            8 => self.memory.put(AVAILABLE + 2, &input.word().to_le_bytes()),
            9 => {
                let at = [AVAILABLE, USED][usize::from(input.byte() & 1)];
                let at = at + u64::from(input.byte()) * 2;
                self.memory.put(at, &input.word().to_le_bytes());
            }
            10 | 11 => self.front.kick(),
            12 => {
                self.front.kick();
                rest();
            }
            13 => {
                let _ = self.disk.open.send_replace(input.byte() & 1 != 0);
            }
            14 => {
                let at = self.address(input);
                let len = usize::from(input.byte() % 40);
                let change = (at, input.bytes(len).to_vec());
                self.disk.changes.lock().expect("a lock").push_back(change);
            }
            15 => match input.byte() {
                255 => self.memory.cut(None),
                pages => {
                    self.cut = true;
                    self.memory.cut(Some(pages));
                }
            },
            16 => {
                let at = u64::from(input.word() % 1024);
                let len = usize::from(input.byte());
                let _ = self.inflight.write_all_at(input.bytes(len), at);
            }
            17 => {
                let how = input.byte();
                self.connect_again(how & 4 != 0);
                if how & 3 != 0 {
                    self.start();
                }
            }
            _ => self.say(input),
        }
    }

    /// Where something of the guest's is, or nothing.
    fn address(&self, input: &mut InputBytes) -> u64 {
        match input.byte() {
            255 => input.number(),
            page => u64::from(page) << 10 | u64::from(input.byte()),
        }
    }

    /// A message, as it is to be or not.
    fn say(&mut self, input: &mut InputBytes) {
        let front = &self.front;
        let what = input.byte();
        let picked = input.byte();
        let file = AnyFile::pick(picked, &self.memory, &self.inflight, front);
        let fd = Some(file.as_fd());
        let (word, long) = (u32::to_ne_bytes as fn(u32) -> _, u64::to_ne_bytes as fn(u64) -> _);
        let index = match picked >> 4 {
            15 => u32::MAX,
            14 => 127,
            index => u32::from(index & 1),
        };
        let parts = GuestMemory::parts();
        let region = |input: &mut InputBytes| match input.byte() {
            how @ 0..128 => parts[usize::from(how & 1)],
            // Side by side with the first one, and not of pages.
            how @ 128..160 => [0, u64::from(how) << 5 | 1, parts[0][2], parts[0][3]],
            how @ 160..192 => [u64::from(how) << 5 | 1, 1 << 16, parts[1][2], parts[1][3]],
            _ => std::array::from_fn(|_| input.number()),
        };
        match what % 24 {
            0 => front.tell(SET_FEATURES, &[input.number()], long, None),
            1 => front.tell(SET_PROTOCOL_FEATURES, &[input.number()], long, None),
            2 | 3 => {
                let regions = usize::from(input.byte() % 5);
                let table = [regions as u32, 0].map(u32::to_ne_bytes).concat();
                let body: Vec<u8> =
                    (0..regions).flat_map(|_| region(input)).flat_map(u64::to_ne_bytes).collect();
                let files = vec![file.as_fd(); regions];
                front.send(SET_MEM_TABLE, 1, &[table, body].concat(), None, &files);
            }
            4 => front.tell(SET_VRING_NUM, &[index, 1 << (input.byte() % 12)], word, None),
            5 => front.tell(SET_VRING_BASE, &[index, u32::from(input.word())], word, None),
            6 | 7 => {
                let at = [input.number(), input.number(), input.number()];
                front.address_of(index, [at[0] & !15, at[1] & !3, at[2] & !1]);
            }
            8 => front.tell(SET_VRING_KICK, &[u64::from(index)], long, fd),
            9 => front.tell(SET_VRING_KICK, &[u64::from(index)], long, Some(front.kick.as_fd())),
            10 => front.tell(SET_VRING_CALL, &[u64::from(index)], long, fd),
            11 => front.tell(SET_VRING_ERR, &[u64::from(index)], long, fd),
            12 => front.tell(SET_VRING_ENABLE, &[index, u32::from(input.byte() & 1)], word, None),
            13 => front.tell(GET_VRING_BASE, &[index, 0], word, None),
            14 => {
                let config = [input.number() as u32, u32::from(input.byte()), 0];
                let body = config.map(u32::to_ne_bytes).concat();
                let room = vec![0; config[1] as usize];
                front.send(GET_CONFIG, 1, &[body, room].concat(), None, &[]);
            }
            15 => {
                let body = [
                    &[0; 16][..],
                    &input.word().to_ne_bytes(),
                    &input.word().to_ne_bytes(),
                    &[0; 4],
                ];
                front.send(GET_INFLIGHT_FD, 1, &body.concat(), None, &[]);
            }
            16 | 17 => {
                let (len, offset) = (input.number(), input.number());
                let (queues, size) = (u16::from(input.byte()), QUEUE_SIZE << (input.byte() % 8));
                let file = File::from(file.as_fd().try_clone_to_owned().expect("a file"));
                front.set_inflight(&file, len, offset, queues, size);
            }
            18 => front.send(RESET_DEVICE, 1, &[], None, &[]),
            19 | 20 => {
                let request = [ADD_MEM_REG, REM_MEM_REG][usize::from(what % 24 - 19)];
                let body = [&[0; 8][..], &region(input).map(u64::to_ne_bytes).concat()].concat();
                front.send(request, 1, &body, None, fd.as_slice());
            }
            21 => {
                self.start();
            }
            _ => {
                let (request, flags) = (input.byte(), input.byte());
                let len = usize::from(input.byte());
                let body = input.bytes(len);
                let said = (flags & 0x80 != 0).then(|| input.number() as u32);
                let files = vec![file.as_fd(); usize::from(flags >> 4 & 7)];
                let flags =
                    if flags & 2 == 0 { u32::from(flags & 8) | 1 } else { u32::from(flags) };
                front.send(u32::from(request % 45), flags, body, said, &files);
            }
        }
    }

    /// Ends everything, which is to end.
    fn end(self, by_order: bool) {
        let Self { front, stop, serving, left, disk, memory, cut, .. } = self;
        disk.open.send_replace(true);
        if let (true, Some(stop)) = (by_order, stop) {
            let _ = stop.send(());
        }
        front.hear();
        if !by_order {
            drop(front);
        }
        runtime().block_on(async {
            for connection in left.into_iter().chain([serving]) {
                let ended = tokio::time::timeout(PATIENCE, connection).await;
                ended.expect("a connection does not end").expect("it ends");
            }
        });
        if !cut {
            memory.check();
        }
    }
}

fn connect(server: &VhostUserServer) -> (FrontEnd, oneshot::Sender<()>, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    theirs.set_nonblocking(true).expect("a socket");
    let (stop, stopped) = oneshot::channel::<()>();
    let _entered = runtime().enter();
    let theirs = tokio::net::UnixStream::from_std(theirs).expect("a socket");
    let serving = server.clone().serve_one(ONE.to_owned(), theirs, async move {
        if stopped.await.is_err() {
            std::future::pending().await
        }
    });
    (FrontEnd::new(ours), stop, runtime().spawn(serving))
}

/// Makes sure, now and then, that no input leaves a file open.
fn check_files() {
    static RUNS: OnceLock<usize> = OnceLock::new();
    let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let first = *RUNS.get_or_init(open);
    assert!(open() < first + 100, "files are left open");
}

fuzz_target!(|input: &[u8]| {
    let mut input = InputBytes(input);
    let (how, disk) = (input.byte(), input.byte());
    let by_the_rules = how & 1 != 0;
    let mut scene = Scene::new(how, disk);
    if by_the_rules || how & 16 == 0 {
        scene.start();
    }
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        match by_the_rules {
            true => scene.step_by_the_rules(&mut input),
            false => scene.step(&mut input),
        }
    }
    if by_the_rules {
        scene.end_by_the_rules();
    } else {
        scene.disk.open.send_replace(true);
        rest();
    }
    scene.end(how & 32 != 0);
    if how == 0 || how == 1 {
        check_files();
    }
});
