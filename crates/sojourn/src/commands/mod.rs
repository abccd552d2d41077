//! One module per noun or verb: its arguments, and the code that carries them out; and the table of commands.
//!
//! A command is a file or folder here, its `mod` and its row of the table; [`runnable`] is what the table asks of it.

pub(crate) mod attach;
pub(crate) mod borrow;
pub(crate) mod cache;
pub(crate) mod calibrate;
pub(crate) mod cert;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod device;
pub(crate) mod discover;
pub(crate) mod disk;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod gc;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod machine;
pub(crate) mod man;
pub(crate) mod media;
pub(crate) mod model;
pub(crate) mod netboot;
pub(crate) mod predict;
mod prune;
pub(crate) mod reload;
pub(crate) mod repair;
pub(crate) mod replay;
pub(crate) mod runnable;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod verify;
pub(crate) mod vm;

use crate::output::Output;
use block::Result;
use engine::Home;
use runnable::{Described, Invocation, Runnable, Verbs};
use server::remote::RemoteServer;
use std::process::ExitCode;

/// The table of commands, in the order of `--help`: what it says of each, its name, its arguments, and whether it
/// works on a home, or on what is this machine's alone; the others work on files, or on what they are told by its
/// own address.
macro_rules! commands {
    ($($(#[$attribute:meta])* $command:ident($arguments:ty), home: $home:literal;)*) => {
        /// What to do.
        #[derive(Debug, clap::Subcommand)]
        // A command's arguments and verbs are described to the parser only when it is called: describing those of
        // all commands took every start 0.9 ms.
        #[command(defer = true)]
        pub(crate) enum Command {
            $($(#[$attribute])* $command(Described<$arguments>),)*
        }

        impl Command {
            /// Whether it works on a home.
            pub(crate) fn needs_home(&self) -> bool {
                match self { $(Self::$command(_) => $home,)* }
            }

            /// The user and the group as whom root carries it out on a home, if not as root: [`Runnable::owner_of`].
            pub(crate) fn owner_of(&self, home: &Home) -> Option<(u32, u32)> {
                match self {
                    $(Self::$command(arguments) => $home.then(|| arguments.0.owner_of(home)).flatten(),)*
                }
            }

            /// What it logs without `--log`: [`Runnable::default_log`].
            pub(crate) fn default_log(&self) -> Option<&'static str> {
                match self { $(Self::$command(arguments) => arguments.0.default_log(),)* }
            }

            /// Carries it out.
            ///
            /// # Errors
            /// Any error from the command.
            pub(crate) fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
                match self { $(Self::$command(arguments) => arguments.0.run(invocation),)* }
            }

            /// Carries it out on a server of another machine.
            ///
            /// # Errors
            /// [`Unsupported`](block::ErrorKind::Unsupported) for a command that works here only; any error from
            /// the command.
            pub(crate) fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
                match self { $(Self::$command(arguments) => arguments.0.run_on(server, output),)* }
            }
        }
    };
}

commands! {
    /// Make a home: configuration, store, room for disks
    Init(init::Args), home: true;
    /// Golden images and their versions
    Image(Verbs<image::ImageCommand>), home: true;
    /// Private disks
    Disk(Verbs<disk::DiskCommand>), home: true;
    /// NBD exports as block devices of this machine
    Device(Verbs<device::DeviceCommand>), home: false;
    /// Virtual machines: suspended here, resumed there
    Vm(Verbs<vm::VmCommand>), home: true;
    /// The store as a whole
    Store(Verbs<store::StoreCommand>), home: true;
    /// Use a disk of a distant store on this machine: what is written goes up in the background
    Attach(Box<attach::Attach>), home: true;
    /// Give an attached disk up, once everything is in the store
    Detach(attach::detach::Detach), home: true;
    /// The free blocks of idle disks as private scratch space
    Borrow(Verbs<borrow::BorrowCommand>), home: true;
    /// The block cache of the running server
    Cache(Verbs<cache::CacheCommand>), home: true;
    /// Machines that start from the network, and their disks
    Machine(Verbs<machine::MachineCommand>), home: true;
    /// Let machines without a disk start from this home's disks
    Netboot(netboot::Args), home: true;
    /// Find the servers of this network and what they export
    Discover(discover::Args), home: false;
    /// Certificates of the server and its clients
    Cert(Verbs<cert::CertCommand>), home: true;
    /// Tokens: who may use the HTTP API, and for what
    Token(Verbs<token::TokenCommand>), home: true;
    /// What the configuration says, and what is wrong with it
    Config(Verbs<config::ConfigCommand>), home: true;
    /// Keys, trees and images that answer in place of the store
    Media(Verbs<media::MediaCommand>), home: true;
    /// Delete what no image, disk or snapshot needs any more
    Gc(gc::Args), home: true;
    /// Serve disks and images over NBD
    Serve(Box<serve::Args>), home: true;
    /// Have the running server read its configuration again
    Reload(reload::Args), home: true;
    /// Have the running server end after its last client
    Drain(drain::Args), home: true;
    /// Read the store back and check it
    Verify(verify::Args), home: true;
    /// Heal the store from other stores and from images
    Repair(repair::Args), home: true;
    /// What is wrong, slow or dangerous here, and what to do
    Doctor(doctor::Args), home: true;
    /// What the running server does
    Status(status::Args), home: true;
    /// What the running server does now: disks, clients, latencies
    Top(top::Args), home: true;
    /// Traces of block requests
    Trace(Box<Verbs<trace::TraceCommand>>), home: false;
    /// Replay a trace by many clients against any NBD server
    Replay(Box<replay::Args>), home: false;
    /// How a server behaves under load, by arithmetic
    Model(Verbs<model::ModelCommand>), home: false;
    /// What caches would do under the load of a trace, and disks and their schedulers
    Simulate(Box<Verbs<simulate::SimulateCommand>>), home: false;
    /// Measure a disk by reading it, and write a profile for simulate disk
    Calibrate(calibrate::Args), home: false;
    /// How many clients a server holds, and what to buy next
    Predict(Box<predict::Args>), home: false;
    /// Print the completion script of a shell
    Completions(completions::Args), home: false;
    /// The names that a word may become, for completion scripts
    #[command(name = "__complete", hide = true)]
    Complete(completions::Complete), home: false;
    /// Write the manual pages into a directory
    Man(man::Args), home: false;
}
