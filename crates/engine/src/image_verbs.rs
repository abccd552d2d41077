//! What the verbs on image versions do: the same for a command and for the server.

use crate::image_views::Users;
use block::{Error, Result};
use store::{ImageName, RefKind, Store, images};

/// Takes its name from an image version.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a name without a tag, [`Conflict`](block::ErrorKind::Conflict)
/// while a disk or a snapshot stands on the version, [`NotFound`](block::ErrorKind::NotFound).
pub async fn remove(store: &Store, name: &str) -> Result<()> {
    let name = version(name, "remove")?;
    let record = images::resolve(store, &name).await?;
    let users = Users::load(store).await?.of(&record);
    if !users.is_empty() {
        return Err(Error::conflict(format!(
            "image {name} is used by {}; remove or rebase them first",
            users.join(", ")
        )));
    }
    store.refs().remove(RefKind::Image, &record.name, record.sequence).await
}

/// Brings back an image version that was removed.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a name without a tag; any error from [`images::restore`].
pub async fn restore(store: &Store, name: &str) -> Result<()> {
    let name = version(name, "restore")?;
    images::restore(store, RefKind::Image, &name.to_string()).await.map(|_| ())
}

/// A name with its tag: a verb that changes versions is about one of them.
fn version(name: &str, verb: &str) -> Result<ImageName> {
    let name: ImageName = name.parse()?;
    match name.tag {
        Some(_) => Ok(name),
        None => Err(Error::invalid(format!(
            "say which version of {name} to {verb}: {name}:TAG; `sojourn image list` shows them"
        ))),
    }
}
