//! `sojourn simulate tune`: the best policy for a size, by miniature simulation.

use super::{Load, percent};
use crate::lists::Sizes;
use crate::output::{Output, Table};
use block::{ByteSize, Result};
use serde::Serialize;
use simulate::{Advice, Question, tune};

/// Arguments of `sojourn simulate tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn simulate tune day.trace --memory 4G
  sojourn simulate tune day.trace --memory 256M-4G --client 64M --share image

Every policy that a server can have, some with several parameters, runs in miniature on four samples
of one block in 64. What it prints goes into sojourn.toml.")]
pub(crate) struct Args {
    #[command(flatten)]
    load: Load,
    /// Memory of the server's cache; of several sizes each is tuned
    #[arg(long, value_name = "LIST")]
    memory: Sizes,
    /// A sample is one block of N
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    one_in: u32,
}

#[derive(Debug, Serialize)]
struct Case {
    bytes: u64,
    policy: String,
    saved: f64,
    config: String,
    #[serde(flatten)]
    advice: Advice,
}

/// Tunes.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let sizes: Vec<(u64, u32)> = (args.memory.0.iter())
        .map(|size| Ok((*size, args.load.blocks(*size)?)))
        .collect::<Result<_>>()?;
    let stream = args.load.read(1)?;
    let mut cases = Vec::new();
    for (bytes, blocks) in sizes {
        let question = Question { one_in: args.one_in, ..Question::new(blocks) };
        let advice = tune(&stream, &question)?;
        let policy = advice.best().policy.to_string();
        let config = format!("[cache]\nsize = \"{}\"\npolicy = \"{policy}\"\n", ByteSize(bytes));
        cases.push(Case { bytes, policy, saved: advice.saved(), config, advice });
    }
    output.print(&cases, || {
        let mut text = args.load.describe(&stream);
        text.push('\n');
        cases.iter().for_each(|case| text.push_str(&describe(case)));
        text
    })
}

fn describe(case: &Case) -> String {
    let mut table = Table::new(&["policy", ">hit %", ">+-"]);
    for candidate in &case.advice.candidates {
        let policy = candidate.policy.to_string();
        table.row([policy, percent(candidate.hit_ratio), percent(candidate.error)]);
    }
    format!(
        "\n{}: {}, which is expected to miss {} % less often than lru\n\n{}\n{}",
        ByteSize(case.bytes),
        case.policy,
        percent(case.saved),
        table.render(),
        case.config
    )
}
