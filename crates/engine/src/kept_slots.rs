//! The key slots of an encrypted store that is distant, or has machines that go on while it is away, kept in the home:
//! with them and the secret the store is opened then. The key in them is wrapped, as it is in the store.

use crate::home::Home;
use block::{Error, Result};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// The file in the home.
const NAME: &str = "key-slots.json";
/// The longest file that is read.
const LONGEST: u64 = 1 << 20;

/// Where the slots are kept; nowhere for who needs the store in any case.
pub(crate) struct KeptSlots(Option<PathBuf>);

impl KeptSlots {
    /// The slots of a home, for who `goes_offline`.
    pub(crate) fn of(home: &Home, goes_offline: bool) -> Self {
        Self(goes_offline.then(|| home.dir().join(NAME)))
    }

    /// What is kept, if anything is. Not checked: whoever uses it does.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let file = std::fs::File::open(self.0.as_ref()?).ok()?;
        let mut bytes = Vec::new();
        let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
        (read.is_ok() && bytes.len() as u64 <= LONGEST).then_some(bytes)
    }

    /// Keeps what was read from the store. That it cannot be kept is nobody's trouble before the store is away.
    pub(crate) fn keep(&self, bytes: &[u8]) {
        if let Err(error) = self.write(bytes) {
            tracing::warn!(%error, "the store cannot be opened while it is away");
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let fresh = path.with_extension("new");
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&fresh)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&fresh, path)
        };
        write().map_err(|e| Error::io(path.display(), e))
    }
}
