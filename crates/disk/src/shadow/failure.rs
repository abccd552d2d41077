//! A shadow that failed: nobody knows what its files hold, so it is opened again first.

use super::Shadow;
use block::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Set once a sync failed: from then on nobody knows what stable storage holds.
#[derive(Default)]
pub(crate) struct Poison(OnceLock<(ErrorKind, String)>);

impl Poison {
    pub(crate) fn set(&self, error: &Error) {
        let _ = self.0.set((error.kind(), error.to_string()));
    }

    /// Refuses once it was set; `directory` is the shadow's.
    pub(super) fn check(&self, directory: &Path) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some((ErrorKind::Fenced, why)) => Err(Error::fenced(why.clone())),
            Some((_, why)) => Err(Error::unavailable(format!(
                "{}: an earlier step failed ({why}), and what was written since the last good \
                 flush may be lost; detach the disk, repair its file system, and open it again",
                directory.display()
            ))),
        }
    }
}

/// Fails the shadow when it is dropped before [`done`](Interrupted::done) was called.
pub(crate) struct Interrupted {
    poison: Arc<Poison>,
    what: &'static str,
    done: bool,
}

impl Interrupted {
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        if !self.done {
            self.poison.set(&Error::unavailable(format!("a {} was interrupted", self.what)));
        }
    }
}

impl Shadow {
    /// Refuses once a sync has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.inner.check()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.inner.check().is_err()
    }

    /// Guards a change whose steps must not come apart: when its caller goes away between them,
    /// files and memory would tell different stories, so the disk has to be opened again.
    pub(crate) fn unless_interrupted(&self, what: &'static str) -> Interrupted {
        Interrupted { poison: self.poison(), what, done: false }
    }

    pub(crate) fn poison(&self) -> Arc<Poison> {
        Arc::clone(&self.inner.failed)
    }
}
