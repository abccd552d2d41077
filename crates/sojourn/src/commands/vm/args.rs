//! The arguments of the verbs.

use super::keeper::MemoryFill;
use ::vm::machine;
use block::ByteSize;
use std::path::PathBuf;

/// Arguments that name a machine.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArg {
    /// The machine's name, or that of a parcel of it where the examples show one
    pub(super) name: String,
}

/// Arguments of `sojourn vm list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only machines of the store that this home has not got
    #[arg(long)]
    pub(super) elsewhere: bool,
    /// Have nothing go up: for a server, of which somebody asks what there is
    #[arg(long, hide = true)]
    pub(super) only_look: bool,
}

/// Arguments of `sojourn vm resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(super) machine: QemuArgs,
    /// Use the QEMU arguments that the parcel brings, although they were not given in this home
    #[arg(long)]
    pub(super) trust_arguments: bool,
    /// Although it ran on a host that has fallen silent: what it did there is lost
    #[arg(long)]
    pub(super) lost: bool,
    /// Fetch nothing of its memory but what is touched: over a link that is paid for by what it carries
    #[arg(long)]
    pub(super) no_fill: bool,
}

impl ResumeArgs {
    /// What becomes of memory that the guest does not touch.
    pub(super) fn fill(&self) -> MemoryFill {
        MemoryFill::unless(self.no_fill)
    }
}

/// Arguments of `sojourn vm rollback` and `discard`.
#[derive(Debug, clap::Args)]
pub(crate) struct RevertArgs {
    /// The machine's name, or that of a parcel of it where the examples show one
    pub(super) name: String,
    /// Although it ran on a host that has fallen silent: what it did there is lost
    #[arg(long)]
    pub(super) lost: bool,
}

/// Arguments of `sojourn vm suspend`.
#[derive(Debug, clap::Args)]
pub(crate) struct SuspendArgs {
    /// The machine's name
    pub(super) name: String,
    /// Wait until the parcel is in the store
    #[arg(long)]
    pub(super) wait: bool,
}

/// A machine, and what runs it.
#[derive(Debug, clap::Args)]
pub(crate) struct QemuArgs {
    /// The machine, or one of its parcels
    pub(super) name: String,
    /// The QEMU to use
    #[arg(long, env = "SOJOURN_QEMU", value_name = "PROGRAM", default_value_os = machine::default_qemu().as_os_str())]
    pub(super) qemu: PathBuf,
}

/// Arguments of `sojourn vm start`.
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(super) machine: QemuArgs,
    /// Boot, although the machine is suspended
    #[arg(long)]
    pub(super) fresh: bool,
    /// Although it ran on a host that has fallen silent: what it did there is lost
    #[arg(long)]
    pub(super) lost: bool,
}

/// Arguments of `sojourn vm create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// The machine's name
    pub(super) name: String,
    /// The disk that it has
    #[arg(long)]
    pub(super) disk: String,
    /// Its memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(super) memory: ByteSize,
    /// Its processors
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(super) cpus: u32,
    /// QEMU's CPU model [default: one that most hosts have]
    #[arg(long, value_name = "MODEL")]
    pub(super) cpu: Option<String>,
    /// Give it a screen, which is shown over VNC
    #[arg(long)]
    pub(super) screen: bool,
    /// The QEMU to use
    #[arg(long, env = "SOJOURN_QEMU", value_name = "PROGRAM", default_value_os = machine::default_qemu().as_os_str())]
    pub(super) qemu: PathBuf,
    /// More arguments for QEMU
    #[arg(last = true)]
    pub(super) arguments: Vec<String>,
}

/// Arguments of `sojourn vm clone`.
#[derive(Debug, clap::Args)]
pub(crate) struct CloneArgs {
    /// The machine, or one of its parcels
    pub(super) parcel: String,
    /// The new machine's name
    pub(super) new: String,
    /// The new disk's name [default: that of the new machine]
    #[arg(long)]
    pub(super) disk: Option<String>,
    /// Keep the address of the network card
    #[arg(long)]
    pub(super) keep_mac: bool,
    /// Use the QEMU arguments that the parcel brings, although they were not given in this home
    #[arg(long)]
    pub(super) trust_arguments: bool,
}

/// Arguments of `sojourn vm remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The machine, or one of its parcels
    pub(super) name: String,
    /// Although it ran on a host that has fallen silent: what it did there is lost
    #[arg(long)]
    pub(super) lost: bool,
}

/// Arguments of `sojourn vm log`.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// The machine's name
    pub(super) name: String,
    /// What QEMU and the keeper said
    #[arg(long)]
    pub(super) qemu: bool,
    /// No more than the end of it, of this size
    #[arg(long, value_name = "SIZE")]
    pub(super) last: Option<ByteSize>,
}

/// Arguments of `sojourn vm stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// The machine's name
    pub(super) name: String,
    /// End it at once
    #[arg(long, conflicts_with = "sending")]
    pub(super) force: bool,
    /// End the sending of its suspension; a machine that runs goes on
    #[arg(long)]
    pub(super) sending: bool,
}
