//! What came of what: image versions, snapshots and disks of a store, each with what it stands on.

use crate::image_views::IMAGE;
use block::{Error, Result};
use serde::Serialize;
use std::collections::HashMap;
use store::images::{PARENT, SOURCE};
use store::{Listing, ManifestId, RefKind, RefRecord, Store};

/// What a name of the store names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// An image version.
    Image,
    /// A snapshot of a disk.
    Snapshot,
    /// A disk.
    Disk,
}

impl NodeKind {
    const ALL: [Self; 3] = [Self::Image, Self::Snapshot, Self::Disk];

    fn refs(self) -> RefKind {
        match self {
            Self::Image => RefKind::Image,
            Self::Snapshot => RefKind::Snapshot,
            Self::Disk => RefKind::Disk,
        }
    }
}

/// A name of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct NodeName {
    /// What it names.
    pub kind: NodeKind,
    /// `debian:2`, `alice@monday`, `alice`.
    pub name: String,
}

/// An image version, a snapshot or a disk, and what it stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LineageNode {
    /// Which it is.
    #[serde(flatten)]
    pub node: NodeName,
    /// Bytes.
    pub size: u64,
    /// Unix seconds.
    pub created: u64,
    /// What it stands on. Of a version that was committed: that on which its disk stood. Of a snapshot: its disk's
    /// version. Of a disk: the snapshot that its base is, else its version. It may be gone by now.
    pub on: Option<NodeName>,
    /// The disk that a version was committed from, which may be gone by now.
    pub by: Option<NodeName>,
    /// Why nothing but the name is known.
    pub error: Option<String>,
}

/// All of a store, versions first, then snapshots, then disks, of any home.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
/// cannot be listed.
pub async fn lineage(store: &Store) -> Result<Vec<LineageNode>> {
    let list = async |kind: NodeKind| Ok::<_, Error>((kind, store.refs().list(kind.refs()).await?));
    let found = futures::future::try_join_all(NodeKind::ALL.map(list)).await?;
    let states = found.iter().find(|(kind, _)| *kind == NodeKind::Snapshot);
    let states = states.map(|(_, snapshots)| States::of(snapshots)).unwrap_or_default();
    let nodes = found.iter().flat_map(|(kind, Listing { records, damaged })| {
        let good = records.iter().map(|record| node(*kind, record, &states));
        let bad = damaged.iter().map(|bad| LineageNode {
            node: NodeName { kind: *kind, name: bad.name.clone() },
            size: 0,
            created: 0,
            on: None,
            by: None,
            error: Some(bad.error.message().to_owned()),
        });
        good.chain(bad)
    });
    Ok(nodes.collect())
}

/// The snapshots by what they hold, the newest of those that hold the same.
#[derive(Default)]
struct States(HashMap<ManifestId, (u64, String)>);

impl States {
    fn of(snapshots: &Listing) -> Self {
        let mut states: HashMap<ManifestId, (u64, String)> = HashMap::new();
        for record in &snapshots.records {
            let Some(manifest) = record.body.manifest else { continue };
            let this = (record.body.created, record.name.clone());
            let newest = states.entry(manifest).or_insert_with(|| this.clone());
            if *newest < this {
                *newest = this;
            }
        }
        Self(states)
    }
}

fn node(kind: NodeKind, record: &RefRecord, states: &States) -> LineageNode {
    let label = |key: &str| record.body.labels.get(key).cloned();
    let of = |kind: NodeKind| move |name: String| NodeName { kind, name };
    let on = match kind {
        NodeKind::Image => label(PARENT).map(of(NodeKind::Image)),
        NodeKind::Snapshot => label(IMAGE).map(of(NodeKind::Image)),
        NodeKind::Disk => {
            let version = label(IMAGE);
            let origin = label(store::RefBody::ORIGIN);
            // What holds no more than the version does stands on that.
            let base = record.body.manifest.filter(|base| Some(base.to_string()) != origin);
            let snapshot = base.and_then(|base| states.0.get(&base));
            let snapshot = snapshot.map(|(_, name)| of(NodeKind::Snapshot)(name.clone()));
            snapshot.or_else(|| version.map(of(NodeKind::Image)))
        }
    };
    let committed = (kind == NodeKind::Image && on.is_some()).then(|| label(SOURCE)).flatten();
    let by = committed.as_deref().and_then(|source| source.strip_prefix("disk "));
    LineageNode {
        node: NodeName { kind, name: record.name.clone() },
        size: record.body.size,
        created: record.body.created,
        on,
        by: by.map(|name| of(NodeKind::Disk)(name.to_owned())),
        error: None,
    }
}
