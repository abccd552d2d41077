//! Where the passphrase or the key file of an encrypted store comes from.
//!
//! In this order: `--key-file` (or `SOJOURN_KEY_FILE`), `SOJOURN_PASSPHRASE`, `key_file` of the
//! configuration, the terminal.

use crate::config::Config;
use crate::home::Home;
use block::{Error, Result};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use store::Secret;
use store::secret::LONGEST_KEY_FILE;
use zeroize::Zeroizing;

const PASSPHRASE: &str = "SOJOURN_PASSPHRASE";
const NEW_PASSPHRASE: &str = "SOJOURN_NEW_PASSPHRASE";

/// What opens the home's store, if anything was given and there is a terminal or none is needed.
///
/// # Errors
/// That of reading the key file; [`Invalid`](block::ErrorKind::Invalid) for an impossible secret.
pub fn given(home: &Home, config: &Config) -> Result<Option<Secret>> {
    given_for(home, config, "the store")
}

/// The secret of a store, found as by [`given`]; `store` is what the terminal calls it.
pub fn given_for(home: &Home, config: &Config, store: &str) -> Result<Option<Secret>> {
    if let Some(path) = home.key_file() {
        return read(path).map(Some);
    }
    if let Some(secret) = from_environment(PASSPHRASE)? {
        return Ok(Some(secret));
    }
    if let Some(path) = &config.key_file {
        return read(&home.resolve(Path::new(path))).map(Some);
    }
    ask(&format!("Passphrase of {store}: "))?.map(passphrase).transpose()
}

/// Refuses a store that is not encrypted where the configuration has a key for it, or where this home has `opened` it
/// with one: whoever answers in the store's place would be sent in clear what is written. A key that is given with a
/// command may be for another store.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied), naming what says so.
pub(crate) fn refuse_clear(config: &Config, opened: bool) -> Result<()> {
    let says_so = match &config.key_file {
        Some(path) => format!("key_file in sojourn.toml is {path}"),
        None if opened => "this home opened it with a key before".to_owned(),
        None => return Ok(()),
    };
    Err(Error::denied(format!(
        "it is not encrypted, and what is written would go there in clear, although {says_so}: find out who answers in \
         its place; if it is to be so, take the key out"
    )))
}

/// What is to open a new store: as [`given`], but a passphrase is asked for twice.
///
/// # Errors
/// Any error from [`given`]; [`Invalid`](block::ErrorKind::Invalid) when nothing was given.
pub fn first(home: &Home) -> Result<Secret> {
    chosen(home.key_file(), PASSPHRASE, "--key-file")
}

/// What is to open a store from now on: the file, `SOJOURN_NEW_PASSPHRASE`, or what is typed twice.
///
/// # Errors
/// Any error from [`first`].
pub fn another(key_file: Option<&Path>) -> Result<Secret> {
    chosen(key_file, NEW_PASSPHRASE, "--new-key-file")
}

fn chosen(key_file: Option<&Path>, variable: &str, option: &str) -> Result<Secret> {
    if let Some(path) = key_file {
        return read(path);
    }
    if let Some(secret) = from_environment(variable)? {
        return Ok(secret);
    }
    let Some(first) = ask("New passphrase of the store: ")? else {
        return Err(Error::invalid(format!(
            "there is no terminal to ask for a new passphrase; set {variable}, or give {option}"
        )));
    };
    let again = ask("The same again: ")?;
    if again.as_ref() != Some(&first) {
        return Err(Error::invalid("the two passphrases differ; try again"));
    }
    passphrase(first)
}

fn passphrase(text: Zeroizing<String>) -> Result<Secret> {
    Secret::passphrase(text.as_str().to_owned())
}

fn from_environment(variable: &str) -> Result<Option<Secret>> {
    match std::env::var(variable) {
        Ok(text) => Secret::passphrase(text).map(Some).map_err(|e| e.context(variable)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::invalid(format!("{variable} is not UTF-8; use a key file")))
        }
    }
}

/// Reads a key file.
///
/// # Errors
/// That of the file; [`Invalid`](block::ErrorKind::Invalid) when it cannot be a key.
pub fn read(path: &Path) -> Result<Secret> {
    let io = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Error::not_found(format!("there is no key file {}", path.display())).with_source(e)
        }
        _ => Error::io(format!("key file {}", path.display()), e),
    };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(LONGEST_KEY_FILE as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    Secret::key_file(bytes).map_err(|e| e.context(path.display()))
}

/// Asks on the terminal, without showing what is typed; `None` when there is no terminal.
fn ask(prompt: &str) -> Result<Option<Zeroizing<String>>> {
    let Ok(terminal) = File::options().read(true).write(true).open("/dev/tty") else {
        return Ok(None);
    };
    let Ok(mut quiet) = Quiet::new(terminal) else { return Ok(None) };
    let io = |e| Error::io("the terminal", e);
    quiet.terminal.write_all(prompt.as_bytes()).map_err(io)?;
    let typed = line(&mut quiet.terminal);
    let _ = quiet.terminal.write_all(b"\n");
    typed.map(Some)
}

/// Reads a line as it is typed: the terminal hands on every key.
fn line(terminal: &mut File) -> Result<Zeroizing<String>> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    const CLEAR: u8 = 21;
    let mut text = Zeroizing::new(Vec::with_capacity(256));
    let mut key = [0];
    loop {
        let read = terminal.read(&mut key).map_err(|e| Error::io("the terminal", e))?;
        match (read, key[0]) {
            (0, _) | (_, b'\r' | b'\n' | END) => break,
            (_, INTERRUPT) => return Err(Error::invalid("interrupted")),
            (_, CLEAR) => text.clear(),
            (_, 8 | 127) => {
                // A whole character, which may have several bytes.
                while text.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            (_, byte) if text.len() < 8192 => text.push(byte),
            _ => return Err(Error::invalid("the passphrase is too long; use a key file")),
        }
    }
    String::from_utf8(text.to_vec())
        .map(Zeroizing::new)
        .map_err(|_| Error::invalid("the passphrase is not UTF-8; use a key file"))
}

/// A terminal that shows nothing until this is dropped.
struct Quiet {
    terminal: File,
    before: Termios,
}

impl Quiet {
    fn new(terminal: File) -> rustix::io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut quiet = before.clone();
        // Keys come one by one, that of an interruption too: it must not leave the terminal mute.
        quiet.local_modes &= !(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}
