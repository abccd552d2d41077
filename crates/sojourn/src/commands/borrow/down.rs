//! `sojourn borrow down`.

use super::up::{open_state, take_name};
use crate::output::Output;
use block::{ByteSize, Error, ErrorKind, Result};
use engine::Home;
use server::borrow::control::{ControlRequest, Paths, Reply, ask};
use server::borrow::kernel;
use server::borrow::place::recheck_devices;
use server::borrow::report::{DownRequest, DownView};
use server::borrow::session::complain;
use server::borrow::state_record::{StateRecord, StateStage};
use transient::dm::{Mapped, Mapper};

/// Arguments of `sojourn borrow down`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn borrow down
  sojourn borrow down scratch --discard

What was changed of a state is written back first; the disk stays up when that fails. Then the
key is dropped, and the owner's file systems are looked at again. On a disk of the kernel, swap
space is switched off and file systems are unmounted before all of that.")]
pub(crate) struct Args {
    /// The borrowed disk
    #[arg(default_value = "borrowed")]
    name: String,
    /// Tell the owner's disks that the lent ranges hold nothing: good for flash, but what the owner
    /// deleted before cannot be undeleted any more
    #[arg(long)]
    discard: bool,
    /// Give up changes to the state that cannot be written back
    #[arg(long)]
    drop_changes: bool,
}

/// Takes a borrowed disk down.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is none of that name; any error from writing back.
pub(crate) async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    store::check_name("borrowed disk", &args.name)?;
    let asked = DownRequest { drop_changes: args.drop_changes, discard: args.discard };
    let view = match ask(home, &args.name, &ControlRequest::Down(asked)).await? {
        Some(Reply::Down(view)) => view,
        Some(_) => return Err(Error::internal("the borrowed disk gave another answer")),
        None => unmap(args, home).await?,
    };
    output.print(&view, || describe(&view))?;
    complain(&view.checked)
}

/// Takes down what the kernel holds.
async fn unmap(args: &Args, home: &Home) -> Result<DownView> {
    let name = args.name.as_str();
    let none = || Error::not_found(format!("no borrowed disk {name}; see `sojourn borrow status`"));
    let mapper = Mapper::open().map_err(|_| none())?;
    let look = || match mapper.look(name) {
        Err(e) if e.kind() == ErrorKind::NotFound => Err(none()),
        other => other,
    };
    look()?;
    let _lock = take_name(home, &Paths::new(home, name), |holder| {
        format!("{holder} makes {name}, or takes it down, just now; wait for that")
    })?;
    let mapped = look()?;
    // What cannot go back stays as it is, in use.
    let record = match args.drop_changes {
        true => None,
        false => StateRecord::of(home, &mapped)?,
    };
    kernel::stop_users(&mapped).await?;
    let written_back = match record {
        Some(record) => write_back(home, &mapped, record).await?,
        None => 0,
    };
    kernel::remove(name).await?;
    StateRecord::remove(home, name)?;
    let discard = args.discard;
    let (discarded, checked) =
        block::offload(move || recheck_devices(&mapped.lent, discard)).await?;
    Ok(DownView { name: name.to_owned(), written_back, discarded, checked })
}

/// Writes the state back to where it came from.
async fn write_back(home: &Home, mapped: &Mapped, record: StateRecord) -> Result<u64> {
    if record.stage == StateStage::Copying {
        // `up` was killed over it: the source has all of it.
        return Ok(0);
    }
    let written = async {
        let state = open_state(&record.source, record.format, false).await?.device;
        record.check_source()?;
        if state.size() != record.size {
            return Err(Error::conflict(format!(
                "{} had {} bytes and has {} now",
                record.source,
                record.size,
                state.size()
            )));
        }
        kernel::write_back(home, mapped, record, &*state).await
    };
    written.await.map_err(|e| {
        Error::new(
            e.kind(),
            format!(
                "{e}; nothing is lost, {} stays, unmounted: try again, or give the changes up with \
                 --drop-changes",
                mapped.name
            ),
        )
    })
}

/// How the end was, for people.
fn describe(view: &DownView) -> String {
    let mut text = format!("{} is down; its key is gone\n", view.name);
    if view.written_back > 0 {
        text += &format!("written back: {}\n", ByteSize(view.written_back));
    }
    if view.discarded > 0 {
        text += &format!("discarded: {}\n", ByteSize(view.discarded));
    }
    for check in &view.checked {
        let verdict = match &check.why {
            None => "as it was before".to_owned(),
            Some(why) => format!("NOT AS IT WAS: {why}"),
        };
        text += &format!("{} at {} on {}: {verdict}\n", check.kind, check.offset, check.disk);
    }
    text
}
