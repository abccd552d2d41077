//! What a command is to the table of commands: its arguments, and what becomes of them.

use crate::global::Global;
use crate::interrupt;
use crate::output::Output;
use crate::runtime::block_on;
use block::{Error, Result};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use engine::Home;
use server::remote::RemoteServer;
use std::process::ExitCode;

/// What a command without `--log` logs: a panic that a layer turned into an error is not told twice.
pub(crate) const COMMAND_LOG: &str = "warn,panic=off";

/// How the program was called, beside the command's own arguments.
pub(crate) struct Invocation<'a> {
    /// Options of every command.
    pub(crate) global: &'a Global,
    /// What the command prints its result as.
    pub(crate) output: Output,
    /// The whole command line, for commands that describe it.
    pub(crate) program: fn() -> Command,
}

impl Invocation<'_> {
    /// The home that the command line means.
    ///
    /// # Errors
    /// Any error from [`Global::home`].
    pub(crate) fn home(&self) -> Result<Home> {
        self.global.home()
    }
}

/// A command of the table: what its arguments say of it, and how it is carried out.
pub(crate) trait Runnable {
    /// Whether root, on another user's home, carries it out as that user: it makes or reads what is in the
    /// home, and needs no root for anything else. Asked only of commands that need a home.
    fn works_as_owner(&self) -> bool {
        true
    }

    /// The user and the group as whom root carries it out on a home, if not as root.
    fn owner_of(&self, home: &Home) -> Option<(u32, u32)> {
        home.other_owner().filter(|_| self.works_as_owner())
    }

    /// What it logs without `--log`; `None` when it starts logging itself.
    fn default_log(&self) -> Option<&'static str> {
        Some(COMMAND_LOG)
    }

    /// Carries it out.
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode>;

    /// Carries it out on a server of another machine.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) unless the command can do that.
    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        let _ = (server, output);
        Err(Error::unsupported(
            "with --server there are the commands cache, disk, drain, image, machine, media, reload, status and vm; run \
             this one on the server's machine",
        ))
    }
}

/// The arguments of a row of the table, of which the row says what they are for, and not their own comments.
#[derive(Debug)]
pub(crate) struct Described<T>(pub(crate) T);

impl<T: Args> Args for Described<T> {
    fn augment_args(command: Command) -> Command {
        let (about, long) = (command.get_about().cloned(), command.get_long_about().cloned());
        let command = T::augment_args(command).about(None).long_about(None);
        let command = about.into_iter().fold(command, Command::about);
        long.into_iter().fold(command, Command::long_about)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: Args> FromArgMatches for Described<T> {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// A noun's verbs.
#[derive(Debug, Args)]
pub(crate) struct Verbs<T: Subcommand> {
    #[command(subcommand)]
    verb: T,
}

impl<T: Subcommand + Runnable> Runnable for Verbs<T> {
    fn works_as_owner(&self) -> bool {
        self.verb.works_as_owner()
    }

    fn owner_of(&self, home: &Home) -> Option<(u32, u32)> {
        self.verb.owner_of(home)
    }

    fn default_log(&self) -> Option<&'static str> {
        self.verb.default_log()
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        self.verb.run(invocation)
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        self.verb.run_on(server, output)
    }
}

/// The exit code of what is done.
pub(crate) fn done(result: Result<()>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

/// Runs a command to its end.
pub(crate) fn finish(work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    done(block_on(work)?)
}

/// Runs a command that may write to a store: interrupted, it ends its sessions there.
pub(crate) fn writes(work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    block_on(interrupt::unless_interrupted(work))?
}
