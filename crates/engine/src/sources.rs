//! Other stores that are asked for what is missing or damaged in the home's.

use crate::config::Config;
use crate::home::Home;
use block::{Error, Result};
use objects::OpenOptions;
use store::Store;

/// Opens another store, a directory or a URL; an encrypted one with the key of the home's.
///
/// # Errors
/// Those of the store, naming the place.
pub async fn open(place: &str, home: &Home, config: &Config) -> Result<Store> {
    let opened = async {
        let backend = objects::open(place, &OpenOptions::default())?.backend;
        let secret = async || crate::key::given(home, config);
        Store::open_with(backend, crate::world::system(), secret).await
    };
    opened.await.map_err(|e: Error| e.context(format!("source {place}")))
}

/// Adds stores that the user named for this one command.
///
/// # Errors
/// As [`open`]; [`Invalid`](block::ErrorKind::Invalid) when one has another hash key.
pub async fn add(store: &Store, places: &[String], home: &Home, config: &Config) -> Result<()> {
    for place in places {
        let source = open(place, home, config).await?;
        store.add_source(source).map_err(|e| e.context(format!("source {place}")))?;
    }
    Ok(())
}

/// Adds the configured ones. One that is not there now, such as a disk that is not plugged in, is
/// left out.
pub async fn add_configured(store: &Store, home: &Home, config: &Config) {
    for place in &config.sources {
        let absolute = super::place(home, place);
        if let Err(error) = add(store, &[absolute], home, config).await {
            tracing::warn!(%error, "a source of the configuration is left out");
        }
    }
}
