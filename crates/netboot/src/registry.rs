//! Which machine has which disk: one TOML file, replaced as a whole.

use crate::identity::Claim;
use crate::{MacAddress, MachineUuid};
use block::fs::{FsPath, Open};
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io;

/// The longest file that is read, in bytes.
const LONGEST: u64 = 8 << 20;
/// The most machines.
pub const MOST: usize = 20_000;
/// The longest name of a machine, which is also its host name (RFC 1123).
const LONGEST_NAME: usize = 63;
/// What the file begins with.
const HEADER: &str =
    "# Written by `sojourn machine`; what is changed here by hand is read, too.\n\n";

/// How a machine reaches its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// By iSCSI, with the boot loader on the disk: for any system.
    #[default]
    Iscsi,
    /// By NBD, with the kernel out of the disk's file system: for Linux with nbd-client in its
    /// initial RAM disk.
    Nbd,
    /// Not at all: it starts from its own disk.
    Local,
}

impl Method {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::Nbd => "nbd",
            Self::Local => "local",
        }
    }
}

/// A machine that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name, which is also its host name.
    pub name: String,
    /// Its card.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_optional_text")]
    pub mac: Option<MacAddress>,
    /// The number of its board.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_optional_text")]
    pub uuid: Option<MachineUuid>,
    /// Its disk; none where `method` is `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// How it reaches that.
    #[serde(default)]
    pub method: Method,
    /// More parameters for its kernel, where `method` is `nbd`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub append: Vec<String>,
    /// A rule made it, and not a person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_rule: bool,
}

impl Machine {
    /// Whether a machine that asks is this one: its card, or where no card is named the board. Where
    /// both are named, the card decides: a board with two cards may have two entries.
    pub fn is(&self, claim: &Claim) -> bool {
        match (self.mac, self.uuid) {
            (Some(mac), _) => mac == claim.mac,
            (None, Some(uuid)) => claim.uuid.is_some_and(|own| uuid.matches(own)),
            (None, None) => false,
        }
    }

    fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        let name = &self.name;
        if self.mac.is_none() && self.uuid.is_none() {
            return Err(Error::invalid(format!("machine {name} has neither a mac nor a uuid")));
        }
        if self.disk.is_none() && self.method != Method::Local {
            return Err(Error::invalid(format!(
                "machine {name} has no disk; only `local` needs none"
            )));
        }
        Ok(())
    }
}

/// Fails unless a name can be a host's: letters, digits, `-` and `.` inside, at most 63.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid).
pub fn check_name(name: &str) -> Result<()> {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let ends = [name.chars().next(), name.chars().last()];
    let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if name.len() <= LONGEST_NAME && name.chars().all(inside) && ends.into_iter().all(alphanumeric)
    {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name:?} cannot name a machine: letters, digits, and - and . inside, at most {LONGEST_NAME}"
    )))
}

/// Who a person means by a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Designation {
    /// A card.
    Mac(MacAddress),
    /// A board.
    Uuid(MachineUuid),
    /// A machine that has this name already.
    Name(String),
}

impl Designation {
    /// Reads a MAC address, a UUID, or a name.
    pub fn of(text: &str) -> Self {
        match (text.parse(), text.parse()) {
            (Ok(mac), _) => Self::Mac(mac),
            (_, Ok(uuid)) => Self::Uuid(uuid),
            _ => Self::Name(text.to_owned()),
        }
    }

    fn is(&self, machine: &Machine) -> bool {
        match self {
            Self::Mac(mac) => machine.mac == Some(*mac),
            Self::Uuid(uuid) => machine.uuid.is_some_and(|own| own.matches(*uuid)),
            Self::Name(name) => machine.name == *name,
        }
    }
}

/// All machines that are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    #[serde(default, rename = "machine", skip_serializing_if = "Vec::is_empty")]
    machines: Vec<Machine>,
}

impl Registry {
    /// Reads the file; one that is not there has no machines.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) naming the line when it is damaged;
    /// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be read.
    pub fn load(path: &FsPath) -> Result<Self> {
        let file = match path.open(Open::READ) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(path.error(e)),
        };
        let bytes = file.read_to_end(0, LONGEST + 1).map_err(|e| path.error(e))?;
        if bytes.len() as u64 > LONGEST {
            return Err(Error::invalid("it is longer than 8 MiB").context("the list of machines"));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::invalid("it is not text").context("the list of machines"))?;
        Self::parse(&text).map_err(|e| e.context("the list of machines"))
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for what is no such file, and for two machines that cannot
    /// be told apart.
    pub fn parse(text: &str) -> Result<Self> {
        let registry: Self = toml::from_str(text).map_err(|e| Error::invalid(e.to_string()))?;
        if registry.machines.len() > MOST {
            return Err(Error::invalid(format!("more than {MOST} machines")));
        }
        let mut names = std::collections::HashSet::new();
        let mut cards = std::collections::HashSet::new();
        for machine in &registry.machines {
            machine.check()?;
            let name = &machine.name;
            if !names.insert(name) || machine.mac.is_some_and(|mac| !cards.insert(mac)) {
                return Err(Error::invalid(format!(
                    "machine {name} is there twice, by name or by mac"
                )));
            }
        }
        Ok(registry)
    }

    /// Replaces the file; after that it survives a loss of power. The caller holds a lock against
    /// others who do.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) or [`Denied`](block::ErrorKind::Denied) when its directory
    /// takes no file, [`NoSpace`](block::ErrorKind::NoSpace) when it is full,
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the disk fails.
    pub fn save(&self, path: &FsPath) -> Result<()> {
        let text = toml::to_string_pretty(self)
            .map_err(|e| Error::internal("cannot write the list of machines").with_source(e))?;
        replace_file(path, format!("{HEADER}{text}").as_bytes())
    }

    /// The machines, by name.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// The machine that asks; one that is named by its card goes before one named by its board.
    pub fn find(&self, claim: &Claim) -> Option<&Machine> {
        let by_card = self.machines.iter().find(|machine| machine.mac == Some(claim.mac));
        by_card.or_else(|| self.machines.iter().find(|machine| machine.is(claim)))
    }

    /// The machine that a person means, if there is one.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the designation is of several.
    pub fn named(&self, who: &Designation) -> Result<Option<&Machine>> {
        Ok(self.position(who)?.and_then(|at| self.machines.get(at)))
    }

    /// Adds a machine, or puts it in the place of the one of this designation.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when another machine has its name, its card, or its disk, and when the
    /// designation is of several; [`Invalid`](block::ErrorKind::Invalid) when it is not complete.
    pub fn put(&mut self, who: &Designation, machine: Machine) -> Result<()> {
        machine.check()?;
        let at = self.position(who)?;
        let others = self.machines.iter().enumerate();
        let mut others = others.filter(|(other, _)| Some(*other) != at).map(|(_, other)| other);
        let same = |a: &Option<String>, b: &Option<String>| a.is_some() && a == b;
        let conflict = others.find(|other| {
            other.name == machine.name
                || (other.mac.is_some() && other.mac == machine.mac)
                || same(&other.disk, &machine.disk)
        });
        if let Some(other) = conflict {
            return Err(Error::conflict(format!(
                "machine {} has that name, card or disk; give another one, or `sojourn machine forget {}` first",
                other.name, other.name
            )));
        }
        if at.is_none() && self.machines.len() >= MOST {
            return Err(Error::no_space(format!(
                "there are {MOST} machines, and more are not kept"
            )));
        }
        if let Some(at) = at {
            self.machines.remove(at);
        }
        self.machines.push(machine);
        self.machines.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    /// Forgets a machine; gives it, if there is one.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the designation is of several.
    pub fn forget(&mut self, who: &Designation) -> Result<Option<Machine>> {
        Ok(self.position(who)?.map(|at| self.machines.remove(at)))
    }

    /// Where the machine is that a person means: a board with two cards may have two entries.
    fn position(&self, who: &Designation) -> Result<Option<usize>> {
        let mut found = self.machines.iter().enumerate().filter(|(_, machine)| who.is(machine));
        let Some((at, first)) = found.next() else { return Ok(None) };
        match found.next() {
            None => Ok(Some(at)),
            Some((_, second)) => Err(Error::conflict(format!(
                "that is the board of machines {} and {}: name one of them",
                first.name, second.name
            ))),
        }
    }
}

/// Replaces a file as a whole, durably.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) or [`Denied`](block::ErrorKind::Denied) when its directory takes
/// no file, [`NoSpace`](block::ErrorKind::NoSpace) when it is full,
/// [`Unavailable`](block::ErrorKind::Unavailable) when the disk fails.
pub fn replace_file(path: &FsPath, bytes: &[u8]) -> Result<()> {
    let fresh = path.with_extension("new");
    let _ = fresh.remove_file(); // of a process that was killed
    let write = || {
        let file = fresh.open(Open::NEW.private())?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()
    };
    write().map_err(|e| fresh.error(e))?;
    let left = fresh.replace(path).map_err(|e| path.error(e))?;
    fresh.settle(left)
}

/// Values that are written as text.
pub(crate) mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err = block::Error>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(from)?;
        text.parse().map_err(|e: block::Error| D::Error::custom(e.message()))
    }
}

/// The same, of values that may be missing.
mod as_optional_text {
    use serde::{Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err = block::Error>,
        D: Deserializer<'de>,
    {
        super::as_text::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(number: u8) -> Machine {
        Machine {
            name: format!("lab-{number}"),
            mac: Some(MacAddress([0x52, 0x54, 0, 0, 0, number])),
            uuid: None,
            disk: Some(format!("disk-{number}")),
            method: Method::Nbd,
            append: vec!["quiet".into()],
            by_rule: false,
        }
    }

    fn claim(number: u8) -> Claim {
        Claim { mac: MacAddress([0x52, 0x54, 0, 0, 0, number]), uuid: None }
    }

    fn put(registry: &mut Registry, machine: Machine) -> Result<()> {
        registry.put(&Designation::Name(machine.name.clone()), machine)
    }

    #[test]
    fn what_is_saved_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = FsPath::from(dir.path().join("machines.toml").as_path());
        assert_eq!(Registry::load(&path).unwrap(), Registry::default());
        let mut registry = Registry::default();
        for number in [2, 1] {
            put(&mut registry, machine(number)).unwrap();
            registry.save(&path).unwrap();
            assert_eq!(Registry::load(&path).unwrap(), registry);
        }
        assert_eq!(registry.machines()[0].name, "lab-1");
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
    }

    #[test]
    fn a_machine_is_found_by_its_card_or_its_board_and_no_other_is() {
        let mut registry = Registry::default();
        put(&mut registry, machine(1)).unwrap();
        let uuid = MachineUuid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        put(&mut registry, Machine { mac: None, uuid: Some(uuid), ..machine(2) }).unwrap();
        assert_eq!(registry.find(&claim(1)).unwrap().name, "lab-1");
        assert_eq!(registry.find(&claim(9)), None);
        let swapped = MachineUuid([4, 3, 2, 1, 6, 5, 8, 7, 9, 10, 11, 12, 13, 14, 15, 16]);
        for own in [uuid, swapped] {
            assert_eq!(
                registry.find(&Claim { uuid: Some(own), ..claim(9) }).unwrap().name,
                "lab-2"
            );
        }
        assert_eq!(registry.find(&Claim { uuid: Some(uuid), ..claim(1) }).unwrap().name, "lab-1");
    }

    #[test]
    fn two_machines_never_share_a_name_a_card_or_a_disk() {
        let mut registry = Registry::default();
        put(&mut registry, machine(1)).unwrap();
        let kind = |result: Result<()>| result.unwrap_err().kind();
        let conflict = block::ErrorKind::Conflict;
        let same_card = Machine { mac: machine(1).mac, ..machine(2) };
        assert_eq!(kind(put(&mut registry, same_card)), conflict);
        let same_disk = Machine { disk: machine(1).disk, ..machine(2) };
        assert_eq!(kind(put(&mut registry, same_disk)), conflict);
        let other = Designation::Mac(MacAddress([2; 6]));
        assert_eq!(
            kind(registry.put(
                &other,
                Machine {
                    mac: None,
                    uuid: Some(MachineUuid([1; 16])),
                    disk: None,
                    method: Method::Local,
                    ..machine(1)
                }
            )),
            conflict
        );
        put(&mut registry, Machine { disk: Some("new".into()), ..machine(1) }).unwrap();
        assert_eq!(registry.machines().len(), 1);
        assert!(registry.forget(&Designation::of("52:54:00:00:00:01")).unwrap().is_some());
        assert!(registry.machines().is_empty());
    }

    #[test]
    fn a_board_that_two_machines_name_changes_neither_of_them() {
        let board = MachineUuid([1; 16]);
        let mut registry = Registry::default();
        for number in [1, 2] {
            put(&mut registry, Machine { uuid: Some(board), ..machine(number) }).unwrap();
        }
        let who = Designation::Uuid(board);
        let both = registry.clone();
        let changed = Machine { method: Method::Nbd, uuid: Some(board), ..machine(1) };
        let refused = [
            registry.put(&who, changed.clone()).unwrap_err(),
            registry.forget(&who).unwrap_err(),
            registry.named(&who).unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.kind() == block::ErrorKind::Conflict));
        assert!(refused[0].message().contains("lab-1 and lab-2"), "{}", refused[0]);
        assert_eq!(registry, both);
        // One of them is named by its card or its name.
        registry.put(&Designation::Name("lab-1".into()), changed).unwrap();
        assert_eq!(registry.machines().len(), 2);
    }

    #[test]
    fn a_list_that_cannot_be_meant_is_refused() {
        for text in [
            "[[machine]]\nname = \"a\"\ndisk = \"d\"",
            "[[machine]]\nname = \"a b\"\nmac = \"02:00:00:00:00:01\"\ndisk = \"d\"",
            "[[machine]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"",
            "[[machine]]\nname = \"a\"\nmac = \"nonsense\"\ndisk = \"d\"",
            "[[machine]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"\ndisk = \"d\"\ncolour = 1",
        ] {
            Registry::parse(text).unwrap_err();
        }
        let good = "[[machine]]\nname = \"a\"\nmac = \"02-00-00-00-00-01\"\ndisk = \"d\"\n";
        assert_eq!(Registry::parse(good).unwrap().machines()[0].method, Method::Iscsi);
        Registry::parse(&good.repeat(2)).unwrap_err();
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = Registry::parse(&text);
            let _ = check_name(&text);
        }
    }
}
