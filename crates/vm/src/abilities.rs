//! What a QEMU can run.

use crate::launch::{self, Launched};
use crate::{Accelerator, MachineSpec, Monitor};
use block::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// The oldest QEMU that is supported: that of Debian 12.
pub const OLDEST: (u32, u32) = (7, 2);
/// How long QEMU has to open its monitor, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a QEMU has: asked of it once, before a machine starts or goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Its version.
    pub version: (u32, u32),
    /// The machine types, aliases included.
    pub machines: BTreeSet<String>,
    /// The CPU models.
    pub cpus: BTreeSet<String>,
    /// The devices that it has of those that were asked for.
    pub devices: BTreeSet<String>,
}

impl Abilities {
    /// Asks a QEMU what it has for a machine, by starting it without one in the directory `scratch`.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no such program;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it does not answer.
    pub async fn of(qemu: &Path, scratch: &Path, spec: &MachineSpec) -> Result<Self> {
        let socket = scratch.join("probe.sock");
        let _ = std::fs::remove_file(&socket);
        let arguments = [
            "-machine".into(),
            "none".into(),
            "-nodefaults".into(),
            "-display".into(),
            "none".into(),
            "-qmp".into(),
            format!("unix:{},server=on,wait=off", socket.display()).into(),
        ];
        let mut launched = launch::qemu(qemu, &arguments, &scratch.join("probe.log"))?;
        let outcome = tokio::select! {
            asked = Self::ask(&socket, spec) => asked,
            ended = launched.ended() => Err(ended),
        };
        let outcome = match outcome {
            Err(e) if e.kind() == ErrorKind::Unavailable => Err(launched.why_it_ended(e).await),
            other => other,
        };
        launched.kill();
        let _ = std::fs::remove_file(&socket);
        outcome
    }

    async fn ask(socket: &Path, spec: &MachineSpec) -> Result<Self> {
        let monitor = Monitor::connect(socket, PATIENCE, None).await?;
        let names = |value: &Value, key: &str| -> BTreeSet<String> {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(|one| Some(one[key].as_str()?.to_owned())).collect()
        };
        let machines = monitor.execute("query-machines", Value::Null).await?;
        let cpus = monitor.execute("query-cpu-definitions", Value::Null).await?;
        let mut types = names(&machines, "name");
        types.extend(names(&machines, "alias"));
        // One by one: a list of all has QEMU load all of its modules, and one that does not fit ends it.
        let mut there = BTreeSet::new();
        for device in devices(spec) {
            let asked = json!({"typename": device});
            match monitor.execute("device-list-properties", asked).await {
                Ok(_) => drop(there.insert(device)),
                Err(e) if e.kind() == ErrorKind::Internal => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self {
            version: monitor.version(),
            machines: types,
            cpus: names(&cpus, "name"),
            devices: there,
        })
    }

    /// Says in one sentence why a machine cannot run here. `works` are the accelerators that do.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported), naming what is missing and what to do.
    pub fn check(&self, spec: &MachineSpec, works: &[Accelerator]) -> Result<()> {
        let name = &spec.name;
        let refuse = |why: String| {
            Err(Error::unsupported(format!("machine {name:?} cannot run here: {why}")))
        };
        let (major, minor) = self.version;
        if self.version < OLDEST {
            return refuse(format!(
                "QEMU {major}.{minor} is too old; install {}.{} or newer",
                OLDEST.0, OLDEST.1
            ));
        }
        if !self.machines.contains(&spec.machine) {
            return refuse(format!(
                "QEMU {major}.{minor} has no machine type {}; install a QEMU that has it",
                spec.machine
            ));
        }
        if !self.cpus.contains(&spec.cpu) {
            return refuse(format!(
                "QEMU {major}.{minor} has no CPU model {}; install a QEMU that has it",
                spec.cpu
            ));
        }
        if !works.contains(&spec.accelerator) {
            return refuse(format!(
                "it was made for {}, which does not work on this machine; go on with it where it does",
                spec.accelerator
            ));
        }
        if let Some(missing) =
            devices(spec).into_iter().find(|device| !self.devices.contains(device))
        {
            return refuse(format!(
                "QEMU {major}.{minor} has no device {missing}; install what brings it"
            ));
        }
        Ok(())
    }
}

/// The devices of a machine: ours, and the ones that its own arguments name.
fn devices(spec: &MachineSpec) -> Vec<String> {
    let mut devices = vec![
        "virtio-blk-pci".to_owned(),
        "virtio-rng-pci".into(),
        "virtio-net-pci".into(),
        "vmgenid".into(),
    ];
    if spec.screen {
        devices.push("VGA".into());
    }
    if spec.agent {
        devices.extend(["virtio-serial-pci".into(), "virtserialport".into()]);
    }
    for pair in spec.arguments.windows(2) {
        if pair[0] == "-device" || pair[0] == "--device" {
            let first = pair[1].split(',').next().unwrap_or_default();
            let driver = first.strip_prefix("driver=").unwrap_or(first);
            // In JSON QEMU says itself what is missing.
            if !driver.starts_with('{') && driver != "help" {
                devices.push(driver.to_owned());
            }
        }
    }
    devices
}

impl Launched {
    /// Waits for QEMU's end, which nobody asked for.
    pub(crate) async fn ended(&mut self) -> Error {
        let status = self.wait().await;
        let said = self.last_words();
        Error::unavailable(format!("QEMU ended by itself ({status}): {said}"))
    }

    /// What to tell in place of `error` when the cause of it is that QEMU has just ended.
    pub(crate) async fn why_it_ended(&mut self, error: Error) -> Error {
        timeout(Duration::from_secs(1), self.ended()).await.unwrap_or(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::spec;

    fn abilities() -> Abilities {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Abilities {
            version: (7, 2),
            machines: set(&["pc-q35-7.2", "q35"]),
            cpus: set(&["qemu64"]),
            devices: set(&["virtio-blk-pci", "virtio-rng-pci", "virtio-net-pci", "vmgenid", "VGA"]),
        }
    }

    #[tokio::test]
    async fn a_qemu_is_asked_for_the_devices_of_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let qemu = Path::new("/usr/bin/qemu-system-x86_64");
        if !qemu.exists() {
            return; // nobody to ask
        }
        let arguments = ["-device", "frob"].map(str::to_owned).to_vec();
        let spec = MachineSpec { screen: true, arguments, ..spec() };
        let asked = Abilities::of(qemu, dir.path(), &spec).await.unwrap();
        assert!(asked.version >= OLDEST && asked.machines.contains(&spec.machine));
        assert!(asked.devices.contains("vmgenid") && asked.devices.contains("VGA"));
        assert!(!asked.devices.contains("frob"));
    }

    #[test]
    fn a_machine_that_cannot_go_on_here_is_refused_by_name() {
        let works = [Accelerator::Tcg];
        let here = abilities();
        here.check(&spec(), &works).unwrap();
        let says = |here: &Abilities, spec: &MachineSpec, what: &str| {
            let error = here.check(spec, &works).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Unsupported);
            assert!(error.message().contains(what), "{error}");
        };
        says(&Abilities { version: (7, 1), ..abilities() }, &spec(), "QEMU 7.1 is too old");
        says(
            &here,
            &MachineSpec { machine: "pc-q35-99.0".into(), ..spec() },
            "machine type pc-q35-99.0",
        );
        says(&here, &MachineSpec { cpu: "Snowridge".into(), ..spec() }, "CPU model Snowridge");
        says(&here, &MachineSpec { accelerator: Accelerator::Kvm, ..spec() }, "made for kvm");
        let strange = vec!["-device".to_owned(), "frob,id=x".to_owned()];
        says(&here, &MachineSpec { arguments: strange, ..spec() }, "no device frob");
    }
}
