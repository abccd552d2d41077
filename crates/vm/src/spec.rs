//! What a machine is made of.

use crate::{Accelerator, agent, document_version};
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use store::check_name;

/// The version of the description of a machine without an agent's port, and of one with it, the newest that is read.
const VERSION: u32 = 1;
const VERSION_WITH_AGENT: u32 = 2;
/// Memory that a machine may have, in bytes: 32 MiB to 1 TiB.
const MEMORY: std::ops::RangeInclusive<u64> = 32 << 20..=1 << 40;
/// Processors that a machine may have.
const CPUS: std::ops::RangeInclusive<u32> = 1..=255;
/// The longest description, in bytes: it is a label of a ref.
pub const MAX_LEN: usize = 32 << 10;

/// A machine: all that has to be the same where it goes on. Everything that QEMU would choose by itself
/// and might choose otherwise elsewhere is pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// The version of this description: 2 if it has a port for an agent, else 1.
    pub version: u32,
    /// The machine's name.
    pub name: String,
    /// Tells machines of the same name apart, and is what the guest sees as its UUID.
    pub uuid: String,
    /// The name of its disk.
    pub disk: String,
    /// Bytes of memory, a multiple of 1 MiB.
    pub memory: u64,
    /// Processors.
    pub cpus: u32,
    /// QEMU's versioned machine type, such as `pc-q35-7.2`.
    pub machine: String,
    /// QEMU's CPU model.
    pub cpu: String,
    /// What runs the guest's code: a state of one cannot go on under the other.
    pub accelerator: Accelerator,
    /// Whether it has a screen, shown over VNC.
    pub screen: bool,
    /// Whether it has a port for the QEMU guest agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent: bool,
    /// The MAC address of its network card.
    pub mac: String,
    /// More arguments for QEMU.
    pub arguments: Vec<String>,
}

impl MachineSpec {
    /// The machine type of new machines: the oldest QEMU that is supported has it, and newer ones keep it.
    pub const MACHINE: &str = "pc-q35-7.2";

    /// A new machine with QEMU's defaults pinned. `random` becomes its UUID and MAC address.
    pub fn new(
        name: &str,
        disk: &str,
        memory: u64,
        cpus: u32,
        accelerator: Accelerator,
        random: [u8; 16],
    ) -> Self {
        let (uuid, mac) = identity(random);
        Self {
            version: VERSION,
            name: name.to_owned(),
            uuid,
            disk: disk.to_owned(),
            memory,
            cpus,
            machine: Self::MACHINE.to_owned(),
            cpu: accelerator.default_cpu().to_owned(),
            accelerator,
            screen: false,
            agent: false,
            mac,
            arguments: Vec::new(),
        }
    }

    /// Gives it a port for the QEMU guest agent, unless its arguments do.
    pub fn give_agent(&mut self) {
        if !self.arguments.iter().any(|argument| argument.contains(agent::PORT)) {
            (self.agent, self.version) = (true, VERSION_WITH_AGENT);
        }
    }

    /// The same machine as another one, with another disk. `random` becomes its UUID, and the address of its
    /// network card unless it keeps that.
    #[must_use]
    pub fn twin(&self, name: &str, disk: &str, random: [u8; 16], keep_mac: bool) -> Self {
        let (uuid, mac) = identity(random);
        let mac = if keep_mac { self.mac.clone() } else { mac };
        Self { name: name.to_owned(), disk: disk.to_owned(), uuid, mac, ..self.clone() }
    }

    /// Checks what a user or a parcel says.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a description of a newer version,
    /// [`Invalid`](block::ErrorKind::Invalid) for anything out of range.
    pub fn check(&self) -> Result<()> {
        let invalid =
            |what: String| Err(Error::invalid(format!("machine {:?}: {what}", self.name)));
        if !is_read(self.version) {
            return Err(Error::unsupported(format!(
                "machine {:?} is described in version {}, and this build reads versions up to {VERSION_WITH_AGENT}; \
                 use a newer sojourn",
                self.name, self.version
            )));
        }
        if self.agent != (self.version == VERSION_WITH_AGENT) {
            return invalid(format!(
                "a description of version {} that is wrong about a port for an agent",
                self.version
            ));
        }
        check_name("machine", &self.name)?;
        check_name("disk", &self.disk)?;
        if !MEMORY.contains(&self.memory) || !self.memory.is_multiple_of(1 << 20) {
            return invalid(format!(
                "memory of {} bytes; it has to be a multiple of 1 MiB from 32 MiB to 1 TiB",
                self.memory
            ));
        }
        if !CPUS.contains(&self.cpus) {
            return invalid(format!("{} processors; 1 to 255 are possible", self.cpus));
        }
        // These stand between commas on QEMU's command line.
        for (what, text) in [
            ("machine type", &self.machine),
            ("CPU model", &self.cpu),
            ("UUID", &self.uuid),
            ("MAC address", &self.mac),
        ] {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-:+".contains(c);
            if text.is_empty() || text.len() > 128 || !text.chars().all(plain) {
                return invalid(format!("the {what} {text:?} has characters that it cannot have"));
            }
        }
        if let Some(own) = self.arguments.iter().find(|argument| is_ours(argument)) {
            return invalid(format!(
                "the QEMU argument {own} is chosen by sojourn; leave it out (see 'sojourn vm create --help')"
            ));
        }
        Ok(())
    }

    /// The description as text.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is longer than [`MAX_LEN`].
    pub fn encode(&self) -> Result<String> {
        let text = serde_json::to_string(self)
            .map_err(|e| Error::internal("a machine cannot be described").with_source(e))?;
        if text.len() > MAX_LEN {
            return Err(Error::invalid(format!(
                "machine {:?}: its QEMU arguments are too long together",
                self.name
            )));
        }
        Ok(text)
    }

    /// Reads a description, and checks it.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when it is none; any error from [`check`](Self::check).
    pub fn decode(text: &str) -> Result<Self> {
        let damaged =
            |e| Error::corrupt(format!("the description of a machine cannot be read: {e}"));
        if text.len() > MAX_LEN {
            return Err(Error::corrupt("the description of a machine is too long"));
        }
        let version = document_version::read(text.as_bytes()).map_err(damaged)?;
        if !is_read(version) {
            return Err(Error::unsupported(format!(
                "a machine is described in version {version}, and this build reads versions up to \
                 {VERSION_WITH_AGENT}; use a newer sojourn"
            )));
        }
        let spec: Self = serde_json::from_str(text).map_err(damaged)?;
        spec.check()?;
        Ok(spec)
    }
}

fn is_read(version: u32) -> bool {
    (VERSION..=VERSION_WITH_AGENT).contains(&version)
}

/// A random UUID (RFC 9562, version 4), and an address for a network card, of the range that QEMU uses.
fn identity(mut bytes: [u8; 16]) -> (String, String) {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    (uuid, format!("52:54:00:{:02x}:{:02x}:{:02x}", bytes[13], bytes[14], bytes[15]))
}

/// Whether an argument takes out of our hands what suspending depends on.
fn is_ours(argument: &str) -> bool {
    let option = argument.strip_prefix("--").or(argument.strip_prefix('-'));
    let ours = [
        "m",
        "machine",
        "M",
        "accel",
        "enable-kvm",
        "cpu",
        "smp",
        "uuid",
        "qmp",
        "incoming",
        "S",
        "daemonize",
        "mem-path",
        "pidfile",
        "snapshot",
        "loadvm",
    ];
    option.is_some_and(|option| ours.contains(&option))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use block::ErrorKind;
    use proptest::prelude::*;

    pub(crate) fn spec() -> MachineSpec {
        MachineSpec::new("work", "alice", 512 << 20, 2, Accelerator::Tcg, [0xff; 16])
    }

    #[test]
    fn a_description_is_read_back() {
        let spec =
            MachineSpec { arguments: vec!["-kernel".into(), "/boot/vmlinuz".into()], ..spec() };
        assert_eq!(MachineSpec::decode(&spec.encode().unwrap()).unwrap(), spec);
        assert_eq!(spec.uuid, "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn a_description_of_version_1_is_read_and_written_the_same() {
        let text = include_str!("../tests/golden/machine-v1.json").trim_end();
        let spec = MachineSpec::decode(text).unwrap();
        let random = std::array::from_fn(|i| i as u8);
        let made = MachineSpec::new("work", "alice", 2 << 30, 2, Accelerator::Tcg, random);
        let arguments = vec!["-kernel".into(), "/boot/vmlinuz".into()];
        assert_eq!(spec, MachineSpec { screen: true, arguments, ..made });
        assert_eq!(spec.encode().unwrap(), text);
    }

    #[test]
    fn a_description_of_version_2_is_read_and_written_the_same() {
        let text = include_str!("../tests/golden/machine-v2.json").trim_end();
        let mut spec =
            MachineSpec::decode(include_str!("../tests/golden/machine-v1.json")).unwrap();
        spec.give_agent();
        assert_eq!(MachineSpec::decode(text).unwrap(), spec);
        assert_eq!(spec.encode().unwrap(), text);
        let wrong = text.replace("\"version\":2", "\"version\":1");
        assert_eq!(MachineSpec::decode(&wrong).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_machine_whose_arguments_bring_a_port_for_an_agent_gets_no_second_one() {
        let port = "virtserialport,chardev=mine,name=org.qemu.guest_agent.0".to_owned();
        let mut own = MachineSpec { arguments: vec!["-device".into(), port], ..spec() };
        own.give_agent();
        assert!(!own.agent && own.version == 1);
    }

    #[test]
    fn a_twin_is_the_same_hardware_under_another_identity() {
        let one = MachineSpec { screen: true, ..spec() };
        let other = one.twin("play", "bob", [1; 16], false);
        assert!(other.uuid != one.uuid && other.mac != one.mac);
        let back = MachineSpec { mac: one.mac.clone(), uuid: one.uuid.clone(), ..other };
        assert_eq!(MachineSpec { name: "work".into(), disk: "alice".into(), ..back }, one);
        assert_eq!(one.twin("play", "bob", [1; 16], true).mac, one.mac);
    }

    #[test]
    fn a_newer_description_asks_for_a_newer_build() {
        let newer = r#"{"version":3,"something":"else"}"#;
        assert_eq!(MachineSpec::decode(newer).unwrap_err().kind(), ErrorKind::Unsupported);
        let unknown = spec().encode().unwrap().replace("\"screen\"", "\"scream\"");
        assert_eq!(MachineSpec::decode(&unknown).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn what_cannot_be_run_is_refused_by_name() {
        let says = |change: fn(&mut MachineSpec), what: &str| {
            let mut spec = spec();
            change(&mut spec);
            let error = spec.check().unwrap_err();
            assert!(error.message().contains(what), "{error}");
        };
        says(|spec| spec.memory = 1, "memory of 1 bytes");
        says(|spec| spec.memory += 4096, "multiple of 1 MiB");
        says(|spec| spec.cpus = 0, "0 processors");
        says(|spec| spec.cpu = "max,enforce".into(), "CPU model");
        says(|spec| spec.disk = "../x".into(), "disk");
        says(|spec| spec.arguments = vec!["-m".into(), "1G".into()], "-m is chosen");
        says(|spec| spec.arguments = vec!["--incoming".into()], "--incoming");
    }

    proptest! {
        #[test]
        fn any_text_is_a_description_or_an_error(text in ".{0,200}") {
            let _ = MachineSpec::decode(&text);
        }
    }
}
