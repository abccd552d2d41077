//! What a keeper does with a suspension that was kept here: it sends it, until that is done, or the machine is to
//! go on.

use super::super::disks;
use super::super::folder::MachineFolder;
use super::super::nearby::NearbyOfHome;
use super::super::not_sent::NotSent;
use super::super::requests::KeeperInput;
use super::super::wire::{self, KeeperReply, KeeperRequest, KeptView, PendingView, StoredView};
use super::release;
use super::{Farewell, Keeper, MemoryFill};
use ::vm::machine::MachineDisk;
use ::vm::packing::KeptReport;
use ::vm::upload::{UploadReport, UploadTarget, upload};
use ::vm::{Parcel, PendingSuspension, RunClaim};
use block::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::Progress;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// How soon an upload that failed is tried again, at first and at last.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How long the server may take to say whether the disk is as it was.
const ASKS: Duration = Duration::from_secs(5);

/// Who waits until a suspension is in the store.
pub(super) struct UploadWaiter {
    stream: UnixStream,
    /// For how long the guest stood still, in seconds.
    paused: f64,
    /// How long it took to keep it here, in seconds.
    kept: f64,
    since: Instant,
}

/// How the sending of a suspension ended.
pub(super) enum UploadEnd {
    /// The machine goes on here, by this QEMU; who asked for that waits.
    Resume { asked: UnixStream, qemu: PathBuf, fill: MemoryFill },
    /// It is done, or was given up.
    End(Vec<Farewell>),
}

/// Bytes that went up so far, before they were compressed.
#[derive(Default)]
struct SentBytes(AtomicU64);

impl Progress for SentBytes {
    fn advance(&self, scanned: u64, _: u64) {
        self.0.fetch_add(scanned, Ordering::Relaxed);
    }
}

/// Answers who had a machine suspended that is kept now, or has them wait.
pub(super) async fn kept(
    keeper: &Keeper<'_>,
    stream: UnixStream,
    report: &KeptReport,
    wait: bool,
) -> Vec<UploadWaiter> {
    if wait {
        return vec![UploadWaiter {
            stream,
            paused: report.paused,
            kept: report.kept,
            since: Instant::now(),
        }];
    }
    let view = KeptView {
        parcel: report.pending.parcel(),
        paused_seconds: report.paused,
        kept_seconds: report.kept,
        left_bytes: left(keeper, &report.pending, 0).await,
    };
    wire::answer(stream, Ok(KeeperReply::Kept(view))).await;
    Vec::new()
}

/// Bytes that have not gone up when so many of the memory have.
async fn left(keeper: &Keeper<'_>, pending: &PendingSuspension, sent: u64) -> u64 {
    let memory = pending.bytes(keeper.folder.path()).unwrap_or_default();
    let disk = disks::private_bytes(keeper.home, &pending.machine.disk).await;
    memory.saturating_sub(sent) + disk
}

/// Whether an upload that failed may come off later: the store may come back or get room, and whatever has the name
/// of the machine or its parcel, is missing, damaged or not to be read, may be removed, brought back or mended. Not when
/// the machine can go on from there no more: its disk is another one, or another home has it.
async fn may_come_off(keeper: &Keeper<'_>, pending: &PendingSuspension, error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::NoSpace => true,
        // A session that was taken for dead, as over a night's sleep, says the same of itself.
        ErrorKind::Fenced if is_elsewhere(keeper, pending).await => false,
        // Whoever asks the keeper something waits meanwhile.
        _ => match timeout(ASKS, disks::is_as_suspended(keeper.home, pending)).await {
            Ok(asked) => asked.unwrap_or(true),
            Err(_) => true,
        },
    }
}

/// Whether the store says that another home has the machine.
async fn is_elsewhere(keeper: &Keeper<'_>, pending: &PendingSuspension) -> bool {
    let store = &keeper.engine.store;
    let claimed = RunClaim::of_suspension(store, &pending.machine, keeper.id).await;
    claimed.is_err_and(|e| e.kind() == ErrorKind::Fenced)
}

/// Fails where the machine can go on from its suspension no more, as far as that is known here.
async fn must_hold(keeper: &Keeper<'_>, pending: &PendingSuspension) -> Result<()> {
    match timeout(ASKS, keeper.server.mark(&pending.machine.disk)).await {
        Ok(Ok(mark)) if mark.as_ref() != Some(&pending.disk_mark) => {
            Err(pending.disk_was_written())
        }
        Ok(Err(e)) if matches!(e.kind(), ErrorKind::Fenced | ErrorKind::NotFound) => Err(e),
        _ => Ok(()),
    }
}

/// Whether the parcel of a suspension may be in the store already, as when the host went down before the suspension was
/// given up here: then there is nothing to send, whatever became of the disk since. Also when the store cannot be asked.
async fn may_be_stored(keeper: &Keeper<'_>, pending: &PendingSuspension) -> bool {
    let listed = Parcel::list(&keeper.engine.store, Some(&pending.machine.name));
    match timeout(ASKS, listed).await {
        Ok(Ok((parcels, _))) => parcels.iter().any(|parcel| {
            parcel.spec.uuid == pending.machine.uuid
                && parcel.token.as_ref() == Some(&pending.token)
        }),
        Ok(Err(_)) | Err(_) => true,
    }
}

/// Sends what was kept of a machine, and serves commands meanwhile. What may come off later is tried again and
/// again; who waits is told why it does not, unless it is for a store that is away or full. When all of it was sent and
/// its disk was not released, does that.
///
/// # Errors
/// Any error from making the keeper's socket, and what keeps the suspension from the store for good when nobody waits for it.
pub(super) async fn run(keeper: &mut Keeper<'_>, waiting: Vec<UploadWaiter>) -> Result<UploadEnd> {
    match (keeper.folder.pending()?, keeper.folder.unreleased()) {
        (None, Some(parcel)) => {
            release::finish(keeper, &parcel).await?;
            Ok(UploadEnd::End(Vec::new()))
        }
        _ => {
            let pending = keeper.pending()?;
            send(keeper, pending, waiting).await
        }
    }
}

/// Sends a suspension, and serves commands meanwhile.
async fn send(
    keeper: &mut Keeper<'_>,
    pending: PendingSuspension,
    mut waiting: Vec<UploadWaiter>,
) -> Result<UploadEnd> {
    // Who starts a keeper for this is told the same however quick it is: before anybody can ask it, that it is of no
    // use, or else that it goes up, which begins then.
    let mut later = None;
    let mut is_new = false;
    if !keeper.requests.listens() {
        if let Err(e) = must_hold(keeper, &pending).await
            && !may_be_stored(keeper, &pending).await
        {
            return Err(give_up(keeper.folder, e));
        }
        (later, is_new) = (Some(ASKS), true);
    }
    keeper.requests.listen()?;
    keeper.folder.note_not_sent(None)?;
    let hurry = Notify::new();
    let (folder, engine, server) = (keeper.folder, keeper.engine, keeper.server);
    let nearby = NearbyOfHome(Arc::clone(engine));
    let target = UploadTarget {
        machine: folder.path(),
        store: &engine.store,
        loader: engine.loader(),
        server: keeper.id,
        disk: server,
        nearby: &nearby,
    };
    let mut pause = RETRY[0];
    let mut failure: Option<Error> = None;
    loop {
        let outcome = {
            let sent = SentBytes::default();
            let tried = async {
                if let Some(pause) = later {
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = hurry.notified() => {}
                    }
                }
                upload(&target, &pending, &sent).await
            };
            let mut tried = std::pin::pin!(tried);
            loop {
                let asked = tokio::select! {
                    done = &mut tried => break done,
                    asked = keeper.requests.next() => asked,
                };
                let is_urgent =
                    matches!(asked, KeeperInput::Command(_, Ok(KeeperRequest::Suspend { .. })));
                if is_urgent || std::mem::take(&mut is_new) {
                    hurry.notify_one();
                }
                let sent = sent.0.load(Ordering::Relaxed);
                match serve(keeper, &pending, (sent, failure.as_ref()), &mut waiting, asked).await {
                    Some(UploadEnd::End(farewells)) => {
                        gave_up(waiting, "somebody had it end").await;
                        return Ok(UploadEnd::End(farewells));
                    }
                    Some(resume) => {
                        gave_up(waiting, "the machine went on before it was in the store").await;
                        return Ok(resume);
                    }
                    None => {}
                }
            }
        };
        match outcome {
            Ok(report) => {
                return done(keeper, &pending, &report, waiting).await.map(UploadEnd::End);
            }
            Err(e) if may_come_off(keeper, &pending, &e).await => {
                tracing::warn!(error = %e, "the suspension cannot go up now; it is tried again");
                if !matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::NoSpace) {
                    tell_that_it_is_tried_again(waiting.drain(..), &e).await;
                }
                pause = if failure.is_some() { (pause * 2).min(RETRY[1]) } else { RETRY[0] };
                (later, failure) = (Some(pause), Some(e));
            }
            Err(e) => {
                let e = give_up(folder, e);
                // Who started this keeper for it is told.
                if waiting.is_empty() {
                    return Err(e);
                }
                let failed = |stream| Farewell {
                    stream,
                    reply: Err(Error::new(e.kind(), e.message().to_owned())),
                };
                let streams = waiting.into_iter().map(|waiting| waiting.stream);
                return Ok(UploadEnd::End(streams.map(failed).collect()));
            }
        }
    }
}

/// Serves a command; `Some` when nothing is to go up any more.
async fn serve(
    keeper: &Keeper<'_>,
    pending: &PendingSuspension,
    (sent, failure): (u64, Option<&Error>),
    waiting: &mut Vec<UploadWaiter>,
    asked: KeeperInput,
) -> Option<UploadEnd> {
    let (stream, request) = match asked {
        KeeperInput::ToEnd => return Some(UploadEnd::End(Vec::new())),
        KeeperInput::Nothing => return None,
        KeeperInput::Command(stream, request) => (stream, request),
    };
    match request {
        Ok(KeeperRequest::Resume { qemu, no_fill }) => {
            let fill = MemoryFill::unless(no_fill);
            return Some(UploadEnd::Resume { asked: stream, qemu, fill });
        }
        Ok(KeeperRequest::Stop { force: true } | KeeperRequest::StopSending) => {
            // Until somebody asks for it.
            match keeper.folder.note_not_sent(Some(&NotSent::Stopped)) {
                Ok(()) => {
                    let reply = Ok(KeeperReply::NotSent(pending.parcel()));
                    return Some(UploadEnd::End(vec![Farewell { stream, reply }]));
                }
                Err(e) => wire::answer(stream, Err(e)).await,
            }
        }
        Ok(KeeperRequest::Suspend { wait: true }) => {
            waiting.push(UploadWaiter { stream, paused: 0.0, kept: 0.0, since: Instant::now() });
        }
        request => {
            let view = PendingView {
                parcel: pending.parcel(),
                created: pending.created,
                left_bytes: left(keeper, pending, sent).await,
                keeper: Some(std::process::id()),
                error: failure.map(|e| e.message().to_owned()),
                stopped: false,
            };
            wire::answer(stream, other(request, view)).await;
        }
    }
    None
}

/// What is answered to a command that changes nothing while a suspension goes up.
fn other(request: Result<KeeperRequest>, view: PendingView) -> Result<KeeperReply> {
    match request? {
        KeeperRequest::Status | KeeperRequest::Suspend { .. } => Ok(KeeperReply::Uploading(view)),
        _ => Err(Error::conflict(format!(
            "the machine does not run: it is suspended as {}, which is going up",
            view.parcel
        ))),
    }
}

/// Notes that a suspension is not sent any more, for good; returns why.
fn give_up(folder: &MachineFolder, why: Error) -> Error {
    tracing::error!(error = %why, "the suspension stays here");
    let note = NotSent::GivenUp(Error::new(why.kind(), why.message().to_owned()));
    if let Err(error) = folder.note_not_sent(Some(&note)) {
        tracing::warn!(%error, "it is not noted why");
    }
    why
}

async fn tell_that_it_is_tried_again(waiting: impl Iterator<Item = UploadWaiter>, why: &Error) {
    for UploadWaiter { stream, .. } in waiting {
        let told = Error::new(why.kind(), format!("{}; it is tried again", why.message()));
        wire::answer(stream, Err(told)).await;
    }
}

async fn gave_up(waiting: Vec<UploadWaiter>, why: &str) {
    for UploadWaiter { stream, .. } in waiting {
        wire::answer(stream, Err(Error::conflict(format!("the suspension did not go up: {why}"))))
            .await;
    }
}

/// Gives up what is not needed any more: the parcel is in the store. A crash between two of these steps leaves
/// something to be done again, and nothing lost.
async fn done(
    keeper: &Keeper<'_>,
    pending: &PendingSuspension,
    report: &UploadReport,
    waiting: Vec<UploadWaiter>,
) -> Result<Vec<Farewell>> {
    let parcel = report.parcel.name();
    if let Err(error) = keeper.folder.note_unreleased(Some(&parcel)) {
        tracing::warn!(%error, "a keeper that is killed now leaves the disk unreleased");
    }
    // Before the disk is given up: whoever resumes the machine from now on goes by the parcel.
    PendingSuspension::forget(keeper.folder.path())?;
    let released = release::give_up(keeper, &pending.machine).await;
    tracing::info!(parcel, "the suspension is in the store");
    let answer = |waiting: UploadWaiter| {
        let stored = waiting.kept + waiting.since.elapsed().as_secs_f64();
        let view = StoredView {
            parcel: parcel.clone(),
            paused_seconds: waiting.paused,
            stored_seconds: stored,
            memory_bytes: report.memory_bytes,
            changed_extents: report.changed,
            full_extents: report.full,
            released,
        };
        Farewell { stream: waiting.stream, reply: Ok(KeeperReply::Stored(view)) }
    };
    Ok(waiting.into_iter().map(answer).collect())
}
