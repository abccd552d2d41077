//! Machines and parcels as they are printed.

use super::disks;
use super::folder::MachineFolder;
use super::not_sent::NotSent;
use super::wire::{
    self, KeeperReply, KeeperRequest, KeptView, PendingView, RunningView, StoredView,
};
use crate::output::{Output, Table, fields, moment, visible};
use ::vm::claim::ClaimState;
use ::vm::{GuestClock, RunClaim};
use ::vm::{MachineSpec, Parcel};
use block::{ByteSize, Error, ErrorKind, Result};
use engine::{Config, Engine, Home, StoreUse};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use store::DamagedRef;
use tokio::time::timeout;

/// How long a keeper has to answer; it does one thing at a time.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the store has to answer where it is asked about a machine that runs here.
const STORE_SAYS: Duration = Duration::from_secs(5);

/// A machine of the home or of its store.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MachineView {
    name: String,
    /// `running`, `busy` (it runs, and is being stored or stopped), `elsewhere` (another home runs it, or sends
    /// what it was suspended as), `suspended` (there is a parcel, or a suspension that is on this host),
    /// `stopped`, `damaged`, or `newer` (a newer build made what cannot be read here).
    state: String,
    /// The host that runs it, of one that runs elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// Whether this home has it.
    here: bool,
    disk: String,
    memory: u64,
    cpus: u32,
    /// The address of its network card.
    mac: String,
    parcels: Vec<ParcelView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<RunningView>,
    /// A suspension that is not in the store yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<PendingView>,
    /// Why nothing but the name is known, or the suspension that is on this host is not, or what the store has is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    error_kind: Option<ErrorKind>,
}

impl MachineView {
    /// That of a description: stopped, as far as it says.
    fn of(spec: &MachineSpec) -> Self {
        Self {
            name: spec.name.clone(),
            state: "stopped".to_owned(),
            host: None,
            here: false,
            disk: spec.disk.clone(),
            memory: spec.memory,
            cpus: spec.cpus,
            mac: spec.mac.clone(),
            parcels: Vec::new(),
            running: None,
            pending: None,
            error: None,
            error_kind: None,
        }
    }

    /// That of a machine whose description or parcel cannot be read.
    fn damaged(name: &str, error: &Error) -> Self {
        let mut machine = Self {
            name: name.to_owned(),
            state: "damaged".to_owned(),
            host: None,
            here: false,
            disk: String::new(),
            memory: 0,
            cpus: 0,
            mac: String::new(),
            parcels: Vec::new(),
            running: None,
            pending: None,
            error: None,
            error_kind: None,
        };
        machine.note_unreadable(error);
        machine
    }

    /// Notes that something of it cannot be read, unless that is known.
    fn note_unreadable(&mut self, e: &Error) {
        let state = if e.kind() == ErrorKind::Unsupported { "newer" } else { "damaged" };
        self.state = state.to_owned();
        self.error.get_or_insert_with(|| e.message().to_owned());
        self.error_kind.get_or_insert(e.kind());
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct ParcelView {
    /// Such as `work@5`.
    parcel: String,
    /// Unix seconds.
    created: u64,
    /// The snapshot of the disk that belongs to it.
    snapshot: String,
}

impl ParcelView {
    fn new(parcel: &Parcel) -> Self {
        Self { parcel: parcel.name(), created: parcel.created, snapshot: parcel.snapshot.clone() }
    }
}

/// Prints that a machine runs, and how to look at it.
pub(super) fn running(view: &RunningView, output: Output) -> Result<()> {
    output.print(view, || {
        let from = view.parcel.as_ref().map(|parcel| format!(" from {parcel}")).unwrap_or_default();
        let mut text =
            format!("machine {:?} runs{from} ({:.2} s)\n", view.name, view.started_seconds);
        if !view.memory_on_demand {
            text.push_str("FUSE cannot be used here: all of its memory was fetched first\n");
        }
        text.push_str(&look(view));
        text
    })
}

fn look(view: &RunningView) -> String {
    let mut text = format!("console:  sojourn vm console {}\n", view.name);
    if let Some(screen) = &view.screen {
        text.push_str(&format!("screen:   remote-viewer vnc+unix://{screen}\n"));
    }
    if view.memory_here {
        text.push_str("memory:   all of it is on this host\n");
    }
    let clock = match &view.clock {
        None => return text,
        Some(GuestClock::Set) => "set by the guest agent",
        Some(GuestClock::Setting) => "the guest agent is setting it",
        Some(GuestClock::NoAgent) => {
            "no guest agent sets it: it is behind by as long as the guest stood still, until the guest sets it"
        }
        Some(GuestClock::Failed(why)) => &visible(why),
    };
    text.push_str(&format!("clock:    {clock}\n"));
    text
}

/// Prints what a parcel came to.
pub(super) fn stored(view: &StoredView, output: Output) -> Result<()> {
    output.print(view, || {
        let next = if view.released { "; its disk is released" } else { "" };
        if !view.is_measured() {
            return format!("{} is in the store{next}", view.parcel);
        }
        format!(
            "{}: {} of memory stored in {:.2} s, the guest stood still for {:.2} s{next}",
            view.parcel,
            ByteSize(view.memory_bytes),
            view.stored_seconds,
            view.paused_seconds
        )
    })
}

/// Prints that a machine is suspended on this host.
pub(super) fn kept(view: &KeptView, output: Output) -> Result<()> {
    output.print(view, || {
        format!(
            "{}: safe on this host in {:.2} s, the guest stood still for {:.2} s; {} go up now, at the most",
            view.parcel,
            view.kept_seconds,
            view.paused_seconds,
            ByteSize(view.left_bytes)
        )
    })
}

/// Prints that a suspension goes up.
pub(super) fn uploading(view: &PendingView, output: Output) -> Result<()> {
    output.print(view, || format!("{}: {}", view.parcel, pending(view)))
}

fn pending(view: &PendingView) -> String {
    let left = ByteSize(view.left_bytes);
    if view.stopped {
        let machine = view.parcel.split('@').next().unwrap_or_default();
        return format!(
            "{left} are to go up, and somebody had that end: 'sojourn vm suspend {machine}' sends them"
        );
    }
    match (&view.error, view.keeper) {
        (Some(error), Some(_)) => {
            format!("{left} are to go up, and cannot now: {error}; it is tried again")
        }
        (Some(error), None) => format!("{left} did not go up, and stay here: {error}"),
        (None, Some(_)) => format!("{left} are still to go up, at the most"),
        (None, None) => format!(
            "{left} are to go up, and nothing sends them; 'sojourn vm suspend' does, when told again, and so does \
             'sojourn vm list'"
        ),
    }
}

/// What the store knows of machines.
#[derive(Default)]
struct StoredMachines {
    parcels: Vec<Parcel>,
    damaged: Vec<DamagedRef>,
    /// Those that other homes run, with the host.
    elsewhere: Vec<(String, String)>,
}

impl StoredMachines {
    async fn find(home: &Home, only: Option<&str>) -> Result<Self> {
        let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
        let store = engine.store.clone();
        let (parcels, damaged) = Parcel::list(&store, only).await?;
        let own = engine.disks.server().await?;
        let mut elsewhere = Vec::new();
        for claim in RunClaim::list(&store).await? {
            let machine = claim.machine.clone();
            if only.is_none_or(|only| only == machine)
                && let ClaimState::Elsewhere { host, .. } = claim.judge(&store, own).await?
            {
                elsewhere.push((machine, host));
            }
        }
        Ok(Self { parcels, damaged, elsewhere })
    }

    /// The same of one machine. When that has a keeper here, nobody waits for long: it may be the store that it waits
    /// for. Then there is nothing, and the reason.
    async fn find_one(home: &Home, name: &str) -> Result<(Self, Option<Error>)> {
        let folder = MachineFolder::of(home, name)?;
        let asked = timeout(PATIENCE, wire::call(&folder, &KeeperRequest::Status)).await;
        if matches!(asked, Ok(Ok(None))) {
            return Ok((Self::find(home, Some(name)).await?, None));
        }
        let late = || Error::unavailable(format!("no answer in {} s", STORE_SAYS.as_secs()));
        let found = timeout(STORE_SAYS, Self::find(home, Some(name))).await;
        match found.unwrap_or_else(|_| Err(late())) {
            Err(e) if e.kind() == ErrorKind::Unavailable => Ok((Self::default(), Some(e))),
            other => Ok((other?, None)),
        }
    }
}

/// All machines of the home and the store, by name.
async fn gather(home: &Home, only: Option<&str>) -> Result<Vec<MachineView>> {
    let (stored, away) = match only {
        Some(name) => StoredMachines::find_one(home, name).await?,
        None => (StoredMachines::find(home, None).await?, None),
    };
    let StoredMachines { parcels, damaged, elsewhere } = stored;
    let mut found: BTreeMap<String, MachineView> = BTreeMap::new();
    for parcel in &parcels {
        let machine =
            found.entry(parcel.spec.name.clone()).or_insert_with(|| MachineView::of(&parcel.spec));
        machine.state = "suspended".to_owned();
        machine.parcels.push(ParcelView::new(parcel));
    }
    for bad in &damaged {
        found
            .entry(bad.name.clone())
            .or_insert_with(|| MachineView::damaged(&bad.name, &bad.error));
    }
    let names = match std::fs::read_dir(home.vms()) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other
            .and_then(|entries| {
                entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()
            })
            .map_err(|e| Error::io(home.vms().display(), e))?,
    };
    for name in names.iter().filter_map(|name| name.to_str()) {
        if only.is_some_and(|only| only != name) || store::check_name("machine", name).is_err() {
            continue;
        }
        let folder = MachineFolder::of(home, name)?;
        let machine = match folder.spec() {
            Ok(spec) => found.entry(name.to_owned()).or_insert_with(|| MachineView::of(&spec)),
            Err(e) => {
                found.entry(name.to_owned()).or_insert_with(|| MachineView::damaged(name, &e))
            }
        };
        machine.here = true;
        match timeout(PATIENCE, wire::call(&folder, &KeeperRequest::Status)).await {
            Ok(Ok(Some(KeeperReply::Status(status)))) => {
                let busy = matches!(status.state.as_str(), "storing" | "suspending" | "stopping");
                machine.state = if busy { "busy" } else { "running" }.to_owned();
                machine.running = Some(status);
            }
            Ok(Ok(Some(KeeperReply::Starting(_)))) => machine.state = "starting".to_owned(),
            Ok(Ok(Some(KeeperReply::Uploading(view)))) => {
                (machine.state, machine.pending) = ("suspended".to_owned(), Some(view));
            }
            Err(_) => machine.state = "busy".to_owned(),
            _ => {
                let pending = folder.pending().unwrap_or_else(|e| {
                    machine.note_unreadable(&e);
                    None
                });
                if let Some(pending) = pending
                    && (!pending.was_resumed(folder.path())
                        || disks::is_as_suspended(home, &pending).await.unwrap_or(true))
                {
                    let left = pending.bytes(folder.path()).unwrap_or_default();
                    let left_bytes = left + disks::private_bytes(home, &machine.disk).await;
                    let (parcel, created) = (pending.parcel(), pending.created);
                    machine.state = "suspended".to_owned();
                    let (error, stopped) = match folder.not_sent() {
                        None => (None, false),
                        Some(NotSent::Stopped) => (None, true),
                        Some(NotSent::GivenUp(why)) => (Some(why.message().to_owned()), false),
                    };
                    let keeper = None;
                    let view = PendingView { parcel, created, left_bytes, keeper, error, stopped };
                    machine.pending = Some(view);
                }
            }
        }
    }
    for (name, host) in elsewhere {
        if let Some(machine) = found.get_mut(&name).filter(|machine| machine.running.is_none()) {
            (machine.state, machine.host) = ("elsewhere".to_owned(), Some(host));
        }
    }
    if let (Some(away), Some(machine)) = (away, only.and_then(|only| found.get_mut(only))) {
        let why = away.message();
        machine
            .error
            .get_or_insert_with(|| format!("what the store has of it is not known: {why}"));
    }
    Ok(found.into_values().collect())
}

fn state(machine: &MachineView) -> String {
    match (&machine.host, &machine.pending) {
        (Some(host), _) => format!("is on {host}"),
        (None, Some(PendingView { left_bytes, stopped: true, .. })) => {
            format!("suspended, {} stopped", ByteSize(*left_bytes))
        }
        (None, Some(PendingView { left_bytes, error: None, .. })) => {
            format!("suspended, {} to go up", ByteSize(*left_bytes))
        }
        (None, Some(PendingView { left_bytes, .. })) => {
            format!("suspended, {} cannot go up", ByteSize(*left_bytes))
        }
        (None, None) => machine.state.clone(),
    }
}

/// `sojourn vm list`; with `elsewhere`, only what the store has and this home has not.
pub(super) async fn list(home: &Home, elsewhere: bool, output: Output) -> Result<()> {
    let mut machines = gather(home, None).await?;
    machines.retain(|machine| !(elsewhere && machine.here));
    print_list(&machines, elsewhere, output)
}

/// Prints machines, which with `elsewhere` are of the store alone.
pub(super) fn print_list(machines: &[MachineView], elsewhere: bool, output: Output) -> Result<()> {
    output.print(&machines, || {
        if machines.is_empty() && elsewhere {
            return "the store has no machine that is not here".to_owned();
        }
        if machines.is_empty() {
            return "no machine yet; make one with 'sojourn vm create NAME --disk DISK'".to_owned();
        }
        let mut table =
            Table::new(&["name", "state", "here", "disk", ">memory", "newest parcel", "made"]);
        for machine in machines {
            let newest = machine.parcels.last();
            table.row([
                machine.name.clone(),
                state(machine),
                if machine.here { "yes" } else { "no" }.to_owned(),
                machine.disk.clone(),
                ByteSize(machine.memory).to_string(),
                newest.map(|parcel| parcel.parcel.clone()).unwrap_or_default(),
                newest.map(|parcel| moment(parcel.created)).unwrap_or_default(),
            ]);
        }
        table.render()
    })
}

/// `sojourn vm show`.
pub(super) async fn one(home: &Home, name: &str, output: Output) -> Result<()> {
    store::check_name("machine", name)?;
    let machine = gather(home, Some(name)).await?.into_iter().find(|machine| machine.name == name);
    let machine = machine.ok_or_else(|| {
        Error::not_found(format!("there is no machine {name:?}; see 'sojourn vm list'"))
    })?;
    if let (Some(kind), true) = (machine.error_kind, machine.disk.is_empty()) {
        return Err(Error::new(kind, machine.error.unwrap_or_default()));
    }
    print_one(&machine, output)
}

/// Prints what is known of a machine.
pub(super) fn print_one(machine: &MachineView, output: Output) -> Result<()> {
    output.print(machine, || {
        let mut text = fields(&[
            ("machine", machine.name.clone()),
            ("state", state(machine)),
            ("disk", machine.disk.clone()),
            ("memory", ByteSize(machine.memory).to_string()),
            ("processors", machine.cpus.to_string()),
            ("network card", machine.mac.clone()),
        ]);
        if let Some(running) = &machine.running {
            text.push_str(&look(running));
        }
        if let Some(view) = &machine.pending {
            text.push_str(&format!("{}: {}\n", view.parcel, pending(view)));
        }
        if let Some(error) = &machine.error {
            text.push_str(&format!("{error}\n"));
        }
        if !machine.parcels.is_empty() {
            let mut table = Table::new(&["parcel", "made", "snapshot of the disk"]);
            for parcel in &machine.parcels {
                table.row([parcel.parcel.clone(), moment(parcel.created), parcel.snapshot.clone()]);
            }
            text.push('\n');
            text.push_str(&table.render());
        }
        text
    })
}
