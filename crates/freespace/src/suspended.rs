//! Suspended systems in the swap files of a machine.

use crate::ext::ExtFiles;
pub use crate::swap::awake;
use crate::swap_files::SwapFiles;
use crate::{Source, Window};
use std::fmt;
use std::sync::Arc;

/// So often paths that symbolic links lead to are looked for as well.
const ROUNDS: usize = 4;

/// A file system whose files can be looked at, whatever else is said of it.
pub struct Look {
    /// The disk that it is on.
    pub disk: Arc<dyn Source>,
    /// Where it starts on the disk, in bytes.
    pub base: u64,
    /// Its size in bytes.
    pub size: u64,
}

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Look")
            .field("base", &self.base)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// The swap files in which a system is suspended: the number of the file system among `looks`, and
/// the path there. The file systems are one machine's: what the configuration on one of them names
/// may lie on any.
pub fn in_swap_files(looks: &[Look]) -> Vec<(usize, String)> {
    let windows: Vec<Option<Window<'_>>> =
        looks.iter().map(|look| Window::part(&*look.disk, look.base, look.size).ok()).collect();
    let files: Vec<(usize, ExtFiles<'_>)> = windows
        .iter()
        .enumerate()
        .filter_map(|(at, window)| Some((at, ExtFiles::open(window.as_ref()?).ok()?)))
        .collect();
    let mut wanted = SwapFiles::new();
    for path in files.iter().flat_map(|(_, files)| files.listed()) {
        wanted.add(&path);
    }
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        let (mut elsewhere, known) = (Vec::new(), wanted.len());
        found.clear();
        for (at, files) in &files {
            for path in wanted.iter() {
                match files.is_suspended(path) {
                    Ok(true) => found.push((*at, path.to_owned())),
                    Err(Some(other)) => elsewhere.push(other),
                    Ok(false) | Err(None) => {}
                }
            }
        }
        elsewhere.iter().for_each(|path| wanted.add(path));
        if wanted.len() == known {
            break;
        }
    }
    found
}
