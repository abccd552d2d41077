//! `sojourn borrow down`.

use crate::borrow::control::{Reply, Request, ask};
use crate::borrow::place::recheck_devices;
use crate::borrow::report::{DownRequest, DownView};
use crate::borrow::session::complain;
use crate::home::Home;
use crate::output::Output;
use block::{Error, ErrorKind, Result};
use transient::dm::Mapper;

/// Arguments of `sojourn borrow down`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn borrow down
  sojourn borrow down scratch --discard

What was changed of a state is written back first; the disk stays up when that fails. Then the key
is dropped, and the owner's file systems are looked at again.")]
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
/// [`ErrorKind::NotFound`] when there is none of that name; those of writing back.
pub(crate) async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    store::check_name("borrowed disk", &args.name)?;
    let asked = DownRequest { drop_changes: args.drop_changes, discard: args.discard };
    let view = match ask(home, &args.name, &Request::Down(asked)).await? {
        Some(Reply::Down(view)) => view,
        Some(_) => return Err(Error::internal("the borrowed disk gave another answer")),
        None => {
            let (name, discard) = (args.name.clone(), args.discard);
            block::offload(move || unmap(&name, discard)).await?
        }
    };
    output.print(&view, || view.describe())?;
    complain(&view.checked)
}

/// Takes down what the kernel holds.
fn unmap(name: &str, discard: bool) -> Result<DownView> {
    let none = || Error::not_found(format!("no borrowed disk {name}; see `sojourn borrow status`"));
    let mapper = Mapper::open().map_err(|_| none())?;
    let mapped = match mapper.look(name) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(none()),
        other => other?,
    };
    mapper.remove(name)?;
    let (discarded, checked) = recheck_devices(&mapped.lent, discard)?;
    Ok(DownView { name: name.to_owned(), written_back: 0, discarded, checked })
}
