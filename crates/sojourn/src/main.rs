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
//! | [`order`] | the order in which people expect names |
//! | [`output`], [`progress`], [`logging`] | what people and programs see |

mod allocator;
mod cli;
mod commands;
mod global;
mod interrupt;
mod lists;
mod logging;
mod order;
mod output;
mod owner;
mod progress;
mod remote;
mod runtime;
mod site;
mod stores;
mod values;

use block::{Error, Result};
use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use engine::config::log::LogFormat;
use output::Output;
use owner::Owner;
use parking_lot::Mutex;
use runtime::block_on;
use server::remote::RemoteServer;
use site::Site;
use std::process::ExitCode;

/// What a command without `--log` logs: a panic that a layer turned into an error is not told twice.
const COMMAND_LOG: &str = "warn,panic=off";

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
    let output = if cli.global.json { Output::Json } else { Output::Text };
    if let Some(url) = cli.global.server.as_ref().filter(|_| cli.command.needs_home()) {
        let format = cli.global.log_format.map_or(LogFormat::Human, Into::into);
        logging::start(cli.global.log.as_deref().unwrap_or(COMMAND_LOG), format)?;
        let server = remote::server(url, cli.global.token_file.as_deref())?;
        return on_server(&cli.command, server, output);
    }
    if let Command::Serve(args) = &cli.command {
        allocator::give_back();
        server::descriptors::make_room();
        return block_on(commands::serve::run(args, &cli.global))?;
    }
    if let Command::Attach(args) = &cli.command
        && args.is_process()
    {
        allocator::give_back();
        server::descriptors::make_room();
        return block_on(commands::attach::serve(&cli.global))?;
    }
    let default = match &cli.command {
        Command::Device(verb) => verb.default_log().unwrap_or(COMMAND_LOG),
        Command::Netboot(_) => "info",
        _ => COMMAND_LOG,
    };
    let level = cli.global.log.as_deref().unwrap_or(default);
    let format = cli.global.log_format.map_or(LogFormat::Human, Into::into);
    logging::start(level, format)?;
    let home = || cli.global.home();
    match &cli.command {
        Command::Init(args) => block_on(commands::init::run(args, &home()?, output))?,
        Command::Image(verb) => return writes(commands::image::run(verb, &home()?, output)),
        Command::Disk(verb) => {
            let site = Site::Home(home()?);
            return writes(commands::disk::run(verb, &site, output));
        }
        Command::Device(verb) => block_on(commands::device::run(verb, output))?,
        Command::Machine(verb) => return writes(commands::machine::run(verb, &home()?, output)),
        Command::Discover(args) => block_on(commands::discover::run(args, output))?,
        Command::Netboot(args) => block_on(commands::netboot::run(args, &home()?))?,
        Command::Gc(args) => return writes(commands::gc::run(args, &home()?, output)),
        Command::Store(verb) => return writes(commands::store::run(verb, &home()?, output)),
        Command::Media(verb) => block_on(commands::media::run(verb, &home()?, output))?,
        Command::Attach(args) => return block_on(commands::attach::run(args, &home()?, output))?,
        Command::Detach(args) => block_on(commands::attach::detach::run(args, &home()?, output))?,
        Command::Borrow(verb) => return block_on(commands::borrow::run(verb, home, output))?,
        // A keeper ends its machine in order when it is told to end.
        Command::Vm(verb) if verb.is_keeper() => {
            block_on(commands::vm::run(verb, &home()?, output))?
        }
        Command::Vm(verb) => return writes(commands::vm::run(verb, &home()?, output)),
        Command::Verify(args) => block_on(commands::verify::run(args, &home()?, output))?,
        Command::Repair(args) => return writes(commands::repair::run(args, &home()?, output)),
        Command::Status(_) => block_on(commands::status::run(&home()?, output))?,
        Command::Reload(_) => block_on(commands::reload::run(&home()?, output))?,
        Command::Cache(verb) => block_on(commands::cache::run(verb, &home()?, output))?,
        Command::Doctor(args) => block_on(commands::doctor::run(args, &home()?, output))?,
        Command::Drain(args) => block_on(commands::drain::run(args, &home()?, output))?,
        Command::Top(args) => block_on(commands::top::run(args, &home()?, output))?,
        Command::Cert(verb) => commands::cert::run(verb, home, output),
        Command::Token(verb) => block_on(commands::token::run(verb, &home()?, output))?,
        Command::Config(verb) => commands::config::run(verb, home, output),
        Command::Trace(verb) => return commands::trace::run(verb, output),
        Command::Replay(args) => commands::replay::run(args, output),
        Command::Model(verb) => {
            let given = cli.global.home.is_some().then(home).transpose()?;
            commands::model::run(verb, given.as_ref(), output)
        }
        Command::Simulate(verb) => commands::simulate::run(verb, output),
        Command::Calibrate(args) => commands::calibrate::run(args, output),
        Command::Predict(args) => commands::predict::run(args, output),
        Command::Completions(args) => commands::completions::run(args, Cli::command()),
        Command::Complete(args) => {
            let home = |asked: Option<&str>| match asked {
                Some(dir) => engine::Home::find(Some(dir.as_ref())),
                None => cli.global.home(),
            };
            block_on(commands::completions::complete(args, Cli::command(), home))?
        }
        Command::Man(args) => commands::man::run(args, Cli::command(), output),
        Command::Serve(_) => Ok(()),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Carries a command out on a server of another machine.
fn on_server(command: &Command, server: RemoteServer, output: Output) -> Result<ExitCode> {
    match command {
        Command::Disk(verb) => {
            let site = Site::Server(Box::new(server));
            writes(commands::disk::run(verb, &site, output))
        }
        Command::Image(verb) => writes(commands::image::run_on(verb, &server, output)),
        Command::Status(_) => writes(commands::status::of_server(&server, output)),
        Command::Cache(verb) => writes(commands::cache::run_on(verb, &server, output)),
        Command::Reload(_) => writes(commands::reload::run_on(&server, output)),
        Command::Drain(args) => writes(commands::drain::run_on(args, &server, output)),
        _ => Err(Error::unsupported(
            "with --server there are the commands cache, disk, drain, image, reload and status; run this one on \
             the server's machine",
        )),
    }
}

/// Runs a command that may write to a store.
fn writes(work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    block_on(interrupt::unless_interrupted(work))?
}
