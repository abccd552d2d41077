//! A day in the life of a server, in small: fifty clients write, flush, vanish and come back, while
//! the server is killed, restarted, followed by another one, reloaded, collected, and its disk runs
//! full. No flushed byte is lost, a file system in a disk stays whole, nothing leaks.
//!
//! A minute by default, three in `make test`; `MIXED_MINUTES=30` (`make test-mixed`) is the long one.

#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "it tells what the load was")]

mod client;
mod operator;

use operator::Operator;
use sojourn_tests::{Home, SmallFileSystem, content, require};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Clients with a model of their disk, besides the one with a file system.
const CLIENTS: usize = 49;
/// MiB of each disk.
const MIB: usize = 16;
/// The room that all of it has, MiB: more than is ever used, so that it is full when the operator
/// wants it to be and at no other time.
const ROOM: u32 = 4096;
/// How often the process is looked at for leaks, at the least, however long that takes.
const LOOKS: usize = 12;

/// What all clients share.
struct World {
    socket: std::path::PathBuf,
    image: Vec<u8>,
    /// See [`client::POOL`].
    pool: Vec<u8>,
    over: AtomicBool,
    /// What was done, to see that the load was one.
    writes: AtomicU64,
    flushes: AtomicU64,
    refused_for_room: AtomicU64,
    broken: AtomicU64,
}

fn minutes() -> f64 {
    let text = std::env::var("MIXED_MINUTES").unwrap_or_else(|_| "1".to_owned());
    text.parse().unwrap_or_else(|_| panic!("MIXED_MINUTES={text} is no number of minutes"))
}

#[test]
fn no_flushed_byte_is_lost_and_nothing_leaks_in_a_mixed_load() {
    require!("mkfs.ext4", "debugfs", "e2fsck");
    let here = "no_flushed_byte_is_lost_and_nothing_leaks_in_a_mixed_load";
    let Some(small) = SmallFileSystem::mount(here, ROOM) else { return };
    let outcome = catch_unwind(AssertUnwindSafe(|| bear_a_mixed_load(&small)));
    // Once more, behind the log of a server: what was said first is far above.
    outcome.unwrap_or_else(|cause| panic!("the mixed load: {}", reason(&*cause)));
}

/// What a panic says.
fn reason(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("see above")
}

fn bear_a_mixed_load(small: &SmallFileSystem) {
    let home = Home::within(small.path());
    let image = content::image(90, MIB);
    home.import("golden", &image);
    home.import("empty", &vec![0; client::FILE_SYSTEM << 20]);
    (0..CLIENTS).for_each(|i| home.disk(&format!("d{i}"), "golden"));
    home.disk("fs", "empty");
    let world = World {
        socket: home.path("nbd.sock"),
        image,
        pool: content::random(91, client::POOL),
        over: AtomicBool::new(false),
        writes: AtomicU64::new(0),
        flushes: AtomicU64::new(0),
        refused_for_room: AtomicU64::new(0),
        broken: AtomicU64::new(0),
    };
    let end = Instant::now() + Duration::from_secs_f64(minutes() * 60.0);
    let mut operator = Operator::start(&home, small);
    std::thread::scope(|scope| {
        let world = &world;
        let models: Vec<_> = (0..CLIENTS)
            .map(|i| scope.spawn(move || client::work(world, &format!("d{i}"), i as u64 + 1)))
            .collect();
        let file_system = scope.spawn(|| client::keep_a_file_system(world, home.dir()));
        // If a client fails, the others must not wait for the end.
        let _over = OverAtTheEnd(&world.over);
        let failed = || models.iter().any(|model| model.is_finished()) || file_system.is_finished();
        // Two thirds with everything, one third in one process, in which a leak would show.
        let unrest = end - Duration::from_secs_f64(minutes() * 20.0);
        while Instant::now() < unrest && !failed() {
            operator.do_something();
        }
        operator.settle();
        let mut levels = vec![operator.level()];
        while (Instant::now() < end || levels.len() < LOOKS) && !failed() {
            operator.do_something_quiet();
            levels.push(operator.level());
        }
        world.over.store(true, SeqCst);
        for client in models.into_iter().chain([file_system]) {
            client.join().unwrap_or_else(|cause| resume_unwind(cause));
        }
        operator.assert_no_leak(&levels);
    });
    let count = |counter: &AtomicU64| counter.load(SeqCst);
    let (writes, flushes) = (count(&world.writes), count(&world.flushes));
    let (full, broken) = (count(&world.refused_for_room), count(&world.broken));
    println!(
        "{writes} writes, {flushes} flushes, {full} refused for want of room, {broken} connections \
         broken; {}",
        operator.summary()
    );
    assert!(writes > 1000 && flushes > 500 && broken > 10, "that was no load");
    operator.stop();
    home.run(&["verify"]);
    // Once more from the start: what is there is in the files.
    let operator = Operator::start(&home, small);
    std::thread::scope(|scope| {
        (0..CLIENTS).for_each(|i| {
            let world = &world;
            scope.spawn(move || client::attach_once(world, &format!("d{i}")));
        });
    });
    operator.stop();
}

struct OverAtTheEnd<'a>(&'a AtomicBool);

impl Drop for OverAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
