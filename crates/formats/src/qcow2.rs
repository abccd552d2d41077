//! QEMU copy-on-write images: what is checked of a file before the library sees it.
//!
//! Source of the format: QEMU's `docs/interop/qcow2.txt`.
//!
//! The library reads whatever lies behind the end of a file as zeroes. So the tables are walked
//! once when a file is opened, which also bounds what a hostile file can ask for: a table is as
//! large as its file at most, and nothing is read twice.

use crate::convert::{self, Tool};
use crate::driver::{self, Driver, Traits};
use crate::file::{be32, be64, read_up_to};
use block::{Device, Error, Result, offload};
use imago::StorageOpenOptions;
use imago::file::File as ImagoFile;
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, FormatDriverBuilder};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Incompatible features, by bit.
mod feature {
    pub(super) const DIRTY: u64 = 1;
    pub(super) const CORRUPT: u64 = 1 << 1;
    pub(super) const EXTERNAL_DATA: u64 = 1 << 2;
    pub(super) const COMPRESSION: u64 = 1 << 3;
    pub(super) const EXTENDED_L2: u64 = 1 << 4;
}

/// L1 entries that any reader accepts (QEMU's limit of 32 MiB).
const MOST_L1_ENTRIES: u32 = 4 << 20;

/// What the header says, as far as it decides how the file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    version: u32,
    cluster_bits: u32,
    size: u64,
    l1_offset: u64,
    l1_entries: u32,
    features: u64,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Library,
    /// By conversion, because of what the text names.
    Convert(&'static str),
}

/// Opens a qcow2 image.
pub(crate) async fn open(path: &Path, read_only: bool, scratch: &Path) -> Result<Arc<dyn Device>> {
    let owned = path.to_owned();
    let runtime = Handle::current();
    let opened = offload(move || {
        let path = owned.as_path();
        let file = crate::file::open(path, read_only)?;
        let (header, reader) = check(&file, path)?;
        match reader {
            Reader::Library => {
                let device = open_with_library(file, path, read_only, header, &runtime)?;
                Ok(Ok(Arc::new(device) as Arc<dyn Device>))
            }
            Reader::Convert(why) => Ok(Err(why)),
        }
    })
    .await?;
    match opened {
        Ok(device) => Ok(device),
        Err(_) if read_only => convert::with_tool(path, Tool::Qcow2, scratch).await,
        Err(why) => Err(Error::unsupported(format!(
            "{}: has {why}, which can only be read; open it read-only, or convert it with \
             qemu-img convert -O qcow2",
            path.display()
        ))),
    }
}

/// Creates a qcow2 image without data.
pub(crate) async fn create(path: &Path, size: u64) -> Result<Arc<dyn Device>> {
    let path = path.to_owned();
    let runtime = Handle::current();
    offload(move || {
        let file = crate::file::create(&path)?;
        let made = driver::guard(&path, || {
            runtime.block_on(async {
                let file = ImagoFile::from_open_file(file, options(&path, false))?;
                let gate = DenyImplicitOpenGate::default();
                Qcow2::<ImagoFile>::create_builder(file)
                    .size(size)
                    .create_open(gate, |image| Ok(Qcow2::builder(image).backing(None)))
                    .await
            })
        });
        match made.and_then(|made| made.map_err(|e| driver::error(&path, e))) {
            Ok(image) => {
                let traits = Traits { read_only: false, unit: 64 << 10, zero_marks: true };
                Ok(Arc::new(Driver::new(FormatAccess::new(image), &path, traits)) as _)
            }
            Err(e) => {
                // Nothing is lost: it was not there before, and has no data.
                let _ = std::fs::remove_file(&path);
                Err(e)
            }
        }
    })
    .await
}

fn options(path: &Path, read_only: bool) -> StorageOpenOptions {
    StorageOpenOptions::new().write(!read_only).filename(path)
}

fn open_with_library(
    file: File,
    path: &Path,
    read_only: bool,
    header: Header,
    runtime: &Handle,
) -> Result<Driver> {
    let image = driver::guard(path, || {
        runtime.block_on(async {
            let file = ImagoFile::from_open_file(file, options(path, read_only))?;
            Qcow2::<ImagoFile>::builder(file)
                .write(!read_only)
                .open(DenyImplicitOpenGate::default())
                .await
        })
    })?
    .map_err(|e| driver::error(path, e))?;
    let traits =
        Traits { read_only, unit: 1 << header.cluster_bits, zero_marks: header.version >= 3 };
    Ok(Driver::new(FormatAccess::new(image), path, traits))
}

/// Checks the header and walks the tables.
fn check(file: &File, path: &Path) -> Result<(Header, Reader)> {
    let len = crate::file::len(file, path)?;
    let bytes = read_up_to(file, path, 0, 104)?;
    let (header, reader) = parse(&bytes).map_err(|e| e.context(path.display()))?;
    Tables { file, path, len, header }.check()?;
    Ok((header, reader))
}

/// Parses the first 104 bytes of a file; version 2 needs only 72 of them.
fn parse(bytes: &[u8]) -> Result<(Header, Reader)> {
    let corrupt = |what: &str| Err(Error::corrupt(format!("not a valid qcow2 image: {what}")));
    if bytes.len() < 72 {
        return corrupt("the file ends in the header; fetch it again");
    }
    if !bytes.starts_with(b"QFI\xfb") {
        return corrupt("the magic number is missing; name its real format");
    }
    let version = be32(bytes, 4);
    if !(2..=3).contains(&version) {
        return Err(Error::unsupported(format!(
            "qcow2 version {version} is not known (2 and 3 are); convert it with qemu-img convert"
        )));
    }
    if version == 3 && bytes.len() < 104 {
        return corrupt("the file ends in the header; fetch it again");
    }
    let header = Header {
        version,
        cluster_bits: be32(bytes, 20),
        size: be64(bytes, 24),
        l1_offset: be64(bytes, 40),
        l1_entries: be32(bytes, 36),
        features: if version == 3 { be64(bytes, 72) } else { 0 },
    };
    if be64(bytes, 8) != 0 {
        return Err(Error::denied(
            "has a backing file, which is not opened; flatten it with qemu-img convert -O qcow2",
        ));
    }
    if be32(bytes, 32) != 0 {
        return Err(Error::unsupported("is encrypted; decrypt it with qemu-img convert"));
    }
    if !(9..=21).contains(&header.cluster_bits) {
        return corrupt(&format!("clusters of 2^{} bytes", header.cluster_bits));
    }
    if header.size > i64::MAX as u64 {
        return corrupt(&format!("a disk of {} bytes", header.size));
    }
    if header.l1_entries > MOST_L1_ENTRIES {
        return corrupt(&format!("a table of {} entries", header.l1_entries));
    }
    // One L1 entry stands for one L2 table: a cluster of 8-byte entries, a cluster each.
    if header.size.div_ceil(1 << (2 * header.cluster_bits - 3)) > u64::from(header.l1_entries) {
        return corrupt("its table is too short for the disk's size");
    }
    Ok((header, reader(header.features)?))
}

fn reader(features: u64) -> Result<Reader> {
    if features & feature::CORRUPT != 0 {
        return Err(Error::corrupt(
            "is marked as corrupt; repair a copy of it with qemu-img check -r all",
        ));
    }
    if features & feature::EXTERNAL_DATA != 0 {
        return Err(Error::denied(
            "has an external data file, which is not opened; merge it with qemu-img convert -O qcow2",
        ));
    }
    if features & feature::DIRTY != 0 {
        return Err(Error::unsupported(
            "was not closed cleanly; repair it with qemu-img check -r all",
        ));
    }
    let known = feature::COMPRESSION | feature::EXTENDED_L2;
    if features & !known != 0 {
        return Err(Error::unsupported(format!(
            "needs qcow2 features {:#x}, which are not known; convert it with qemu-img convert -O qcow2",
            features & !known
        )));
    }
    Ok(match () {
        () if features & feature::EXTENDED_L2 != 0 => Reader::Convert("extended L2 entries"),
        () if features & feature::COMPRESSION != 0 => Reader::Convert("zstd compression"),
        () => Reader::Library,
    })
}

/// The two levels of tables that map the disk's clusters into the file.
struct Tables<'a> {
    file: &'a File,
    path: &'a Path,
    len: u64,
    header: Header,
}

/// Bits 9 to 55 of an entry are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;

impl Tables<'_> {
    fn cluster(&self) -> u64 {
        1 << self.header.cluster_bits
    }

    fn truncated(&self, what: &str, offset: u64) -> Error {
        Error::corrupt(format!(
            "{}: truncated: {what} at offset {offset} lies behind the end of the file ({} bytes); \
             fetch it again",
            self.path.display(),
            self.len
        ))
    }

    /// Whether a cluster at `offset` is in the file; its end may be missing in the last one.
    fn holds(&self, offset: u64) -> bool {
        offset < self.len
    }

    fn check(&self) -> Result<()> {
        let l1_len = u64::from(self.header.l1_entries) * 8;
        if self.header.l1_offset.checked_add(l1_len).is_none_or(|end| end > self.len) {
            return Err(self.truncated("the L1 table", self.header.l1_offset));
        }
        let l1 = read_up_to(self.file, self.path, self.header.l1_offset, l1_len as usize)?;
        let (entries, _) = l1.as_chunks::<8>();
        let mut tables: Vec<u64> = entries
            .iter()
            .map(|entry| u64::from_be_bytes(*entry) & OFFSET)
            .filter(|offset| *offset != 0)
            .collect();
        tables.sort_unstable();
        if tables.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::corrupt(format!(
                "{}: two ranges share one L2 table; check it with qemu-img check",
                self.path.display()
            )));
        }
        tables.iter().try_for_each(|offset| self.check_l2(*offset))
    }

    fn check_l2(&self, offset: u64) -> Result<()> {
        if offset.checked_add(self.cluster()).is_none_or(|end| end > self.len) {
            return Err(self.truncated("an L2 table", offset));
        }
        let bytes = read_up_to(self.file, self.path, offset, self.cluster() as usize)?;
        let words = if self.header.features & feature::EXTENDED_L2 != 0 { 2 } else { 1 };
        let (entries, _) = bytes.as_chunks::<8>();
        for entry in entries.iter().step_by(words) {
            self.check_entry(u64::from_be_bytes(*entry))?;
        }
        Ok(())
    }

    fn check_entry(&self, entry: u64) -> Result<()> {
        if entry & COMPRESSED != 0 {
            let offset_bits = 62 - (self.header.cluster_bits - 8);
            let offset = entry & ((1 << offset_bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
            // The data ends somewhere in the last of its sectors, where the file may end too.
            let last = (offset / 512 + sectors) * 512;
            if !self.holds(offset.max(last)) {
                return Err(self.truncated("compressed data", offset));
            }
            return Ok(());
        }
        let offset = entry & OFFSET;
        if offset != 0 && entry & ZERO == 0 && !self.holds(offset) {
            return Err(self.truncated("data", offset));
        }
        Ok(())
    }
}
