//! Which borrowed disks are in use: those that a process of this home serves, and those that the kernel holds.

use super::control::{ControlRequest, Reply, ask, names};
use super::report::StatusView;
use block::Result;
use engine::home::Home;
use transient::dm::Mapper;

/// All of them.
///
/// # Errors
/// Any error from the home's directory.
pub async fn in_use(home: &Home) -> Result<Vec<StatusView>> {
    let mut all: Vec<StatusView> = Vec::new();
    for name in names(home)? {
        match ask(home, &name, &ControlRequest::Status).await {
            Ok(Some(Reply::Status(view))) => all.push(*view),
            // Dead, or on its way out.
            Ok(_) => {}
            Err(e) => tracing::warn!(name, error = e.message(), "a borrowed disk does not answer"),
        }
    }
    // Without device-mapper, or the right to ask it, there are none that this user could see.
    let mapped = block::offload(|| Ok(Mapper::open().and_then(|mapper| mapper.list()))).await?;
    all.extend(mapped.unwrap_or_default().into_iter().map(StatusView::mapped));
    Ok(all)
}
