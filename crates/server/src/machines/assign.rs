//! A machine is assigned a disk, by a command or over HTTP.

use super::{list, secrets};
use block::{Error, Result};
use disk::Mode;
use engine::Home;
use engine::api::{DiskReply, DiskRequest};
use netboot::registry::{self, Designation, Machine, Method};
use netboot::sightings::{Sighting, TextUuid};
use netboot::{MacAddress, MachineUuid, Registry};
use serde::{Deserialize, Serialize};

/// What a machine starts from now on; what is not named stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// A disk that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// It gets a disk of this image, called as the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// That disk forgets what is written when its machine leaves.
    #[serde(default)]
    pub ephemeral: bool,
    /// Each of its writes is answered when the store has it.
    #[serde(default)]
    pub write_through: bool,
    /// How it reaches its disk: `iscsi` for a new machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Its name, which is also its host name: `m-` and its address for a new machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Parameters for its kernel, in place of those before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub append: Vec<String>,
}

/// What is known of a machine that is to be assigned a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineStanding {
    /// It is in the list.
    Listed,
    /// It asked and is not in the list: no machine has a disk for its card or its board.
    Waiting,
    /// It did not ask. It may be a machine that is in the list by its board, and is named by its card here.
    Unseen,
}

impl MachineStanding {
    /// That of a machine; `None` for a name that nobody has, which names no new one.
    fn of(who: &Designation, registry: &Registry, seen: &[Sighting]) -> Option<Self> {
        let asked = |seen: &&Sighting| match who {
            Designation::Mac(mac) => seen.mac == *mac,
            Designation::Uuid(uuid) => seen.uuid.is_some_and(|TextUuid(own)| own.matches(*uuid)),
            Designation::Name(_) => false,
        };
        // Of several it is not said which, and which one may be assigned does not matter.
        if !matches!(registry.named(who), Ok(None)) {
            return Some(Self::Listed);
        }
        let mut asked = seen.iter().filter(asked).peekable();
        match who {
            Designation::Name(_) => None,
            // One board may have several cards.
            _ if asked.peek().is_some() && asked.all(|seen| list::waits(registry, seen)) => {
                Some(Self::Waiting)
            }
            _ => Some(Self::Unseen),
        }
    }
}

impl Assignment {
    /// Has a machine of a home start from a disk, which `ask` makes or finds, if one of its standing `may` be
    /// assigned one; gives the machine. A running `sojourn netboot` follows within a second.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) for a new machine that is named by neither its card nor its board,
    /// [`Invalid`](block::ErrorKind::Invalid) when nothing says which disk it has, or when two things do;
    /// [`Conflict`](block::ErrorKind::Conflict) when another machine has its name, its card or its disk, and when
    /// somebody else changes it at the same time; any error from `may` and from `ask`, and any error from
    /// [`list::update`].
    pub async fn carry_out(
        self,
        home: &Home,
        who: &str,
        may: impl Fn(MachineStanding) -> Result<()> + Send + 'static,
        ask: impl AsyncFnOnce(DiskRequest) -> Result<DiskReply>,
    ) -> Result<Machine> {
        let who = Designation::of(who);
        let mut registry = list::load(home).await?;
        let seen = list::sightings(home).await?;
        let allowed = move |who: &Designation, registry: &Registry| {
            MachineStanding::of(who, registry, &seen).map_or(Ok(()), &may)
        };
        allowed(&who, &registry)?;
        let wanted = self.applied(&who, registry.named(&who)?)?;
        // What would be refused is, before a disk is made.
        registry.put(&who, wanted.clone())?;
        let made = match (&self.from, &self.disk, &wanted.disk) {
            (Some(from), _, Some(name)) => {
                let (name, from) = (name.clone(), from.clone());
                let mode = Mode::chosen(self.ephemeral, self.write_through)?;
                ask(DiskRequest::Create { name: name.clone(), from, mode, size: None }).await?;
                Some(name)
            }
            (_, Some(name), Some(_)) => {
                ask(DiskRequest::Show { name: name.clone() }).await?;
                None
            }
            _ => None,
        };
        let put = list::update(home, move |registry| {
            allowed(&who, registry)?;
            let machine = self.applied(&who, registry.named(&who)?)?;
            if machine.disk != wanted.disk {
                return Err(Error::conflict(format!(
                    "machine {} was changed by somebody else; try again",
                    machine.name
                )));
            }
            registry.put(&who, machine.clone())?;
            Ok(machine)
        });
        put.await.map_err(|e| match made {
            Some(disk) => {
                e.context(format!("disk {disk} was made, but its machine is not in the list"))
            }
            None => e,
        })
    }

    /// The machine as it is to be from now on.
    fn applied(&self, who: &Designation, before: Option<&Machine>) -> Result<Machine> {
        if self.disk.is_some() && self.from.is_some() {
            return Err(Error::invalid("either a disk that is there, or one from an image"));
        }
        let mode = Mode::chosen(self.ephemeral, self.write_through)?;
        if mode != Mode::Persistent && self.from.is_none() {
            return Err(Error::invalid(format!(
                "only a disk that is made can be made {mode}: say from which image"
            )));
        }
        let fresh = match who {
            Designation::Mac(mac) => fresh(format!("m-{}", mac.hex_digits()), Some(*mac), None),
            Designation::Uuid(uuid) => fresh(format!("m-{uuid}"), None, Some(*uuid)),
            Designation::Name(name) if before.is_none() => {
                return Err(Error::not_found(format!(
                    "no machine {name}; name a new one by its MAC address or UUID, which `sojourn machine \
                     list` shows, and call it {name} with --name"
                )));
            }
            Designation::Name(name) => fresh(name.clone(), None, None),
        };
        let mut machine = before.cloned().unwrap_or(fresh);
        if let Some(name) = &self.name {
            machine.name.clone_from(name);
        }
        registry::check_name(&machine.name)?;
        if let Some(method) = self.method {
            machine.method = method;
        }
        if self.from.is_some() {
            machine.disk = Some(machine.name.clone());
        } else if self.disk.is_some() {
            machine.disk.clone_from(&self.disk);
        }
        if machine.method == Method::Local {
            if self.from.is_some() || self.disk.is_some() {
                return Err(Error::invalid(format!(
                    "machine {} starts from its own disk and needs none of here: say --method iscsi or --method nbd",
                    machine.name
                )));
            }
            machine.disk = None;
        } else if machine.disk.is_none() {
            return Err(Error::invalid(format!(
                "machine {} has no disk yet: say --disk DISK or --from IMAGE",
                machine.name
            )));
        }
        if !self.append.is_empty() {
            machine.append.clone_from(&self.append);
        }
        machine.by_rule = false;
        Ok(machine)
    }
}

/// Forgets a machine of a home, whose disk stays; gives the machine.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) for one that is not in the list; any error from [`list::update`].
pub async fn forget(home: &Home, who: &str) -> Result<Machine> {
    let (text, who) = (who.to_owned(), Designation::of(who));
    let kept = home.machine_secrets();
    // Whoever gets this card assigned later is another machine. Its secret goes last: a machine that is listed has it.
    let then = move |machine: &Machine| secrets::forget_now(&kept, machine);
    let change =
        move |registry: &mut Registry| registry.forget(&who)?.ok_or_else(|| list::unknown(&text));
    list::update_then(home, change, then).await
}

/// The machine that a person means.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) for one that is not in the list.
pub fn known<'a>(registry: &'a Registry, who: &str) -> Result<&'a Machine> {
    registry.named(&Designation::of(who))?.ok_or_else(|| list::unknown(who))
}

fn fresh(name: String, mac: Option<MacAddress>, uuid: Option<MachineUuid>) -> Machine {
    let (disk, method, append) = Default::default();
    Machine { name, mac, uuid, disk, method, append, by_rule: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn made(wanted: &Assignment, who: &str, before: Option<&Machine>) -> Result<Machine> {
        wanted.applied(&Designation::of(who), before)
    }

    #[test]
    fn a_new_machine_needs_an_address_and_a_disk() {
        made(&Assignment::default(), "lab-1", None).unwrap_err();
        made(&Assignment::default(), "52:54:00:12:34:56", None).unwrap_err();
        let from = Assignment { from: Some("debian".into()), ..Assignment::default() };
        let machine = made(&from, "52:54:00:12:34:56", None).unwrap();
        assert_eq!(
            (machine.name.as_str(), machine.disk.as_deref()),
            ("m-525400123456", Some("m-525400123456"))
        );
        assert_eq!(machine.method, Method::Iscsi);
    }

    #[test]
    fn a_machine_that_is_listed_by_its_board_does_not_wait_by_its_card() {
        let (one, other) = ("52:54:00:12:34:56".parse().unwrap(), "52:54:00:12:34:57".parse());
        let (board, other) = (MachineUuid([1; 16]), other.unwrap());
        let mut registry = Registry::default();
        let listed =
            Machine { disk: Some("alice".into()), ..fresh("lab-1".into(), None, Some(board)) };
        registry.put(&Designation::Uuid(board), listed).unwrap();
        let seen = |mac, uuid| Sighting { mac, uuid, first_seen: 1, last_seen: 1, times: 1 };
        let seen = [seen(one, Some(TextUuid(board))), seen(other, None)];
        let standing = |who| MachineStanding::of(&who, &registry, &seen);
        assert_eq!(standing(Designation::Uuid(board)), Some(MachineStanding::Listed));
        assert_eq!(standing(Designation::Mac(one)), Some(MachineStanding::Unseen));
        assert_eq!(standing(Designation::Mac(other)), Some(MachineStanding::Waiting));
        let unseen = Designation::Mac(MacAddress([2; 6]));
        assert_eq!(standing(unseen), Some(MachineStanding::Unseen));
        assert_eq!(standing(Designation::of("lab-1")), Some(MachineStanding::Listed));
        assert_eq!(standing(Designation::of("lab-2")), None);
    }

    #[test]
    fn what_is_not_named_stays() {
        let before = Machine {
            disk: Some("alice".into()),
            method: Method::Nbd,
            append: vec!["quiet".into()],
            by_rule: true,
            ..fresh("lab-1".into(), Some("52:54:00:12:34:56".parse().unwrap()), None)
        };
        let renamed = Assignment { name: Some("lab-2".into()), ..Assignment::default() };
        let machine = made(&renamed, "lab-1", Some(&before)).unwrap();
        assert_eq!(machine, Machine { name: "lab-2".into(), by_rule: false, ..before.clone() });
        let local = Assignment { method: Some(Method::Local), ..Assignment::default() };
        let own = made(&local, "lab-1", Some(&before)).unwrap();
        assert_eq!(own.disk, None);
        // It is not said to have got a disk that it would not start from.
        for wanted in [
            Assignment { from: Some("debian".into()), ..Assignment::default() },
            Assignment { disk: Some("alice".into()), ..local },
        ] {
            assert_eq!(made(&wanted, "lab-1", Some(&own)).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn a_disk_is_either_there_or_made() {
        let from = Assignment { from: Some("debian".into()), ..Assignment::default() };
        let both = Assignment { disk: Some("alice".into()), ..from };
        let ephemeral = Assignment { from: None, ephemeral: true, ..both.clone() };
        for wrong in [both, ephemeral] {
            let error = made(&wrong, "52:54:00:12:34:56", None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}
