//! `sojourn store key`: who may open an encrypted store.

use crate::output::{Output, Table, moment};
use crate::stores;
use block::{Error, Result};
use clap::Subcommand;
use engine::Config;
use engine::Home;
use engine::key;
use std::path::PathBuf;
use store::{Argon2Cost, KeySlot, NewKey, SlotKind};

/// The verbs of `sojourn store key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// List the key slots: each is a passphrase or a key file that opens the store
    #[command(after_help = "\
Examples:
  sojourn store key list")]
    List,
    /// Let another passphrase or key file open the store
    #[command(after_help = "\
Examples:
  sojourn store key add bob                                  asks for the passphrase twice
  sojourn store key add server2 --new-key-file server2.key")]
    Add(NewSlotArgs),
    /// Replace the passphrase or key file of a slot
    #[command(after_help = "\
Examples:
  sojourn store key rotate first
  SOJOURN_NEW_PASSPHRASE=… sojourn store key rotate first
  sojourn store key rotate server --new-key-file new.key

A key file is replaced by a key file: give --new-key-file. The old one no longer opens the store.
It does open an old copy of the store's keys/ object, and with it all that is in the store: the
master key stays the same. After a theft of both, make a new store and copy the images.")]
    Rotate(NewSlotArgs),
    /// Remove a slot; the last one stays
    #[command(after_help = "\
Examples:
  sojourn store key remove bob")]
    Remove(SlotArgs),
}

/// A slot and its new secret.
#[derive(Debug, clap::Args)]
pub(crate) struct NewSlotArgs {
    /// The slot
    #[arg(value_name = "SLOT")]
    name: String,
    /// The file that is to open the store: at least 32 bytes that nobody can guess. Else
    /// SOJOURN_NEW_PASSPHRASE, else a passphrase is asked for
    #[arg(long, value_name = "PATH")]
    new_key_file: Option<PathBuf>,
}

/// A slot.
#[derive(Debug, clap::Args)]
pub(crate) struct SlotArgs {
    /// The slot
    #[arg(value_name = "SLOT")]
    name: String,
}

pub(crate) async fn run(verb: &KeyCommand, home: &Home, output: Output) -> Result<()> {
    let keys = stores::open(home, &Config::of(home)?).await?.keys();
    match verb {
        KeyCommand::List => {
            let slots = keys.list().await?;
            output.print(&slots, || {
                let mut table = Table::new(&["SLOT", "OPENED BY", "CREATED"]);
                for slot in &slots {
                    let kind = slot.kind.as_str().replace('-', " ");
                    table.row([slot.name.clone(), kind, moment(slot.created)]);
                }
                table.render()
            })
        }
        KeyCommand::Add(new) => {
            // What cannot succeed asks for nothing.
            keys.list().await?;
            let secret = key::another(new.new_key_file.as_deref())?;
            let new = NewKey { name: &new.name, secret: &secret, cost: Argon2Cost::NORMAL };
            let slot = keys.add(&new).await?;
            output.print(&slot, || format!("key slot {} opens the store too", slot.name))
        }
        KeyCommand::Rotate(new) => {
            let slots = keys.list().await?;
            let is_file = |slot: &KeySlot| slot.name == new.name && slot.kind == SlotKind::KeyFile;
            // What kind of secret opens the store is nothing that a variable decides.
            if new.new_key_file.is_none() && slots.iter().any(is_file) {
                return Err(Error::invalid(format!(
                    "key slot {} is a key file: give its new one with --new-key-file PATH; for a \
                     passphrase instead, add another slot (`sojourn store key add`) and remove this one",
                    new.name
                )));
            }
            let secret = key::another(new.new_key_file.as_deref())?;
            let new = NewKey { name: &new.name, secret: &secret, cost: Argon2Cost::NORMAL };
            let slot = keys.rotate(&new).await?;
            output.print(&slot, || format!("key slot {} has a new secret", slot.name))
        }
        KeyCommand::Remove(which) => {
            keys.remove(&which.name).await?;
            output.done(&format!("key slot {} is removed", which.name))
        }
    }
}
