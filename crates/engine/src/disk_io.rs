//! How reads of files wait for the disk: by threads, or by the kernel's submission ring.

use block::Ring;
use serde::Deserialize;
use tokio::task::JoinSet;

/// How reads of files are to wait for the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskIo {
    /// By threads.
    #[default]
    Portable,
    /// By the ring, where the kernel has one and allows it.
    Ring,
}

impl DiskIo {
    /// Lets the files of this process wait so, as long as what it returns lives.
    pub fn start(self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if self == Self::Portable {
            return tasks;
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        match Ring::start(threads) {
            Ok((ring, driver)) => {
                ring.install();
                tasks.spawn(driver.run());
            }
            Err(error) => tracing::warn!(
                error = error.message(),
                "threads wait for the disk, in spite of serve.io = \"ring\""
            ),
        }
        tasks
    }

    /// How they wait now, in a word.
    pub fn now() -> &'static str {
        if Ring::installed().is_some() { "ring" } else { "portable" }
    }
}
