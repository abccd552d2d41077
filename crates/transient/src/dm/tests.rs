use super::*;
use crate::sys::KernelKey;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;

#[test]
fn tables_that_are_not_ours_are_not_taken_for_lent_ranges() {
    let target = |kind: &str, length, parameters: &str| MapTarget {
        start: 0,
        length,
        kind: kind.into(),
        parameters: parameters.into(),
    };
    let (device, span) = parse_linear(&target("linear", 8, "254:16 2048")).unwrap();
    assert_eq!(device, rustix::fs::makedev(254, 16));
    assert_eq!(span, Span::between(2048 * 512, 2056 * 512));
    for wrong in [
        target("crypt", 8, "254:16 2048"),
        target("linear", 8, "254:16"),
        target("linear", 8, "/dev/sda 1"),
        target("linear", u64::MAX, "254:16 2048"),
        target("linear", 8, "254:16 99999999999999999999"),
    ] {
        assert_eq!(parse_linear(&wrong).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong:?}");
    }
}

/// A mapped device of the kernel that tests have.
#[derive(Debug, Clone, Default)]
struct TestDevice {
    uuid: String,
    minor: u32,
    loaded: Option<Vec<MapTarget>>,
    table: Vec<MapTarget>,
    /// How often programs have it open.
    opened: u32,
}

#[derive(Debug, Default)]
struct TestMachine {
    devices: BTreeMap<String, TestDevice>,
    nodes: BTreeMap<String, u64>,
    minors: u32,
}

impl TestMachine {
    /// How often a device is open: by programs, and by devices on it.
    fn open_count(&self, device: &TestDevice) -> u32 {
        let number = format!("253:{}", device.minor);
        let stands = |target: &MapTarget| target.parameters.split(' ').any(|word| word == number);
        let above = self.devices.values().filter(|other| other.table.iter().any(stands)).count();
        device.opened + above as u32
    }

    fn add(&mut self, name: &str, uuid: &str) -> io::Result<()> {
        if self.devices.iter().any(|(known, device)| known == name || device.uuid == uuid) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        self.minors += 1;
        let device = TestDevice { uuid: uuid.into(), minor: self.minors, ..TestDevice::default() };
        self.devices.insert(name.into(), device);
        Ok(())
    }
}

/// A machine whose kernel has a device-mapper that maps nothing, but knows who stands on whom.
#[derive(Debug, Clone, Default)]
struct TestHost(Arc<Mutex<TestMachine>>);

impl MapperHost for TestHost {
    fn call(&self, command: MapCommand, message: &mut Message) -> io::Result<()> {
        let mut machine = self.0.lock();
        let name = message.name();
        match command {
            MapCommand::List => {
                message.tell_names(&machine.devices.keys().cloned().collect::<Vec<_>>());
                return Ok(());
            }
            MapCommand::Create => machine.add(&name, &message.uuid())?,
            _ => {}
        }
        let missing = || io::Error::from_raw_os_error(libc::ENXIO);
        let found = machine.devices.get(&name).cloned().ok_or_else(missing)?;
        let opened = machine.open_count(&found);
        message.tell(&found.uuid, found.minor, opened);
        let device = machine.devices.get_mut(&name).ok_or_else(missing)?;
        match command {
            MapCommand::Remove if opened > 0 => {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            MapCommand::Remove => {
                machine.devices.remove(&name);
            }
            MapCommand::Load => device.loaded = Some(message.sent()),
            MapCommand::Suspend => {
                if let Some(table) = device.loaded.take() {
                    device.table = table;
                }
            }
            MapCommand::Table => message.tell_table(&found.table),
            MapCommand::List | MapCommand::Create | MapCommand::Status => {}
        }
        Ok(())
    }

    fn hand_key(&self, _: &CStr, _: &[u8]) -> io::Result<Option<KernelKey>> {
        Ok(None)
    }

    fn node(&self, name: &str) -> io::Result<Option<u64>> {
        Ok(self.0.lock().nodes.get(name).copied())
    }

    fn make_node(&self, name: &str, device: u64) -> io::Result<()> {
        let mut machine = self.0.lock();
        if machine.nodes.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        machine.nodes.insert(name.into(), device);
        Ok(())
    }

    fn remove_node(&self, name: &str) -> io::Result<()> {
        let removed = self.0.lock().nodes.remove(name);
        removed.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

const SIZE: u64 = 64 << 10;

impl TestHost {
    fn mapper(&self) -> Mapper {
        Mapper { host: Box::new(self.clone()) }
    }

    /// Makes a borrowed disk of 64 KiB of a disk 8:1.
    fn build(&self, name: &str) -> Result<Mapped> {
        self.build_with(name, None)
    }

    /// The same, which carries a state.
    fn build_with(&self, name: &str, state: Option<&str>) -> Result<Mapped> {
        let key = DiskKey::generate(|bytes| {
            bytes[0] = 1;
            Ok(())
        })?;
        let target = MapTarget {
            start: 0,
            length: SIZE / SECTOR,
            kind: "linear".into(),
            parameters: "8:1 2048".into(),
        };
        let release = || Watch::new(&[]).unwrap();
        let whole = MappedIdentity::Whole { name, state };
        self.mapper().build(whole, &[target], SIZE, &key, release)
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().devices.keys().cloned().collect()
    }
}

#[test]
fn a_borrowed_disk_is_made_carved_seen_and_removed() {
    let host = TestHost::default();
    let mapper = host.mapper();
    let made = host.build("x").unwrap();
    assert_eq!((made.size, made.users), (SIZE, 0));
    assert_eq!(made.lent, [(rustix::fs::makedev(8, 1), Span::between(1 << 20, (1 << 20) + SIZE))]);
    let carved = mapper.carve("x", 4096).unwrap();
    assert_eq!(carved.parts.iter().map(|part| part.size).collect::<Vec<_>>(), [4096, SIZE - 4096]);
    assert_eq!(mapper.list().unwrap(), [carved]);
    assert_eq!(host.names(), ["x", "x-files", "x-lent", "x-swap"]);
    mapper.remove("x").unwrap();
    assert!(host.names().is_empty() && host.0.lock().nodes.is_empty());
    assert_eq!(mapper.look("x").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_failed_up_removes_nothing_that_it_did_not_make() {
    let host = TestHost::default();
    for (foreign, uuid) in [("x", "LVM-x"), ("y-lent", "CRYPT-LUKS2-y")] {
        host.0.lock().add(foreign, uuid).unwrap();
    }
    for name in ["x", "y"] {
        assert_eq!(host.build(name).unwrap_err().kind(), ErrorKind::Conflict, "{name}");
        assert_eq!(host.names(), ["x", "y-lent"], "{name}");
    }
    // Nor another borrowed disk.
    let made = host.build("z").unwrap();
    assert_eq!(host.build("z").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(host.mapper().list().unwrap(), [made]);
}

#[test]
fn a_node_that_leads_to_another_device_is_replaced() {
    let host = TestHost::default();
    let stale = rustix::fs::makedev(253, 77);
    for name in ["x", "x-swap", "x-files"] {
        host.0.lock().nodes.insert(name.into(), stale);
    }
    host.build("x").unwrap();
    let made = host.mapper().carve("x", 4096).unwrap();
    let nodes = host.0.lock().nodes.clone();
    assert_eq!(nodes["x"], made.device);
    let parts: Vec<u64> = made.parts.iter().map(|part| part.device).collect();
    assert_eq!(parts, [nodes["x-swap"], nodes["x-files"]]);
}

#[test]
fn nodes_are_settled_before_they_are_used() {
    let host = TestHost::default();
    let mapper = host.mapper();
    host.build("x").unwrap();
    let made = mapper.carve("x", 4096).unwrap();
    let right = host.0.lock().nodes.clone();
    host.0.lock().nodes.insert("x-files".into(), rustix::fs::makedev(8, 1));
    host.0.lock().nodes.remove("x");
    mapper.settle_nodes(&made).unwrap();
    assert_eq!(host.0.lock().nodes, right);
}

#[test]
fn what_a_killed_up_or_down_left_below_is_seen_and_removed() {
    let host = TestHost::default();
    let mapper = host.mapper();
    host.build("x").unwrap();
    mapper.call(MapCommand::Remove, Message::new("x", 0, 0).unwrap()).unwrap();
    let left = mapper.look("x").unwrap();
    assert_eq!(left.lent, [(rustix::fs::makedev(8, 1), Span::between(1 << 20, (1 << 20) + SIZE))]);
    assert!(left.remnant, "{left:?}");
    mapper.settle_nodes(&left).unwrap();
    assert_eq!(mapper.list().unwrap(), [left]);
    mapper.remove("x").unwrap();
    assert!(host.names().is_empty());
    // So is one whose table was never used.
    mapper.make(MappedIdentity::Below { name: "x" }).unwrap();
    assert_eq!(mapper.list().unwrap().len(), 1);
    mapper.remove("x").unwrap();
    // A device of another's that is only called so is not looked at.
    host.0.lock().add("y-lent", "LVM-y").unwrap();
    assert_eq!(mapper.look("y").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(mapper.remove("y").is_err() && mapper.list().unwrap().is_empty());
    assert_eq!(host.names(), ["y-lent"]);
}

#[test]
fn a_removal_that_was_refused_goes_on_where_it_was() {
    let host = TestHost::default();
    let mapper = host.mapper();
    host.build("x").unwrap();
    mapper.carve("x", 4096).unwrap();
    for held in ["x-swap", "x-files", "x", "x-lent"] {
        host.0.lock().devices.get_mut(held).unwrap().opened = 1;
        assert_eq!(mapper.remove("x").unwrap_err().kind(), ErrorKind::Conflict, "{held}");
        assert!(host.names().contains(&held.to_owned()), "{held}");
        host.0.lock().devices.get_mut(held).unwrap().opened = 0;
    }
    mapper.remove("x").unwrap();
    assert!(host.names().is_empty());
}

#[test]
fn names_that_end_like_a_part_or_the_device_below_are_disks_of_their_own() {
    let host = TestHost::default();
    let mapper = host.mapper();
    let (one, other) = (host.build("x").unwrap(), host.build("y-lent").unwrap());
    assert_eq!(mapper.list().unwrap(), [one, other]);
    assert_eq!(mapper.look("x-lent").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_name_that_anything_has_is_refused_before_anything_is_done() {
    let host = TestHost::default();
    let mapper = host.mapper();
    for free in ["up", "left", "lvm", "luks"] {
        mapper.must_be_free(free).unwrap();
    }
    host.build("up").unwrap();
    mapper.make(MappedIdentity::Below { name: "left" }).unwrap();
    host.0.lock().add("lvm", "LVM-1").unwrap();
    host.0.lock().add("luks-lent", "CRYPT-1").unwrap();
    for (taken, words) in [
        ("up", "borrow down up"),
        ("left", "borrow down left"),
        ("lvm", "/dev/mapper/lvm is"),
        ("luks", "/dev/mapper/luks-lent is"),
    ] {
        let error = mapper.must_be_free(taken).unwrap_err();
        assert!(error.kind() == ErrorKind::Conflict && error.message().contains(words), "{error}");
    }
}

#[test]
fn a_disk_tells_for_as_long_as_it_is_up_that_it_carries_a_state() {
    let host = TestHost::default();
    assert_eq!(host.build("plain").unwrap().state, None);
    let made = host.build_with("x", Some("0123456789abcdef")).unwrap();
    assert_eq!(made.state.as_deref(), Some("0123456789abcdef"));
    let carved = host.mapper().carve("x", 4096).unwrap();
    assert_eq!((carved.state, carved.parts.len()), (made.state, 2));
    host.mapper().remove("x").unwrap();
}
