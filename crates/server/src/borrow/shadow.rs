//! Borrowed room for the private blocks of a server's ephemeral disks: `serve --shadow borrowed`.

use super::find::{self, Amount};
use super::place::{BorrowedRoom, leave_no_core};
use super::report::LentView;
use super::selection::BorrowSelection;
use super::session::complain;
use block::{ByteSize, Device, Error, Result};
use disk::{Room, RoomLayer};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use transient::{GiveBack, Live, Pool, State};

/// What stays free of the file system of a running host.
const FLOOR: u64 = 1 << 30;

/// What is to be borrowed.
#[derive(Debug)]
pub struct BorrowRequest {
    /// Disks and images whose system is not running, or one directory of this host.
    pub targets: Vec<PathBuf>,
    /// Bytes.
    pub size: ByteSize,
    /// No system is suspended where nobody can look.
    pub nothing_suspended: bool,
}

/// Borrowed room.
pub(crate) struct Shadows {
    place: BorrowedRoom,
    pool: Arc<Pool>,
}

impl Shadows {
    /// Borrows it, and says aloud what that means.
    ///
    /// # Errors
    /// Why nothing can be borrowed.
    pub(crate) async fn borrow(wanted: &BorrowRequest) -> Result<Self> {
        leave_no_core();
        let size = wanted.size.0;
        let place = match wanted.targets.as_slice() {
            [directory] if directory.is_dir() => {
                BorrowedRoom::on_host(directory, size, FLOOR, GiveBack::Unwritten)?
            }
            targets if targets.iter().any(|target| target.is_dir()) => {
                return Err(Error::invalid(
                    "borrow from disks or from one directory of this system, not from both",
                ));
            }
            targets => {
                let selection = BorrowSelection::of(targets, wanted.size, wanted.nothing_suspended);
                let (plan, size) = find::plan(&selection, Amount::exactly(size)).await?;
                block::offload(move || BorrowedRoom::on_disks(plan, size)).await?
            }
        };
        let pool = Pool::new(Arc::clone(place.disk()) as _)?;
        tracing::warn!(
            room = %ByteSize(pool.size()),
            "what clients of ephemeral disks write lies in borrowed room: it is gone when this \
             server ends, however it ends, flushed or not"
        );
        Ok(Self { place, pool })
    }

    /// What tells of it for as long as it is there; nothing of it is kept by that.
    pub(crate) fn told(&self) -> BorrowedShadows {
        BorrowedShadows {
            pool: Arc::downgrade(&self.pool),
            live: self.place.live().map(Arc::downgrade),
            lent: self.place.lent(),
        }
    }

    /// The room, for the disks of a home.
    pub(crate) fn room(&self) -> Arc<dyn Room> {
        Arc::new(Borrowed(Arc::clone(&self.pool)))
    }

    /// Drops the key and looks at the owner's file systems again, when all disks are closed.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when one is not as it was.
    pub(crate) async fn end(self) -> Result<()> {
        drop(self.pool);
        complain(&self.place.end(false).await.1)
    }
}

/// Tells of a server's borrowed room.
#[derive(Debug)]
pub(crate) struct BorrowedShadows {
    pool: Weak<Pool>,
    live: Option<Weak<Live>>,
    lent: Vec<LentView>,
}

/// Borrowed room of a server.
#[derive(Debug, Serialize)]
pub(crate) struct BorrowedRoomView {
    /// Bytes of it.
    size: u64,
    /// Bytes that private blocks take.
    used: u64,
    /// Bytes given back to a running host.
    given_back: u64,
    /// What each disk of the owner lends.
    lent: Vec<LentView>,
}

impl BorrowedShadows {
    /// How it is now; none when it was given back.
    pub(crate) fn view(&self) -> Option<BorrowedRoomView> {
        let pool = self.pool.upgrade()?;
        let live = self.live.as_ref().and_then(Weak::upgrade);
        Some(BorrowedRoomView {
            size: pool.size(),
            used: pool.used(),
            given_back: live.map_or(0, |live| live.given()),
            lent: self.lent.clone(),
        })
    }
}

struct Borrowed(Arc<Pool>);

impl Room for Borrowed {
    fn over(&self, base: Arc<dyn Device>) -> Result<RoomLayer> {
        let thin = Arc::new(self.0.device(base.size())?);
        let counted = Arc::clone(&thin);
        let device = Arc::new(State::shadow(base, thin)?);
        let looked_at = Arc::clone(&device);
        Ok(RoomLayer {
            device,
            bytes: Box::new(move || counted.room()),
            held: Box::new(move |span| looked_at.run(span)),
        })
    }
}
