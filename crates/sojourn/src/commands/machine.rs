//! `sojourn machine`: which machine starts from which disk.

use super::netboot::MethodArg;
use super::runnable::{Invocation, Runnable, writes};
use crate::output::{Output, Table, fields, moment};
use crate::site;
use std::process::ExitCode;

use block::{Error, Result};
use clap::Subcommand;
use engine::Home;
use engine::api::{DiskReply, DiskRequest};
use netboot::Registry;
use netboot::registry::{self, Designation, Machine as Entry, Method};
use netboot::sightings::Sighting;
use serde::Serialize;
use server::netboot::{list, sightings};

/// The verbs of `sojourn machine`.
#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List the machines: those with a disk, and those that asked and wait for one
    #[command(after_help = "\
Examples:
  sojourn machine list
  sojourn --json machine list | jq '.waiting[].mac'")]
    List,
    /// What is known of one machine
    #[command(after_help = "\
Examples:
  sojourn machine show lab-1
  sojourn machine show 52:54:00:12:34:56")]
    Show(MachineNameArgs),
    /// Say which disk a machine starts from, and how
    #[command(after_help = "\
Examples:
  sojourn machine assign 52:54:00:12:34:56 --from debian --name lab-1   a disk of its own
  sojourn machine assign 52:54:00:12:34:57 --disk alice --method nbd    a disk that is there
  sojourn machine assign lab-1 --method nbd --append console=ttyS0      other parameters
  sojourn machine assign lab-2 --method local                           its own disk

A running sojourn netboot follows within a second.")]
    Assign(Assign),
    /// Forget a machine; its disk stays
    #[command(after_help = "\
Examples:
  sojourn machine forget lab-1
  sojourn disk remove lab-1")]
    #[command(aliases = ["rm", "remove"])]
    Forget(MachineNameArgs),
}

/// A machine.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineNameArgs {
    /// Its MAC address, the UUID of its board, or its name
    #[arg(value_name = "MAC|UUID|NAME")]
    machine: String,
}

/// Arguments of `sojourn machine assign`.
#[derive(Debug, clap::Args)]
pub(crate) struct Assign {
    /// Its MAC address, the UUID of its board, or its name
    #[arg(value_name = "MAC|UUID|NAME")]
    machine: String,
    /// A disk that is there
    #[arg(long, value_name = "DISK", conflicts_with = "from")]
    disk: Option<String>,
    /// Make it a disk of this image, called as the machine
    #[arg(long, value_name = "IMAGE")]
    from: Option<String>,
    /// That disk forgets what is written when its machine leaves
    #[arg(long, requires = "from")]
    ephemeral: bool,
    /// How it reaches its disk [default: as before, else iscsi]
    #[arg(long, value_enum)]
    method: Option<MethodArg>,
    /// Its name, which is also its host name [default: as before, else m- and its MAC address]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A parameter for its kernel, with --method nbd, in place of those before; may be repeated
    #[arg(long, value_name = "PARAMETER", allow_hyphen_values = true)]
    append: Vec<String>,
}

/// What `list` prints.
#[derive(Serialize)]
struct MachineListView {
    machines: Vec<Entry>,
    /// Those that asked and have no disk, the last seen first.
    waiting: Vec<Sighting>,
}

impl Runnable for MachineCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        writes(run(self, &invocation.home()?, invocation.output))
    }
}

/// Carries out a verb.
async fn run(verb: &MachineCommand, home: &Home, output: Output) -> Result<()> {
    home.must_exist()?;
    match verb {
        MachineCommand::List => {
            let registry = list::load(home).await?;
            let waiting = waiting(home, &registry).await?;
            let listed = MachineListView { machines: registry.machines().to_vec(), waiting };
            output.print(&listed, || table(&listed))
        }
        MachineCommand::Show(who) => {
            let registry = list::load(home).await?;
            let machine = known(&registry, &who.machine)?;
            output.print(machine, || describe(machine))
        }
        MachineCommand::Assign(args) => {
            let machine = assign(args, home).await?;
            output.print(&machine, || match &machine.disk {
                Some(disk) => format!(
                    "machine {} starts from disk {disk} by {}",
                    machine.name,
                    machine.method.as_str()
                ),
                None => format!("machine {} starts from its own disk", machine.name),
            })
        }
        MachineCommand::Forget(who) => {
            let (text, who) = (who.machine.clone(), Designation::of(&who.machine));
            let forgotten = list::update(home, move |registry| {
                registry.forget(&who).ok_or_else(|| unknown(&text))
            });
            let forgotten = forgotten.await?;
            output.print(&forgotten, || match &forgotten.disk {
                Some(disk) => {
                    format!("machine {} forgotten; disk {disk} is still there", forgotten.name)
                }
                None => format!("machine {} forgotten", forgotten.name),
            })
        }
    }
}

fn unknown(who: &str) -> Error {
    Error::not_found(format!("no machine {who}; see `sojourn machine list` for what there is"))
}

fn known<'a>(registry: &'a Registry, who: &str) -> Result<&'a Entry> {
    registry.named(&Designation::of(who)).ok_or_else(|| unknown(who))
}

/// Machines that asked and are not in the list.
async fn waiting(home: &Home, registry: &Registry) -> Result<Vec<Sighting>> {
    let mut seen = sightings(home).await?;
    seen.retain(|seen| registry.named(&Designation::Mac(seen.mac)).is_none());
    Ok(seen)
}

async fn assign(args: &Assign, home: &Home) -> Result<Entry> {
    let who = Designation::of(&args.machine);
    let registry = list::load(home).await?;
    let machine = wanted(args, &who, registry.named(&who))?;
    // What would be refused is, before a disk is made.
    registry.clone().put(&who, machine.clone())?;
    if let (Some(from), Some(name)) = (&args.from, &machine.disk) {
        let (name, from) = (name.clone(), from.clone());
        let ephemeral = args.ephemeral;
        site::ask(DiskRequest::Create { name, from, ephemeral, size: None }, home).await?;
    } else if let Some(name) = &args.disk
        && !matches!(
            site::ask(DiskRequest::Show { name: name.clone() }, home).await?,
            DiskReply::Disk(_)
        )
    {
        return Err(Error::internal("the server gave another answer than it was asked for"));
    }
    let put = machine.clone();
    list::update(home, move |registry| registry.put(&who, put)).await?;
    Ok(machine)
}

/// The machine as it is to be from now on.
fn wanted(args: &Assign, who: &Designation, before: Option<&Entry>) -> Result<Entry> {
    let fresh = match who {
        Designation::Mac(mac) => fresh(format!("m-{}", mac.hex_digits()), Some(*mac), None),
        Designation::Uuid(uuid) => fresh(format!("m-{uuid}"), None, Some(*uuid)),
        Designation::Name(name) if before.is_none() => {
            return Err(Error::not_found(format!(
                "no machine {name}; name a new one by its MAC address or UUID, which `sojourn machine list` \
                 shows, and call it {name} with --name"
            )));
        }
        Designation::Name(name) => fresh(name.clone(), None, None),
    };
    let mut machine = before.cloned().unwrap_or(fresh);
    if let Some(name) = &args.name {
        machine.name.clone_from(name);
    }
    registry::check_name(&machine.name)?;
    if let Some(method) = args.method {
        machine.method = method.into();
    }
    if args.from.is_some() {
        machine.disk = Some(machine.name.clone());
    } else if args.disk.is_some() {
        machine.disk.clone_from(&args.disk);
    }
    if machine.method == Method::Local {
        machine.disk = None;
    } else if machine.disk.is_none() {
        return Err(Error::invalid(format!(
            "machine {} has no disk yet: say --disk DISK or --from IMAGE",
            machine.name
        )));
    }
    if !args.append.is_empty() {
        machine.append.clone_from(&args.append);
    }
    machine.by_rule = false;
    Ok(machine)
}

fn fresh(
    name: String,
    mac: Option<netboot::MacAddress>,
    uuid: Option<netboot::MachineUuid>,
) -> Entry {
    Entry {
        name,
        mac,
        uuid,
        disk: None,
        method: Method::default(),
        append: Vec::new(),
        by_rule: false,
    }
}

/// Who a machine is: its card, or else its board.
fn identity(machine: &Entry) -> String {
    match (machine.mac, machine.uuid) {
        (Some(mac), _) => mac.to_string(),
        (None, Some(uuid)) => uuid.to_string(),
        (None, None) => String::new(),
    }
}

fn table(listed: &MachineListView) -> String {
    let mut table = Table::new(&["NAME", "MAC OR UUID", "DISK", "METHOD"]);
    for machine in &listed.machines {
        table.row([
            machine.name.clone(),
            identity(machine),
            machine.disk.clone().unwrap_or_else(|| "-".to_owned()),
            machine.method.as_str().to_owned(),
        ]);
    }
    let mut text = table.render();
    if !listed.waiting.is_empty() {
        let mut table = Table::new(&["WAITING", "UUID", ">TIMES", "FIRST SEEN", "LAST SEEN"]);
        for seen in &listed.waiting {
            table.row([
                seen.mac.to_string(),
                seen.uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.0.to_string()),
                seen.times.to_string(),
                moment(seen.first_seen),
                moment(seen.last_seen),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render());
    }
    text
}

fn describe(machine: &Entry) -> String {
    let mut pairs = vec![("name", machine.name.clone())];
    if let Some(mac) = machine.mac {
        pairs.push(("mac", mac.to_string()));
    }
    if let Some(uuid) = machine.uuid {
        pairs.push(("uuid", uuid.to_string()));
    }
    pairs.push(("method", machine.method.as_str().to_owned()));
    if let Some(disk) = &machine.disk {
        pairs.push(("disk", disk.clone()));
    }
    if !machine.append.is_empty() {
        pairs.push(("append", machine.append.join(" ")));
    }
    fields(&pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(machine: &str) -> Assign {
        Assign {
            machine: machine.into(),
            disk: None,
            from: None,
            ephemeral: false,
            method: None,
            name: None,
            append: Vec::new(),
        }
    }

    fn made(args: &Assign, before: Option<&Entry>) -> Result<Entry> {
        wanted(args, &Designation::of(&args.machine), before)
    }

    #[test]
    fn a_new_machine_needs_an_address_and_a_disk() {
        made(&args("lab-1"), None).unwrap_err();
        made(&args("52:54:00:12:34:56"), None).unwrap_err();
        let from = Assign { from: Some("debian".into()), ..args("52:54:00:12:34:56") };
        let machine = made(&from, None).unwrap();
        assert_eq!(
            (machine.name.as_str(), machine.disk.as_deref()),
            ("m-525400123456", Some("m-525400123456"))
        );
        assert_eq!(machine.method, Method::Iscsi);
    }

    #[test]
    fn what_is_not_named_stays() {
        let before = Entry {
            disk: Some("alice".into()),
            method: Method::Nbd,
            append: vec!["quiet".into()],
            by_rule: true,
            ..fresh("lab-1".into(), Some("52:54:00:12:34:56".parse().unwrap()), None)
        };
        let renamed = Assign { name: Some("lab-2".into()), ..args("lab-1") };
        let machine = made(&renamed, Some(&before)).unwrap();
        assert_eq!(machine, Entry { name: "lab-2".into(), by_rule: false, ..before.clone() });
        let local = Assign { method: Some(MethodArg::Local), ..args("lab-1") };
        assert_eq!(made(&local, Some(&before)).unwrap().disk, None);
    }
}
