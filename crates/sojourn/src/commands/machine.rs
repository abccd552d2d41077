//! `sojourn machine`: which machine starts from which disk.

use super::netboot::MethodArg;
use super::runnable::{Invocation, Runnable, writes};
use crate::output::{Output, Table, fields, moment};
use crate::site;
use block::{Error, Result};
use clap::Subcommand;
use engine::Home;
use netboot::registry::Machine;
use server::machines::assign::{self, Assignment};
use server::machines::list::{self, MachineListView};
use server::machines::secrets;
use server::remote::RemoteServer;
use std::process::ExitCode;

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
    /// Have a machine give a secret before it is told what to start; prints a new one
    #[command(after_help = "\
Examples:
  sojourn machine secret lab-1            a new one, in place of any earlier one
  sojourn machine secret lab-1 --remove   it starts without one

The secret is shown once. Type it where iPXE asks for a password, or give it to an iPXE of your own:
  set secret SECRET")]
    Secret(SecretArgs),
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

/// Arguments of `sojourn machine secret`.
#[derive(Debug, clap::Args)]
pub(crate) struct SecretArgs {
    /// Its MAC address, the UUID of its board, or its name
    #[arg(value_name = "MAC|UUID|NAME")]
    machine: String,
    /// It needs none from now on
    #[arg(long)]
    remove: bool,
}

/// What is told of a new secret.
#[derive(Debug, serde::Serialize)]
struct MadeSecret {
    secret: String,
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
    /// Each write to that disk is answered when the store has it: another server goes on with it when this one is lost
    #[arg(long, requires = "from", conflicts_with = "ephemeral")]
    write_through: bool,
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

impl Assign {
    fn assignment(&self) -> Assignment {
        Assignment {
            disk: self.disk.clone(),
            from: self.from.clone(),
            ephemeral: self.ephemeral,
            write_through: self.write_through,
            method: self.method.map(Into::into),
            name: self.name.clone(),
            append: self.append.clone(),
        }
    }
}

impl Runnable for MachineCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        writes(run(self, &invocation.home()?, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        writes(run_on(self, &server, output))
    }
}

/// Carries out a verb.
async fn run(verb: &MachineCommand, home: &Home, output: Output) -> Result<()> {
    home.must_exist()?;
    match verb {
        MachineCommand::List => tell_list(&MachineListView::of(home).await?, output),
        MachineCommand::Show(who) => {
            let registry = list::load(home).await?;
            tell(assign::known(&registry, &who.machine)?, output)
        }
        MachineCommand::Assign(args) => {
            let ask = async |request| site::ask(request, home).await;
            let assigned = args.assignment().carry_out(home, &args.machine, |_| Ok(()), ask);
            tell_assigned(&assigned.await?, output)
        }
        MachineCommand::Secret(args) if args.remove => {
            secrets::remove(home, &args.machine).await?;
            output.done(&format!("machine {} starts without a secret", args.machine))
        }
        MachineCommand::Secret(args) => {
            let made = MadeSecret { secret: secrets::create(home, &args.machine).await? };
            output.print(&made, || made.secret.clone())
        }
        MachineCommand::Forget(who) => {
            tell_forgotten(&assign::forget(home, &who.machine).await?, output)
        }
    }
}

/// The same on a server of another machine.
async fn run_on(verb: &MachineCommand, server: &RemoteServer, output: Output) -> Result<()> {
    match verb {
        MachineCommand::List => tell_list(&server.machines().await?, output),
        MachineCommand::Show(who) => tell(&server.machine(&who.machine).await?, output),
        MachineCommand::Assign(args) => {
            tell_assigned(&server.assign(&args.machine, &args.assignment()).await?, output)
        }
        MachineCommand::Secret(_) => Err(Error::unsupported(
            "secrets are made where the server is: run it there, without --server",
        )),
        MachineCommand::Forget(who) => {
            tell_forgotten(&server.forget_machine(&who.machine).await?, output)
        }
    }
}

fn tell_list(listed: &MachineListView, output: Output) -> Result<()> {
    output.print(listed, || table(listed))
}

fn tell(machine: &Machine, output: Output) -> Result<()> {
    output.print(machine, || describe(machine))
}

fn tell_assigned(machine: &Machine, output: Output) -> Result<()> {
    output.print(machine, || match &machine.disk {
        Some(disk) => format!(
            "machine {} starts from disk {disk} by {}",
            machine.name,
            machine.method.as_str()
        ),
        None => format!("machine {} starts from its own disk", machine.name),
    })
}

fn tell_forgotten(machine: &Machine, output: Output) -> Result<()> {
    output.print(machine, || match &machine.disk {
        Some(disk) => format!("machine {} forgotten; disk {disk} is still there", machine.name),
        None => format!("machine {} forgotten", machine.name),
    })
}

/// Who a machine is: its card, or else its board.
fn identity(machine: &Machine) -> String {
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

fn describe(machine: &Machine) -> String {
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
