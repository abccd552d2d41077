//! `sojourn store sessions`: who writes to the store, and ending what died.

use crate::output::{Output, Table, visible};
use crate::stores;
use block::{Error, Result};
use clap::Subcommand;
use engine::Config;
use engine::Home;
use store::sessions::{self, PinInfo};

/// The verbs of `sojourn store sessions`.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List who writes to the store now, or did until it died
    #[command(after_help = "\
Examples:
  sojourn store sessions list
  sojourn --json store sessions list | jq '.[] | select(.silent > 7200)'

A session shows itself every hour. One that has been silent for much longer has died, and keeps
garbage from being deleted for a day.")]
    List,
    /// End sessions that died, by their ids
    #[command(after_help = "\
Examples:
  sojourn store sessions break 5f1c

Any unambiguous start of an id will do. A session that is at work after all fails (exit code 5) and
publishes nothing.")]
    Break(Break),
}

/// Arguments of `sojourn store sessions break`.
#[derive(Debug, clap::Args)]
pub(crate) struct Break {
    /// Ids, or their first digits
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub(crate) async fn run(verb: &SessionsCommand, home: &Home, output: Output) -> Result<()> {
    let store = stores::open(home, &Config::of(home)?).await?;
    let pins = sessions::list(&store).await?;
    let SessionsCommand::Break(args) = verb else {
        return output.print(&pins, || table(&pins));
    };
    // All of them are known before the first is ended.
    let found: Result<Vec<&PinInfo>> = args.ids.iter().map(|id| by_start(&pins, id)).collect();
    let mut ended = Vec::new();
    for pin in found? {
        if let Err(error) = sessions::end(&store, &pin.id).await {
            say(output, &ended)?;
            return Err(error);
        }
        ended.push(format!("{} is ended", what(pin)));
    }
    say(output, &ended)
}

/// Says which sessions are ended, all in one document.
fn say(output: Output, ended: &[String]) -> Result<()> {
    match ended {
        [] => Ok(()),
        ended => output.done(&ended.join(match output {
            Output::Json => "; ",
            Output::Text => "\n",
        })),
    }
}

fn by_start<'p>(pins: &'p [PinInfo], start: &str) -> Result<&'p PinInfo> {
    let mut found = pins.iter().filter(|pin| pin.id.to_string().starts_with(start));
    match (found.next(), found.next()) {
        (Some(pin), None) => Ok(pin),
        (None, _) => Err(Error::not_found(format!(
            "no session's id begins with {start}; see `sojourn store sessions list`"
        ))),
        (Some(_), Some(_)) => Err(Error::invalid(format!(
            "several sessions' ids begin with {start}; give more of the one that is meant"
        ))),
    }
}

fn what(pin: &PinInfo) -> String {
    visible(pin.what.as_deref().unwrap_or("damaged"))
}

fn table(pins: &[PinInfo]) -> String {
    let mut table = Table::new(&["ID", "WHAT", ">GOING ON", ">SILENT"]);
    let minutes = |seconds: u64| format!("{} m", seconds / 60);
    for pin in pins {
        table.row([pin.id.to_string(), what(pin), minutes(pin.age), minutes(pin.silent)]);
    }
    table.render()
}
