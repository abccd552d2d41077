//! The command line: the list of commands. Each command's own arguments live
//! beside its code in [`commands`](crate::commands).

use crate::commands::{
    attach, borrow, cache, calibrate, cert, completions, config, device, discover, disk, doctor,
    drain, gc, image, init, machine, man, media, model, netboot, predict, reload, repair, replay,
    serve, simulate, status, store, token, top, trace, verify, vm,
};
use crate::global::Global;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

/// Streams machines' disks from golden images: every machine gets its own private disk, over NBD.
#[derive(Debug, Parser)]
#[command(name = "sojourn", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  sojourn init
  sojourn image import golden.qcow2 debian
  sojourn disk create alice --from debian
  sojourn serve
  sojourn status

Exit codes: 0 done, 1 internal fault, 2 invalid input, 3 not found, 4 conflict, 5 fenced,
6 unavailable, 7 corrupt, 8 no space, 9 denied, 10 unsupported.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a home: configuration, store, room for disks
    Init(init::Args),
    /// Golden images and their versions
    #[command(subcommand, arg_required_else_help = true)]
    Image(image::ImageCommand),
    /// Private disks
    #[command(subcommand, arg_required_else_help = true)]
    Disk(disk::DiskCommand),
    /// NBD exports as block devices of this machine
    #[command(subcommand, arg_required_else_help = true)]
    Device(device::DeviceCommand),
    /// Virtual machines: suspended here, resumed there
    #[command(subcommand, arg_required_else_help = true)]
    Vm(vm::VmCommand),
    /// The store as a whole
    #[command(subcommand, arg_required_else_help = true)]
    Store(store::StoreCommand),
    /// Use a disk of a distant store on this machine: what is written goes up in the background
    Attach(Box<attach::Attach>),
    /// Give an attached disk up, once everything is in the store
    Detach(attach::detach::Detach),
    /// The free blocks of idle disks as private scratch space
    #[command(subcommand, arg_required_else_help = true)]
    Borrow(borrow::BorrowCommand),
    /// The block cache of the running server
    #[command(subcommand, arg_required_else_help = true)]
    Cache(cache::CacheCommand),
    /// Machines that start from the network, and their disks
    #[command(subcommand, arg_required_else_help = true)]
    Machine(machine::MachineCommand),
    /// Let machines without a disk start from this home's disks
    Netboot(netboot::Args),
    /// Find the servers of this network and what they export
    Discover(discover::Args),
    /// Certificates of the server and its clients
    #[command(subcommand, arg_required_else_help = true)]
    Cert(cert::CertCommand),
    /// Tokens: who may use the HTTP API, and for what
    #[command(subcommand, arg_required_else_help = true)]
    Token(token::TokenCommand),
    /// What the configuration says, and what is wrong with it
    #[command(subcommand, arg_required_else_help = true)]
    Config(config::ConfigCommand),
    /// Keys, trees and images that answer in place of the store
    #[command(subcommand, arg_required_else_help = true)]
    Media(media::MediaCommand),
    /// Delete what no image, disk or snapshot needs any more
    Gc(gc::Args),
    /// Serve disks and images over NBD
    Serve(Box<serve::Args>),
    /// Have the running server read its configuration again
    Reload(reload::Args),
    /// Have the running server end after its last client
    Drain(drain::Args),
    /// Read the store back and check it
    Verify(verify::Args),
    /// Heal the store from other stores and from images
    Repair(repair::Args),
    /// What is wrong, slow or dangerous here, and what to do
    Doctor(doctor::Args),
    /// What the running server does
    Status(status::Args),
    /// What the running server does now: disks, clients, latencies
    Top(top::Args),
    /// Traces of block requests
    #[command(subcommand, arg_required_else_help = true)]
    Trace(Box<trace::TraceCommand>),
    /// Replay a trace by many clients against any NBD server
    Replay(Box<replay::Args>),
    /// How a server behaves under load, by arithmetic
    #[command(subcommand, arg_required_else_help = true)]
    Model(model::ModelCommand),
    /// What caches would do under the load of a trace, and disks and their schedulers
    #[command(subcommand, arg_required_else_help = true)]
    Simulate(Box<simulate::SimulateCommand>),
    /// Measure a disk by reading it, and write a profile for simulate disk
    Calibrate(calibrate::Args),
    /// How many clients a server holds, and what to buy next
    Predict(Box<predict::Args>),
    /// Print the completion script of a shell
    Completions(completions::Args),
    /// The names that a word may become, for completion scripts
    #[command(name = "__complete", hide = true)]
    Complete(completions::Complete),
    /// Write the manual pages into a directory
    Man(man::Args),
}

impl Command {
    /// Whether it works on a home, or on what is this machine's alone; the others work on files, or on what
    /// they are told by its own address.
    pub(crate) fn needs_home(&self) -> bool {
        !matches!(
            self,
            Self::Device(_)
                | Self::Discover(_)
                | Self::Trace(_)
                | Self::Replay(_)
                | Self::Model(_)
                | Self::Simulate(_)
                | Self::Calibrate(_)
                | Self::Predict(_)
                | Self::Completions(_)
                | Self::Complete(_)
                | Self::Man(_)
        )
    }
}

/// What other tools call our commands.
const ELSEWHERE: [(&str, &str); 8] = [
    ("stop", "drain"),
    ("shutdown", "drain"),
    ("start", "serve"),
    ("mount", "attach"),
    ("import", "image import"),
    ("create", "disk create"),
    ("list", "disk list"),
    ("ls", "disk list"),
];

/// The error for a command that is not there, with what it is called here.
pub(crate) fn suggest(mut error: clap::Error) -> clap::Error {
    let ours = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(asked)) if error.kind() == ErrorKind::InvalidSubcommand => {
            ELSEWHERE.iter().find(|(theirs, _)| theirs == asked).map(|(_, ours)| *ours)
        }
        _ => None,
    };
    // A verb of another noun has suggestions of its own.
    let of_all = matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(usage))
        if usage.to_string().contains("sojourn [OPTIONS] <COMMAND>"));
    if let Some(ours) = ours.filter(|_| of_all) {
        let suggestion = ContextValue::Strings(vec![ours.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, suggestion);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_of_other_tools_are_told_by_their_name_here() {
        let said = |words: &[&str]| {
            let words = ["sojourn"].iter().chain(words);
            suggest(Cli::try_parse_from(words).unwrap_err()).to_string()
        };
        assert!(said(&["stop"]).contains("'drain'"), "{}", said(&["stop"]));
        assert!(said(&["list"]).contains("'disk list'"), "{}", said(&["list"]));
        assert!(said(&["dsk"]).contains("'disk'"), "{}", said(&["dsk"]));
        assert!(!said(&["image", "stop"]).contains("drain"), "{}", said(&["image", "stop"]));
        for (_, ours) in ELSEWHERE {
            let words: Vec<&str> = ours.split(' ').chain(["--help"]).collect();
            let help = Cli::try_parse_from(["sojourn"].iter().chain(&words)).unwrap_err();
            assert_eq!(help.kind(), ErrorKind::DisplayHelp, "{ours}");
        }
    }

    #[test]
    fn every_verb_has_help_with_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} says nothing of itself");
            if command.has_subcommands() {
                command.get_subcommands().for_each(|c| check(c, &path));
            } else {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("sojourn "), "{path} has no example");
                let wide = help.lines().find(|line| line.len() > 100);
                assert_eq!(wide, None, "{path}: it would be broken where nobody can paste it");
            }
        }
        check(&Cli::command(), "");
    }
}
