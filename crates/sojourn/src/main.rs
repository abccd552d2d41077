//! `sojourn`: the command line. It parses, calls the libraries, and prints what they give.
//!
//! This crate may know every other one. It must not decide what belongs in one of them: what a store,
//! a disk or a server does is theirs, and nothing here is imported by them.
//!
//! It has more than 10,000 lines because there are many commands. Each is a module that parses, calls and prints, and
//! that can be read without the others; a crate for each noun would only make them wait for one another to be linked.
//!
//! | module | concept |
//! |---|---|
//! | [`allocator`] | memory goes back to the system |
//! | [`cli`] | the command line |
//! | [`global`] | options of every command |
//! | [`commands`] | one module per noun or verb |
//! | [`owner`] | root on another user's home becomes that user |
//! | [`runtime`] | the runtime that commands run on |
//! | [`remote`] | exports of other servers, and their HTTP API |
//! | [`site`] | where a command works |
//! | [`stores`] | the stores that commands open |
//! | [`values`] | values of options that several commands take |
//! | [`interrupt`] | what an interrupted command leaves in a store |
//! | [`lists`] | lists and ranges on the command line |
//! | [`mounts`] | what is mounted, as the kernel lists it |
//! | [`order`] | the order in which people expect names |
//! | [`output`], [`progress`], [`logging`] | what people and programs see |

mod allocator;
mod cli;
mod commands;
mod global;
mod interrupt;
mod lists;
mod logging;
mod mounts;
mod order;
mod output;
mod owner;
mod progress;
mod remote;
mod runtime;
mod site;
mod stores;
mod values;

use block::Result;
use clap::{CommandFactory, Parser};
use cli::Cli;
use commands::runnable::{COMMAND_LOG, Invocation};
use engine::config::log::LogFormat;
use global::Global;
use output::Output;
use owner::Owner;
use parking_lot::Mutex;
use std::process::ExitCode;

/// The text of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string().replace('\n', " ");
        tracing::error!(target: "panic", "{text}");
        *PANIC.lock() = text;
    }));
    server::descriptors::raise();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let e = cli::suggest(e);
            let code = u8::try_from(e.exit_code()).unwrap_or(2);
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    match std::panic::catch_unwind(|| run(cli)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            complain(error.message());
            ExitCode::from(error.kind().exit_code())
        }
        Err(_) => {
            complain(&format!("internal fault, please report it: {}", PANIC.lock()));
            ExitCode::from(1)
        }
    }
}

/// Prints the one line that says why a command failed.
fn complain(message: &str) {
    use std::io::Write;
    // Names of files are in it, which may hold what a terminal obeys.
    let _ = writeln!(std::io::stderr(), "sojourn: {}", output::visible(message));
}

/// Carries the command out, on another user's home as that user.
fn run(mut cli: Cli) -> Result<ExitCode> {
    let owner = Owner::become_of(&mut cli)?;
    let done = carry_out(&cli);
    match owner {
        Some(owner) => done.map_err(|e| owner.explain(e)),
        None => done,
    }
}

fn carry_out(cli: &Cli) -> Result<ExitCode> {
    let Cli { global, command } = cli;
    let output = if global.json { Output::Json } else { Output::Text };
    if let Some(url) = global.server.as_ref().filter(|_| command.needs_home()) {
        start_logging(global, COMMAND_LOG)?;
        let server = remote::server(url, global.token_file.as_deref())?;
        return command.run_on(server, output);
    }
    if let Some(level) = command.default_log() {
        start_logging(global, level)?;
    }
    command.run(&Invocation { global, output, program: Cli::command })
}

/// Starts logging as the command line says, at `level` where it says nothing.
fn start_logging(global: &Global, level: &str) -> Result<()> {
    let format = global.log_format.map_or(LogFormat::Human, Into::into);
    logging::start(global.log.as_deref().unwrap_or(level), format)
}
