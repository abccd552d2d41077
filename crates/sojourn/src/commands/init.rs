//! `sojourn init`.

use super::runnable::{Invocation, Runnable, finish};
use crate::output::Output;
use block::{Error, ErrorKind, Result};
use engine::Config;
use engine::Home;
use engine::key;
use engine::world;
use objects::{OpenStoreOptions, Opened};
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use store::{Argon2Cost, NewKey, Secret, Settings, Store};

/// Arguments of `sojourn init`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn init                             store beside the disks, in the home
  sojourn init --store /srv/golden         store elsewhere; shared by several homes if it exists
  sojourn init --store s3://bucket/golden  in a bucket that exists; credentials as for other tools
  sojourn --home /tmp/try init             everything under /tmp/try
  sojourn init --encrypt                   asks for a passphrase, without which all is lost
  (umask 077; head -c 32 /dev/urandom > key); sojourn init --encrypt --key-file key")]
pub(crate) struct Args {
    /// Where images live: a directory, or a URL: file://, s3://, gs://, az://, https://. A store
    /// that is already there is used as it is [default: the directory `store` in the home]
    #[arg(long, value_name = "PATH|URL")]
    pub(crate) store: Option<String>,
    /// Encrypt the new store. Its key file is that of --key-file; else a passphrase is taken from
    /// SOJOURN_PASSPHRASE, or asked for
    #[arg(long)]
    pub(crate) encrypt: bool,
}

/// What `init` made.
#[derive(Serialize)]
struct Made {
    home: String,
    store: String,
    /// Whether the store is new, and not one that was there before.
    new_store: bool,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }
}

async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    if home.exists() {
        let path = home.config();
        return Err(Error::conflict(format!(
            "{} exists already; edit it, or give another --home",
            path.display()
        )));
    }
    // A relative path is meant from here, not from the home.
    let store = match args.store.as_deref() {
        Some("") => return Err(Error::invalid("--store is empty; give a directory or a URL")),
        Some(store) if !store.contains("://") => {
            let path = std::path::absolute(store).map_err(|e| Error::io(store, e))?;
            Some(path.display().to_string())
        }
        other => other.map(str::to_owned),
    };
    let named = store.clone().unwrap_or_else(|| Config::default().store);
    // Asked for before anything is made.
    let secret = if args.encrypt { Some(key::first(home)?) } else { None };
    let text = Config::template(store.as_deref(), home.key_file())?;
    let was_there = home.dir().exists();
    home.create()?;
    if store.is_none() {
        home.create_store(&home.resolve(named.as_ref()))?;
    }
    let made = store_at(&named, secret.as_ref(), home).await;
    let new_store = made.inspect_err(|_| {
        if !was_there {
            home.discard();
        }
    })?;
    write_config(home, &text)?;
    let made =
        Made { home: home.dir().display().to_string(), store: home.store_url(&named), new_store };
    output.print(&made, || {
        let kind = if made.new_store { "a new store" } else { "the store" };
        format!("{} is ready, with {kind} at {}", made.home, made.store)
    })
}

/// Makes a store, or finds one there; whether it is new.
async fn store_at(named: &str, secret: Option<&Secret>, home: &Home) -> Result<bool> {
    let place = home.store_url(named);
    let certificates = home.dir().join("tls");
    let opened = engine::places::create(&place, &certificates, &OpenStoreOptions::default())?;
    // Nothing can be made by way of a web server or a gateway.
    let web = engine::places::is_given(named);
    if !web {
        match make(&opened, secret).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            made => return made.map(|()| true),
        }
    }
    let given = async || match secret {
        Some(secret) => Ok(Some(secret.clone())),
        None => key::given(home, &Config::default()),
    };
    let found = Store::open_with(opened.backend, world::system(), given).await;
    let found = found.map_err(|e| match e.kind() {
        ErrorKind::NotFound if web => Error::not_found(format!(
            "there is no store at {place}; give the address of one that `sojourn store publish` listed"
        )),
        _ => e.context(format!("store {place}")),
    })?;
    if secret.is_some() && !found.settings().is_encrypted() {
        return Err(Error::conflict(format!(
            "there is a store at {named} already, and it is not encrypted; leave out --encrypt to use \
             it, or choose another place"
        )));
    }
    Ok(false)
}

/// Makes a store.
async fn make(opened: &Opened, secret: Option<&Secret>) -> Result<()> {
    let (backend, world) = (opened.backend.clone(), world::system());
    match secret {
        Some(secret) => {
            let settings = Settings::generate_encrypted(&*world.entropy)?;
            let new = NewKey { name: "first", secret, cost: Argon2Cost::NORMAL };
            Store::create_encrypted(backend, settings, world, &new).await?;
        }
        None => {
            let settings = Settings::generate(&*world.entropy)?;
            Store::create(backend, settings, world).await?;
        }
    }
    Ok(())
}

/// Writes the configuration last: it is what makes a directory a home.
fn write_config(home: &Home, text: &str) -> Result<()> {
    let path = home.config();
    let io = |e| Error::io(path.display(), e);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(io)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
    block::file::sync_directory(home.dir())
}
