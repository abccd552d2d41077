//! `sojourn doctor`: what is wrong, slow or dangerous here, and what to do.
//!
//! | module | concept |
//! |---|---|
//! | [`finding`] | what a check found |
//! | [`patient`] | what the checks look at |
//! | `certificates` … `units` | one subject each, in the order of [`CHECKS`] |

mod certificates;
mod clock;
mod configuration;
mod exposure;
mod file_system;
mod finding;
mod kernel;
mod leases;
mod limits;
mod machines;
mod patient;
mod rights;
mod server;
mod store;
mod units;

use super::runnable::{Invocation, Runnable, finish};
use crate::output::{Output, visible};
use block::{Error, Result};
use engine::Home;
use finding::{Finding, Level};
use patient::Patient;
use serde::Serialize;
use std::process::ExitCode;

/// Arguments of `sojourn doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn doctor
  sojourn --home /srv/lab doctor
  sojourn --json doctor | jq -r '.findings[] | select(.level != \"ok\") | .what'

Looks at this machine, the home, its configuration, its store and the server that runs, and changes
nothing. Advice is what could be better; trouble is what fails, or soon will; danger is what loses
data or gives it to others. The exit code is 6 when there is trouble or danger. Run it as the user
that the server has: as root it becomes that user by itself.")]
pub(crate) struct Args {}

/// A subject, and how it is looked at.
struct Check {
    name: &'static str,
    look: fn(&Patient) -> Vec<Finding>,
}

/// All checks, in the order in which they are told where they are equally bad.
const CHECKS: &[Check] = &[
    Check { name: "configuration", look: configuration::look },
    Check { name: "file system", look: file_system::look },
    Check { name: "rights", look: rights::look },
    Check { name: "exposure", look: exposure::look },
    Check { name: "certificates", look: certificates::look },
    Check { name: "server", look: server::look },
    Check { name: "store", look: store::look },
    Check { name: "leases", look: leases::look },
    Check { name: "clock", look: clock::look },
    Check { name: "limits", look: limits::look },
    Check { name: "units", look: units::look },
    Check { name: "kernel", look: kernel::look },
    Check { name: "machines", look: machines::look },
];

/// What is printed.
#[derive(Serialize)]
struct DoctorReport {
    home: String,
    /// The worst of the findings.
    level: Level,
    findings: Vec<CheckFinding>,
}

/// A finding of a check.
#[derive(Serialize)]
struct CheckFinding {
    check: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }
}

async fn run(_: &Args, home: &Home, output: Output) -> Result<()> {
    let patient = Patient::look(home).await;
    let mut findings: Vec<CheckFinding> = CHECKS
        .iter()
        .flat_map(|check| {
            let told = |finding| CheckFinding { check: check.name, finding };
            (check.look)(&patient).into_iter().map(told)
        })
        .collect();
    // The worst first; what is equally bad in the order of the checks.
    findings.sort_by_key(|told| std::cmp::Reverse(told.finding.level));
    let level = findings.first().map_or(Level::Ok, |told| told.finding.level);
    let report = DoctorReport { home: home.dir().display().to_string(), level, findings };
    output.print(&report, || describe(&report))?;
    let bad: Vec<&CheckFinding> =
        report.findings.iter().filter(|told| told.finding.level >= Level::Trouble).collect();
    match bad.as_slice() {
        [] => Ok(()),
        [only] => Err(Error::unavailable(format!("{}: {}", only.check, only.finding.what))),
        [first, ..] => Err(Error::unavailable(format!(
            "{} findings need something done; the first: {}: {}",
            bad.len(),
            first.check,
            first.finding.what
        ))),
    }
}

fn describe(report: &DoctorReport) -> String {
    let mut text = String::new();
    for CheckFinding { check, finding } in &report.findings {
        let Finding { level, what, why, remedy } = finding;
        text.push_str(&format!("{:<8} {check}: {}\n", level.name(), visible(what)));
        if let Some(why) = why {
            text.push_str(&format!("{:8} {}\n", "", visible(why)));
        }
        if let Some(remedy) = remedy {
            text.push_str(&format!("{:8} -> {}\n", "", visible(remedy)));
        }
    }
    text
}
