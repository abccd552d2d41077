//! `sojourn simulate profiles`: the disks that are shipped; one as TOML; a file checked.

use crate::output::{Output, Table, raw};
use block::{ByteSize, Result};
use engine::disk_profile;
use schedule::{Profile, SECTOR};
use serde::Serialize;

/// Arguments of `sojourn simulate profiles`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn simulate profiles
  sojourn simulate profiles hdd-7200 > my-disk.toml
  sojourn simulate profiles my-disk.toml")]
pub(crate) struct Args {
    /// A shipped profile or a file: it is checked and printed as TOML
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
}

#[derive(Debug, Serialize)]
struct ProfileRow {
    name: String,
    model: &'static str,
    bytes: u64,
    about: String,
    source: String,
}

fn row(profile: Profile) -> Result<ProfileRow> {
    Ok(ProfileRow {
        model: profile.kind(),
        bytes: profile.sectors()? * SECTOR,
        name: profile.name,
        about: profile.about,
        source: profile.source,
    })
}

/// Lists them, or prints one.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    if let Some(name) = &args.profile {
        let profile = disk_profile::load(name)?;
        return match output {
            Output::Json => output.print(&profile, String::new),
            Output::Text => raw(profile.to_toml()?.as_bytes()),
        };
    }
    let rows = schedule::profile::shipped()?.into_iter().map(row).collect::<Result<Vec<_>>>()?;
    output.print(&rows, || {
        let mut table = Table::new(&["name", "model", ">size", "about"]);
        for row in &rows {
            let size = ByteSize(row.bytes).to_string();
            table.row([row.name.clone(), row.model.to_owned(), size, row.about.clone()]);
        }
        table.render()
    })
}
