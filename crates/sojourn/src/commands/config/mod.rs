//! `sojourn config`: what a configuration says, and what is wrong with it.
//!
//! | module | concept |
//! |---|---|
//! | [`layout`] | where sections, keys and rules stand in a text |
//! | [`mistakes`] | all mistakes of a text |
//! | [`refused`] | what can be read, and no server would begin with |
//! | [`effective`] | every setting as it counts |

mod effective;
mod layout;
mod mistakes;
mod refused;

use super::runnable::{Invocation, Runnable, done};
use crate::output::{Output, Table};
use block::{Error, ErrorKind, Result};
use clap::Subcommand;
use effective::Setting;
use engine::{Config, Home};
use mistakes::Mistake;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The longest file that is read, in bytes; a server reads no longer one.
const LONGEST: u64 = 1 << 20;

/// The verbs of `sojourn config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read a configuration: all its mistakes, or every setting as it counts
    #[command(after_help = "\
Examples:
  sojourn config check
  sojourn config check new.toml && mv new.toml /var/lib/sojourn/sojourn.toml
  sojourn --json config check | jq '.settings[] | select(.line)'

Every mistake is told with its line; the exit code is 2 when there is one. Nothing is changed, and
no server is asked: `sojourn reload` has the one that runs read its file, `sojourn doctor` looks at
what the file leads to (the store, keys, certificates).")]
    Check(Check),
}

/// Which file.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The file [default: sojourn.toml in the home]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// What `config check` prints.
#[derive(Serialize)]
struct ConfigCheckView {
    file: String,
    valid: bool,
    mistakes: Vec<Mistake>,
    /// Null when there are mistakes.
    settings: Option<Vec<Setting>>,
}

/// What is wrong with a configuration.
#[derive(Debug)]
pub(crate) struct Examined {
    /// By their lines.
    pub(crate) mistakes: Vec<Mistake>,
    /// What it says, when there is none.
    pub(crate) config: Option<Config>,
}

impl Runnable for ConfigCommand {
    fn works_as_owner(&self) -> bool {
        let Self::Check(check) = self;
        check.file.is_none()
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, || invocation.home(), invocation.output))
    }
}

fn run(verb: &ConfigCommand, home: impl FnOnce() -> Result<Home>, output: Output) -> Result<()> {
    let ConfigCommand::Check(check) = verb;
    let path = match &check.file {
        Some(path) => path.clone(),
        None => {
            let home = home()?;
            home.must_exist()?;
            home.config()
        }
    };
    let text = read(&path)?;
    let Examined { mistakes, config } = examine(&text);
    let settings = config.as_ref().map(|config| effective::settings(config, &text));
    let file = path.display().to_string();
    let checked = ConfigCheckView { file, valid: mistakes.is_empty(), mistakes, settings };
    output.print(&checked, || describe(&checked))?;
    match checked.mistakes.len() {
        0 => Ok(()),
        1 => Err(Error::invalid(format!("{}: one mistake", checked.file))),
        several => Err(Error::invalid(format!("{}: {several} mistakes", checked.file))),
    }
}

/// Reads a configuration file.
///
/// # Errors
/// Any error from the system; [`Invalid`](ErrorKind::Invalid) when it is too long, or not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String> {
    use std::io::Read;
    let io = |e| Error::io(path.display(), e);
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(LONGEST + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > LONGEST {
        let why = format!("{} is longer than 1 MiB; is it the right file?", path.display());
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    String::from_utf8(bytes).map_err(|e| {
        let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        Error::invalid(format!("{}: line {line} is not UTF-8", path.display()))
    })
}

/// All that is wrong with the text of a configuration.
pub(crate) fn examine(text: &str) -> Examined {
    let Examined { mut mistakes, config } = mistakes::find(text);
    if let Some(config) = &config {
        mistakes.extend(refused::find(config, text));
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    let config = config.filter(|_| mistakes.is_empty());
    Examined { mistakes, config }
}

fn describe(checked: &ConfigCheckView) -> String {
    let mut text = String::new();
    for Mistake { line, text: what } in &checked.mistakes {
        let place = line.map_or(String::new(), |line| format!("line {line}: "));
        text.push_str(&format!("{place}{}\n", crate::output::visible(what)));
    }
    if let Some(settings) = &checked.settings {
        text.push_str(&format!("{} is valid\n\n", checked.file));
        let mut table = Table::new(&["KEY", "VALUE", "FROM"]);
        for Setting { key, value, line, shown } in settings {
            let from = line.map_or("default".to_owned(), |line| format!("line {line}"));
            let value = shown.clone().unwrap_or_else(|| match value.is_null() {
                true => "none".to_owned(),
                false => value.to_string(),
            });
            table.row([(*key).to_owned(), value, from]);
        }
        text.push_str(&table.render());
    }
    text
}

#[cfg(test)]
mod tests;
