//! The terminal that `sojourn top` is shown in.

use super::picture::{self, ScreenState, Size};
use super::rates::ServerRates;
use crate::output::raw;
use block::{Error, Result};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// The terminal while it is ours: the alternate screen, keys as they are pressed, no cursor. It is
/// as it was when this is dropped.
pub(super) struct Screen {
    before: Termios,
    colour: bool,
}

impl Screen {
    /// # Errors
    /// Any error from the terminal.
    pub(super) fn take() -> Result<Self> {
        let fail = |e: rustix::io::Errno| Error::io("the terminal", e.into());
        let before = tcgetattr(std::io::stdin()).map_err(fail)?;
        let mut keys = before.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        keys.special_codes[SpecialCodeIndex::VMIN] = 1;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(std::io::stdin(), OptionalActions::Now, &keys).map_err(fail)?;
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        // no-color.org
        let screen = Self { before, colour: !set("NO_COLOR") && !dumb };
        raw(b"\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// What fits on it now.
    pub(super) fn size() -> Size {
        let size = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_row > 0);
        size.map_or(Size { rows: 24, columns: 80 }, |size| Size {
            rows: size.ws_row.into(),
            columns: size.ws_col.into(),
        })
    }

    /// # Errors
    /// Any error from the terminal.
    pub(super) fn show(&self, now: &ServerRates, view: &ScreenState) -> Result<()> {
        let picture = picture::on_screen(now, view, Self::size(), self.colour);
        raw(format!("\x1b[H\x1b[2J{picture}").as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = raw(b"\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
