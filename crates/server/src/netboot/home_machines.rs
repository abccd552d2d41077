//! What a home's machines do when they start.

use super::{UnknownMachines, disks};
use crate::machines::list;
use crate::machines::secrets::{self, SecretVerdict};
use async_trait::async_trait;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use disk::Mode;
use engine::Home;
use engine::api::DiskView;
use nbd::{Address, Uri};
use netboot::dhcp::server::UnixClock;
use netboot::identity::Claim;
use netboot::kernel::{BootFile, BootFiles};
use netboot::registry::{Designation, Machine, Method};
use netboot::script::{KernelBoot, Menu, MenuItem, Sanboot, Script};
use netboot::sightings::{Sighting, Sightings};
use netboot::{BootDecision, BootRequest, Machines, Registry};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How often the list is read again.
const PAUSE: Duration = Duration::from_millis(500);
/// Kernels found whose files were not fetched yet; what falls out is looked for again.
const MOST_FOUND: usize = 4096;
/// What initiators' names begin with; the machine's card follows.
const INITIATOR: &str = "iqn.2026-11.io.sojourn.machine:";

/// Parameters of the kernel that the overlay's boot script has, and reads.
const BOOT_SCRIPT: &str = "boot=diskless";
const DISK: &str = "sojourn.disk";

/// What a machine that is not in the list gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The image that its disk is made from.
    pub from: String,
    /// The name of machine and disk; `{mac}` is its card's address.
    pub name: String,
    /// What becomes of what is written to the disk.
    pub mode: Mode,
    /// How the machine reaches it.
    pub method: Method,
    /// How many machines the rule makes at most.
    pub most: usize,
}

/// What machines in the list may choose from while they start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MenuOptions {
    /// Images of which any of them gets a disk that forgets what is written.
    pub images: Vec<String>,
    /// How long a machine waits until it starts from its own disk of here, in seconds.
    pub seconds: u32,
}

/// What a machine is to start.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    /// Its disk of here.
    Disk,
    /// The same, as far as one can repair it.
    Rescue,
    /// Its own disk.
    Local,
    /// This image.
    Image(String),
}

/// What items of menus that name an image begin with.
const IMAGE: &str = "image:";
/// The parameter that has a system of systemd come up for repairs alone.
const RESCUE: &str = "systemd.unit=rescue.target";

impl Choice {
    fn of(text: &str) -> Option<Self> {
        match text {
            "disk" => Some(Self::Disk),
            "rescue" => Some(Self::Rescue),
            "local" => Some(Self::Local),
            _ => Some(Self::Image(text.strip_prefix(IMAGE)?.to_owned())),
        }
    }
}

impl MenuOptions {
    /// The menu of a machine.
    fn of(&self, machine: &Machine) -> Menu {
        let item = |choice: &str, label: String| MenuItem { choice: choice.into(), label };
        let mut items = Vec::new();
        if let Some(disk) = machine.disk.as_ref().filter(|_| machine.method != Method::Local) {
            items.push(item("disk", format!("Disk {disk}")));
        }
        items.push(item("local", "The disk of this machine itself".into()));
        for image in &self.images {
            let label = format!("{image}, and what is written is forgotten");
            items.push(item(&format!("{IMAGE}{image}"), label));
        }
        if let Some(disk) = machine.disk.as_ref().filter(|_| machine.method == Method::Nbd) {
            items.push(item("rescue", format!("Disk {disk}, to be repaired")));
        }
        Menu { machine: machine.name.clone(), seconds: self.seconds, items }
    }
}

/// How a machine reaches a disk of here. One whose own disk is elsewhere starts images by their kernels, which needs no
/// boot loader.
fn method_of(machine: &Machine) -> Method {
    match machine.method {
        Method::Local => Method::Nbd,
        method => method,
    }
}

/// What machines are offered.
pub(super) struct BootOffer {
    /// Where they reach the home's server.
    pub(super) here: Ipv4Addr,
    /// Other servers to which their disks may go, for NBD.
    pub(super) others: Vec<SocketAddr>,
    /// What is put in front of initial RAM disks that take it; empty where there is none.
    pub(super) overlay: Bytes,
    /// About machines that are not in the list.
    pub(super) unknown: UnknownMachines,
    /// What machines in the list may choose from; they are not asked where it is `None`.
    pub(super) menu: Option<MenuOptions>,
}

/// What a machine starts.
#[derive(Clone)]
struct FoundBoot {
    /// What was chosen, and the disk that it was found for.
    choice: Choice,
    disk: String,
    /// Where it is read.
    export: String,
    files: BootFiles,
}

/// The machines of a home.
pub(super) struct HomeMachines {
    home: Home,
    offer: BootOffer,
    clock: UnixClock,
    registry: Mutex<Arc<Registry>>,
    sightings: Mutex<Sightings>,
    /// What was found for the script of a machine, by the machine's name.
    found: Mutex<HashMap<String, FoundBoot>>,
    /// One machine is enrolled, or has a disk for an image made, at a time.
    enrolling: tokio::sync::Mutex<()>,
}

impl HomeMachines {
    /// The machines of `home`, with what was seen at an earlier time.
    ///
    /// # Errors
    /// When the list of machines is damaged.
    pub(super) async fn open(
        home: &Home,
        offer: BootOffer,
        clock: UnixClock,
        seen: Vec<Sighting>,
    ) -> Result<Arc<Self>> {
        let registry = list::load(home).await?;
        let sightings = Sightings::of(seen);
        Ok(Arc::new(Self {
            home: home.clone(),
            offer,
            clock,
            registry: Mutex::new(Arc::new(registry)),
            sightings: Mutex::new(sightings),
            found: Mutex::default(),
            enrolling: tokio::sync::Mutex::default(),
        }))
    }

    /// Reads the list again now and then, until the future is dropped.
    pub(super) async fn follow(&self) {
        let mut told = false;
        loop {
            tokio::time::sleep(PAUSE).await;
            match list::load(&self.home).await {
                Ok(registry) => {
                    told = false;
                    let mut sightings = self.sightings.lock();
                    for mac in registry.machines().iter().filter_map(|machine| machine.mac) {
                        sightings.forget(mac);
                    }
                    *self.registry.lock() = Arc::new(registry);
                }
                Err(error) if !std::mem::replace(&mut told, true) => {
                    tracing::error!(
                        error = error.message(),
                        "the list of machines is not read again"
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Machines that asked and are not in the list, if any did since this was asked before.
    pub(super) fn changed_sightings(&self) -> Option<Vec<Sighting>> {
        self.sightings.lock().take_changed()
    }

    fn known(&self, claim: &Claim) -> Option<Machine> {
        self.registry.lock().find(claim).cloned()
    }

    async fn do_script(&self, request: &BootRequest) -> Result<Option<Script>> {
        let claim = &request.machine;
        let machine = match (self.known(claim), &self.offer.unknown) {
            (Some(machine), _) => machine,
            (None, UnknownMachines::Ignore) => return Ok(None),
            (None, UnknownMachines::Wait) => return Ok(Some(Script::Wait)),
            (None, UnknownMachines::Enrol(rule)) => self.enrol(claim, rule).await?,
        };
        match secrets::judge(&self.home, &machine, request.secret.as_deref()).await? {
            SecretVerdict::Known => {}
            SecretVerdict::Missing => {
                tracing::info!(machine = machine.name, mac = %claim.mac, "is asked for its secret");
                return Ok(Some(Script::Secret { is_wrong: false }));
            }
            SecretVerdict::Wrong => {
                tracing::warn!(machine = machine.name, mac = %claim.mac, "gave a wrong secret, and is asked for its secret");
                return Ok(Some(Script::Secret { is_wrong: true }));
            }
        }
        let choice = match (&self.offer.menu, &request.choice) {
            (Some(menu), None) => {
                tracing::info!(machine = machine.name, mac = %claim.mac, "is shown its menu");
                return Ok(Some(Script::Menu(menu.of(&machine))));
            }
            _ => self.choice(request)?,
        };
        let Some(disk) = self.disk_of(&machine, &choice) else { return Ok(Some(Script::Local)) };
        if let Choice::Image(image) = &choice {
            self.must_be_nobodys(&disk)?;
            let _one = self.enrolling.lock().await;
            disks::must_be_made_of(&self.home, &disk, image, (self.clock)()).await?;
        }
        let method = method_of(&machine);
        let status = disks::status(&self.home).await?;
        tracing::info!(machine = machine.name, mac = %claim.mac, disk, method = method.as_str(), "starts");
        if method == Method::Iscsi {
            let target = iscsi::name::of_export(&disk);
            let target = target.ok_or_else(|| {
                Error::invalid(format!("disk {disk} has too long a name for iSCSI"))
            })?;
            let portal = disks::iscsi_address(&status, self.offer.here)?;
            let initiator = format!("{INITIATOR}{}", claim.mac.hex_digits());
            let asks_for_secret = status.iscsi.is_some_and(|iscsi| iscsi.asks_for_secret);
            return Ok(Some(Script::Sanboot(Sanboot {
                disk,
                portal,
                target,
                initiator,
                asks_for_secret,
            })));
        }
        let address = disks::nbd_address(&status, self.offer.here)?;
        let shown = disks::show(&self.home, &disk).await?;
        let export = disks::export_of(&shown);
        let files = disks::find(&self.home, &export, &shown.image).await?;
        let mut arguments = vec![format!("root={}", files.root("/dev/nbd0"))];
        arguments.extend(self.disk_arguments(&files, address, &disk));
        arguments.extend(files.arguments().iter().chain(&machine.append).cloned());
        if choice == Choice::Rescue {
            arguments.push(RESCUE.to_owned());
        }
        let initrd = files.has_initrd();
        self.remember(&machine.name, FoundBoot { choice, disk: disk.clone(), export, files });
        Ok(Some(Script::Kernel(KernelBoot { disk, arguments, host: machine.name, initrd })))
    }

    /// What a machine chose; its disk where it was not asked.
    fn choice(&self, request: &BootRequest) -> Result<Choice> {
        let (Some(menu), Some(text)) = (&self.offer.menu, &request.choice) else {
            return Ok(Choice::Disk);
        };
        let offered = |choice: &Choice| match choice {
            Choice::Image(image) => menu.images.contains(image),
            _ => true,
        };
        Choice::of(text).filter(offered).ok_or_else(|| Error::not_found("this is not offered"))
    }

    /// The disk of here that a machine starts from; `None` for its own one.
    fn disk_of(&self, machine: &Machine, choice: &Choice) -> Option<String> {
        match choice {
            Choice::Local => None,
            Choice::Image(_) => Some(format!("menu-{}", machine.name)),
            Choice::Disk | Choice::Rescue => {
                machine.disk.clone().filter(|_| machine.method != Method::Local)
            }
        }
    }

    /// Fails for a disk that a machine of the list starts from: it is not the menu's.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict).
    fn must_be_nobodys(&self, disk: &str) -> Result<()> {
        let registry = self.registry.lock();
        let mut own =
            registry.machines().iter().filter(|machine| machine.disk.as_deref() == Some(disk));
        own.next().map_or(Ok(()), |machine| {
            Err(Error::conflict(format!(
                "disk {disk} is that of machine {}, and menus use disks of this name: give that machine another one",
                machine.name
            )))
        })
    }

    /// The parameters that say which disk the root is on.
    fn disk_arguments(&self, files: &BootFiles, address: SocketAddr, disk: &str) -> Vec<String> {
        let server = |address: &SocketAddr| {
            let address = Address::Tcp(address.ip().to_string(), address.port());
            Uri::new(address, disk).to_string()
        };
        let servers: Vec<_> = [address].iter().chain(&self.offer.others).map(server).collect();
        let servers = format!("{DISK}={}", servers.join(","));
        if !self.front(files, BootFile::Initrd).is_empty() {
            vec![BOOT_SCRIPT.into(), servers]
        } else if files.nbd_root().dracut_module {
            vec![servers]
        } else {
            vec![format!("nbdroot={address}/{disk}")]
        }
    }

    /// What is put in front of a file; empty where the disk's own initial RAM disk has to do.
    fn front(&self, files: &BootFiles, which: BootFile) -> Bytes {
        match which == BootFile::Initrd && files.nbd_root().boot_script {
            true => self.offer.overlay.clone(),
            false => Bytes::new(),
        }
    }

    fn remember(&self, machine: &str, boot: FoundBoot) {
        let mut found = self.found.lock();
        if found.len() >= MOST_FOUND {
            found.clear();
        }
        found.insert(machine.to_owned(), boot);
    }

    /// What a machine starts by its kernel.
    async fn boot(&self, request: &BootRequest) -> Result<FoundBoot> {
        let none = || Error::not_found("this machine is to start no kernel from here");
        let machine = self.known(&request.machine).ok_or_else(none)?;
        let choice = self.choice(request)?;
        let disk = self.disk_of(&machine, &choice).filter(|_| method_of(&machine) == Method::Nbd);
        let disk = disk.ok_or_else(none)?;
        let verdict = secrets::judge(&self.home, &machine, request.secret.as_deref()).await?;
        if verdict != SecretVerdict::Known {
            return Err(none());
        }
        // It may have got another disk since.
        let is_it = |boot: &&FoundBoot| boot.disk == disk && boot.choice == choice;
        let found = self.found.lock().get(&machine.name).filter(is_it).cloned();
        if let Some(boot) = found {
            return Ok(boot);
        }
        let shown = disks::show(&self.home, &disk).await?;
        let export = disks::export_of(&shown);
        let files = disks::find(&self.home, &export, &shown.image).await?;
        let boot = FoundBoot { choice, disk, export, files };
        self.remember(&machine.name, boot.clone());
        Ok(boot)
    }

    /// Gives a machine a disk by the rule.
    async fn enrol(&self, claim: &Claim, rule: &Rule) -> Result<Machine> {
        let _one = self.enrolling.lock().await;
        let registry = list::load(&self.home).await?;
        if let Some(machine) = registry.find(claim) {
            return Ok(machine.clone());
        }
        if registry.machines().iter().filter(|machine| machine.by_rule).count() >= rule.most {
            return Err(Error::no_space(format!(
                "{} machines got a disk by the rule, and no more do: sojourn machine assign {} --from {}",
                rule.most, claim.mac, rule.from
            )));
        }
        let name = rule.name.replace("{mac}", &claim.mac.hex_digits());
        let machine = Machine {
            name: name.clone(),
            mac: Some(claim.mac),
            uuid: None,
            disk: Some(name.clone()),
            method: rule.method,
            append: Vec::new(),
            by_rule: true,
        };
        let who = Designation::Mac(claim.mac);
        // What would be refused is, before a disk is made.
        registry.clone().put(&who, machine.clone())?;
        match disks::create(&self.home, &name, &rule.from, rule.mode).await {
            // It may be of an attempt that ended between the two.
            Err(e) if e.kind() == ErrorKind::Conflict => {
                match disks::show(&self.home, &name).await {
                    Ok(found) => check_as_made(&found, claim, rule)?,
                    Err(_) => return Err(e),
                }
            }
            made => drop(made?),
        }
        let put = machine.clone();
        let registry = list::update(&self.home, move |registry| {
            registry.put(&who, put)?;
            Ok(registry.clone())
        });
        let registry = Arc::new(registry.await?);
        *self.registry.lock() = registry;
        self.sightings.lock().forget(claim.mac);
        tracing::info!(machine = name, mac = %claim.mac, image = rule.from, "a new machine got a disk");
        Ok(machine)
    }
}

/// Fails unless a disk that is there is as the rule would make it. What else has its name, such as the disk of a machine
/// that was forgotten, is somebody's: whoever claims the card would read it.
fn check_as_made(disk: &DiskView, claim: &Claim, rule: &Rule) -> Result<()> {
    let of_image = disks::is_of(&disk.image, &rule.from);
    let as_made = disk.mode == rule.mode.to_string()
        && disk.unchanged
        && disk.snapshots.is_empty()
        && disk.error.is_none();
    if of_image && as_made {
        return Ok(());
    }
    Err(Error::conflict(format!(
        "disk {name} is there already, and is not as the rule would make it: sojourn machine assign {mac} --disk \
         {name} gives it to this machine, sojourn disk remove {name} has a new one made",
        name = disk.name,
        mac = claim.mac,
    )))
}

#[async_trait]
impl Machines for HomeMachines {
    fn judge(&self, claim: &Claim) -> BootDecision {
        if self.registry.lock().find(claim).is_some() {
            return BootDecision::Boot;
        }
        self.sightings.lock().note(claim, (self.clock)());
        match self.offer.unknown {
            UnknownMachines::Ignore => BootDecision::Ignore,
            UnknownMachines::Wait | UnknownMachines::Enrol(_) => BootDecision::Boot,
        }
    }

    async fn script(&self, request: &BootRequest) -> Option<Script> {
        self.do_script(request).await.unwrap_or_else(|error| {
            tracing::warn!(mac = %request.machine.mac, error = error.message(), "a machine cannot start");
            Some(Script::Trouble(error.message().to_owned()))
        })
    }

    async fn length(&self, request: &BootRequest, which: BootFile) -> Result<u64> {
        let boot = self.boot(request).await?;
        Ok(boot.files.length(which) + self.front(&boot.files, which).len() as u64)
    }

    async fn file(&self, request: &BootRequest, which: BootFile) -> Result<Bytes> {
        let FoundBoot { export, files, .. } = self.boot(request).await?;
        disks::read(&self.home, &export, &files, which, self.front(&files, which)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::api::SnapshotView;
    use netboot::MacAddress;

    fn made() -> DiskView {
        DiskView {
            name: "lab-525400123456".into(),
            image: "debian:1".into(),
            mode: "persistent".into(),
            size: 1 << 30,
            created: 0,
            private_bytes: 0,
            unchanged: true,
            over_image: true,
            snapshots: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn a_menu_has_what_a_machine_can_start_and_its_disk_first() {
        let menu = MenuOptions { images: vec!["debian".into(), "dos:1".into()], seconds: 5 };
        let choices = |method, disk: Option<&str>| {
            let machine = Machine {
                name: "lab-1".into(),
                mac: None,
                uuid: None,
                disk: disk.map(str::to_owned),
                method,
                append: Vec::new(),
                by_rule: false,
            };
            let items = menu.of(&machine).items.into_iter();
            items.map(|item| item.choice).collect::<Vec<_>>().join(" ")
        };
        let images = "image:debian image:dos:1";
        assert_eq!(choices(Method::Nbd, Some("alice")), format!("disk local {images} rescue"));
        assert_eq!(choices(Method::Iscsi, Some("alice")), format!("disk local {images}"));
        assert_eq!(choices(Method::Local, None), format!("local {images}"));
        for text in ["disk", "local", "rescue", "image:dos:1"] {
            assert!(Choice::of(text).is_some(), "{text}");
        }
        for text in ["", "shell", "image", "DISK"] {
            assert_eq!(Choice::of(text), None, "{text}");
        }
    }

    fn rule(from: &str, mode: Mode) -> Rule {
        let name = "lab-{mac}".into();
        Rule { from: from.into(), name, mode, method: Method::Iscsi, most: 1 }
    }

    #[test]
    fn a_machine_gets_a_disk_that_is_there_only_as_the_rule_would_make_it() {
        let claim = Claim { mac: MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]), uuid: None };
        let gets =
            |disk: &DiskView, from: &str, mode| check_as_made(disk, &claim, &rule(from, mode));
        for from in ["debian", "debian:1"] {
            gets(&made(), from, Mode::Persistent).unwrap();
        }
        for (from, mode) in [
            ("debian:2", Mode::Persistent),
            ("debian1", Mode::Persistent),
            ("other", Mode::Persistent),
            ("debian", Mode::Ephemeral),
            ("debian", Mode::WriteThrough),
        ] {
            gets(&made(), from, mode).unwrap_err();
        }
        let snapshot =
            SnapshotView { name: "before".into(), size: 1 << 30, created: 0, error: None };
        for changed in [
            DiskView { unchanged: false, private_bytes: 4096, ..made() },
            DiskView { snapshots: vec![snapshot], ..made() },
            DiskView { error: Some("damaged".into()), ..made() },
        ] {
            let error = gets(&changed, "debian", Mode::Persistent).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            let remedy = "sojourn machine assign 52:54:00:12:34:56 --disk lab-525400123456";
            assert!(error.message().contains(remedy), "{}", error.message());
        }
    }
}
