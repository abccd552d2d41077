//! `sojourn cache`: the block cache of the running server.

use super::reload::server;
use super::runnable::{Invocation, Runnable, finish, writes};
use crate::lists::spoken;
use crate::output::{Output, Table, fields};
use ::cache::{Forecast, PolicyKind};
use block::{ByteSize, Result};
use engine::Home;
use server::api::CacheRequest;
use server::remote::RemoteServer;
use server::status::CacheView;
use std::process::ExitCode;

/// Verbs of `sojourn cache`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum CacheCommand {
    /// What it holds, and what other sizes and policies would give
    Show(ShowArgs),
    /// Change its size or policy while it is used
    Set(SetArgs),
}

/// Arguments of `sojourn cache show`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn cache show
  sojourn --json cache show | jq .forecast.best

The server follows a sample of all chunks and tells which part of the accesses of late would have
been hits with half, the same and twice the memory, under each policy.")]
pub(crate) struct ShowArgs {}

/// Arguments of `sojourn cache set`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn cache set --size 8GiB
  sojourn cache set --policy lirs

Nothing stops meanwhile, and what is held stays as far as there is room. It lasts until the server
restarts or `sojourn reload` reads the configuration again; to keep it, write it there.")]
#[group(required = true, multiple = true)]
pub(crate) struct SetArgs {
    /// Memory for chunks
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    #[arg(long, value_name = "POLICY", help = policy_help())]
    policy: Option<PolicyKind>,
}

/// The help of `--policy`: what there is for a server.
fn policy_help() -> String {
    let names = spoken(PolicyKind::serving().map(PolicyKind::as_str));
    format!("What stays when it is full: {names}, with parameters if wanted (fmpq:lifetime=8)")
}

impl SetArgs {
    fn request(&self) -> CacheRequest {
        CacheRequest { size: self.size.map(|size| size.0), policy: self.policy }
    }
}

impl Runnable for CacheCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        writes(run_on(self, &server, output))
    }
}

async fn run(verb: &CacheCommand, home: &Home, output: Output) -> Result<()> {
    let client = server(home).await?;
    let view = match verb {
        CacheCommand::Show(_) => client.status().await?.cache,
        CacheCommand::Set(args) => client.change_cache(&args.request()).await?,
    };
    output.print(&view, || describe(&view))
}

/// The same on a server of another machine.
async fn run_on(verb: &CacheCommand, server: &RemoteServer, output: Output) -> Result<()> {
    let view = match verb {
        CacheCommand::Show(_) => server.cache().await?,
        CacheCommand::Set(args) => server.change_cache(&args.request()).await?,
    };
    output.print(&view, || describe(&view))
}

fn describe(cache: &CacheView) -> String {
    let percent = cache.hit_percent.map_or("-".into(), |percent| format!("{percent:.1} %"));
    let mut text = fields(&[
        ("policy", cache.policy.clone()),
        ("size", ByteSize(cache.capacity_bytes).to_string()),
        ("used", format!("{} in {} chunks", ByteSize(cache.bytes), cache.entries)),
        ("hits", percent),
    ]);
    match &cache.forecast {
        Some(forecast) => {
            let Forecast { best, one_in, .. } = forecast;
            let size = |factor: f64| ByteSize((cache.capacity_bytes as f64 * factor) as u64);
            let [half, same, double] = [0.5, 1.0, 2.0].map(|f| format!(">{}", size(f)));
            let mut table = Table::new(&["POLICY", &half, &same, &double]);
            for row in &forecast.policies {
                let [half, same, double] =
                    [row.half, row.same, row.double].map(|r| format!("{:.1} %", r * 100.0));
                table.row([row.policy.to_string(), half, same, double]);
            }
            let foretold = format!(
                "\nHits that sizes and policies would give, from one chunk in {one_in}; best with \
                 this memory: {best}\n{}",
                table.render()
            );
            text.push_str(&foretold);
        }
        None => text.push_str("\nToo few reads to tell what other sizes and policies would give\n"),
    }
    text
}

/// What half and twice the memory would give, and the best policy, in a line.
pub(super) fn in_short(forecast: &Forecast) -> String {
    let now = &forecast.now;
    let mut line = format!(
        "{:.1} % hits with half the memory, {:.1} % with this, {:.1} % with twice",
        now.half * 100.0,
        now.same * 100.0,
        now.double * 100.0
    );
    if forecast.best != now.policy
        && let Some(best) = forecast.policies.iter().find(|row| row.policy == forecast.best)
    {
        line.push_str(&format!("; {} would have {:.1} %", best.policy, best.same * 100.0));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::cache::HitRatios;

    #[test]
    fn a_better_policy_is_named_and_the_best_one_is_not() {
        let row = |policy, same| HitRatios { policy, half: 0.2, same, double: 0.75 };
        let lirs = PolicyKind::Lirs(Default::default());
        let policies = vec![row(PolicyKind::FMPQ, 0.5), row(lirs, 0.6)];
        let now = policies[0].clone();
        let mut forecast = Forecast { one_in: 64, followed: 5000, now, best: lirs, policies };
        let line = "20.0 % hits with half the memory, 50.0 % with this, 75.0 % with twice";
        assert_eq!(in_short(&forecast), format!("{line}; lirs would have 60.0 %"));
        forecast.best = PolicyKind::FMPQ;
        assert_eq!(in_short(&forecast), line);
        let mut view = CacheView {
            policy: "fmpq".into(),
            capacity_bytes: 1 << 30,
            bytes: 1 << 20,
            entries: 16,
            hits: 0,
            misses: 0,
            evictions: 0,
            hit_percent: None,
            forecast: None,
        };
        assert!(describe(&view).contains("Too few reads"));
        view.forecast = Some(forecast);
        let text = describe(&view);
        for word in ["512 MiB", "1 GiB", "2 GiB", "lirs", "60.0 %", "one chunk in 64"] {
            assert!(text.contains(word), "no {word:?} in\n{text}");
        }
    }
}
