//! The verbs on media that a server of another machine has among its sources, by its HTTP API, printed as they are on a
//! home. A medium is named as the server's configuration names it.

use super::{
    IndexArgs, MediaCommand, MediaListArgs, RemoveArgs, VerifyArgs, WriteArgs, described,
    print_indexed, print_list, print_taken_off, print_verified,
};
use crate::output::Output;
use crate::progress::Bar;
use block::{Error, Result};
use lookaside::media::{MediaListing, MediaWriteReport};
use serde::de::DeserializeOwned;
use server::media_verbs::MediaRequest;
use server::remote::RemoteServer;
use std::path::Path;

pub(super) async fn run(verb: &MediaCommand, server: &RemoteServer, output: Output) -> Result<()> {
    match verb {
        MediaCommand::List(MediaListArgs { dir }) => {
            let held: Vec<MediaListing> = server.medium(&medium(dir)?).await?;
            print_list(&held, output)
        }
        MediaCommand::Write(WriteArgs { dir, names, size, refresh, make }) => {
            let (name, holds, refresh) = (medium(dir)?, names.clone(), *refresh);
            let size = size.map(|size| size.0);
            let request = MediaRequest::Write { name, holds, refresh, size, make: *make };
            let report: MediaWriteReport = asked(server, &request).await?;
            output.print(&report, || described(&report))
        }
        MediaCommand::Verify(VerifyArgs { dir, drop_damaged }) => {
            let request = MediaRequest::Verify { name: medium(dir)?, drop_damaged: *drop_damaged };
            print_verified(&asked(server, &request).await?, output)
        }
        MediaCommand::Index(IndexArgs { path }) => {
            let request = MediaRequest::Index { name: path.clone() };
            print_indexed(&asked(server, &request).await?, output)
        }
        MediaCommand::Remove(RemoveArgs { dir, name: held }) => {
            let request = MediaRequest::Remove { name: medium(dir)?, held: held.clone() };
            print_taken_off(held, &asked(server, &request).await?, output)
        }
    }
}

async fn asked<T: DeserializeOwned>(server: &RemoteServer, request: &MediaRequest) -> Result<T> {
    let _bar = Bar::waiting("asking");
    server.change_medium(request).await
}

/// The name of a medium, which the command line takes for a directory.
fn medium(dir: &Path) -> Result<String> {
    let named = dir.to_str().map(str::to_owned);
    named.ok_or_else(|| Error::invalid(format!("{} is no name of a medium", dir.display())))
}
