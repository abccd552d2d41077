use super::*;
use nbd::codec::ReplyStyle;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// A driver with one device; tests have connections die.
#[derive(Debug)]
struct Fake {
    world: Arc<Mutex<World>>,
    reports: mpsc::UnboundedReceiver<Option<u32>>,
}

#[derive(Debug, Default)]
struct World {
    /// `None`: the device is not connected.
    device: Option<DeviceSettings>,
    live: usize,
    dead: usize,
    replaced: usize,
}

const INDEX: u32 = 3;

#[async_trait]
impl Driver for Fake {
    async fn connect(
        &mut self,
        index: Option<u32>,
        settings: &DeviceSettings,
        sockets: &[BorrowedFd<'_>],
    ) -> Result<u32> {
        let mut world = self.world.lock().unwrap();
        world.device = Some(settings.clone());
        world.live = sockets.len();
        Ok(index.unwrap_or(INDEX))
    }

    async fn replace(
        &mut self,
        _: u32,
        settings: &DeviceSettings,
        _: BorrowedFd<'_>,
    ) -> Result<bool> {
        let mut world = self.world.lock().unwrap();
        if world.device.is_none() {
            return Err(Error::not_found("not connected"));
        }
        if world.dead == 0 {
            return Ok(false);
        }
        // Linux 6.9 would wait for ever.
        assert_eq!(world.device.as_ref().map(|device| device.size), Some(settings.size));
        (world.dead, world.live, world.replaced) =
            (world.dead - 1, world.live + 1, world.replaced + 1);
        Ok(true)
    }

    async fn resize(&mut self, _: u32, settings: &DeviceSettings) -> Result<()> {
        self.world.lock().unwrap().device = Some(settings.clone());
        Ok(())
    }

    async fn disconnect(&mut self, _: u32) -> Result<()> {
        self.world.lock().unwrap().device = None;
        Ok(())
    }

    fn is_connected(&self, _: u32) -> Result<bool> {
        Ok(self.world.lock().unwrap().device.is_some())
    }

    fn device(&self, index: u32) -> Result<Option<ConnectedDevice>> {
        let world = self.world.lock().unwrap();
        Ok(world.device.as_ref().map(|device| ConnectedDevice {
            index,
            size: device.size,
            block_size: device.block_size,
            is_read_only: device.server_flags & export_flags::READ_ONLY != 0,
            backend: Some(device.backend.clone()),
        }))
    }

    async fn died(&mut self) -> Result<Option<u32>> {
        self.reports.recv().await.ok_or_else(|| Error::unavailable("the driver is gone"))
    }
}

/// A server that answers as the test says, and well when the test says nothing.
#[derive(Debug, Clone)]
struct Server {
    answers: Arc<Mutex<VecDeque<Result<Terms>>>>,
    dials: Arc<Mutex<usize>>,
    /// What the last connection took the place of.
    reinstates: Arc<Mutex<Option<Reinstatement>>>,
}

fn terms(size: u64) -> Terms {
    Terms {
        size,
        flags: export_flags::HAS_FLAGS | export_flags::CAN_MULTI_CONN,
        style: ReplyStyle::Simple,
        allocation: None,
        limits: block::Limits::default(),
        content: Some("disk 1".into()),
    }
}

#[async_trait]
impl Dial for Server {
    async fn dial(
        &mut self,
        reinstates: Option<Reinstatement>,
        fits: FitCheck<'_>,
    ) -> Result<HandedSocket> {
        *self.dials.lock().unwrap() += 1;
        *self.reinstates.lock().unwrap() = reinstates;
        let answer = self.answers.lock().unwrap().pop_front();
        let terms = answer.unwrap_or_else(|| Ok(terms(1 << 20)))?;
        fits(&terms)?;
        Ok(HandedSocket { socket: UnixStream::pair().unwrap().0.into(), terms, relay: None })
    }

    fn name(&self) -> String {
        "nbd://lab/alice".into()
    }
}

/// A device with two connections.
fn two() -> KeeperOptions {
    KeeperOptions { connections: 2, ..KeeperOptions::default() }
}

struct Rig {
    world: Arc<Mutex<World>>,
    server: Server,
    reports: mpsc::UnboundedSender<Option<u32>>,
}

impl Rig {
    fn new() -> (Self, Fake) {
        let world = Arc::new(Mutex::new(World::default()));
        let (reports, receiver) = mpsc::unbounded_channel();
        let server =
            Server { answers: Arc::default(), dials: Arc::default(), reinstates: Arc::default() };
        (Self { world: Arc::clone(&world), server, reports }, Fake { world, reports: receiver })
    }

    /// Connections die, and so many reports of it come through.
    fn kill(&self, number: usize, reported: usize) {
        let mut world = self.world.lock().unwrap();
        (world.dead, world.live) = (world.dead + number, world.live - number);
        for _ in 0..reported {
            self.reports.send(Some(INDEX)).unwrap();
        }
    }

    fn answer(&self, answers: impl IntoIterator<Item = Result<Terms>>) {
        self.server.answers.lock().unwrap().extend(answers);
    }

    fn alive(&self) -> usize {
        self.world.lock().unwrap().live
    }
}

async fn connected(options: &KeeperOptions) -> (Rig, Keeper<Fake, Server>) {
    let (rig, driver) = Rig::new();
    let keeper = Keeper::connect(driver, rig.server.clone(), options).await.unwrap();
    (rig, keeper)
}

/// Keeps the device until `done`, or for a minute.
async fn keep_until(keeper: &mut Keeper<Fake, impl Dial>, done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        ended = keeper.keep() => panic!("{ended:?}"),
        () = waiting => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("not in time"),
    }
}

#[tokio::test(start_paused = true)]
async fn every_connection_that_dies_is_replaced() {
    let (rig, mut keeper) = connected(&two()).await;
    assert_eq!((keeper.index(), keeper.connections(), rig.alive()), (INDEX, 2, 2));
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 2).await;
    rig.kill(2, 2);
    keep_until(&mut keeper, || rig.alive() == 2).await;
    assert_eq!(rig.world.lock().unwrap().replaced, 3);
}

#[tokio::test(start_paused = true)]
async fn reports_that_were_lost_are_made_up_for() {
    let (rig, mut keeper) = connected(&two()).await;
    rig.kill(2, 0);
    rig.reports.send(None).unwrap();
    keep_until(&mut keeper, || rig.alive() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn reports_about_other_devices_are_passed_over() {
    let (rig, mut keeper) = connected(&two()).await;
    rig.reports.send(Some(INDEX + 1)).unwrap();
    rig.kill(1, 1);
    let dials = *rig.server.dials.lock().unwrap();
    keep_until(&mut keeper, || rig.alive() == 2).await;
    assert_eq!(*rig.server.dials.lock().unwrap(), dials + 1);
}

#[tokio::test(start_paused = true)]
async fn a_device_gets_the_size_that_its_export_has_grown_to_when_requests_are_answered_again() {
    let (rig, mut keeper) = connected(&two()).await;
    rig.answer([Ok(terms(2 << 20))]);
    rig.kill(1, 1);
    let size = || rig.world.lock().unwrap().device.as_ref().map(|device| device.size);
    keep_until(&mut keeper, || rig.alive() == 2).await;
    keep_until(&mut keeper, || size() == Some(2 << 20)).await;
    assert_eq!(keeper.size(), 2 << 20);
    // One that is not to grow does not.
    let (rig, mut keeper) = connected(&KeeperOptions { grows: false, ..two() }).await;
    rig.answer([Ok(terms(2 << 20))]);
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 2).await;
    assert!(tokio::time::timeout(LOOK * 3, keeper.keep()).await.is_err());
    assert_eq!(keeper.size(), 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_reports_nothing_and_refuses_for_a_while_does_not_end_the_keeper() {
    let (rig, mut keeper) = connected(&two()).await;
    let Rig { world, server, reports } = rig;
    drop(reports);
    server.answers.lock().unwrap().push_back(Err(Error::internal("no memory")));
    {
        let mut world = world.lock().unwrap();
        (world.dead, world.live) = (1, 1);
    }
    keep_until(&mut keeper, || world.lock().unwrap().live == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_smaller_export_is_never_put_under_a_device_and_the_old_one_is_waited_for() {
    let (rig, mut keeper) = connected(&two()).await;
    let missing = || Err(Error::not_found("no such export"));
    rig.answer([Ok(terms(4096)), Err(Error::unavailable("away")), missing(), missing()]);
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 2).await;
    let world = rig.world.lock().unwrap();
    assert_eq!(world.device.as_ref().unwrap().size, 1 << 20);
    assert_eq!(*rig.server.dials.lock().unwrap(), 2 + 5);
}

#[tokio::test(start_paused = true)]
async fn what_was_put_into_the_place_of_an_export_is_never_put_under_a_device() {
    let (rig, mut keeper) = connected(&two()).await;
    let other = || Ok(Terms { content: Some("disk 1, reset".into()), ..terms(1 << 20) });
    let untold = Terms { content: None, ..terms(1 << 20) };
    rig.answer([other(), other(), other(), Ok(untold)]);
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 2).await;
    // The server that does not tell was the fourth.
    assert_eq!(*rig.server.dials.lock().unwrap(), 2 + 4);
    rig.answer([other()]);
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 2).await;
    assert_eq!(*rig.server.dials.lock().unwrap(), 2 + 4 + 2);
}

#[tokio::test(start_paused = true)]
async fn the_keeper_ends_when_somebody_ends_the_device_with_a_server_and_without() {
    let (rig, mut keeper) = connected(&two()).await;
    rig.world.lock().unwrap().device = None;
    keeper.keep().await.unwrap();
    let (rig, mut keeper) = connected(&two()).await;
    rig.answer((0..100).map(|_| Err(Error::unavailable("away"))));
    rig.kill(2, 2);
    let world = Arc::clone(&rig.world);
    let ends = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        world.lock().unwrap().device = None;
    };
    let (kept, ()) = tokio::join!(keeper.keep(), ends);
    kept.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_device_whose_keeper_was_killed_is_taken_up_again() {
    let options = KeeperOptions { index: Some(INDEX), ..two() };
    let (rig, keeper) = connected(&options).await;
    let Keeper { driver, servers, .. } = keeper;
    rig.kill(2, 0); // while nobody listens
    let mut keeper = Keeper::connect(driver, servers, &options).await.unwrap();
    assert_eq!((rig.alive(), keeper.index()), (2, INDEX));
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_device_is_not_taken_up_again_with_anything_but_what_it_was_made_of() {
    let options = KeeperOptions { index: Some(INDEX), ..two() };
    let (rig, keeper) = connected(&options).await;
    let Keeper { driver, servers, .. } = keeper;
    let world = Arc::clone(&rig.world);
    let mut reports = Some(driver.reports);
    rig.kill(2, 0);
    let read_only = terms(1 << 20).flags | export_flags::READ_ONLY;
    let others = [
        Terms { content: Some("disk 1, reset".into()), ..terms(1 << 20) },
        terms(4096),
        Terms { flags: read_only, ..terms(1 << 20) },
    ];
    for other in others {
        rig.answer([Ok(other)]);
        let (_sender, receiver) = mpsc::unbounded_channel();
        let driver = Fake { world: Arc::clone(&world), reports: receiver };
        let refused = Keeper::connect(driver, servers.clone(), &options).await.unwrap_err();
        assert_eq!((refused.kind(), rig.alive()), (ErrorKind::Conflict, 0), "{refused}");
    }
    // One that has grown meanwhile does, once its connections were replaced; nor is what was under it forgotten.
    rig.answer((0..3).map(|_| Ok(terms(2 << 20))));
    let driver = Fake { world: Arc::clone(&world), reports: reports.take().unwrap() };
    let mut keeper = Keeper::connect(driver, servers, &options).await.unwrap();
    assert_eq!((rig.alive(), keeper.size()), (2, 1 << 20));
    keep_until(&mut keeper, || world.lock().unwrap().device.as_ref().unwrap().size == 2 << 20)
        .await;
    let other = || Ok(Terms { content: Some("disk 2".into()), ..terms(2 << 20) });
    rig.answer([other(), Ok(terms(2 << 20))]);
    rig.kill(1, 1);
    let dials = *rig.server.dials.lock().unwrap();
    keep_until(&mut keeper, || rig.alive() == 2).await;
    assert_eq!(*rig.server.dials.lock().unwrap(), dials + 2);
}

#[tokio::test(start_paused = true)]
async fn each_connection_of_a_device_with_one_takes_the_place_of_those_before() {
    let options =
        KeeperOptions { index: Some(INDEX), id: [5; 16], number: 100, ..KeeperOptions::default() };
    let (rig, mut keeper) = connected(&options).await;
    let last = Arc::clone(&rig.server.reinstates);
    let last = || last.lock().unwrap().unwrap();
    let first = last();
    assert_eq!(first.id, options.id);
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 1).await;
    let second = last();
    assert!(second.id == first.id && second.number > first.number);
    // A keeper that takes the device up goes on with the id that the kernel remembers.
    let Keeper { driver, servers, .. } = keeper;
    rig.kill(1, 0);
    let later = KeeperOptions { id: [6; 16], number: 5000, ..options };
    let _keeper = Keeper::connect(driver, servers, &later).await.unwrap();
    assert!(rig.alive() == 1 && last().id == first.id && last().number > second.number);
}

#[tokio::test]
async fn connections_that_are_used_side_by_side_take_no_others_place() {
    let (rig, _keeper) = connected(&two()).await;
    assert_eq!(*rig.server.reinstates.lock().unwrap(), None);
}

#[tokio::test]
async fn one_connection_is_made_where_the_server_allows_no_more() {
    let (rig, driver) = Rig::new();
    let flags = export_flags::HAS_FLAGS;
    let alone = || Ok(Terms { flags, ..terms(1 << 20) });
    rig.answer([alone(), alone()]);
    let options = KeeperOptions { connections: 4, ..KeeperOptions::default() };
    let keeper = Keeper::connect(driver, rig.server.clone(), &options).await.unwrap();
    assert_eq!((keeper.connections(), rig.alive()), (1, 1));
    assert!(rig.server.reinstates.lock().unwrap().is_some(), "it takes others' place");
}

#[tokio::test]
async fn settings_and_sizes_that_cannot_be_are_refused() {
    let bad = [
        KeeperOptions { connections: 0, ..KeeperOptions::default() },
        KeeperOptions { connections: 17, ..KeeperOptions::default() },
        KeeperOptions { request_timeout: Duration::ZERO, ..KeeperOptions::default() },
    ];
    for options in bad {
        let (rig, driver) = Rig::new();
        let error = Keeper::connect(driver, rig.server.clone(), &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let uri = |text: &str| (text.parse().unwrap(), ClientOptions::default());
    let addresses = vec![uri("nbd://lab-1/alice"), uri("nbd://lab-2/alice")];
    let servers = ExportServers::new("alice".into(), addresses).unwrap();
    let error = Keeper::connect(Rig::new().1, servers, &two()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for size in [0, 1000] {
        let (rig, driver) = Rig::new();
        rig.answer([Ok(terms(size))]);
        let options = KeeperOptions::default();
        let error = Keeper::connect(driver, rig.server.clone(), &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

/// One export, which notes the run of each client's system.
#[derive(Default)]
struct Runs(Arc<Mutex<Vec<Option<[u8; 16]>>>>);

struct Open(Arc<dyn block::Device>);

#[async_trait]
impl nbd::Exports for Runs {
    async fn list(&self, _: &nbd::Peer) -> Result<Vec<nbd::ExportSummary>> {
        Ok(Vec::new())
    }
    async fn open(
        &self,
        _: &str,
        peer: &nbd::Peer,
        purpose: nbd::Purpose,
    ) -> Result<Box<dyn nbd::Session>> {
        if purpose == nbd::Purpose::Use {
            self.0.lock().unwrap().push(peer.run);
        }
        Ok(Box::new(Open(Arc::new(block::Memory::new(4096)))))
    }
}

#[async_trait]
impl nbd::Session for Open {
    fn device(&self) -> &Arc<dyn block::Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "alice"
    }
    async fn close(self: Box<Self>, _: nbd::SessionEnding) {}
}

#[tokio::test]
async fn a_machine_says_once_that_its_system_has_begun() {
    let runs = Runs::default();
    let seen = Arc::clone(&runs.0);
    let mut serving = JoinSet::new();
    let (uri, _) = serve(&mut serving, runs).await;
    let options = ClientOptions { initial_contact: true, ..ClientOptions::default() };
    // The first server is not there: who has not reached any has not said it.
    let gone = Uri::new(nbd::Address::Tcp("127.0.0.1".to_owned(), 1), "alice");
    let addresses = vec![(gone, options.clone()), (uri, options)];
    let mut servers = ExportServers::new("alice".into(), addresses).unwrap();
    for number in 1..=2 {
        servers.dial(Some(Reinstatement { id: [5; 16], number }), &|_| Ok(())).await.unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), [Some([5; 16]), None]);
}

/// One export, of which the test says what it holds; without that nobody can have it.
#[derive(Clone)]
struct Told {
    content: Arc<Mutex<Option<&'static str>>>,
    uses: Arc<AtomicUsize>,
}

impl Told {
    fn new(content: Option<&'static str>) -> Self {
        Self { content: Arc::new(Mutex::new(content)), uses: Arc::default() }
    }

    fn becomes(&self, content: Option<&'static str>) {
        *self.content.lock().unwrap() = content;
    }

    /// How often it was opened to be used.
    fn uses(&self) -> usize {
        self.uses.load(Relaxed)
    }
}

#[async_trait]
impl nbd::Exports for Told {
    async fn list(&self, _: &nbd::Peer) -> Result<Vec<nbd::ExportSummary>> {
        Ok(Vec::new())
    }
    async fn open(
        &self,
        _: &str,
        _: &nbd::Peer,
        purpose: nbd::Purpose,
    ) -> Result<Box<dyn nbd::Session>> {
        let content = *self.content.lock().unwrap();
        let content = content.ok_or_else(|| Error::not_found("it is elsewhere"))?;
        if purpose == nbd::Purpose::Use {
            self.uses.fetch_add(1, Relaxed);
        }
        Ok(Box::new(ToldUse(Arc::new(block::Memory::new(4096)), content)))
    }
}

struct ToldUse(Arc<dyn block::Device>, &'static str);

#[async_trait]
impl nbd::Session for ToldUse {
    fn device(&self) -> &Arc<dyn block::Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "alice"
    }
    fn content(&self) -> Option<String> {
        Some(self.1.to_owned())
    }
    async fn close(self: Box<Self>, _: nbd::SessionEnding) {}
}

/// Serves an export on a port of its own.
async fn serve(
    serving: &mut JoinSet<Result<()>>,
    exports: impl nbd::Exports + 'static,
) -> (Uri, ClientOptions) {
    let server = nbd::Server::new(Arc::new(exports), nbd::ServerLimits::default());
    let any = nbd::Address::Tcp("127.0.0.1".to_owned(), 0);
    let listener = nbd::Listener::bind(&any, 16).await.unwrap();
    let uri = Uri::new(listener.address().clone(), "alice");
    serving.spawn(async move { server.serve(listener, std::future::pending()).await });
    (uri, ClientOptions::default())
}

#[tokio::test]
async fn nothing_else_is_put_under_a_device_with_several_connections_either() {
    let mut serving = JoinSet::new();
    let disk = Told::new(Some("disk 1"));
    let at = serve(&mut serving, disk.clone()).await;
    let mut servers = ExportServers::new("alice".into(), vec![at]).unwrap();
    let alone = servers.dial(None, &|_| Ok(())).await.unwrap();
    assert_eq!(alone.terms.content.as_deref(), Some("disk 1"));
    drop(alone);
    let (rig, driver) = Rig::new();
    let mut keeper = Keeper::connect(driver, servers, &two()).await.unwrap();
    assert_eq!((keeper.connections(), rig.alive()), (2, 2));
    disk.becomes(Some("disk 1, reset"));
    let uses = disk.uses();
    rig.kill(1, 1);
    keep_until(&mut keeper, || rig.alive() == 2 || disk.uses() > uses + 1).await;
    assert_eq!(rig.alive(), 1, "it was reset under the device");
    disk.becomes(Some("disk 1"));
    rig.kill(0, 1);
    keep_until(&mut keeper, || rig.alive() == 2).await;
}

#[tokio::test]
async fn a_server_with_something_else_keeps_no_other_from_being_asked() {
    let mut serving = JoinSet::new();
    let (right, other) = (Told::new(Some("disk 1")), Told::new(None));
    let addresses =
        vec![serve(&mut serving, other.clone()).await, serve(&mut serving, right.clone()).await];
    let servers = || ExportServers::new("alice".into(), addresses.clone()).unwrap();
    let options = KeeperOptions { index: Some(INDEX), ..KeeperOptions::default() };
    let (rig, driver) = Rig::new();
    let mut keeper = Keeper::connect(driver, servers(), &options).await.unwrap();
    // The server is away, and the other one has an older state.
    right.becomes(None);
    other.becomes(Some("disk 1, taken"));
    rig.kill(1, 1);
    keep_until(&mut keeper, || other.uses() > 0).await;
    assert_eq!(rig.alive(), 0);
    right.becomes(Some("disk 1"));
    rig.kill(0, 1);
    keep_until(&mut keeper, || rig.alive() == 1).await;
    // Nor does it keep the next keeper from it, which begins with the first server.
    let Keeper { driver, .. } = keeper;
    rig.kill(1, 0);
    let later = KeeperOptions { number: 1000, ..options };
    let _keeper = Keeper::connect(driver, servers(), &later).await.unwrap();
    assert_eq!(rig.alive(), 1);
}

#[test]
fn pauses_double_to_a_limit_and_are_spread() {
    let (mut one, mut other) = (Pauses::new([1; 16]), Pauses::new([2; 16]));
    let pauses: Vec<_> = std::iter::repeat_with(|| one.next()).take(10).collect();
    for (number, pause) in pauses.iter().enumerate() {
        let whole = (PAUSES.0 * (1 << number)).min(PAUSES.1);
        assert!(*pause >= whole / 2 && *pause <= whole, "{number}: {pause:?} of {whole:?}");
    }
    assert_ne!(pauses[9], std::iter::repeat_with(|| other.next()).take(10).last().unwrap());
    one.reset();
    assert!(one.next() <= PAUSES.0);
}
