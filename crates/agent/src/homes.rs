//! The homes of attached disks: one for each store, in `attached/` of the user's own home. Root's own home is the
//! package's server's by default, of which systemd makes all the server's user's: what root attached lies beside it.

use crate::marks;
use block::{ByteSize, Error, Result};
use engine::config::attached;
use engine::config::{Config, Pieces, Tls};
use engine::{Home, devices, home};
use gateway::GatewayUrl;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What is kept here of a store, unless the configuration says otherwise.
const KEPT: ByteSize = ByteSize(64 << 30);
/// Characters of a store's URL in the name of its home.
const TAIL: usize = 20;

/// Where a distant store is, as its home is found by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistantStore {
    /// An absolute path or a URL.
    pub url: String,
    /// The directory with the certificate that is shown there, if the URL names one.
    pub certificates: Option<PathBuf>,
}

impl DistantStore {
    /// Reads what the user wrote: a directory or a URL. `https://` is a server's gateway.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for an empty one, for a web server, and for the URL of a
    /// gateway that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let plain = |url: String| Self { url, certificates: None };
        if text.is_empty() {
            return Err(Error::invalid("--from is empty; give a directory or a URL"));
        }
        if text.starts_with("http://") {
            return Err(Error::invalid(format!(
                "{text}: disks are not written through a web server; give https:// of a server with a \
                 gateway, a bucket or a directory"
            )));
        }
        let text = match text.strip_prefix("https://") {
            Some(rest) => format!("gateway+https://{rest}"),
            None => text.to_owned(),
        };
        if GatewayUrl::is_meant(&text) {
            let url: GatewayUrl = text.parse()?;
            let certificates = url.certificates.clone();
            return Ok(Self { url: url.to_string(), certificates });
        }
        if text.contains("://") {
            return Ok(plain(text.trim_end_matches('/').to_owned()));
        }
        Ok(plain(absolute(&text)?))
    }
}

/// A path that does not depend on where we are; a URL as it is.
///
/// # Errors
/// That of the system, when the working directory is gone.
pub fn absolute(place: &str) -> Result<String> {
    if place.contains("://") {
        return Ok(place.to_owned());
    }
    let path = std::path::absolute(place).map_err(|e| Error::io(place, e))?;
    Ok(path.display().to_string())
}

/// What the user wants of the home of a store; `None` leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// More places that may have chunks.
    pub sources: Vec<String>,
    /// Bytes per second that go up at most; 0 is no limit.
    pub up: Option<ByteSize>,
    /// Bytes per second that are hoarded at most; 0 is no limit.
    pub down: Option<ByteSize>,
    /// The key file of an encrypted store.
    pub key_file: Option<PathBuf>,
    /// The directory with the certificate that is shown to a gateway.
    pub certificates: Option<PathBuf>,
    /// Whether other machines of the network are asked for chunks, and answered.
    pub peers: Option<bool>,
}

/// What [`prepare`] found a home to be, and made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// It was as it is to be.
    Unchanged,
    /// It was not there.
    New,
    /// What changed, a process that runs can be told.
    Changed,
    /// A process that runs has to be started anew.
    NeedsRestart,
}

/// The directory of all homes of attached disks.
fn above(own: &Home) -> PathBuf {
    match own.dir() == Path::new(home::ROOT_HOME) && rustix::process::geteuid().is_root() {
        true => beside(own.dir()),
        false => own.dir().join("attached"),
    }
}

/// That of root beside a home, or, while there is none, the one in it that an earlier version made.
fn beside(own: &Path) -> PathBuf {
    let (within, beside) = (own.join("attached"), own.with_file_name("sojourn-attached"));
    // The user of the home can make the one in it at any time.
    if within.is_dir() && !beside.exists() { within } else { beside }
}

/// The user and the group whose home `own` is, when root works on attached disks as that user: where they lie in it,
/// as [`Home::other_owner`] has it, and nobody where they lie beside it.
pub fn other_owner(own: &Home) -> Option<(u32, u32)> {
    own.other_owner().filter(|_| above(own).starts_with(own.dir()))
}

/// The home for the disks of a store, which may not be there yet.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a home that cannot be found.
pub fn of(own: &Home, store: &DistantStore) -> Result<Home> {
    let hash = blake3::hash(store.url.as_bytes()).to_hex();
    let place = store.url.split_once("://").map_or(store.url.as_str(), |(_, place)| place);
    let skipped = place.chars().count().saturating_sub(TAIL);
    let tail = place.chars().skip(skipped);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = tail.skip_while(|c| !c.is_ascii_alphanumeric()).map(plain).collect();
    Home::find(Some(&above(own).join(format!("{name}-{}", &hash.as_str()[..8]))))
}

/// All homes of attached disks, by path.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
pub fn all(own: &Home) -> Result<Vec<Home>> {
    let dir = above(own);
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == IoKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(dir.display(), e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|e| Error::io(dir.display(), e))?.path());
    }
    paths.sort();
    let homes = paths.iter().map(|path| Home::find(Some(path))).collect::<Result<Vec<_>>>()?;
    Ok(homes.into_iter().filter(Home::exists).collect())
}

/// The home in which a disk of this name is attached: that of `store`, if it is given.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is none,
/// [`Conflict`](block::ErrorKind::Conflict) when there are several; any error from the file system.
pub fn with_disk(own: &Home, disk: &str, store: Option<&str>) -> Result<Home> {
    store::check_name("disk", disk)?;
    // One that another machine took may be a device still.
    let is_device = |home: &Home| matches!(devices::of(home, disk), Ok(Some(_)));
    let has = |home: &Home| home.disks().join(disk).is_dir() || is_device(home);
    let homes = match store {
        Some(store) => vec![of(own, &DistantStore::parse(store)?)?],
        None => all(own)?,
    };
    let mut found = homes.into_iter().filter(has);
    match (found.next(), found.next()) {
        (Some(home), None) => Ok(home),
        (None, _) => Err(Error::not_found(format!(
            "no disk {disk:?} is attached here; see `sojourn attach status`"
        ))),
        (Some(_), Some(_)) => Err(Error::conflict(format!(
            "disks {disk:?} of several stores are attached; say which one with --from"
        ))),
    }
}

/// Makes the home of a store, or changes what its configuration says. `own` has the certificates that are
/// shown where no others are named.
///
/// # Errors
/// Any error from the configuration that is there and from the file system.
pub fn prepare(
    own: &Home,
    home: &Home,
    store: &DistantStore,
    options: &AttachOptions,
) -> Result<Preparation> {
    let is_new = !home.exists();
    let before = match is_new {
        false => Config::load(&home.config())?,
        true => Config {
            store: store.url.clone(),
            pieces: Pieces { size: KEPT, ..Pieces::default() },
            attach: Some(attached::Attach::default()),
            tls: Tls { dir: own.resolve(Path::new("tls")).display().to_string() },
            ..Config::default()
        },
    };
    let mut config = before.clone();
    if let Some(path) = &options.key_file {
        config.key_file = Some(path.display().to_string());
    }
    if let Some(path) = options.certificates.as_ref().or(store.certificates.as_ref()) {
        config.tls.dir = absolute(&path.display().to_string())?;
    }
    if let Some(peers) = options.peers {
        config.attach.get_or_insert_default().peers = peers;
    }
    let needs_restart = config != before;
    for source in &options.sources {
        if !config.sources.contains(source) {
            config.sources.push(source.clone());
        }
    }
    let attach = config.attach.get_or_insert_default();
    attach.up = options.up.unwrap_or(attach.up);
    attach.down = options.down.unwrap_or(attach.down);
    if config == before && !is_new {
        return Ok(match marks::wants_restart(home) {
            true => Preparation::NeedsRestart,
            false => Preparation::Unchanged,
        });
    }
    let dir = above(own);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|e| Error::io(dir.display(), e))?;
    home.create()?;
    let path = home.config();
    let text = match is_new {
        true => attached::text(&config)?,
        false => {
            let text = std::fs::read_to_string(&path).map_err(|e| Error::io(path.display(), e))?;
            attached::edited(&text, &before, &config)?
        }
    };
    let wants_restart = needs_restart && !is_new;
    if wants_restart {
        marks::set_wants_restart(home, true)?;
    }
    replace(&path, &text)?;
    if wants_restart {
        // A process that began meanwhile may have read what was there before.
        marks::set_wants_restart(home, true)?;
    }
    Ok(match is_new {
        true => Preparation::New,
        false if marks::wants_restart(home) => Preparation::NeedsRestart,
        false => Preparation::Changed,
    })
}

/// Notes that a process begins to look after the disks of a home, before it reads the configuration.
///
/// # Errors
/// Any error from the file system.
pub fn begin(home: &Home) -> Result<()> {
    marks::set_wants_restart(home, false)
}

/// Replaces a file, whole or not at all.
fn replace(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    };
    write().map_err(|e| Error::io(path.display(), e))?;
    block::file::sync_directory(path.parent().unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn store(text: &str) -> DistantStore {
        DistantStore::parse(text).unwrap()
    }

    #[test]
    fn a_store_is_the_same_however_it_is_written() {
        let gateway = store("https://lab.example.org:9443/?tls-certificates=/pki");
        assert_eq!(gateway.url, "gateway+https://lab.example.org:9443");
        assert_eq!(gateway.certificates, Some("/pki".into()));
        assert_eq!(store("gateway+https://lab.example.org").url, gateway.url);
        assert_eq!(store("s3://lab/images/"), store("s3://lab/images"));
        assert!(store("store").url.starts_with('/'));
        for bad in ["", "http://host/store", "https://host/store", "https://"] {
            assert_eq!(DistantStore::parse(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }

    #[test]
    fn what_root_attached_lies_beside_the_home_of_the_server_unless_it_lies_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("sojourn");
        assert_eq!(beside(&own), dir.path().join("sojourn-attached"));
        std::fs::create_dir_all(own.join("attached")).unwrap();
        assert_eq!(beside(&own), own.join("attached"));
        std::fs::create_dir_all(dir.path().join("sojourn-attached")).unwrap();
        assert_eq!(beside(&own), dir.path().join("sojourn-attached"), "whatever is made in it");
        let named = Home::find(Some(dir.path())).unwrap();
        assert_eq!(above(&named), dir.path().join("attached"), "a home that is named");
        if rustix::process::geteuid().is_root()
            && !Path::new(home::ROOT_HOME).join("attached").exists()
        {
            let default = Home::find(None).unwrap();
            assert_eq!(above(&default), Path::new("/var/lib/sojourn-attached"));
            assert_eq!(other_owner(&default), None);
        }
    }

    #[test]
    fn what_is_asked_for_is_kept_and_what_is_not_stays() {
        let dir = tempfile::tempdir().unwrap();
        let own = Home::find(Some(dir.path())).unwrap();
        let store = store("s3://lab/images");
        let home = of(&own, &store).unwrap();
        assert_eq!(with_disk(&own, "alice", None).unwrap_err().kind(), ErrorKind::NotFound);
        let mut options = AttachOptions { up: Some(ByteSize(1 << 20)), ..Default::default() };
        let did = |options: &AttachOptions| prepare(&own, &home, &store, options).unwrap();
        assert_eq!(did(&options), Preparation::New);
        assert_eq!(did(&options), Preparation::Unchanged);
        options.sources.push("/media/usb".into());
        assert_eq!(did(&options), Preparation::Changed);
        options.certificates = Some("/pki".into());
        assert_eq!(did(&options), Preparation::NeedsRestart);
        options.peers = Some(true);
        // Until a process has read it: the one that runs may be in use.
        for _ in 0..2 {
            assert_eq!(did(&options), Preparation::NeedsRestart);
        }
        options.down = Some(ByteSize(7));
        assert_eq!(did(&options), Preparation::NeedsRestart);
        begin(&home).unwrap();
        assert_eq!(did(&options), Preparation::Unchanged);
        options = AttachOptions { up: Some(ByteSize(0)), ..Default::default() };
        assert_eq!(did(&options), Preparation::Changed);
        assert_eq!(did(&AttachOptions::default()), Preparation::Unchanged);
        let config = Config::load(&home.config()).unwrap();
        assert_eq!(
            (config.store.as_str(), config.sources),
            ("s3://lab/images", vec!["/media/usb".into()])
        );
        assert_eq!(all(&own).unwrap().len(), 1);
        std::fs::create_dir(home.disks().join("alice")).unwrap();
        assert_eq!(with_disk(&own, "alice", None).unwrap().dir(), home.dir());
    }
}
