//! A trace as a cache sees it: references to blocks with dense numbers.

use crate::convert::{Size, raise};
use block::{ByteSize, Error};
use cache::PolicyKind;
use numpy::PyArray1;
use pyo3::prelude::*;
use simulate::{ReferenceOptions, ReferenceStream, Sharing};
use trace::Source;

/// What Python says of a load.
pub(crate) struct LoadOptions<'a> {
    pub(crate) block: Option<Size>,
    pub(crate) writes: bool,
    pub(crate) share: &'a str,
    pub(crate) client: Option<&'a str>,
    pub(crate) one_in: u32,
}

impl LoadOptions<'_> {
    /// The same, checked.
    pub(crate) fn check(self) -> PyResult<ReferenceOptions> {
        let options = || -> block::Result<ReferenceOptions> {
            let bytes = self.block.map_or(4096, |size| size.0);
            let block = u32::try_from(bytes).unwrap_or(u32::MAX);
            let sharing = match self.share {
                "base" => Sharing::Base,
                "disk" => Sharing::Disk,
                "image" => Sharing::Image,
                "private" => Sharing::Private,
                other => {
                    return Err(Error::invalid(format!(
                        "share \"{other}\" is none of base, disk, image, private"
                    )));
                }
            };
            let client = match self.client {
                None => None,
                Some(text) => {
                    // The size stands last, as policies have parameters of their own.
                    let (policy, size) = text.rsplit_once(':').unwrap_or(("lru", text));
                    let policy: PolicyKind = policy.parse()?;
                    Some((policy, blocks(size.parse::<ByteSize>()?.0, block)?))
                }
            };
            let defaults = ReferenceOptions::default();
            let (writes, one_in) = (self.writes, self.one_in);
            Ok(ReferenceOptions { block, writes, sharing, client, one_in, ..defaults })
        };
        options().map_err(raise)
    }
}

/// How many blocks fit in so many bytes.
pub(crate) fn blocks(size: u64, block: u32) -> block::Result<u32> {
    match u32::try_from(size / u64::from(block.max(1))) {
        Ok(blocks) if blocks > 0 => Ok(blocks),
        _ => Err(Error::invalid(format!(
            "a cache of {} does not hold a block of {}, or more than 2^32 of them; give another size",
            ByteSize(size),
            ByteSize(u64::from(block))
        ))),
    }
}

/// References to blocks, in order.
#[pyclass(frozen, module = "sojourn")]
pub(crate) struct Load {
    pub(crate) stream: ReferenceStream,
}

impl Load {
    pub(crate) fn read(source: &mut dyn Source, options: &ReferenceOptions) -> block::Result<Self> {
        let stream = ReferenceStream::read(source, options)?;
        if stream.is_empty() {
            return Err(Error::invalid(
                "nothing of the trace reaches the cache; with writes=True writes do too",
            ));
        }
        Ok(Self { stream })
    }

    /// How many blocks a cache of so many bytes holds; of a sample, as small a part of them as the sample is.
    pub(crate) fn room(&self, size: u64) -> block::Result<u32> {
        let one_in = self.stream.one_in.max(1);
        blocks(size / u64::from(one_in), self.stream.block).map_err(|e| match one_in {
            1 => e,
            _ => e.context(format!("a sample of one block in {one_in}, and {}", ByteSize(size))),
        })
    }
}

#[pymethods]
impl Load {
    fn __len__(&self) -> usize {
        self.stream.len()
    }

    #[getter]
    fn blocks(&self) -> u32 {
        self.stream.blocks()
    }

    #[getter]
    fn block(&self) -> u32 {
        self.stream.block
    }

    #[getter]
    fn requests(&self) -> u64 {
        self.stream.requests
    }

    #[getter]
    fn one_in(&self) -> u32 {
        self.stream.one_in
    }

    /// The block of each reference.
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        let ids = py.detach(|| self.stream.references().map(|(id, _)| id).collect());
        PyArray1::from_vec(py, ids)
    }

    /// Whether each reference is a write.
    fn writes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        let writes = py.detach(|| self.stream.references().map(|(_, write)| write).collect());
        PyArray1::from_vec(py, writes)
    }

    fn __repr__(&self) -> String {
        format!(
            "<sojourn.Load {} references to {} blocks of {}>",
            self.stream.len(),
            self.stream.blocks(),
            ByteSize(u64::from(self.stream.block))
        )
    }
}
