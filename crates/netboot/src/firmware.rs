//! iPXE, as a machine's firmware can start it. None is shipped: the files are the distribution's, or
//! an administrator's.

use bytes::Bytes;
use std::collections::BTreeMap;

/// Files that firmware may fetch, by name.
pub type FirmwareFiles = BTreeMap<&'static str, Bytes>;

/// Each file, and the architectures that start it (IANA, Processor Architecture Types).
const TABLE: [(&str, &[u16]); 3] =
    [("undionly.kpxe", &[0]), ("snponly.efi", &[7, 9, 16]), ("snponly-arm64.efi", &[11, 19])];

/// The names of all files.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, _)| *name)
}

/// The file that this architecture starts; `None` when there is none.
pub fn file(architecture: u16) -> Option<&'static str> {
    let (name, _) = TABLE.iter().find(|(_, starts)| starts.contains(&architecture))?;
    Some(name)
}
