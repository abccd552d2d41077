//! The command line of QEMU, as a function of the machine and of where its parts are.

use crate::accelerator::enforced_cpu;
use crate::{MachineSpec, agent};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// For how long a guest waits for a disk server that went away, in seconds.
const RECONNECT: u64 = 300;

/// Where the parts of a machine are on this host.
#[derive(Debug, Clone)]
pub struct MachineParts {
    /// The directory of its sockets and logs.
    pub directory: PathBuf,
    /// The file that is its memory.
    pub memory: PathBuf,
    /// The unix socket of the NBD server that has its disk as the export of that name.
    pub nbd: PathBuf,
}

impl MachineParts {
    /// The socket of QEMU's monitor.
    pub fn monitor(&self) -> PathBuf {
        self.directory.join("qmp.sock")
    }

    /// The socket of the first serial line.
    pub fn console(&self) -> PathBuf {
        self.directory.join("console.sock")
    }

    /// What the guest wrote to the first serial line.
    pub fn console_log(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    /// The socket of the screen's VNC server.
    pub fn screen(&self) -> PathBuf {
        self.directory.join("vnc.sock")
    }

    /// Our end of the port of the guest agent.
    pub fn agent(&self) -> PathBuf {
        self.directory.join("agent.sock")
    }

    /// What QEMU itself says.
    pub fn log(&self) -> PathBuf {
        self.directory.join("qemu.log")
    }
}

/// A comma in an option's value is written twice.
fn path(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// The arguments of QEMU. With `incoming` it waits for the state of a suspended machine, and else for
/// `cont`.
pub fn arguments(spec: &MachineSpec, parts: &MachineParts, incoming: bool) -> Vec<OsString> {
    let mut list: Vec<String> = Vec::new();
    let mut add = |option: &str, value: String| {
        list.push(option.to_owned());
        list.push(value);
    };
    let MachineSpec { name, uuid, memory, cpus, .. } = spec;
    add("-name", format!("{name},process=sojourn-vm"));
    add("-uuid", uuid.clone());
    add("-machine", format!("{},memory-backend=ram", spec.machine));
    add("-accel", spec.accelerator.to_string());
    add("-cpu", enforced_cpu(&spec.cpu));
    add("-smp", format!("{cpus}"));
    add("-m", format!("{}M", memory >> 20));
    add(
        "-object",
        format!(
            "memory-backend-file,id=ram,size={memory},mem-path={},share=on",
            path(&parts.memory)
        ),
    );
    add("-display", "none".into());
    if spec.screen {
        add("-device", "VGA".into());
        add("-vnc", format!("unix:{}", path(&parts.screen())));
    }
    add(
        "-chardev",
        format!(
            "socket,id=console,path={},server=on,wait=off,logfile={},logappend=on",
            path(&parts.console()),
            path(&parts.console_log())
        ),
    );
    add("-serial", "chardev:console".into());
    add("-qmp", format!("unix:{},server=on,wait=off", path(&parts.monitor())));
    let disk = json!({
        "driver": "nbd", "node-name": "disk0", "export": spec.disk, "reconnect-delay": RECONNECT,
        "server": {"type": "unix", "path": parts.nbd.display().to_string()},
        "cache": {"direct": true, "no-flush": false}, "discard": "unmap",
    });
    add("-blockdev", disk.to_string());
    add("-device", "virtio-blk-pci,drive=disk0,bootindex=1".into());
    add("-device", "virtio-rng-pci".into());
    // A new id each time tells the guest to reseed its random numbers.
    add("-device", "vmgenid,guid=auto".into());
    add("-netdev", "user,id=net0".into());
    add("-device", format!("virtio-net-pci,netdev=net0,mac={},romfile=", spec.mac));
    if spec.agent {
        let socket = path(&parts.agent());
        let chardev = agent::CHARDEV;
        add("-chardev", format!("socket,id={chardev},path={socket},server=on,wait=off"));
        add("-device", "virtio-serial-pci,id=agent-bus".into());
        add(
            "-device",
            format!("virtserialport,bus=agent-bus.0,chardev={chardev},name={}", agent::PORT),
        );
    }
    let mut rest = vec!["-nodefaults", "-no-user-config", "-S"];
    if incoming {
        rest.extend(["-incoming", "defer"]);
    }
    list.extend(rest.into_iter().map(str::to_owned));
    list.extend(spec.arguments.iter().cloned());
    list.into_iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::spec;

    fn line(spec: &MachineSpec, incoming: bool) -> Vec<String> {
        let parts = MachineParts {
            directory: "/home/a,b".into(),
            memory: "/home/a,b/ram/memory".into(),
            nbd: "/home/nbd.sock".into(),
        };
        let list = arguments(spec, &parts, incoming);
        list.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    fn value<'a>(line: &'a [String], option: &str) -> Vec<&'a str> {
        line.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn what_must_be_the_same_elsewhere_is_pinned() {
        let line = line(&spec(), false);
        assert_eq!(value(&line, "-machine"), ["pc-q35-7.2,memory-backend=ram"]);
        assert_eq!(
            (value(&line, "-cpu"), value(&line, "-smp")),
            (vec!["qemu64,enforce"], vec!["2"])
        );
        assert_eq!(value(&line, "-m"), ["512M"]);
        assert!(
            line.contains(&"-nodefaults".to_owned()) && !line.contains(&"-incoming".to_owned())
        );
        let mac = spec().mac;
        assert!(value(&line, "-device").iter().any(|device| device.contains(&mac)));
    }

    #[test]
    fn memory_is_a_shared_file_and_a_comma_in_its_path_does_not_end_it() {
        let line = line(&spec(), false);
        assert_eq!(
            value(&line, "-object"),
            ["memory-backend-file,id=ram,size=536870912,mem-path=/home/a,,b/ram/memory,share=on"]
        );
    }

    #[test]
    fn only_where_a_machine_goes_on_it_waits_for_its_state() {
        assert_eq!(value(&line(&spec(), true), "-incoming"), ["defer"]);
        let (one, other) = (line(&spec(), true), line(&spec(), false));
        let rest: Vec<_> = one.into_iter().filter(|a| a != "-incoming" && a != "defer").collect();
        assert_eq!(rest, other, "the machine is the same");
    }

    #[test]
    fn a_port_for_an_agent_changes_no_other_device() {
        let with = MachineSpec { agent: true, ..spec() };
        let (with, without) = (line(&with, false), line(&spec(), false));
        let added = value(&with, "-device").len() - value(&without, "-device").len();
        assert_eq!(added, 2);
        assert!(value(&with, "-device").starts_with(&value(&without, "-device")));
    }

    #[test]
    fn arguments_of_the_user_come_last_and_a_screen_only_when_asked_for() {
        let own =
            MachineSpec { screen: true, arguments: vec!["-kernel".into(), "k".into()], ..spec() };
        let line = line(&own, false);
        assert!(line.ends_with(&["-kernel".to_owned(), "k".to_owned()]));
        assert_eq!(value(&line, "-vnc"), ["unix:/home/a,,b/vnc.sock"]);
    }
}
