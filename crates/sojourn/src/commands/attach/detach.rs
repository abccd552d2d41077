//! `sojourn detach`: what a disk was written goes up, and the disk is given up.

use super::loss::LossWatch;
use super::{AttachedName, LOOK, device, find, must_go_up, process};
use crate::commands::runnable::{Invocation, Runnable, finish};
use crate::output::Output;
use crate::progress::Bar;
use agent::api::AttachRequest;
use agent::homes;
use block::{Error, Result};
use engine::Home;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// How long a client that says goodbye may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// Arguments of `sojourn detach`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn detach alice              waits until everything is in the store
  sojourn detach alice --no-wait    is given up as soon as everything is

Detach when the guest is off. A device of the disk is ended first, and refused while it is mounted.
Then any machine can go on with the disk, by `sojourn attach alice` there.")]
pub(crate) struct Detach {
    #[command(flatten)]
    named: AttachedName,
    /// Do not wait: it is done in the background, also after a restart of this machine
    #[arg(long)]
    no_wait: bool,
}

impl Runnable for Detach {
    fn owner_of(&self, home: &Home) -> Option<(u32, u32)> {
        homes::other_owner(home)
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }
}

pub(crate) async fn run(args: &Detach, own: &Home, output: Output) -> Result<()> {
    let name = &args.named.disk;
    let with_device = homes::with_disk(own, name, args.named.from.as_deref())?;
    device::take_down(&with_device, name, process(&with_device).await?).await?;
    if !with_device.disks().join(name).is_dir() {
        return output.done(&format!("{name} is no device any more; it is not attached here"));
    }
    let request = AttachRequest::Detach { name: name.clone() };
    let (home, mut view) = args.named.ask(own, &request).await?;
    if args.no_wait {
        let disk = find(&view, name)?;
        return output.print(disk, || format!("{name}: {}", disk.text.join("; ")));
    }
    let (bar, mut loss) = (Bar::bytes("going up", None), LossWatch::default());
    let begun = Instant::now();
    loop {
        let Ok(disk) = find(&view, name) else {
            return output.done(&format!("{name} is given up; any machine can go on with it"));
        };
        bar.at(disk.upload.sent_bytes, 0);
        loss.must_be_ours(disk)?;
        must_go_up(&view, disk)?;
        if disk.in_use && begun.elapsed() > GOODBYE {
            return Err(Error::conflict(format!(
                "disk {name} is in use; it is given up as soon as its client leaves"
            )));
        }
        tokio::time::sleep(LOOK).await;
        view = process(&home).await?.attach(&AttachRequest::Status).await?;
    }
}
