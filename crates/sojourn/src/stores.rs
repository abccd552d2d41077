//! The stores that commands open: what a command was doing in one ends when it is interrupted.

use crate::interrupt;
use block::Result;
use engine::{Config, Home, StoreUse};
use store::Store;

/// Opens the store of a home.
///
/// # Errors
/// Any error from [`engine::open_store`].
pub(crate) async fn open(home: &Home, config: &Config) -> Result<Store> {
    open_for(home, config, StoreUse::Command).await
}

/// The same for a command that is not as others.
///
/// # Errors
/// Any error from [`engine::open_store`].
pub(crate) async fn open_for(home: &Home, config: &Config, what_for: StoreUse) -> Result<Store> {
    let (store, _) = engine::open_store_for(home, config, what_for).await?;
    interrupt::remember(&store);
    Ok(store)
}
