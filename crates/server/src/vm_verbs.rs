//! Verbs on virtual machines as they travel over HTTP: which right each takes, and which command carries it out.
//!
//! Nothing that is asked here becomes an argument of QEMU or names a program: such arguments are given on the machine of
//! the home, by who may use all that its user may.

use access::TokenRight;
use block::{Error, Result};
use serde::Serialize;
use store::check_name;
use store::machines::machine_of;

/// The longest CPU model, in bytes.
const LONGEST_MODEL: usize = 128;
/// The most digits of a parcel's number.
const MOST_DIGITS: usize = 20;

/// A change of a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum VmRequest {
    /// Describe one; nothing starts.
    Create {
        /// Its name.
        name: String,
        /// The disk that it has.
        disk: String,
        /// Bytes of memory, if not the usual ones.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<u64>,
        /// Processors, if not one.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpus: Option<u32>,
        /// QEMU's CPU model, if not the usual one.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<String>,
        /// Give it a screen.
        screen: bool,
    },
    /// Boot it.
    Start {
        /// Its name.
        name: String,
        /// Although it is suspended.
        fresh: bool,
        /// Although the host that ran it has fallen silent.
        lost: bool,
    },
    /// Stop it as it is, and store it.
    Suspend {
        /// Its name.
        name: String,
        /// Until it is in the store.
        wait: bool,
    },
    /// Go on with what was suspended.
    Resume {
        /// Its name, or that of a parcel.
        name: String,
        /// Although the host that ran it has fallen silent.
        lost: bool,
        /// Leave in the store what its guest does not touch of its memory.
        no_fill: bool,
    },
    /// Store it, and let it run on.
    Checkpoint {
        /// Its name.
        name: String,
    },
    /// Make its disk what it was in a parcel.
    Rollback {
        /// Its name, or that of a parcel.
        name: String,
        /// Although the host that ran it has fallen silent.
        lost: bool,
    },
    /// Throw away what it did since its newest parcel.
    Discard {
        /// Its name.
        name: String,
        /// Although the host that ran it has fallen silent.
        lost: bool,
    },
    /// Make another one of a parcel.
    Clone {
        /// The name of the machine, or of a parcel.
        name: String,
        /// The new one's name.
        new: String,
        /// The name of its disk, if not that of the machine.
        #[serde(skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
        /// It keeps the address of the network card.
        keep_mac: bool,
    },
    /// End it.
    Stop {
        /// Its name.
        name: String,
        /// At once.
        force: bool,
        /// No machine, but the sending of what one was suspended as.
        sending: bool,
    },
    /// Remove it with its parcels, or one parcel.
    Remove {
        /// Its name, or that of a parcel.
        name: String,
        /// Although the host that ran it has fallen silent.
        lost: bool,
    },
}

impl VmRequest {
    /// The machine that it is about, or a parcel of that.
    pub fn name(&self) -> &str {
        match self {
            Self::Create { name, .. }
            | Self::Start { name, .. }
            | Self::Suspend { name, .. }
            | Self::Resume { name, .. }
            | Self::Checkpoint { name }
            | Self::Rollback { name, .. }
            | Self::Discard { name, .. }
            | Self::Clone { name, .. }
            | Self::Stop { name, .. }
            | Self::Remove { name, .. } => name,
        }
    }

    /// The machine and the disk that it makes, if it makes a machine. The disk of a new machine is there already.
    pub(crate) fn makes(&self) -> Option<(&str, &str)> {
        match self {
            Self::Create { name, disk, .. } => Some((name, disk)),
            Self::Clone { new, disk, .. } => Some((new, disk.as_ref().unwrap_or(new))),
            _ => None,
        }
    }

    /// The machine that it works on, if that is to be there.
    pub(crate) fn works_on(&self) -> Option<&str> {
        match self {
            Self::Create { .. } => None,
            other => Some(machine_of(other.name())),
        }
    }

    /// The right that it takes: `Admin` for what loses data, or what another host may still be at.
    pub(crate) fn right(&self) -> TokenRight {
        match self {
            Self::Create { .. }
            | Self::Start { fresh: false, lost: false, .. }
            | Self::Suspend { .. }
            | Self::Resume { lost: false, .. }
            | Self::Checkpoint { .. }
            | Self::Clone { .. }
            | Self::Stop { force: false, sending: false, .. } => TokenRight::Operate,
            Self::Start { .. }
            | Self::Resume { .. }
            | Self::Rollback { .. }
            | Self::Discard { .. }
            | Self::Stop { .. }
            | Self::Remove { .. } => TokenRight::Admin,
        }
    }

    /// The command that carries it out. No name is taken for an option.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for what is no name, or no CPU model.
    pub(crate) fn arguments(&self) -> Result<Vec<String>> {
        check_vm_name(self.name())?;
        let flags = |flags: &[(&str, bool)]| -> Vec<String> {
            let set = flags.iter().filter(|(_, is_set)| *is_set);
            set.map(|(flag, _)| format!("--{flag}")).collect()
        };
        let (verb, options) = match self {
            Self::Create { name, disk, memory, cpus, cpu, screen } => {
                check_name("machine", name)?;
                check_name("disk", disk)?;
                let mut options = vec![format!("--disk={disk}")];
                options.extend(memory.map(|bytes| format!("--memory={bytes}")));
                options.extend(cpus.map(|count| format!("--cpus={count}")));
                if let Some(model) = cpu {
                    check_model(model)?;
                    options.push(format!("--cpu={model}"));
                }
                options.extend(flags(&[("screen", *screen)]));
                // What follows `--` there is for QEMU; a name begins with a letter or a digit.
                return Ok([words("vm create"), options, vec![name.clone()]].concat());
            }
            Self::Clone { name, new, disk, keep_mac } => {
                check_name("machine", new)?;
                let mut options = flags(&[("keep-mac", *keep_mac)]);
                if let Some(disk) = disk {
                    check_name("disk", disk)?;
                    options.push(format!("--disk={disk}"));
                }
                let names = vec!["--".to_owned(), name.clone(), new.clone()];
                return Ok([words("vm clone"), options, names].concat());
            }
            Self::Start { fresh, lost, .. } => {
                ("start", flags(&[("fresh", *fresh), ("lost", *lost)]))
            }
            Self::Suspend { wait, .. } => ("suspend", flags(&[("wait", *wait)])),
            Self::Resume { lost, no_fill, .. } => {
                ("resume", flags(&[("lost", *lost), ("no-fill", *no_fill)]))
            }
            Self::Checkpoint { .. } => ("checkpoint", Vec::new()),
            Self::Rollback { lost, .. } => ("rollback", flags(&[("lost", *lost)])),
            Self::Discard { lost, .. } => ("discard", flags(&[("lost", *lost)])),
            Self::Stop { force, sending, .. } => {
                ("stop", flags(&[("force", *force), ("sending", *sending)]))
            }
            Self::Remove { lost, .. } => ("remove", flags(&[("lost", *lost)])),
        };
        let name = vec!["--".to_owned(), self.name().to_owned()];
        Ok([words("vm"), vec![verb.to_owned()], options, name].concat())
    }
}

/// The words of a command.
pub(crate) fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

/// Fails for what is neither the name of a machine nor that of a parcel, such as `work@5`.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid).
pub(crate) fn check_vm_name(name: &str) -> Result<()> {
    let (machine, number) = name.split_once('@').unwrap_or((name, "0"));
    check_name("machine", machine)?;
    match number.len() <= MOST_DIGITS
        && !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
    {
        true => Ok(()),
        false => {
            Err(Error::invalid(format!("a parcel of machine {machine:?} is named as {machine}@5")))
        }
    }
}

fn check_model(model: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:+".contains(&byte);
    match (1..=LONGEST_MODEL).contains(&model.len()) && model.bytes().all(fits) {
        true => Ok(()),
        false => Err(Error::invalid(
            "the CPU model has characters that it cannot have: it is a name of QEMU's, such as Nehalem",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn create(name: &str, disk: &str, cpu: Option<&str>) -> VmRequest {
        VmRequest::Create {
            name: name.into(),
            disk: disk.into(),
            memory: Some(1 << 30),
            cpus: Some(2),
            cpu: cpu.map(str::to_owned),
            screen: true,
        }
    }

    /// Each verb, with all that it may ask for.
    fn all(name: &str) -> Vec<VmRequest> {
        let name = || name.to_owned();
        vec![
            create(&name(), "alice", Some("Nehalem")),
            VmRequest::Start { name: name(), fresh: true, lost: true },
            VmRequest::Suspend { name: name(), wait: true },
            VmRequest::Resume { name: name(), lost: true, no_fill: false },
            VmRequest::Checkpoint { name: name() },
            VmRequest::Rollback { name: name(), lost: true },
            VmRequest::Discard { name: name(), lost: true },
            VmRequest::Clone {
                name: name(),
                new: "play".into(),
                disk: Some("bob".into()),
                keep_mac: true,
            },
            VmRequest::Stop { name: name(), force: true, sending: false },
            VmRequest::Remove { name: name(), lost: true },
        ]
    }

    #[test]
    fn a_verb_is_a_command() {
        let told: Vec<String> =
            all("work").iter().map(|verb| verb.arguments().unwrap().join(" ")).collect();
        assert_eq!(
            told,
            [
                "vm create --disk=alice --memory=1073741824 --cpus=2 --cpu=Nehalem --screen work",
                "vm start --fresh --lost -- work",
                "vm suspend --wait -- work",
                "vm resume --lost -- work",
                "vm checkpoint -- work",
                "vm rollback --lost -- work",
                "vm discard --lost -- work",
                "vm clone --keep-mac --disk=bob -- work play",
                "vm stop --force -- work",
                "vm remove --lost -- work",
            ]
        );
        let least = VmRequest::Clone {
            name: "work@5".into(),
            new: "play".into(),
            disk: None,
            keep_mac: false,
        };
        assert_eq!(least.arguments().unwrap().join(" "), "vm clone -- work@5 play");
        assert_eq!(least.makes(), Some(("play", "play")));
        assert_eq!(least.works_on(), Some("work"));
    }

    #[test]
    fn what_is_no_name_becomes_no_argument() {
        let bad = [
            "",
            "-x",
            "--lost",
            "--qemu=/bin/sh",
            "work --lost",
            "../work",
            "work\0",
            "work\n",
            "work@",
            "work@-1",
            "work@x",
            "work@5@6",
            "@5",
            "wörk",
            "work@999999999999999999999",
        ];
        for name in bad {
            for verb in all(name) {
                let refused = verb.arguments().unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Invalid, "{verb:?}");
            }
            let disk = create("work", name, None);
            let new = VmRequest::Clone {
                name: "work".into(),
                new: name.into(),
                disk: None,
                keep_mac: false,
            };
            let its_disk = VmRequest::Clone {
                name: "work".into(),
                new: "play".into(),
                disk: Some(name.into()),
                keep_mac: false,
            };
            for verb in [disk, new, its_disk] {
                assert_eq!(verb.arguments().unwrap_err().kind(), ErrorKind::Invalid, "{verb:?}");
            }
        }
        // A new machine is no parcel.
        create("work@5", "alice", None).arguments().unwrap_err();
        for model in ["", "host,help", "a b", "x\0", "=", &"x".repeat(129)] {
            create("work", "alice", Some(model)).arguments().unwrap_err();
        }
    }

    #[test]
    fn what_loses_data_takes_the_right_to_administer() {
        for verb in all("work") {
            let is_admin = !matches!(
                verb,
                VmRequest::Create { .. }
                    | VmRequest::Suspend { .. }
                    | VmRequest::Checkpoint { .. }
                    | VmRequest::Clone { .. }
            );
            let expected = if is_admin { TokenRight::Admin } else { TokenRight::Operate };
            assert_eq!(verb.right(), expected, "{verb:?}");
        }
        let name = || "work".to_owned();
        for verb in [
            VmRequest::Start { name: name(), fresh: false, lost: false },
            VmRequest::Resume { name: name(), lost: false, no_fill: false },
            VmRequest::Stop { name: name(), force: false, sending: false },
        ] {
            assert_eq!(verb.right(), TokenRight::Operate, "{verb:?}");
        }
        for verb in [
            VmRequest::Rollback { name: name(), lost: false },
            VmRequest::Discard { name: name(), lost: false },
            VmRequest::Remove { name: name(), lost: false },
            VmRequest::Start { name: name(), fresh: false, lost: true },
            VmRequest::Start { name: name(), fresh: true, lost: false },
        ] {
            assert_eq!(verb.right(), TokenRight::Admin, "{verb:?}");
        }
    }
}
