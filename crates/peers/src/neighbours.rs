//! The peers that are known: each is greeted, followed while it is there, and greeted again when it was away.

use crate::claims::ClaimRoom;
use crate::shelf::Shelf;
use crate::source::PeerSource;
use arc_swap::ArcSwap;
use block::{Error, ErrorKind};
use lookaside::Sources;
use lookaside::share::MemberId;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_rustls::rustls::ClientConfig;

/// Peers that are known at the most.
const MOST: usize = 64;
/// Addresses of which nothing is known but that somebody announced them there, and that did not answer yet: anybody in
/// the network can announce any.
const MOST_HEARD_OF: usize = 32;
/// Peers of other stores, which are asked again now and then.
const MOST_STRANGE: usize = 16;
/// Peers at one address, which several users may have: a machine that answers at many ports leaves room to others.
const MOST_AT_ADDRESS: usize = 8;
/// The first pause after a peer did not answer, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that did not answer so often in a row is forgotten until it is seen again.
const TRIES: u32 = 10;
/// One that has another store, or is known by another address, is left alone for so long.
const LATER: Duration = Duration::from_secs(120);

/// The peers that are known, as sources.
pub struct Neighbours {
    sources: Arc<Sources>,
    shelf: Arc<dyn Shelf>,
    member: MemberId,
    /// Where we are asked ourselves; 0 before that is known.
    port: AtomicU16,
    tls: ArcSwap<ClientConfig>,
    known: Mutex<HashMap<SocketAddr, KnownNeighbour>>,
    /// For what all of them claim.
    room: Arc<ClaimRoom>,
    /// Members that are followed.
    followed: Mutex<HashSet<MemberId>>,
    tasks: Mutex<JoinSet<()>>,
}

/// A peer that is followed, or greeted until it answers.
struct KnownNeighbour {
    is_there: bool,
    /// It has answered once, be it that it has another store.
    has_answered: bool,
    /// It said so last time.
    is_strange: bool,
    source: Arc<PeerSource>,
}

/// A member that is followed, until this is dropped.
struct Followed<'a>(&'a Neighbours, MemberId);

impl Drop for Followed<'_> {
    fn drop(&mut self) {
        self.0.followed.lock().remove(&self.1);
    }
}

impl Neighbours {
    /// No peers yet; those that come are asked through `sources`, and we are `member` to them.
    pub fn new(
        sources: Arc<Sources>,
        shelf: Arc<dyn Shelf>,
        member: MemberId,
        tls: Arc<ClientConfig>,
    ) -> Arc<Self> {
        Arc::new(Self {
            sources,
            shelf,
            member,
            port: AtomicU16::new(0),
            tls: ArcSwap::new(tls),
            known: Mutex::default(),
            room: Arc::default(),
            followed: Mutex::default(),
            tasks: Mutex::default(),
        })
    }

    /// What we are to others.
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// Tells peers from now on that we are asked at this port.
    pub fn set_port(&self, port: u16) {
        self.port.store(port, Relaxed);
    }

    /// Shows and trusts other certificates from now on, also with peers that are known: one that was revoked is asked
    /// nothing any more.
    pub fn set_tls(&self, tls: Arc<ClientConfig>) {
        let known = self.known.lock();
        for (address, neighbour) in known.iter() {
            if let Err(error) = neighbour.source.set_tls(&tls) {
                tracing::debug!(%address, %error, "a peer cannot be asked");
            }
        }
        self.tls.store(tls);
    }

    /// How many are there.
    pub fn count(&self) -> usize {
        self.known.lock().values().filter(|neighbour| neighbour.is_there).count()
    }

    /// Somebody announced a peer at this address: it is followed as one that was [seen](Self::seen), unless too many of
    /// those that are known do not answer.
    pub fn heard_of(self: &Arc<Self>, address: SocketAddr) {
        let silent = self.known.lock().values().filter(|neighbour| !neighbour.has_answered).count();
        if silent < MOST_HEARD_OF {
            self.seen(address);
        }
    }

    /// A peer is at this address, as the configuration or its certificate says: it is followed, unless it is already, or
    /// there are too many.
    pub fn seen(self: &Arc<Self>, address: SocketAddr) {
        let mut known = self.known.lock();
        let there = known.keys().filter(|other| other.ip() == address.ip()).count();
        if known.len() >= MOST || there >= MOST_AT_ADDRESS || known.contains_key(&address) {
            return;
        }
        let shelf = Arc::clone(&self.shelf);
        let source = match PeerSource::among(&self.room, address, &self.tls.load(), shelf) {
            Ok(source) => source,
            Err(error) => return tracing::debug!(%address, %error, "a peer cannot be asked"),
        };
        known.insert(
            address,
            KnownNeighbour {
                is_there: false,
                has_answered: false,
                is_strange: false,
                source: Arc::clone(&source),
            },
        );
        let this = Arc::clone(self);
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            this.follow(address, &source).await;
            this.sources.remove(&address.to_string());
            this.known.lock().remove(&address);
        });
    }

    /// Forgets all, and asks nobody any more.
    pub fn stop(&self) {
        self.tasks.lock().abort_all();
    }

    /// Follows a peer until it was away for long.
    async fn follow(&self, address: SocketAddr, source: &Arc<PeerSource>) {
        let (mut pause, mut failures, mut is_new) = (FIRST_PAUSE, 0, true);
        while failures < TRIES {
            let greeted = source.greet(self.member, self.port.load(Relaxed)).await;
            let refused =
                |e: &Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unsupported);
            if greeted.as_ref().map_or_else(refused, |_| true)
                && !self.stays(address, greeted.is_err())
            {
                return;
            }
            match greeted {
                Ok(member) if self.is_followed(member) => {
                    tokio::time::sleep(LATER).await;
                    continue;
                }
                Ok(member) => {
                    let _followed = Followed(self, member);
                    (pause, failures) = (FIRST_PAUSE, 0);
                    // Once: what was learned of it holds when it comes again.
                    if std::mem::take(&mut is_new) {
                        self.sources.add(Arc::clone(source) as _);
                    }
                    tracing::info!(%address, "a peer is there");
                    self.set_there(address, true);
                    let error = source.follow(member).await;
                    self.set_there(address, false);
                    tracing::info!(%address, error = error.message(), "a peer is away");
                }
                Err(error) if refused(&error) => {
                    tracing::debug!(%address, %error, "not a peer of this store");
                    tokio::time::sleep(LATER).await;
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "a peer does not answer");
                    failures += 1;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A peer has answered; whether it stays among those that are known. Too many of other stores would leave no room.
    fn stays(&self, address: SocketAddr, is_strange: bool) -> bool {
        let mut known = self.known.lock();
        if let Some(neighbour) = known.get_mut(&address) {
            (neighbour.has_answered, neighbour.is_strange) = (true, is_strange);
        }
        let strange = known.values().filter(|neighbour| neighbour.is_strange).count();
        !is_strange || strange <= MOST_STRANGE
    }

    fn set_there(&self, address: SocketAddr, is_there: bool) {
        if let Some(neighbour) = self.known.lock().get_mut(&address) {
            neighbour.is_there = is_there;
        }
    }

    /// Whether a member is followed already, as we ourselves are; otherwise it is from now on.
    fn is_followed(&self, member: MemberId) -> bool {
        member == self.member || !self.followed.lock().insert(member)
    }
}
