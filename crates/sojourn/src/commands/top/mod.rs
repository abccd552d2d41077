//! `sojourn top`: what the running server does now.

mod keys;
mod picture;
mod rates;
mod screen;

use super::reload::server;
use super::runnable::{Invocation, Runnable, finish};
use crate::output::Output;
use block::{Error, Result};
use engine::Home;
use keys::{KeyAction, KeyParser};
use picture::ScreenState;
use rates::{ServerRates, SortKey};
use screen::Screen;
use server::signals::Signals;
use server::status::StatusView;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, MissedTickBehavior};

/// Arguments of `sojourn top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn top
  sojourn top --sort latency --interval 5
  sojourn --json top --once | jq '.disks[] | select(.p99_us > 10000)'

Keys: q quits, ? tells them all; d disks, c clients; the arrows, Page Up and Page Down move; sort
by i IOPS, b bytes, l latency, g growth, n name. NO_COLOR=1 in the environment leaves colours out.
When stdout is no terminal, and with --json, it prints once.")]
pub(crate) struct Args {
    /// Print once, what happened in one interval, and end
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
    /// What comes first
    #[arg(long, value_enum, default_value = "iops", value_name = "KEY")]
    sort: SortKey,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let range = 0.1..=3600.0;
    text.parse().ok().filter(|s| range.contains(s)).ok_or("must be 0.1 to 3600 seconds".to_owned())
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }
}

async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let live = !args.once
        && matches!(output, Output::Text)
        && std::io::stdout().is_terminal()
        && std::io::stdin().is_terminal();
    if live {
        return watch(args, home, interval).await;
    }
    let (before, began) = (look(home).await?, Instant::now());
    tokio::time::sleep(interval).await;
    let after = look(home).await?;
    let mut now = ServerRates::between(&before, &after, began.elapsed());
    now.sort(args.sort);
    output.print(&now, || picture::whole(&now))
}

/// The server's state.
async fn look(home: &Home) -> Result<StatusView> {
    server(home).await?.status().await
}

/// Shows it in the terminal until `q`.
async fn watch(args: &Args, home: &Home, interval: Duration) -> Result<()> {
    let mut signals = Signals::listen()?;
    let (mut before, mut began) = (look(home).await?, Instant::now());
    let screen = Screen::take()?;
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    let mut view = ScreenState::new(args.sort);
    let mut now = ServerRates::between(&before, &before, interval);
    let (mut input, mut keys, mut bytes) = (tokio::io::stdin(), KeyParser::default(), [0; 64]);
    loop {
        now.sort(view.sort);
        screen.show(&now, &view)?;
        tokio::select! {
            _ = tick.tick() => {
                let after = look(home).await?;
                now = ServerRates::between(&before, &after, began.elapsed());
                (before, began) = (after, Instant::now());
            }
            got = input.read(&mut bytes) => {
                let got = got.map_err(|e| Error::io("stdin", e))?;
                if got == 0 {
                    return Ok(());
                }
                for key in keys.feed(&bytes[..got]) {
                    match key {
                        KeyAction::Quit => return Ok(()),
                        KeyAction::Help => view.help = !view.help,
                        KeyAction::Show(page) => view.show(page),
                        KeyAction::Sort(sort) => view.sort = sort,
                        KeyAction::Move(to) => view.go(to, &now, Screen::size()),
                    }
                }
            }
            () = signals.stop() => return Ok(()),
        }
    }
}
