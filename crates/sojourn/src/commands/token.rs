//! `sojourn token`: who may use the HTTP API, and for what.

use super::runnable::{Invocation, Runnable, finish};
use crate::output::{Output, Table, moment};
use access::tokens::file;
use access::{Token, TokenRight};
use block::Result;
use engine::Home;
use engine::world;
use serde::Serialize;
use std::process::ExitCode;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Verbs of `sojourn token`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token, which is shown this once
    Create(CreateToken),
    /// List the tokens, without what is secret of them
    #[command(after_help = "\
Examples:
  sojourn token list
  sojourn --json token list | jq -r '.[].name'")]
    List,
    /// Make a token worthless, at once
    #[command(after_help = "\
Examples:
  sojourn token revoke ci")]
    Revoke(RevokeToken),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn token create grafana --read                            sees everything
  sojourn token create ci --admin --disk 'ci-*' --image debian   its own disks, made from debian
  sojourn token create alice --operate --disk alice --days 30
  sojourn token create deploy --admin > deploy.token             in a file for --token-file

--read sees; --operate also changes what can be changed without losing data (create, snapshot,
commit, grow, publish, take, keep); --admin also what cannot (remove, reset, rollback, rebase,
release, take --force). With --disk or --image the token is for what a pattern names and for
nothing else; * stands for any characters. A running server knows the token at once.")]
#[command(group = clap::ArgGroup::new("right").required(true))]
pub(crate) struct CreateToken {
    /// What it is called, in lists and in the audit log
    name: String,
    /// It may see
    #[arg(long, group = "right")]
    read: bool,
    /// It may also change what can be changed without losing data
    #[arg(long, group = "right")]
    operate: bool,
    /// It may do everything, also what destroys
    #[arg(long, group = "right")]
    admin: bool,
    /// Only these disks; may be repeated
    #[arg(long, value_name = "PATTERN")]
    disk: Vec<String>,
    /// Only these images, NAME or NAME:TAG; may be repeated
    #[arg(long, value_name = "PATTERN")]
    image: Vec<String>,
    /// How long it holds [default: until it is revoked]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RevokeToken {
    /// The token's name
    pub(crate) name: String,
}

/// A token that was made.
#[derive(Serialize)]
struct MadeToken {
    #[serde(flatten)]
    token: Token,
    /// What its bearer shows.
    secret: String,
}

/// A token of the list.
#[derive(Serialize)]
struct ListedToken {
    #[serde(flatten)]
    token: Token,
    expired: bool,
}

impl CreateToken {
    fn token(&self, now: u64) -> Token {
        let right = match (self.admin, self.operate) {
            (true, _) => TokenRight::Admin,
            (false, true) => TokenRight::Operate,
            (false, false) => TokenRight::Read,
        };
        let some = |patterns: &[String]| (!patterns.is_empty()).then(|| patterns.to_vec());
        Token {
            name: self.name.clone(),
            right,
            disks: some(&self.disk),
            images: some(&self.image),
            created: now,
            expires: self.days.map(|days| now.saturating_add(u64::from(days) * DAY)),
        }
    }
}

impl Runnable for TokenCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }
}

/// Carries out a verb. The file is changed by itself: a server reads it again.
async fn run(verb: &TokenCommand, home: &Home, output: Output) -> Result<()> {
    home.must_exist()?;
    let (path, world) = (home.tokens(), world::system());
    let now = world.clock.now();
    match verb {
        TokenCommand::Create(args) => {
            let token = args.token(now);
            let mut random = [0; access::tokens::SECRET_BYTES];
            world.entropy.fill(&mut random)?;
            let asked = token.clone();
            let secret = block::offload(move || file::add(&path, asked, random)).await?;
            // In a file or a pipe it stands alone, as --token-file reads it.
            let made = MadeToken { token, secret };
            output.print(&made, || made.secret.clone())
        }
        TokenCommand::List => {
            let tokens = block::offload(move || file::load(&path)).await?;
            let listed = |token: &Token| ListedToken {
                token: token.clone(),
                expired: token.is_expired(now),
            };
            let list: Vec<ListedToken> = tokens.iter().map(listed).collect();
            output.print(&list, || table(&list))
        }
        TokenCommand::Revoke(args) => {
            let name = args.name.clone();
            let token = block::offload(move || file::revoke(&path, &name)).await?;
            output.done(&format!("token {} revoked", token.name))
        }
    }
}

fn table(list: &[ListedToken]) -> String {
    let mut table = Table::new(&["NAME", "RIGHT", "DISKS", "IMAGES", "CREATED", "EXPIRES"]);
    for ListedToken { token, expired } in list {
        let named = |patterns: &Option<Vec<String>>| match patterns {
            Some(patterns) => patterns.join(" "),
            None if token.is_limited() => "-".to_owned(),
            None => "all".to_owned(),
        };
        table.row([
            token.name.clone(),
            token.right.to_string(),
            named(&token.disks),
            named(&token.images),
            moment(token.created),
            match (token.expires, expired) {
                (Some(end), true) => format!("{} (expired)", moment(end)),
                (Some(end), false) => moment(end),
                (None, _) => "never".to_owned(),
            },
        ]);
    }
    table.render()
}
