//! Where the memory of a suspended machine is, by its parcel: in the store, or near. No chunk is read for it.

use crate::Engine;
use crate::api::BytesByPlace;
use crate::verbs::is_kept;
use block::{Error, Result};
use disk::DiskLayers;
use serde::Serialize;
use store::machines::delta_start;
use store::{RefKind, RefRecord, Store};

/// Where the memory of a suspended machine is, in cells of equal size; the last one may be shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryMapView {
    /// The parcel that has it.
    pub parcel: String,
    /// Bytes of memory.
    pub size: u64,
    /// The size of a cell in bytes: a power of two, at least 4096.
    pub cell_bytes: u64,
    /// Bytes of all of it.
    pub total: BytesByPlace<u64>,
    /// Bytes of each cell, in the order of the memory.
    pub cells: BytesByPlace<Vec<u64>>,
}

/// Where the memory of the parcel `NAME@NUMBER` is, or of the newest of the machine `NAME`, in `cells` cells at the most.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when the store has none; [`Invalid`](block::ErrorKind::Invalid) for no cell,
/// and for too many; [`Corrupt`](block::ErrorKind::Corrupt) when the parcel is damaged; any error from the store.
pub async fn memory_map(engine: &Engine, name: &str, cells: usize) -> Result<MemoryMapView> {
    let found = parcel(&engine.store, name).await?;
    let parcel = found.name;
    let damaged = |e: Error| e.context(format!("parcel {parcel}"));
    let manifest = found.body.manifest.ok_or_else(|| Error::corrupt("names no memory"));
    let manifest = engine.store.manifest(&manifest.map_err(damaged)?).await.map_err(damaged)?;
    let memory = found.body.size;
    // One that says more than there is is refused.
    let delta = delta_start(memory.min(manifest.size()));
    let layers =
        DiskLayers::of_memory(engine.loader(), manifest, memory, delta).map_err(damaged)?;
    let map = layers.map(cells, is_kept(engine)).await?;
    Ok(MemoryMapView {
        parcel,
        size: map.size(),
        cell_bytes: map.cell_bytes(),
        total: BytesByPlace::of(|place| map.total(place)),
        cells: BytesByPlace::of(|place| map.cells(place).collect()),
    })
}

/// The parcel of this name, or the newest of the machine of this name.
async fn parcel(store: &Store, name: &str) -> Result<RefRecord> {
    let number = |other: &str| {
        let (machine, number) = other.rsplit_once('@')?;
        number.parse::<u64>().ok().filter(|_| machine == name)
    };
    let found = match name.contains('@') {
        true => store.refs().get(RefKind::Parcel, name).await?,
        false => store.refs().last_of(RefKind::Parcel, number).await?,
    };
    found.ok_or_else(|| {
        Error::not_found(match name.contains('@') {
            true => format!("there is no parcel {name}; see 'sojourn vm list'"),
            false => {
                format!("no parcel of machine {name:?} is in the store; see 'sojourn vm list'")
            }
        })
    })
}
