//! `sojourn attach hoard`: everything that a disk stands on comes here.

use super::loss::LossWatch;
use super::{AttachedName, LOOK, find, process};
use crate::output::Output;
use crate::progress::Bar;
use agent::HoardState;
use agent::api::{AttachRequest, AttachedDisk};
use block::Result;
use engine::Home;

/// Arguments of `sojourn attach hoard`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: AttachedName,
    /// Do not wait
    #[arg(long)]
    no_wait: bool,
    /// Fetch nothing more
    #[arg(long, conflicts_with = "no_wait")]
    stop: bool,
}

pub(super) async fn run(args: &Args, own: &Home, output: Output) -> Result<()> {
    let name = &args.named.disk;
    let request = AttachRequest::Hoard { name: name.clone(), wanted: !args.stop };
    let (home, mut view) = args.named.ask(own, &request).await?;
    let told =
        |disk: &AttachedDisk| output.print(disk, || format!("{name}: {}", disk.hoard.text()));
    if args.stop || args.no_wait {
        return told(find(&view, name)?);
    }
    let (bar, mut loss) = (Bar::bytes("coming", None), LossWatch::default());
    loop {
        let disk = find(&view, name)?;
        bar.at(disk.hoard.here_bytes, 0);
        if disk.hoard.state == HoardState::Complete {
            return told(disk);
        }
        loss.must_be_ours(disk)?;
        tokio::time::sleep(LOOK).await;
        view = process(&home).await?.attach(&AttachRequest::Status).await?;
    }
}
