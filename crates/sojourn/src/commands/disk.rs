//! `sojourn disk`: private disks.

mod confirm;
mod create_all;
mod map;
mod text;

use super::prune::Retain;
use super::runnable::{Invocation, Runnable, writes};
use crate::order::natural;
use crate::output::Output;
use crate::progress::Bar;
use crate::site::Site;
use block::{ByteSize, Result};
use clap::Subcommand;
use disk::Mode;
use engine::Config;
use engine::api::{DiskReply, DiskRequest, DiskView};
use engine::open_store;
use engine::parcels::parcel_of;
use engine::world;
use server::remote::RemoteServer;
use std::process::ExitCode;
use store::machines::parcel_named;
use text::{describe, elsewhere, pruned, rebased, table};

/// The verbs of `sojourn disk`.
#[derive(Debug, Subcommand)]
pub(crate) enum DiskCommand {
    /// Make disks from an image version, or from a snapshot of any disk of the store
    #[command(after_help = "\
Examples:
  sojourn disk create alice --from debian                the newest version
  sojourn disk create kiosk --from debian:2 --ephemeral  forgets its writes when its client leaves
  sojourn disk create big --from debian --size 100G      larger than the image
  sojourn disk create bob --from alice@before-upgrade    as alice was then; it shares her blocks
  sojourn disk create pc{01..40} --from debian           40 of them (the shell writes the names out)")]
    Create(DiskCreateArgs),
    /// List the disks
    #[command(after_help = "\
Examples:
  sojourn disk list
  sojourn disk list --elsewhere      those of the store that other servers hold, or nobody
  sojourn --json disk list | jq '.[] | {name, private_bytes}'")]
    List(DiskListArgs),
    /// What a disk is, and its snapshots
    #[command(after_help = "\
Examples:
  sojourn disk show alice")]
    Show(DiskNameArgs),
    /// Where the bytes of a disk are: in the store, near, in memory, private or nowhere
    #[command(after_help = "\
Examples:
  sojourn disk map alice
  sojourn disk map alice --cells 4096
  sojourn --json disk map alice | jq .total")]
    Map(map::MapArgs),
    /// Freeze the state of a disk under a name; the disk may be in use
    #[command(after_help = "\
Examples:
  sojourn disk snapshot alice before-upgrade")]
    Snapshot(SnapshotArgs),
    /// Return to a snapshot; what was written since is lost. Works on a damaged disk too
    #[command(after_help = "\
Examples:
  sojourn disk rollback alice before-upgrade")]
    Rollback(SnapshotArgs),
    /// Publish the state of a disk as an image version
    #[command(after_help = "\
Examples:
  sojourn disk commit alice debian             next number as the tag
  sojourn disk commit alice debian:with-tools")]
    Commit(CommitArgs),
    /// Move a disk to another version of its image, with its own changes kept on top
    #[command(after_help = "\
Examples:
  sojourn disk rebase alice debian                refused when both changed the same blocks
  sojourn disk rebase alice debian:3 --keep-mine  the disk's own blocks win")]
    Rebase(RebaseArgs),
    /// Forget every private block: the disk is as its image again. Works on a damaged disk too
    #[command(after_help = "\
Examples:
  sojourn disk reset alice           at a terminal, its name is asked for
  sojourn disk reset --yes alice     it is not")]
    Reset(ResetArgs),
    /// Make a disk larger; the disk may be in use
    #[command(visible_alias = "resize")]
    #[command(after_help = "\
Examples:
  sojourn disk grow alice 40G")]
    Grow(GrowArgs),
    /// Delete a disk with its snapshots, or one snapshot
    #[command(after_help = "\
Examples:
  sojourn disk remove alice          at a terminal, its name is asked for
  sojourn disk remove --yes alice    it is not
  sojourn disk remove alice@before-upgrade
  sojourn disk remove --lost alice    its directory is gone, and no other home has it")]
    #[command(aliases = ["rm", "delete"])]
    Remove(DiskRemoveArgs),
    /// Remove all but the newest snapshots of a disk
    #[command(after_help = "\
Examples:
  sojourn disk prune alice --keep 7
  sojourn disk prune alice --within 30d --dry-run")]
    Prune(PruneArgs),
    /// Publish all of a disk and give it up, so that another server can take it
    #[command(after_help = "\
Examples:
  sojourn disk release alice      here
  sojourn disk take alice         then there")]
    Release(DiskNameArgs),
    /// Send what a disk holds to the store while it is used, for another server to go on with
    #[command(after_help = "\
Examples:
  sojourn disk publish alice

After it, 'sojourn disk take alice' elsewhere goes on with this state if this server dies. Nothing
is sent twice: one that was interrupted goes on where it ended. No snapshot is made.")]
    Publish(DiskNameArgs),
    /// Go on here with a disk that another server released, or that died with it
    #[command(after_help = "\
Examples:
  sojourn disk take alice
  sojourn disk take --force alice    from a server that is at work: it can publish nothing more")]
    Take(TakeArgs),
    /// Make what is here of a disk a disk of its own, when another server took it or the store is ahead
    #[command(after_help = "\
Examples:
  sojourn disk keep alice alice-from-lab3")]
    Keep(KeepArgs),
}

/// Arguments of `sojourn disk prune`.
#[derive(Debug, clap::Args)]
pub(crate) struct PruneArgs {
    /// The disk's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) keep: Retain,
}

/// Arguments of `sojourn disk list`.
#[derive(Debug, clap::Args)]
pub(crate) struct DiskListArgs {
    /// The disks of the store that other servers hold, or nobody
    #[arg(long)]
    pub(crate) elsewhere: bool,
}

/// Arguments of `sojourn disk take`.
#[derive(Debug, clap::Args)]
pub(crate) struct TakeArgs {
    /// The disk's name
    pub(crate) name: String,
    /// Take it from a server that is at work too, and make it anew when its directory was lost here.
    /// What was not published of it stays where it was
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `sojourn disk keep`.
#[derive(Debug, clap::Args)]
pub(crate) struct KeepArgs {
    /// The disk that was taken, or put back as it was
    pub(crate) name: String,
    /// Its new name
    pub(crate) new: String,
}

/// Arguments of `sojourn disk create`.
#[derive(Debug, clap::Args)]
pub(crate) struct DiskCreateArgs {
    /// The disks' names, which are also their exports' names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The image version: NAME[:TAG], the newest without a tag; or a snapshot: DISK@SNAPSHOT
    #[arg(long, value_name = "IMAGE")]
    pub(crate) from: String,
    /// Forget a disk's writes when its client leaves
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Answer each write when the store has it: another server goes on with the disk when this one is lost
    #[arg(long, conflicts_with = "ephemeral")]
    pub(crate) write_through: bool,
    /// The size of each, at least the image's (10G, 1.5T, …) [default: the image's]
    #[arg(long)]
    pub(crate) size: Option<ByteSize>,
}

/// A disk.
#[derive(Debug, clap::Args)]
pub(crate) struct DiskNameArgs {
    /// The disk's name
    pub(crate) name: String,
}

/// A disk, or one of its snapshots.
#[derive(Debug, clap::Args)]
pub(crate) struct DiskRemoveArgs {
    /// The disk's name, or DISK@SNAPSHOT
    pub(crate) name: String,
    /// The disk's directory is lost: remove its name and snapshots from the store. Other homes on
    /// the store must not have it
    #[arg(long)]
    pub(crate) lost: bool,
    /// Ask nothing
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// A disk that is to be as its image again.
#[derive(Debug, clap::Args)]
pub(crate) struct ResetArgs {
    /// The disk's name
    pub(crate) name: String,
    /// Ask nothing
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// A disk and one of its snapshots.
#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    /// The disk's name
    pub(crate) name: String,
    /// The snapshot's name
    pub(crate) snapshot: String,
}

/// Arguments of `sojourn disk commit`.
#[derive(Debug, clap::Args)]
pub(crate) struct CommitArgs {
    /// The disk's name
    pub(crate) name: String,
    /// The image version to make: NAME[:TAG]
    pub(crate) image: String,
}

/// Arguments of `sojourn disk rebase`.
#[derive(Debug, clap::Args)]
pub(crate) struct RebaseArgs {
    /// The disk's name
    pub(crate) name: String,
    /// The image version to move to: NAME[:TAG]
    pub(crate) image: String,
    /// Where both changed a block, keep the disk's
    #[arg(long)]
    pub(crate) keep_mine: bool,
}

/// Arguments of `sojourn disk grow`.
#[derive(Debug, clap::Args)]
pub(crate) struct GrowArgs {
    /// The disk's name
    pub(crate) name: String,
    /// The new size, not below the present one
    pub(crate) size: ByteSize,
}

impl DiskCreateArgs {
    /// What becomes of what is written; no more than one is chosen.
    fn mode(&self) -> Mode {
        Mode::chosen(self.ephemeral, self.write_through).unwrap_or_default()
    }

    /// Asks for some of the disks, with an outcome for each.
    fn of_several(&self, names: &[String]) -> DiskRequest {
        DiskRequest::CreateAll {
            names: names.to_vec(),
            from: self.from.clone(),
            mode: self.mode(),
            size: self.size.map(|size| size.0),
        }
    }
}

impl DiskCommand {
    fn request(&self) -> DiskRequest {
        match self {
            Self::Create(args) => match &args.names[..] {
                [name] => DiskRequest::Create {
                    name: name.clone(),
                    from: args.from.clone(),
                    mode: args.mode(),
                    size: args.size.map(|size| size.0),
                },
                several => args.of_several(several),
            },
            Self::List(DiskListArgs { elsewhere: false }) => DiskRequest::List,
            Self::List(DiskListArgs { elsewhere: true }) => DiskRequest::Elsewhere,
            Self::Publish(DiskNameArgs { name }) => DiskRequest::Publish { name: name.clone() },
            Self::Release(DiskNameArgs { name }) => DiskRequest::Release { name: name.clone() },
            Self::Take(TakeArgs { name, force }) => {
                DiskRequest::Take { name: name.clone(), force: *force, lost: false }
            }
            Self::Keep(KeepArgs { name, new }) => {
                DiskRequest::Keep { name: name.clone(), new: new.clone() }
            }
            Self::Prune(PruneArgs { name, .. }) | Self::Show(DiskNameArgs { name }) => {
                DiskRequest::Show { name: name.clone() }
            }
            Self::Map(args) => args.request(),
            Self::Snapshot(SnapshotArgs { name, snapshot }) => {
                DiskRequest::Snapshot { name: name.clone(), snapshot: snapshot.clone() }
            }
            Self::Rollback(SnapshotArgs { name, snapshot }) => {
                DiskRequest::Rollback { name: name.clone(), snapshot: snapshot.clone() }
            }
            Self::Commit(CommitArgs { name, image }) => {
                DiskRequest::Commit { name: name.clone(), image: image.clone() }
            }
            Self::Rebase(RebaseArgs { name, image, keep_mine }) => DiskRequest::Rebase {
                name: name.clone(),
                image: image.clone(),
                keep_mine: *keep_mine,
            },
            Self::Reset(ResetArgs { name, .. }) => DiskRequest::Reset { name: name.clone() },
            Self::Grow(GrowArgs { name, size }) => {
                DiskRequest::Grow { name: name.clone(), size: size.0 }
            }
            Self::Remove(DiskRemoveArgs { name, lost, .. }) => match name.split_once('@') {
                Some((name, snapshot)) if !lost => DiskRequest::RemoveSnapshot {
                    name: name.to_owned(),
                    snapshot: snapshot.to_owned(),
                },
                _ => DiskRequest::Remove { name: name.clone(), lost: *lost },
            },
        }
    }
}

impl Runnable for DiskCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        let site = Site::Home(invocation.home()?);
        writes(run(self, &site, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        let site = Site::Server(Box::new(server));
        writes(run(self, &site, output))
    }
}

/// Carries out a verb: on a home through the server when one runs there, else right here.
async fn run(verb: &DiskCommand, site: &Site, output: Output) -> Result<()> {
    if let Site::Home(home) = site {
        home.must_exist()?;
    }
    match verb {
        DiskCommand::Create(args) if args.names.len() > 1 => {
            return create_all::run(args, site, output).await;
        }
        // A snapshot's name is long enough to be meant.
        DiskCommand::Remove(DiskRemoveArgs { name, yes: false, lost: true }) => {
            confirm::loss_of_name(name, output).await?;
        }
        DiskCommand::Remove(DiskRemoveArgs { name, yes: false, lost: false })
            if !name.contains('@') =>
        {
            confirm::loss_of(name, site, output).await?;
        }
        DiskCommand::Reset(ResetArgs { name, yes: false }) => {
            confirm::loss_of(name, site, output).await?
        }
        _ => {}
    }
    let bar = Bar::waiting("working");
    let mut reply = site.ask(verb.request()).await?;
    if let DiskReply::Disks(disks) = &mut reply {
        disks.sort_by(|a, b| natural(&a.name, &b.name));
    }
    if let (DiskCommand::Prune(args), DiskReply::Disk(disk)) = (verb, &reply) {
        let removed = prune(args, disk, site).await?;
        drop(bar);
        return output.print(&removed, || pruned(&removed, args.keep.dry_run));
    }
    drop(bar);
    print(verb, &reply, output)
}

/// Removes the old snapshots of a disk; returns their names. Damaged ones stay: nobody can tell how old
/// they are. So do suspended machines' snapshots, which are removed with their parcels.
async fn prune(args: &PruneArgs, disk: &DiskView, site: &Site) -> Result<Vec<String>> {
    let store = match site {
        Site::Home(home) => Some(open_store(home, &Config::of(home)?).await?),
        Site::Server(_) => None,
    };
    let mut sound = Vec::new();
    for snapshot in disk.snapshots.iter().filter(|snapshot| snapshot.error.is_none()) {
        let parcel = match &store {
            Some(store) => parcel_of(store, &disk.name, &snapshot.name).await?.is_some(),
            // A server does not tell, and their number decides which others go.
            None => parcel_named(&snapshot.name).is_some(),
        };
        if !parcel {
            sound.push(snapshot);
        }
    }
    sound.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    let created: Vec<u64> = sound.iter().map(|snapshot| snapshot.created).collect();
    let old = args.keep.retention().superseded(&created, world::system().clock.now())?;
    let mut removed: Vec<String> = Vec::new();
    for snapshot in &sound[..old] {
        if !args.keep.dry_run {
            let (name, snapshot) = (disk.name.clone(), snapshot.name.clone());
            let gone = site.ask(DiskRequest::RemoveSnapshot { name, snapshot }).await;
            gone.map_err(|e| match removed.len() {
                0 => e,
                _ => e.context(format!("removed: {}; then", removed.join(", "))),
            })?;
        }
        removed.push(format!("{}@{}", disk.name, snapshot.name));
    }
    Ok(removed)
}

fn print(verb: &DiskCommand, reply: &DiskReply, output: Output) -> Result<()> {
    match reply {
        DiskReply::Disks(disks) => output.print(disks, || table(disks)),
        DiskReply::Disk(disk) => output.print(disk, || match verb {
            DiskCommand::Show(_) => describe(disk),
            DiskCommand::Create(args) if args.from.contains('@') => {
                format!("disk {} made from {}", disk.name, args.from)
            }
            DiskCommand::Create(_) => format!("disk {} made from {}", disk.name, disk.image),
            DiskCommand::Rollback(args) => {
                format!("disk {} is as snapshot {}", disk.name, args.snapshot)
            }
            DiskCommand::Take(_) => format!("disk {} is held by this server", disk.name),
            DiskCommand::Keep(args) => {
                format!("what was left of disk {} is disk {}", args.name, disk.name)
            }
            DiskCommand::Reset(_) => format!("disk {} is as {} again", disk.name, disk.image),
            _ => format!("disk {} has {} now", disk.name, ByteSize(disk.size)),
        }),
        DiskReply::Map(map) => output.print(map, || map::text(map)),
        DiskReply::Snapshot(snapshot) => {
            output.print(snapshot, || format!("snapshot {} made", snapshot.name))
        }
        DiskReply::Image(image) => output.print(image, || format!("image {} made", image.image)),
        DiskReply::Rebase(report) => output.print(report, || rebased(report)),
        DiskReply::Removed(what) => output.done(&format!("{what} removed")),
        DiskReply::Published(what) => output.print(what, || match what.bytes {
            0 => format!("the store has all of disk {} already", what.disk),
            bytes => format!("disk {} published ({})", what.disk, ByteSize(bytes)),
        }),
        DiskReply::Released(what) => output.done(&format!("{what} released")),
        DiskReply::Elsewhere(disks) => output.print(disks, || elsewhere(disks)),
        // Machines ask for marks, and several disks are made elsewhere: no verb that is printed here.
        DiskReply::Mark(mark) => output.print(mark, String::new),
        DiskReply::PrivateBytes(bytes) => output.print(bytes, String::new),
        DiskReply::Holds(holds) => output.print(holds, String::new),
        DiskReply::Made(made) => output.print(made, String::new),
    }
}
