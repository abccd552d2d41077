//! What must hold after a power cut: the home opens, and everything is there that was promised.

use crate::dice::Dice;
use crate::file_system::FileSystem;
use crate::ledger::{Ledger, State};
use crate::writer::{attach, read};
use serde_json::Value;
use sojourn_tests::tool::texts;
use sojourn_tests::{Client, Home, Server};
use std::os::unix::fs::FileTypeExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;

/// Checks the disk `image`, whose power was cut at `position`: mounts it at `at`, looks at everything
/// there, and checks the file system.
///
/// # Errors
/// What is wrong.
pub(crate) fn image(
    file_system: FileSystem,
    image: &Path,
    at: &Path,
    ledger: &Ledger,
    position: usize,
    dice: &mut Dice,
) -> Result<(), String> {
    file_system.recover(image)?;
    let mounted = file_system.mount(image, at)?;
    let look = AssertUnwindSafe(|| home(file_system, at, ledger, position, dice));
    let looked = std::panic::catch_unwind(look).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without words".into()))
    });
    mounted.unmount()?;
    looked?;
    file_system.check(image)
}

fn home(
    file_system: FileSystem,
    at: &Path,
    ledger: &Ledger,
    position: usize,
    dice: &mut Dice,
) -> Result<(), String> {
    let home = Home::at(at);
    if file_system == FileSystem::Ext4WithoutJournal {
        ["control.sock", "control.new"].iter().for_each(|name| move_away(&home, name));
    }
    let server = home.serve();
    disks(&server, ledger, position, dice)?;
    images(&server, ledger, position)?;
    verify(&home, file_system)?;
    server.stop();
    snapshot(&home, ledger, position, dice)
}

/// Does as the server says that refuses to start: a socket cannot be synced, so its name may lead to what
/// its number was before.
fn move_away(home: &Home, name: &str) {
    let socket = home.home().join(name);
    let found = std::fs::symlink_metadata(&socket);
    if found.is_ok_and(|found| !found.file_type().is_socket()) {
        std::fs::rename(&socket, home.home().join(format!("{name}.away"))).expect("move it away");
    }
}

/// Reads all disks, and writes to them.
fn disks(server: &Server, ledger: &Ledger, position: usize, dice: &mut Dice) -> Result<(), String> {
    for disk in &ledger.disks {
        let life = *disk.life.lock().expect("life");
        let named = |error: String| format!("disk {} ({life:?}): {error}", disk.name);
        match attach(server.socket(), &disk.name).map_err(|e| named(e.to_string()))? {
            Err(refused) if life.must_be(position) => return Err(named(refused)),
            Err(_) => {}
            Ok(_) if life.must_not_be(position) => return Err(named("is there".into())),
            Ok(mut client) => {
                let history = disk.history.lock().expect("history");
                let bytes = read_all(&mut client).map_err(named)?;
                history.check(0, &bytes, &history.after_cut(position)).map_err(named)?;
                // It works on.
                let fresh = [dice.below(256) as u8; 4096];
                let written = client.write(0, &fresh) == 0 && client.flush() == 0;
                if !written || client.read(0, fresh.len()) != fresh {
                    return Err(named("does not take a write".into()));
                }
            }
        }
    }
    Ok(())
}

/// Reads all images.
fn images(server: &Server, ledger: &Ledger, position: usize) -> Result<(), String> {
    for state in &ledger.images {
        let named = |error: String| format!("{} ({:?}): {error}", state.name, state.life);
        match attach(server.socket(), &state.name).map_err(|e| named(e.to_string()))? {
            Err(refused) if state.life.must_be(position) => return Err(named(refused)),
            Err(_) => {}
            Ok(_) if state.life.must_not_be(position) => return Err(named("is there".into())),
            Ok(mut client) => {
                let bytes = read_all(&mut client).map_err(named)?;
                state.content.check(&bytes).map_err(named)?;
            }
        }
    }
    Ok(())
}

/// Verifies the store. Where removed files come back with anything in them, what nobody needs may be
/// damaged.
fn verify(home: &Home, file_system: FileSystem) -> Result<(), String> {
    let output = home.command().args(["verify", "--json"]).output().expect("sojourn");
    let (out, err) = texts(&output);
    let report: Value =
        serde_json::from_str(&out).map_err(|e| format!("verify: {e}: {out}{err}"))?;
    let faults = report["faults"].as_array().ok_or("verify tells no faults")?;
    let needed = |fault: &&Value| fault["touches"].as_array().is_none_or(|names| !names.is_empty());
    let wrong = match file_system.mixes_removed_files() {
        true => faults.iter().find(needed),
        false => faults.first(),
    };
    match (wrong, output.status.code()) {
        (None, Some(0)) => Ok(()),
        (None, Some(7)) if !faults.is_empty() => Ok(()),
        _ => Err(format!("verify: {}\n{out}{err}", output.status)),
    }
}

/// Rolls a disk back to one of its snapshots, and reads it.
fn snapshot(home: &Home, ledger: &Ledger, position: usize, dice: &mut Dice) -> Result<(), String> {
    let there: Vec<&State> =
        ledger.snapshots.iter().filter(|state| state.life.must_be(position)).collect();
    if there.is_empty() {
        return Ok(());
    }
    let state = there[dice.below(there.len() as u64) as usize];
    let (disk, snapshot) = state.name.split_once('@').expect("a snapshot's name");
    home.run(&["disk", "rollback", disk, snapshot]);
    let server = home.serve();
    let mut client = Client::attach(server.socket(), disk);
    let checked = read_all(&mut client).and_then(|bytes| state.content.check(&bytes));
    client.detach();
    server.stop();
    checked.map_err(|error| format!("{} ({:?}): {error}", state.name, state.life))
}

fn read_all(client: &mut Client) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(client.size as usize);
    for part in 0..client.size >> 20 {
        bytes.extend(read(client, part << 20, 1 << 20).map_err(|error| error.to_string())?);
    }
    Ok(bytes)
}
