//! Progress bars: on stderr, and only when stderr is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar that counts bytes, or nothing at all when nobody looks.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar for `total` bytes of `what`; without a total a spinner.
    pub(crate) fn bytes(what: &str, total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            None => "{prefix} {spinner} {bytes} {bytes_per_sec} {elapsed}",
        };
        Self::new(what, total, template)
    }

    /// A spinner for work whose length is not known.
    pub(crate) fn waiting(what: &str) -> Self {
        Self::new(what, None, "{prefix} {spinner} {elapsed}")
    }

    /// A bar that counts requests.
    pub(crate) fn requests(what: &str, total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => "{prefix} {wide_bar} {human_pos}/{human_len} {per_sec} {eta} {msg}",
            None => "{prefix} {spinner} {human_pos} {per_sec} {elapsed} {msg}",
        };
        Self::new(what, total, template)
    }

    /// A bar that counts disks.
    pub(crate) fn disks(what: &str, total: u64) -> Self {
        Self::new(what, Some(total), "{prefix} {wide_bar} {human_pos}/{human_len} {eta} {msg}")
    }

    /// A bar from 0 to 100 percent.
    pub(crate) fn percent(what: &str) -> Self {
        Self::new(what, Some(100), "{prefix} {wide_bar} {pos} % {eta}")
    }

    fn new(what: &str, total: Option<u64>, template: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Moves the bar to `done`, and tells of errors.
    pub(crate) fn at(&self, done: u64, errors: u64) {
        self.0.set_position(done);
        if errors > 0 {
            self.0.set_message(format!("{errors} errors"));
        }
    }

    /// Moves the bar by `bytes`.
    pub(crate) fn moved(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl store::Progress for Bar {
    fn advance(&self, scanned: u64, _stored: u64) {
        self.0.inc(scanned);
    }
}
