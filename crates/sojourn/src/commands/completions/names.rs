//! The names of a home, as far as they are found at once and without asking anybody for anything.

use super::name_kind::NameKind;
use engine::{Config, Home};
use objects::is_remote;
use std::path::Path;
use std::time::Duration;
use store::Store;
use store::images::image_of;
use tokio::time::timeout;

/// Nobody waits longer for a key.
const PATIENCE: Duration = Duration::from_secs(2);
/// More names than these are of no use.
const MOST: usize = 10_000;

/// All names of a kind, in order.
pub(super) async fn of(home: &Home, kind: NameKind) -> Vec<String> {
    let mut names = match kind {
        NameKind::Disk => directories(&home.disks()),
        NameKind::Machine => directories(&home.vms()),
        NameKind::Image => images(home).await,
        NameKind::ImageOrDisk => {
            let mut names = images(home).await;
            names.extend(directories(&home.disks()));
            names
        }
    };
    names.sort_by(|one, other| crate::order::natural(one, other));
    names
}

/// The names of the directories in one; what begins with a point is something else.
fn directories(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().take(MOST);
    let names = entries.filter(|entry| entry.path().is_dir());
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

/// The images and versions of a store in a directory. One that would have to be asked for over a network, or opened
/// with a passphrase, is left alone.
async fn images(home: &Home) -> Vec<String> {
    let Ok(config) = Config::of(home) else { return Vec::new() };
    let place = home.store_url(&config.store);
    if is_remote(&place) || asks(home, &config, &place) {
        return Vec::new();
    }
    let listed = async {
        let store = engine::open_store(home, &config).await.ok()?;
        versions(&store).await
    };
    timeout(PATIENCE, listed).await.ok().flatten().unwrap_or_default()
}

/// Whether opening the store may ask for a passphrase.
fn asks(home: &Home, config: &Config, place: &str) -> bool {
    let dir = place.strip_prefix("file://").unwrap_or(place);
    let settings = std::fs::read_to_string(Path::new(dir).join("store.json")).unwrap_or_default();
    let given = home.key_file().is_some()
        || config.key_file.is_some()
        || std::env::var_os("SOJOURN_PASSPHRASE").is_some();
    settings.contains("\"encryption\"") && !given
}

async fn versions(store: &Store) -> Option<Vec<String>> {
    let listing = engine::image_views::views(store).await.ok()?;
    let mut names: Vec<String> = listing.into_iter().map(|view| view.image).collect();
    let newest: Vec<String> = names.iter().map(|name| image_of(name).to_owned()).collect();
    names.extend(newest);
    names.sort_unstable();
    names.dedup();
    names.truncate(MOST);
    Some(names)
}
