//! `sojourn vm console`: this terminal becomes the serial console of a guest.

use super::folder::MachineFolder;
use block::{Error, Result};
use engine::Home;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{ErrorKind as IoKind, IsTerminal, Write};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;

/// The key that leaves a console, as with telnet and virsh: Ctrl-].
const LEAVE: u8 = 0x1d;
/// Bytes that are passed on at a time.
const PASSED: usize = 4096;

/// The terminal while each key goes to the guest. It is as it was when this is dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn take() -> Result<Self> {
        let failed = |e: rustix::io::Errno| Error::io("the terminal", e.into());
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut keys = before.clone();
        keys.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &keys).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Joins standard input and output to a guest's console, until its machine ends or the user leaves.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when the machine does not run here; any error from the terminal.
pub(super) async fn run(home: &Home, name: &str) -> Result<()> {
    let folder = MachineFolder::of(home, name)?;
    folder.spec()?;
    let guest = match UnixStream::connect(folder.console()).await {
        Err(e) if matches!(e.kind(), IoKind::NotFound | IoKind::ConnectionRefused) => {
            return Err(Error::conflict(format!(
                "machine {name:?} does not run here; see 'sojourn vm list'"
            )));
        }
        other => other.map_err(|e| Error::io(folder.console().display(), e))?,
    };
    let terminal = match std::io::stdin().is_terminal() {
        true => {
            let _ =
                writeln!(std::io::stderr(), "the console of machine {name:?}; Ctrl-] leaves it");
            Some(RawTerminal::take()?)
        }
        false => None,
    };
    relay(guest, tokio::io::stdin(), tokio::io::stdout(), terminal.is_some()).await
}

/// Passes bytes on, both ways, until the guest's side ends, or the key is pressed that leaves. When the input
/// ends, what the guest says is still shown.
async fn relay(
    guest: UnixStream,
    mut input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    keys: bool,
) -> Result<()> {
    let failed = |e| Error::io("the console of the guest", e);
    let (mut says, mut hears) = guest.into_split();
    let typed = async {
        let mut buf = [0; PASSED];
        loop {
            let len = input.read(&mut buf).await.map_err(failed)?;
            let typed = buf.get(..len).unwrap_or_default();
            let leave = typed.iter().position(|key| keys && *key == LEAVE);
            hears.write_all(&typed[..leave.unwrap_or(len)]).await.map_err(failed)?;
            match (leave, len) {
                (Some(_), _) => return Ok(()),
                (None, 0) => std::future::pending().await,
                _ => {}
            }
        }
    };
    let said = async {
        let mut buf = [0; PASSED];
        loop {
            let len = says.read(&mut buf).await.map_err(failed)?;
            if len == 0 {
                return Ok(());
            }
            let shown = buf.get(..len).unwrap_or_default();
            output.write_all(shown).await.map_err(failed)?;
            output.flush().await.map_err(failed)?;
        }
    };
    tokio::select! {
        done = typed => done,
        done = said => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn keys_reach_the_guest_up_to_the_one_that_leaves() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        relay(ours, &b"ls\x03\r\x1dlost"[..], tokio::io::sink(), true).await.unwrap();
        let mut heard = Vec::new();
        guest.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"ls\x03\r");
    }

    #[tokio::test]
    async fn a_file_is_passed_on_whole_and_what_the_guest_says_is_shown_until_it_ends() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let (output, mut shown) = duplex(64);
        let talk = async {
            let mut heard = [0; 2];
            guest.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard, [b'x', LEAVE]);
            guest.write_all(b"login: ").await.unwrap();
            drop(guest);
        };
        let (relayed, ()) = tokio::join!(relay(ours, &b"x\x1d"[..], output, false), talk);
        relayed.unwrap();
        let mut text = String::new();
        shown.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "login: ");
    }
}
