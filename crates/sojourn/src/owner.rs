//! Root on another user's home works as that user. What it makes there is then the user's, whose
//! server can read it; and a link that the user put there leads only where the user may go.

use crate::cli::Cli;
use block::{Error, ErrorKind, Result};
use engine::Home;
use nix::unistd::{Gid, Uid, User, initgroups, setgid, setgroups, setuid};
use std::ffi::CString;

/// The user that root has become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner(u32);

impl Owner {
    /// Becomes the owner of the home that the command works on, for good, when root started it and the
    /// home is another user's. Must be called before any thread begins and before anything in the home
    /// is opened. What needs root itself stays root.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) when the system does not let root become that user.
    pub(crate) fn become_of(cli: &mut Cli) -> Result<Option<Self>> {
        let elsewhere = cli.global.server.is_some();
        if !Uid::effective().is_root() || elsewhere {
            return Ok(None);
        }
        // A home that cannot be found is the command's to complain about.
        let Ok(home) = Home::find(cli.global.home.as_deref()) else { return Ok(None) };
        let Some((user, group)) = cli.command.owner_of(&home) else { return Ok(None) };
        // The default is another one for another user.
        cli.global.home = Some(home.dir().to_owned());
        change(user, group).map_err(|e| {
            let dir = home.dir().display();
            Error::denied(format!(
                "the home {dir} is of user {user}, and root cannot become that user here: {e}; run this \
                 as that user: sudo -u '#{user}' sojourn --home {dir} ..."
            ))
        })?;
        Ok(Some(Self(user)))
    }

    /// The error of a command, which says as whom it failed where that may be why.
    pub(crate) fn explain(self, error: Error) -> Error {
        if error.kind() != ErrorKind::Denied {
            return error;
        }
        let Self(user) = self;
        let text = format!("{} (root works as user {user}, whose home this is)", error.message());
        Error::denied(text).with_source(error)
    }
}

/// Gives up root for a user: the groups first, as only root may change them, and the user last. A user
/// that the system has no name for has no other groups than that of the home.
fn change(user: u32, group: u32) -> nix::Result<()> {
    let uid = Uid::from_raw(user);
    match User::from_uid(uid).ok().flatten() {
        Some(User { name, gid, .. }) => {
            initgroups(&CString::new(name).map_err(|_| nix::Error::EINVAL)?, gid)?;
            setgid(gid)?;
        }
        None => {
            let gid = Gid::from_raw(group);
            setgroups(&[gid])?;
            setgid(gid)?;
        }
    }
    setuid(uid)
}
