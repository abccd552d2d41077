//! Where a borrowed disk's room comes from: lent disks, or a directory of a running host.

use super::find;
use super::lent_map::LentMap;
use super::report::{CheckView, LentView, device_path};
use crate::signals::Switch;
use block::{Device, Error, Result, Span};
use freespace::Source;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use transient::{
    DiskKey, GiveBack, HostDisk, Layout, Lent, Live, Loan, Member, Plan, Stitched, Watch,
};

/// How often a running host's free space is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How often the file systems that lend are looked at although nothing is written.
const IDLE_LOOK: Duration = Duration::from_secs(30);

/// Room, and the disk on it.
pub struct BorrowedRoom {
    disk: Arc<Stitched>,
    from: RoomSource,
}

enum RoomSource {
    /// Disks whose system is not running.
    Disks { plan: Plan, members: Vec<Arc<Member>>, watch: JoinSet<()>, stop: Switch },
    /// A file without a name.
    Host { live: Arc<Live>, directory: String, _watch: JoinSet<()> },
}

/// A key from the system's randomness.
///
/// # Errors
/// Any error from locking memory.
pub(crate) fn key() -> Result<DiskKey> {
    let entropy = engine::world::system().entropy;
    DiskKey::generate(|bytes| entropy.fill(bytes))
}

/// Keeps core dumps away: what is in the memory of this process is private.
pub fn leave_no_core() {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
}

impl BorrowedRoom {
    /// A disk of `size` bytes on the loans of a plan.
    ///
    /// # Errors
    /// Any error from [`Plan::stitch`].
    pub fn on_disks(plan: Plan, size: u64) -> Result<Self> {
        let (disk, members) = plan.stitch(size, &key()?)?;
        let (mut watch, stop) = (JoinSet::new(), Switch::new());
        watch.spawn(keep_looking(Arc::clone(plan.watch()), stop.wait()));
        Ok(Self { disk: Arc::new(disk), from: RoomSource::Disks { plan, members, watch, stop } })
    }

    /// A disk of `size` bytes in `directory`, whose file system keeps `floor` bytes free.
    ///
    /// # Errors
    /// Any error from [`Live::create`].
    pub fn on_host(directory: &Path, size: u64, floor: u64, policy: GiveBack) -> Result<Self> {
        let room = size.next_multiple_of(block::BLOCK);
        let live = Arc::new(Live::create(directory, room, floor, policy)?);
        let layout = Layout::new(&[Lent { member: 0, span: Span::whole(room) }], &[room])?;
        let members = vec![Arc::clone(&live) as Arc<dyn Device>];
        let disk = Stitched::new(members, layout, size, Some(&key()?))?;
        let mut watch = JoinSet::new();
        watch.spawn(keep_floor(Arc::clone(&live)));
        let directory = directory.display().to_string();
        Ok(Self { disk: Arc::new(disk), from: RoomSource::Host { live, directory, _watch: watch } })
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<Stitched> {
        &self.disk
    }

    /// What each disk lends.
    pub(crate) fn lent(&self) -> Vec<LentView> {
        match &self.from {
            RoomSource::Disks { plan, .. } => lent(plan),
            RoomSource::Host { directory, .. } => vec![LentView {
                disk: directory.clone(),
                bytes: self.disk.layout().capacity(),
                extents: 1,
                map: None,
            }],
        }
    }

    /// The room of a running host, if it is that.
    pub(crate) fn live(&self) -> Option<&Arc<Live>> {
        match &self.from {
            RoomSource::Disks { .. } => None,
            RoomSource::Host { live, .. } => Some(live),
        }
    }

    /// Bytes given back to a running host.
    pub(crate) fn given_back(&self) -> u64 {
        match &self.from {
            RoomSource::Disks { .. } => 0,
            RoomSource::Host { live, .. } => live.given(),
        }
    }

    /// Drops the key, syncs what was written while nobody else can have the disks, and looks at the file
    /// systems again; then tells the disks of the owner, if wanted, that the lent ranges hold nothing. Returns
    /// the bytes discarded: none when a file system is not as it was, whose files may lie there by now.
    pub(crate) async fn end(self, discard: bool) -> (u64, Vec<CheckView>) {
        drop(self.disk);
        let RoomSource::Disks { plan, members, mut watch, stop } = self.from else {
            return (0, Vec::new());
        };
        stop.throw();
        while watch.join_next().await.is_some() {}
        let disks = lent(&plan);
        let ended = block::offload(move || Ok(finish(&plan, &members, discard))).await;
        ended.unwrap_or_else(|e| {
            let unseen = |lent: LentView| CheckView::unseen(lent.disk, e.message());
            (0, disks.into_iter().map(unseen).collect())
        })
    }
}

/// The end of a plan whose borrowed disk is gone.
fn finish(plan: &Plan, members: &[Arc<Member>], discard: bool) -> (u64, Vec<CheckView>) {
    plan.watch().expire();
    let unsettled: Vec<Option<Error>> =
        members.iter().map(|member| member.settle().err()).collect();
    let mut checked: Vec<CheckView> = plan.loans().iter().map(check).collect();
    for (loan, view) in plan.loans().iter().zip(&mut checked) {
        let failed = members.iter().zip(&unsettled);
        let mut failed = failed.filter(|(member, _)| Arc::ptr_eq(member.disk(), &loan.disk));
        if let Some((_, Some(error))) = failed.next() {
            view.blame(error.message());
        }
    }
    blame_all(plan, &mut checked);
    let discarded = match discard {
        true => discard_lent(plan, members, &mut checked),
        false => 0,
    };
    (discarded, checked)
}

/// Takes back that all is as it was where somebody else was found to use one of the file systems: what is so now
/// need not have been so all the time, nor stay so.
fn blame_all(plan: &Plan, checked: &mut [CheckView]) {
    if let Err(error) = plan.watch().intact() {
        checked.iter_mut().for_each(|view| view.blame(error.message()));
    }
}

/// Tells the disks that the lent ranges hold nothing, if all that was checked is good, and as long as nobody else is
/// found to use a file system there. Returns the bytes of those that were told.
fn discard_lent(plan: &Plan, members: &[Arc<Member>], checked: &mut [CheckView]) -> u64 {
    if checked.iter().any(|check| !check.good) {
        return 0;
    }
    let mut discarded = 0;
    for lent in plan.lent() {
        let Some(member) = members.get(lent.member) else { continue };
        if let Err(e) = member.trim(lent.span) {
            tracing::warn!(error = e.message(), "a disk was not told of all free ranges");
            blame_all(plan, checked);
            break;
        }
        discarded += lent.span.len();
    }
    discarded
}

/// What each disk of a plan lends.
pub fn lent(plan: &Plan) -> Vec<LentView> {
    let view = |(number, disk): (usize, &Arc<HostDisk>)| {
        let of_it = plan.lent().iter().filter(|lent| lent.member == number);
        let map = Some(LentMap::of(disk.size(), of_it.map(|lent| lent.span)));
        LentView { disk: disk.path().display().to_string(), bytes: 0, extents: 0, map }
    };
    let mut views: Vec<LentView> = plan.disks().iter().enumerate().map(view).collect();
    for lent in plan.lent() {
        if let Some(view) = views.get_mut(lent.member) {
            view.bytes += lent.span.len();
            view.extents += 1;
        }
    }
    views
}

/// Looks at a file system of the owner again.
fn check(loan: &Loan) -> CheckView {
    let why = loan.recheck().err().map(|refusal| refusal.to_string());
    CheckView {
        disk: loan.disk.path().display().to_string(),
        offset: loan.claim.base,
        kind: loan.claim.kind.to_string(),
        good: why.is_none(),
        why,
    }
}

/// Looks at disks that the kernel held for a borrowed disk: reads the file systems again and, when all
/// of a disk is as it was, discards the lent ranges, if wanted. Returns the bytes discarded.
///
/// # Errors
/// Any error from opening the disks.
pub fn recheck_devices(lent: &[(u64, Span)], discard: bool) -> Result<(u64, Vec<CheckView>)> {
    let mut devices: Vec<u64> = lent.iter().map(|(device, _)| *device).collect();
    devices.sort_unstable();
    devices.dedup();
    let (mut discarded, mut checked) = (0, Vec::new());
    for device in devices {
        let spans: Vec<Span> =
            lent.iter().filter(|(on, _)| *on == device).map(|(_, span)| *span).collect();
        let path = device_path(device);
        let loans = match find::again(&path, &spans) {
            Ok(loans) => loans,
            Err(e) => {
                checked.push(CheckView::unseen(path.display().to_string(), e.message()));
                continue;
            }
        };
        let mut views: Vec<CheckView> = loans.iter().map(check).collect();
        if discard && views.iter().all(|check| check.good) {
            let plan = Plan::new(loans)?;
            discarded += discard_lent(&plan, &plan.members()?, &mut views);
        }
        checked.extend(views);
    }
    Ok((discarded, checked))
}

/// Looks at the lenders when nothing is written for long. Has no look under way when it ends with `stop`.
async fn keep_looking(watch: Arc<Watch>, stop: impl Future<Output = ()>) {
    let mut stop = std::pin::pin!(stop);
    let first = tokio::time::Instant::now() + IDLE_LOOK;
    let mut ticks = tokio::time::interval_at(first, IDLE_LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut stop => return,
        }
        let looking = Arc::clone(&watch);
        let Err(e) = block::offload(move || looking.look()).await else { continue };
        if watch.intact().is_err() {
            tracing::error!(error = e.message(), "the borrowed disk cannot be used any more");
            return;
        }
        // Of a disk that cannot be read now, the next look may be better.
        tracing::warn!(error = e.message(), "the borrowed disk cannot be written now");
    }
}

async fn keep_floor(live: Arc<Live>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let live = Arc::clone(&live);
        match block::offload(move || live.keep_floor()).await {
            Ok(given) if given.lost > 0 => {
                tracing::warn!(bytes = given.lost, "gave data up: the host needs the room");
            }
            Ok(given) if given.unwritten > 0 => {
                tracing::info!(bytes = given.unwritten, "gave room back to the host");
            }
            Ok(_) => {}
            Err(e) => tracing::warn!(error = e.message(), "cannot look at the host's free space"),
        }
    }
}
