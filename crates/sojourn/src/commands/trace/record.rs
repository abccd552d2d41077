//! `sojourn trace record`: between clients and any NBD server.

use crate::output::Output;
use crate::remote;
use block::{ByteSize, Error, ErrorKind, Result};
use nbd::{Address, ClientOptions, Remote, Uri};
use server::forward;
use server::listen::ListenOptions;
use server::record::RecordingView;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `sojourn trace record`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace record day.sjt --listen unix:vm.sock --to 'nbd+unix:///vm?socket=nbd.sock'
  sojourn trace record day.sjt --listen 127.0.0.1:10810 --to nbd://server/disk

Clients connect to --listen instead of to the server; every one gets a connection of its own to
the server. Interrupt it to end the trace. A server of Sojourn's own records itself, at less
cost: `sojourn serve --trace day.sjt`.")]
pub(crate) struct Args {
    /// The file to write; it must not exist
    out: PathBuf,
    /// Listen here for clients: unix:PATH or HOST:PORT; may be repeated
    #[arg(long, value_name = "ADDR", required = true)]
    listen: Vec<Address>,
    /// The server: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, or encrypted, with
    /// nbds:// and ?tls-certificates=DIR; clients may name others of its exports
    #[arg(long, value_name = "URI")]
    to: Uri,
    /// End the trace at this size
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    limit: ByteSize,
    /// Allow addresses that other machines reach, without encryption or authentication
    #[arg(long)]
    insecure: bool,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<ExitCode> {
    let to = remote::options(&args.to)?;
    must_answer(&args.to, to.clone()).await?;
    let asked = ListenOptions {
        nbd: args.listen.clone(),
        insecure: args.insecure,
        ..ListenOptions::default()
    };
    let (served, view) =
        forward::record(&args.to, to, &asked, args.out.clone(), args.limit.0).await?;
    let code = served?;
    output.print(&view, || text(&view))?;
    match &view.error {
        Some(error) => Err(Error::unavailable(format!("the trace ended early: {error}"))),
        None => Ok(code),
    }
}

/// Fails when the server is not there, or has not got the export: a recorder that nobody can use would
/// wait for clients in silence.
async fn must_answer(to: &Uri, options: ClientOptions) -> Result<()> {
    match Remote::connect(to, options).await {
        Ok(remote) => remote.close().await,
        // Another client has the disk now, and may be gone when ours come.
        Err(e) if e.kind() == ErrorKind::Conflict => {}
        // Clients may name another export.
        Err(e) if e.kind() == ErrorKind::NotFound && to.export.is_empty() => {}
        Err(e) => return Err(e),
    }
    Ok(())
}

fn text(view: &RecordingView) -> String {
    let RecordingView { file, requests, bytes, dropped, .. } = view;
    let mut text = format!("{file}: {requests} requests in {}", ByteSize(*bytes));
    if *dropped > 0 {
        text.push_str(&format!("; {dropped} came too fast and are missing"));
    }
    text
}
