//! `sojourn store check`.

use crate::output::Output;
use crate::progress::Bar;
use block::{Error, Result};
use engine::Config;
use engine::Home;
use engine::world;
use objects::OpenStoreOptions;
use objects::check::{CheckOptions, CheckReport};
use serde::Serialize;

/// Arguments of `sojourn store check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory or a URL [default: the place of this home's store]
    pub(crate) url: Option<String>,
    /// How often the creators race
    #[arg(long, default_value_t = CheckOptions::default().rounds, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
}

#[derive(Serialize)]
struct StoreCheckView<'a> {
    store: &'a str,
    passed: bool,
    #[serde(flatten)]
    report: CheckReport,
}

pub(crate) async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => home.store_url(&Config::of(home)?.store),
    };
    let opened = engine::places::open(&url, &home.dir().join("tls"), &OpenStoreOptions::default())?;
    let options = CheckOptions { rounds: args.rounds, ..CheckOptions::default() };
    let bar = Bar::waiting("checking");
    let world = world::system();
    let mut nonce = [0; 16];
    world.entropy.fill(&mut nonce)?;
    let clock = || world.clock.now();
    let report = objects::check::backend(&opened.backend, nonce, &clock, options).await;
    drop(bar);
    let report = report.map_err(|e| e.context(format!("store {url}")))?;
    let checked = StoreCheckView { store: &url, passed: report.passed(), report };
    output.print(&checked, || {
        let mut text = String::new();
        for finding in &checked.report.findings {
            let mark = if finding.passed { "ok    " } else { "FAILED" };
            text.push_str(&format!("{mark} {}: {}\n", finding.name, finding.detail));
        }
        text
    })?;
    match checked.report.findings.iter().find(|finding| !finding.passed) {
        None => Ok(()),
        Some(first) => Err(Error::unsupported(format!(
            "{url} cannot be trusted with a store: {}: {} (needed for {})",
            first.name, first.detail, first.purpose
        ))),
    }
}
