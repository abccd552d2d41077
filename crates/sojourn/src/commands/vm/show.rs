//! Machines and parcels as they are printed.

use super::folder::MachineFolder;
use super::wire::{self, KeeperReply, KeeperRequest, RunningView, StoredView};
use crate::output::{Output, Table, fields, moment};
use ::vm::{MachineSpec, Parcel};
use block::{ByteSize, Error, Result};
use engine::{Config, Home, open_store};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// How long a keeper has to answer; it does one thing at a time.
const PATIENCE: Duration = Duration::from_secs(2);

/// A machine of the home or of its store.
#[derive(Debug, Serialize)]
struct MachineView {
    name: String,
    /// `running`, `busy` (it runs, and is being stored or stopped), `suspended` (there is a parcel),
    /// `stopped`, or `damaged`.
    state: &'static str,
    /// Whether this home has it.
    here: bool,
    disk: String,
    memory: u64,
    cpus: u32,
    parcels: Vec<ParcelView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<RunningView>,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
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
    let mut text =
        format!("console:  socat -,raw,echo=0,escape=0x1d UNIX-CONNECT:{}\n", view.console);
    if let Some(screen) = &view.screen {
        text.push_str(&format!("screen:   remote-viewer vnc+unix://{screen}\n"));
    }
    text
}

/// Prints what a parcel came to.
pub(super) fn stored(view: &StoredView, output: Output) -> Result<()> {
    output.print(view, || {
        let next = if view.released { "; its disk is released" } else { "" };
        format!(
            "{}: {} of memory stored in {:.2} s, the guest stood still for {:.2} s{next}",
            view.parcel,
            ByteSize(view.memory_bytes),
            view.stored_seconds,
            view.paused_seconds
        )
    })
}

/// All machines of the home and the store, by name.
async fn gather(home: &Home, only: Option<&str>) -> Result<Vec<MachineView>> {
    let store = open_store(home, &Config::of(home)?).await?;
    let (parcels, damaged) = Parcel::list(&store, only).await?;
    let mut found: BTreeMap<String, MachineView> = BTreeMap::new();
    let view = |spec: &MachineSpec| MachineView {
        name: spec.name.clone(),
        state: "stopped",
        here: false,
        disk: spec.disk.clone(),
        memory: spec.memory,
        cpus: spec.cpus,
        parcels: Vec::new(),
        running: None,
        error: None,
    };
    let broken = |name: &str, error: &Error| MachineView {
        name: name.to_owned(),
        state: "damaged",
        here: false,
        disk: String::new(),
        memory: 0,
        cpus: 0,
        parcels: Vec::new(),
        running: None,
        error: Some(error.message().to_owned()),
    };
    for parcel in &parcels {
        let machine = found.entry(parcel.spec.name.clone()).or_insert_with(|| view(&parcel.spec));
        machine.state = "suspended";
        machine.parcels.push(ParcelView::new(parcel));
    }
    for bad in &damaged {
        found.entry(bad.name.clone()).or_insert_with(|| broken(&bad.name, &bad.error));
    }
    let names = match std::fs::read_dir(MachineFolder::all(home)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other
            .and_then(|entries| {
                entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()
            })
            .map_err(|e| Error::io(MachineFolder::all(home).display(), e))?,
    };
    for name in names.iter().filter_map(|name| name.to_str()) {
        if only.is_some_and(|only| only != name) || store::check_name("machine", name).is_err() {
            continue;
        }
        let folder = MachineFolder::of(home, name)?;
        let machine = match folder.spec() {
            Ok(spec) => found.entry(name.to_owned()).or_insert_with(|| view(&spec)),
            Err(e) => found.entry(name.to_owned()).or_insert_with(|| broken(name, &e)),
        };
        machine.here = true;
        match timeout(PATIENCE, wire::call(&folder, &KeeperRequest::Status)).await {
            Ok(Ok(Some(KeeperReply::Status(status)))) => {
                machine.state = "running";
                machine.running = Some(status);
            }
            Err(_) => machine.state = "busy",
            _ => {}
        }
    }
    Ok(found.into_values().collect())
}

/// `sojourn vm list`.
pub(super) async fn list(home: &Home, output: Output) -> Result<()> {
    let machines = gather(home, None).await?;
    output.print(&machines, || {
        if machines.is_empty() {
            return "no machine yet; make one with 'sojourn vm create NAME --disk DISK'".to_owned();
        }
        let mut table =
            Table::new(&["name", "state", "here", "disk", ">memory", "newest parcel", "made"]);
        for machine in &machines {
            let newest = machine.parcels.last();
            table.row([
                machine.name.clone(),
                machine.state.to_owned(),
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
    if let Some(error) = &machine.error {
        return Err(Error::corrupt(error.clone()));
    }
    output.print(&machine, || {
        let mut text = fields(&[
            ("machine", machine.name.clone()),
            ("state", machine.state.to_owned()),
            ("disk", machine.disk.clone()),
            ("memory", ByteSize(machine.memory).to_string()),
            ("processors", machine.cpus.to_string()),
        ]);
        if let Some(running) = &machine.running {
            text.push_str(&look(running));
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
