//! Secrets of machines: who asks for what a machine starts has to give its secret first, where it has one. Anybody in
//! the network can claim a card; what iPXE was given, or a person types, cannot be claimed.
//!
//! The home has a hash of each. Secrets are made here and not chosen, so that a hash without work to it will do.

use super::file;
use super::list;
use block::{Error, Result};
use engine::{Home, world};
use netboot::registry::{Designation, Machine};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// The random bytes of a secret.
const BYTES: usize = 10;
/// What a secret is written with, five bits for each: no letter that looks like another one.
const LETTERS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
/// What the hashes are for.
const CONTEXT: &str = "sojourn 2026-11-30 machine secret v1";

/// The hash of a machine's secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineSecret {
    /// Its card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    /// Its board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    /// In hexadecimal digits.
    hash: String,
}

/// What a machine's secret is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretVerdict {
    /// It gave its secret, or has none.
    Known,
    /// It has a secret, and gave none.
    Missing,
    /// It gave another one.
    Wrong,
}

impl MachineSecret {
    fn new(machine: &Machine, hash: String) -> Self {
        let (mac, uuid) =
            (machine.mac.map(|mac| mac.to_string()), machine.uuid.map(|uuid| uuid.to_string()));
        Self { mac, uuid, hash }
    }

    /// Whether it is of this machine, whatever that is called and by whichever of both it is listed now.
    fn is_of(&self, machine: &Machine) -> bool {
        let mac = machine.mac.map(|mac| mac.to_string());
        let uuid = machine.uuid.map(|uuid| uuid.to_string());
        mac.is_some() && mac == self.mac || uuid.is_some() && uuid == self.uuid
    }
}

fn hash(secret: &str) -> blake3::Hash {
    blake3::derive_key(CONTEXT, secret.as_bytes()).into()
}

/// Letters in groups of four, as a person reads them from a screen.
fn written(random: [u8; BYTES]) -> String {
    let number = random.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
    let mut text = String::new();
    for letter in 0..BYTES * 8 / 5 {
        if letter > 0 && letter.is_multiple_of(4) {
            text.push('-');
        }
        text.push(char::from(LETTERS[(number >> (5 * letter)) as usize % LETTERS.len()]));
    }
    text
}

/// Judges what a machine gave.
///
/// # Errors
/// When it cannot be told: nothing is started then.
pub(crate) async fn judge(
    home: &Home,
    machine: &Machine,
    given: Option<&str>,
) -> Result<SecretVerdict> {
    let all: Vec<MachineSecret> = file::read(home.machine_secrets()).await.map_err(untold)?;
    let Some(secret) = all.iter().find(|secret| secret.is_of(machine)) else {
        return Ok(SecretVerdict::Known);
    };
    let Some(given) = given else { return Ok(SecretVerdict::Missing) };
    let damaged = |_| untold(Error::invalid("a hash is damaged"));
    // Compared in the same time whatever it is.
    Ok(match blake3::Hash::from_hex(&secret.hash).map_err(damaged)? == hash(given) {
        true => SecretVerdict::Known,
        false => SecretVerdict::Wrong,
    })
}

/// The error of a list that cannot be read. Without it every machine would start for whoever claims its card.
fn untold(error: Error) -> Error {
    let text = "it is not known which machines have a secret: see machine-secrets.json in the home of the server";
    Error::new(error.kind(), text).with_source(error)
}

/// Gives a machine a new secret, in place of any earlier one, and tells it: nobody can afterwards.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) for a machine that is not in the list; any error from the file system and
/// from reading the list.
pub async fn create(home: &Home, who: &str) -> Result<String> {
    let mut random = [0; BYTES];
    world::system().entropy.fill(&mut random)?;
    let secret = written(random);
    let mut hex = String::new();
    let _ = write!(hex, "{}", hash(&secret).to_hex());
    change(home, who, Some(hex)).await?;
    Ok(secret)
}

/// Has a machine start without a secret.
///
/// # Errors
/// The same.
pub async fn remove(home: &Home, who: &str) -> Result<()> {
    change(home, who, None).await
}

async fn change(home: &Home, who: &str, hash: Option<String>) -> Result<()> {
    let (text, who, path) = (who.to_owned(), Designation::of(who), home.machine_secrets());
    // Under the lock of the list: one changes both at a time.
    list::update(home, move |registry| {
        let machine = registry.named(&who)?.ok_or_else(|| list::unknown(&text))?;
        let mut all: Vec<MachineSecret> = file::read_now(&path)?;
        all.retain(|secret| !secret.is_of(machine));
        all.extend(hash.map(|hash| MachineSecret::new(machine, hash)));
        file::write_now(&path, &all)
    })
    .await
}

/// Drops the secret of a machine that is forgotten, in the caller's thread.
///
/// # Errors
/// The same.
pub(super) fn forget_now(path: &Path, machine: &Machine) -> Result<()> {
    let mut all = file::read_now::<MachineSecret>(path)?;
    let before = all.len();
    all.retain(|secret| !secret.is_of(machine));
    match all.len() == before {
        true => Ok(()),
        false => file::write_now(path, &all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netboot::registry::Method;

    #[tokio::test]
    async fn a_machine_with_a_secret_is_known_by_it_until_it_is_removed_or_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        let machine = Machine {
            name: "lab-1".into(),
            mac: Some("52:54:00:00:00:01".parse().unwrap()),
            uuid: None,
            disk: None,
            method: Method::Local,
            append: Vec::new(),
            by_rule: false,
        };
        let who = Designation::Name("lab-1".into());
        let listed = machine.clone();
        let card = Designation::of("52:54:00:00:00:01");
        list::update(&home, move |registry| registry.put(&card, listed)).await.unwrap();
        let judge = |given: Option<String>| {
            let (home, machine) = (&home, &machine);
            async move { judge(home, machine, given.as_deref()).await.unwrap() }
        };
        assert_eq!(judge(None).await, SecretVerdict::Known);
        let first = create(&home, "lab-1").await.unwrap();
        let second = create(&home, "52:54:00:00:00:01").await.unwrap();
        assert_ne!(first, second);
        assert_eq!(judge(None).await, SecretVerdict::Missing);
        assert_eq!(judge(Some(first)).await, SecretVerdict::Wrong);
        assert_eq!(judge(Some(second.clone())).await, SecretVerdict::Known);
        assert!(!std::fs::read_to_string(home.machine_secrets()).unwrap().contains(&second));
        // It is of the card, and not of the name.
        let renamed = Machine { name: "lab-2".into(), ..machine.clone() };
        list::update(&home, move |registry| registry.put(&who, renamed)).await.unwrap();
        assert_eq!(judge(None).await, SecretVerdict::Missing);
        // Nor is it lost where a machine comes to be listed by its board as well.
        let board: netboot::MachineUuid = "11111111-1111-1111-1111-111111111111".parse().unwrap();
        let both = Machine { uuid: Some(board), ..machine.clone() };
        assert_eq!(super::judge(&home, &both, None).await.unwrap(), SecretVerdict::Missing);
        std::fs::rename(home.machine_secrets(), dir.path().join("kept")).unwrap();
        std::fs::write(home.machine_secrets(), "[").unwrap();
        super::judge(&home, &both, None).await.unwrap_err();
        std::fs::rename(dir.path().join("kept"), home.machine_secrets()).unwrap();
        remove(&home, "lab-2").await.unwrap();
        assert_eq!(judge(None).await, SecretVerdict::Known);
        create(&home, "lab-2").await.unwrap();
        super::super::assign::forget(&home, "lab-2").await.unwrap();
        assert_eq!(judge(None).await, SecretVerdict::Known);
    }

    #[test]
    fn a_secret_has_all_its_random_bits_and_stands_in_an_address_as_it_is() {
        let secrets = [[0; BYTES], [0xff; BYTES], [0x5a; BYTES]].map(written);
        assert_eq!(secrets[0], "aaaa-aaaa-aaaa-aaaa");
        assert_eq!(secrets[1], "9999-9999-9999-9999");
        let mut letters = LETTERS.to_vec();
        letters.dedup();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), 32);
        let mut seen: Vec<String> = (0..BYTES * 8)
            .map(|bit| {
                written(std::array::from_fn(|at| if at == bit / 8 { 1 << (bit % 8) } else { 0 }))
            })
            .collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), BYTES * 8, "each bit counts");
    }
}
