//! `sojourn borrow up`.

use super::selection::{BorrowSize, SelectionArgs};
use crate::output::{Output, fields};
use crate::remote;
use block::lock::{LockFile, Taking};
use block::{BLOCK, ByteSize, Device, Error, Result};
use engine::Home;
use formats::Format;
use nbd::{Address, Uri};
use server::borrow::control::{Paths, directory};
use server::borrow::find::{self, Amount};
use server::borrow::kernel::{self, KernelUse, NewFileSystem, NewState};
use server::borrow::place::{BorrowedRoom, leave_no_core, lent};
use server::borrow::report::StatusView;
use server::borrow::serve::{self, BorrowServeOptions};
use server::borrow::session::{BorrowSession, Carried, complain};
use server::borrow::state_record::StateRecord;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;
use transient::{GiveBack, State};

/// What a borrowed disk is to the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// An export of this process
    Nbd,
    /// A block device of this machine's kernel
    Dm,
}

/// The file system that is made on a borrowed disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FileSystemKind {
    /// Without reserved blocks, its tables made ready in the background
    Ext4,
    Xfs,
}

impl From<FileSystemKind> for NewFileSystem {
    fn from(kind: FileSystemKind) -> Self {
        match kind {
            FileSystemKind::Ext4 => Self::Ext4,
            FileSystemKind::Xfs => Self::Xfs,
        }
    }
}

/// Arguments of `sojourn borrow up`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn borrow up /dev/sda --size 20G
  sojourn borrow up /dev/sda --size all --at-least 10G
  sojourn borrow up /dev/sda /dev/sdb --size 100G --as dm
  sojourn borrow up /dev/sda --state nbd://server/alice --prefetch
  sojourn borrow up disk.img --size 1G --run 'nbdcopy $uri - | wc -c'
  sojourn borrow up /dev/sda --size 20G --as dm --swap 4G --mkfs ext4 --mount /home
  sojourn borrow up --live /var/tmp --floor 10G --size 20G

The disks' own system must not be running (but for --live). The disk is encrypted with a key that
is only in memory: when the process ends, however it ends, nothing can be read any more.")]
pub(crate) struct Args {
    #[command(flatten)]
    selection: SelectionArgs,
    /// With --size, take less too when there is less, but no less than this
    #[arg(long, value_name = "SIZE", requires = "size")]
    at_least: Option<ByteSize>,
    /// The borrowed disk's name
    #[arg(long, default_value = "borrowed")]
    name: String,
    /// What it is to be
    #[arg(long = "as", value_enum, default_value = "nbd", value_name = "FORM")]
    form: Form,
    /// Listen here: unix:PATH or HOST:PORT; may be repeated [default: a unix socket in the home]
    #[arg(long, value_name = "ADDR")]
    nbd: Vec<Address>,
    /// Allow addresses that other machines reach, without encryption or authentication
    #[arg(long)]
    insecure: bool,
    /// Run CMD with $uri, $unixsocket and $exportname, and take the disk down when it ends
    #[arg(long, value_name = "CMD", conflicts_with = "nbd")]
    run: Option<String>,
    /// Start with the content of this image file or NBD export, and write changes back to it
    #[arg(long, value_name = "FILE|URI")]
    state: Option<String>,
    /// Copy all of the state in ahead of use, in the background
    #[arg(long, requires = "state")]
    prefetch: bool,
    /// Leave the state's source as it is
    #[arg(long, requires = "state")]
    no_write_back: bool,
    /// With --as dm, use the first part of the disk as swap space
    #[arg(long, value_name = "SIZE")]
    swap: Option<ByteSize>,
    /// With --as dm, make a file system on the disk, or on what swap space leaves of it
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "state")]
    mkfs: Option<FileSystemKind>,
    /// With --as dm, mount that file system, or the one that the state holds, here
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Borrow from a running system: a file without a name in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["targets", "form"])]
    live: Option<PathBuf>,
    /// Give room back when less than this is free beside DIR
    #[arg(long, value_name = "SIZE", default_value = "1G", requires = "live")]
    floor: ByteSize,
    /// Give data up too when the running system needs the room: for caches
    #[arg(long, requires = "live")]
    give_up_data: bool,
    /// The owner of the running system agrees that changes to the state depend on its free space
    #[arg(long, requires = "live")]
    owner_agrees: bool,
}

/// Borrows and serves.
///
/// # Errors
/// Why nothing could be borrowed or served.
pub(crate) async fn run(args: &Args, home: &Home, output: Output) -> Result<ExitCode> {
    store::check_name("borrowed disk", &args.name)?;
    args.check()?;
    let paths = Paths::new(home, &args.name);
    let _lock = lock(home, &paths, &args.name)?;
    leave_no_core();
    let base = match &args.state {
        Some(state) => Some(open_state(state, None, args.no_write_back).await?),
        None => None,
    };
    let amount = args.amount(base.as_ref().map(|base| &*base.device))?;
    if args.form == Form::Dm {
        map(args, home, amount, base, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let place = make_place(args, amount).await?;
    let carried = match base {
        Some(base) => Some(carry(args, base.device, place.disk())?),
        None => None,
    };
    let session = BorrowSession { name: args.name.clone(), place, carried };
    let addresses = match args.nbd.is_empty() {
        true => vec![Address::unix(&paths.nbd)?],
        false => args.nbd.clone(),
    };
    let options = BorrowServeOptions { paths, addresses, insecure: args.insecure };
    match &args.run {
        Some(command) => serve::run_command(session, command, options).await,
        None => serve(args, options, session, output).await,
    }
}

impl Args {
    /// How much is to be borrowed: what was asked for, or what the state needs.
    fn amount(&self, base: Option<&dyn Device>) -> Result<Amount> {
        let swap = self.swap.map_or(0, |swap| swap.0.next_multiple_of(BLOCK));
        let needed = base.map(|base| base.size().next_multiple_of(BLOCK) + swap);
        let least = self.at_least.map(|least| least.0);
        match (self.selection.size, needed) {
            (Some(BorrowSize::All), _) => {
                let least = least.unwrap_or(0).max(needed.unwrap_or(0)).max(BLOCK);
                Ok(Amount { most: None, least })
            }
            (Some(BorrowSize::Bytes(size)), _) if least.is_some_and(|least| least > size.0) => {
                Err(Error::invalid("--at-least is more than --size; give the larger one to --size"))
            }
            (Some(BorrowSize::Bytes(size)), _) => {
                let least = least.map_or(size.0, |least| least.max(needed.unwrap_or(0)));
                Ok(Amount { most: Some(size.0), least })
            }
            (None, Some(needed)) => Ok(Amount::exactly(needed)),
            (None, None) => Err(Error::invalid(
                "say how large the borrowed disk is to be: --size SIZE, or --size all",
            )),
        }
    }

    /// What the option parser cannot know.
    fn check(&self) -> Result<()> {
        let writes_back = self.state.is_some() && !self.no_write_back;
        if self.form == Form::Dm {
            let wrong = [(self.run.is_some(), "--run"), (!self.nbd.is_empty(), "--nbd")];
            if let Some((_, option)) = wrong.iter().find(|(given, _)| *given) {
                return Err(Error::invalid(format!(
                    "{option} is for --as nbd; a kernel device is used by its path"
                )));
            }
            if self.mount.is_some() && self.mkfs.is_none() && self.state.is_none() {
                return Err(Error::invalid(
                    "a fresh borrowed disk has no file system to mount; say --mkfs too",
                ));
            }
        } else {
            let wrong = [
                (self.swap.is_some(), "--swap"),
                (self.mkfs.is_some(), "--mkfs"),
                (self.mount.is_some(), "--mount"),
            ];
            if let Some((_, option)) = wrong.iter().find(|(given, _)| *given) {
                return Err(Error::invalid(format!("{option} is for --as dm; say that too")));
            }
        }
        if writes_back && self.live.is_some() && (self.give_up_data || !self.owner_agrees) {
            return Err(Error::denied(
                "a running system may need its room back at any time, so changes to a state are \
                 not kept there; give --no-write-back, or --owner-agrees without --give-up-data",
            ));
        }
        Ok(())
    }
}

/// Takes the name, so that no two processes serve the same.
fn lock(home: &Home, paths: &Paths, name: &str) -> Result<LockFile> {
    take_name(home, paths, |holder| {
        format!(
            "a borrowed disk {name} is in use by {holder}; take it down first (`sojourn borrow \
             down {name}`), or choose another --name"
        )
    })
}

/// Locks the name of a borrowed disk; `held` says who has it.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when another process has it; any error from the home.
pub(crate) fn take_name(
    home: &Home,
    paths: &Paths,
    held: impl FnOnce(String) -> String,
) -> Result<LockFile> {
    let dir = directory(home);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|e| Error::io(dir.display(), e))?;
    match LockFile::take(&paths.lock)? {
        Taking::Ours(lock) => Ok(lock),
        Taking::Held(holder) => Err(Error::conflict(held(holder))),
        Taking::Replaced => Err(Error::conflict(format!(
            "{} was replaced just now; try again",
            paths.lock.display()
        ))),
    }
}

/// The source of a state.
pub(crate) struct OpenedState {
    pub(crate) device: Arc<dyn Device>,
    /// The format of the file; `None` for an export.
    format: Option<Format>,
}

/// Opens the source of a state. The format of a file is found out when it is not known: later on, what the borrower has
/// written back into a raw one may look like another.
///
/// # Errors
/// Any error from the file or the server.
pub(crate) async fn open_state(
    state: &str,
    format: Option<Format>,
    read_only: bool,
) -> Result<OpenedState> {
    if state.contains("://") {
        let device = Arc::new(remote::connect(&state.parse()?).await?);
        return Ok(OpenedState { device, format: None });
    }
    let path = PathBuf::from(state);
    let format = match format {
        Some(format) => format,
        None => block::offload(move || formats::probe(&path)).await?,
    };
    let scratch = std::env::temp_dir();
    let options = formats::OpenOptions { format: Some(format), read_only, scratch };
    let opened = formats::open(Path::new(state), options).await;
    let device = opened.map_err(|e| match e.kind() {
        block::ErrorKind::Denied if !read_only => {
            Error::denied(format!("{e}; or leave it as it is with --no-write-back"))
        }
        _ => e,
    })?;
    Ok(OpenedState { device, format: Some(format) })
}

async fn make_place(args: &Args, amount: Amount) -> Result<BorrowedRoom> {
    let policy = if args.give_up_data { GiveBack::Anything } else { GiveBack::Unwritten };
    match &args.live {
        Some(dir) => match amount.most {
            Some(size) if size == amount.least => {
                BorrowedRoom::on_host(dir, size, args.floor.0, policy)
            }
            _ => Err(Error::invalid(
                "a running system lends an exact size: say --size SIZE, without --at-least",
            )),
        },
        None => {
            let (plan, size) = find::plan(&args.selection.for_server(), amount).await?;
            block::offload(move || BorrowedRoom::on_disks(plan, size)).await
        }
    }
}

fn carry(args: &Args, base: Arc<dyn Device>, disk: &Arc<transient::Stitched>) -> Result<Carried> {
    let write_back = !args.no_write_back;
    if write_back {
        must_be_writable(&*base)?;
    }
    let state = Arc::new(State::new(base, Arc::clone(disk) as _)?);
    let mut ahead = JoinSet::new();
    if args.prefetch {
        let state = Arc::clone(&state);
        ahead.spawn(async move {
            if let Err(e) = state.fetch_all(&|_| {}).await {
                tracing::warn!(error = e.message(), "stopped copying the state in ahead of use");
            }
        });
    }
    let source = args.state.clone().unwrap_or_default();
    Ok(Carried { state, source, write_back, ahead })
}

/// Gives the disk to the kernel, and leaves.
async fn map(
    args: &Args,
    home: &Home,
    amount: Amount,
    base: Option<OpenedState>,
    output: Output,
) -> Result<()> {
    let in_blocks = |bytes: u64| bytes.next_multiple_of(BLOCK);
    let amount = Amount { most: amount.most.map(in_blocks), least: in_blocks(amount.least) };
    kernel::must_be_free(&args.name).await?;
    let (plan, size) = find::plan(&args.selection.for_server(), amount).await?;
    let swap = args.swap.map(|swap| swap.0.next_multiple_of(BLOCK));
    let room = size.saturating_sub(swap.unwrap_or(0));
    if let Some(OpenedState { device: base, .. }) = &base {
        if base.size() > room {
            return Err(Error::no_space(format!(
                "the state has {} bytes and there would be {room} for it; borrow more (--size)",
                base.size()
            )));
        }
        if !args.no_write_back {
            must_be_writable(&**base)?;
        }
    }
    let lent = lent(&plan);
    let setup = KernelUse { swap, make: args.mkfs.map(Into::into), mount: args.mount.clone() };
    let state = match (&args.state, &base) {
        (Some(source), Some(base)) => {
            let record = match args.no_write_back {
                true => None,
                false => Some(record(source, base, swap.unwrap_or(0))?),
            };
            Some(NewState { device: &*base.device, record })
        }
        _ => None,
    };
    let mapped = kernel::up(home, &args.name, plan, size, &setup, state).await?;
    // The locks of this process end with it, and the kernel takes none.
    tracing::warn!(
        "until `borrow down` the kernel keeps mounts off the lent disks, but not programs that open a disk without \
         asking: start no virtual machine on them"
    );
    let view = StatusView { lent, ..StatusView::mapped(mapped) };
    print(&view, output)
}

/// Where the state goes back to.
fn record(source: &str, base: &OpenedState, offset: u64) -> Result<StateRecord> {
    let source = match source.contains("://") {
        true => source.to_owned(),
        // `borrow down` may be called elsewhere.
        false => {
            let path = std::path::absolute(source).map_err(|e| Error::io(source, e))?;
            path.display().to_string()
        }
    };
    StateRecord::new(source, base.format, base.device.size(), offset)
}

fn must_be_writable(base: &dyn Device) -> Result<()> {
    if base.read_only() {
        return Err(Error::denied(
            "the source of the state cannot be written; leave it as it is with --no-write-back",
        ));
    }
    Ok(())
}

async fn serve(
    args: &Args,
    options: BorrowServeOptions,
    session: BorrowSession,
    output: Output,
) -> Result<ExitCode> {
    let address = options.addresses.first();
    let uri = address.map(|address| Uri::new(address.clone(), &args.name).to_string());
    let view = session.status(uri.unwrap_or_default(), 0);
    let down = serve::run(session, options, || print(&view, output)).await?;
    complain(&down.checked)?;
    Ok(ExitCode::SUCCESS)
}

fn print(view: &StatusView, output: Output) -> Result<()> {
    output.print(view, || {
        let mut pairs = vec![
            ("borrowed", format!("{} as {}", ByteSize(view.size), view.name)),
            ("address", view.address.clone()),
        ];
        if let Some(swap) = &view.swap {
            pairs.push(("swap space", swap.clone()));
        }
        for lent in &view.lent {
            let text =
                format!("{} in {} extents of {}", ByteSize(lent.bytes), lent.extents, lent.disk);
            pairs.push(("lent", text));
        }
        pairs.push(("end it with", format!("sojourn borrow down {}", view.name)));
        fields(&pairs)
    })
}
