//! The driver, reached by generic netlink. It takes commands on one socket, and reports dead
//! connections on another one, so that no answer is lost between reports.

use crate::driver::{DeviceSettings, Driver};
use crate::message::{Attribute, FAMILY, GROUP, NbdMessage, NetlinkCommand};
use crate::sysfs::{BlockDevices, ConnectedDevice};
use async_trait::async_trait;
use block::{Error, ErrorKind, Result};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_generic::GenlMessage;
use netlink_packet_generic::ctrl::nlas::{GenlCtrlAttrs, McastGrpAttrs};
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// How long the kernel has to answer. It takes none of a command's work out of the call but what is
/// quick; disconnecting waits for requests under way.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than any message of the two families has, in bytes.
const LONGEST: usize = 64 << 10;

/// The error numbers that the driver answers with.
mod errno {
    pub(super) const PERMISSION: i32 = 1;
    pub(super) const NO_ENTRY: i32 = 2;
    pub(super) const NO_MEMORY_FOR_REPORTS: i32 = 105;
    pub(super) const ACCESS: i32 = 13;
    pub(super) const BUSY: i32 = 16;
    pub(super) const INVALID: i32 = 22;
    pub(super) const NO_SPACE: i32 = 28;
}

/// The kernel's NBD driver.
#[derive(Debug)]
pub struct Netlink {
    commands: Channel,
    reports: Channel,
    devices: BlockDevices,
    family: u16,
    /// Devices of which a connection died, not told yet.
    dead: VecDeque<u32>,
}

impl Netlink {
    /// Finds the driver.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) when the kernel has no NBD driver, or none with netlink
    /// (before Linux 4.12); [`Unavailable`](ErrorKind::Unavailable) when netlink does not answer.
    pub async fn open() -> Result<Self> {
        let mut commands = Channel::open()?;
        let (family, group) = resolve(&mut commands).await?;
        let reports = Channel::open()?;
        reports.join(group)?;
        let devices = BlockDevices::open()?;
        Ok(Self { commands, reports, devices, family, dead: VecDeque::new() })
    }

    async fn ask(
        &mut self,
        command: NetlinkCommand,
        attributes: Vec<Attribute>,
    ) -> std::result::Result<Option<NbdMessage>, CommandFailure> {
        let message = GenlMessage::from_payload(NbdMessage { command, attributes });
        self.commands.ask(message, self.family).await
    }
}

/// The numbers of the family and of the group that hears of dead connections.
async fn resolve(commands: &mut Channel) -> Result<(u16, u32)> {
    let wanted = GenlCtrlAttrs::FamilyName(FAMILY.to_owned());
    let get = GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas: vec![wanted] };
    let answer = commands.ask(GenlMessage::from_payload(get), 0).await;
    let missing = || {
        Error::unsupported(
            "the kernel's NBD driver is not there, or is older than Linux 4.12: `modprobe nbd` loads \
             it where it is a module",
        )
    };
    let answer = match answer {
        Ok(Some(answer)) => answer,
        Ok(None) => return Err(missing()),
        Err(CommandFailure::Errno(errno::NO_ENTRY)) => return Err(missing()),
        Err(refusal) => return Err(refusal.error("looking for the NBD driver")),
    };
    let (mut family, mut group) = (None, None);
    for attribute in &answer.nlas {
        match attribute {
            GenlCtrlAttrs::FamilyId(id) => family = Some(*id),
            GenlCtrlAttrs::McastGroups(groups) => {
                let ours = groups
                    .iter()
                    .find(|attributes| attributes.contains(&McastGrpAttrs::Name(GROUP.to_owned())));
                group = ours.into_iter().flatten().find_map(|attribute| match attribute {
                    McastGrpAttrs::Id(id) => Some(*id),
                    McastGrpAttrs::Name(_) => None,
                });
            }
            _ => {}
        }
    }
    family.zip(group).ok_or_else(missing)
}

/// Settings that both making and reconnecting a device say.
fn common(settings: &DeviceSettings) -> Vec<Attribute> {
    vec![
        Attribute::SizeBytes(settings.size),
        Attribute::BlockSizeBytes(settings.block_size),
        Attribute::Timeout(settings.request_timeout.as_secs().max(1)),
        Attribute::DeadConnTimeout(settings.dead_timeout.as_secs()),
        Attribute::Backend(settings.backend.clone()),
    ]
}

#[async_trait]
impl Driver for Netlink {
    async fn connect(
        &mut self,
        index: Option<u32>,
        settings: &DeviceSettings,
        sockets: &[BorrowedFd<'_>],
    ) -> Result<u32> {
        let mut attributes = common(settings);
        attributes.extend(index.map(Attribute::Index));
        attributes.push(Attribute::ServerFlags(settings.server_flags.into()));
        let descriptors = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        attributes.push(Attribute::Sockets(descriptors));
        let name = index.map_or("an NBD device".to_owned(), |index| format!("/dev/nbd{index}"));
        let answer = self.ask(NetlinkCommand::Connect, attributes).await.map_err(|refusal| {
            match refusal {
                CommandFailure::Errno(errno::BUSY) => Error::conflict(format!(
                    "{name} is in use; take another one, or end it with `sojourn device disconnect`"
                )),
                other => other.error(&format!("connecting {name}")),
            }
        })?;
        // Which one it took is in the answer.
        answer.and_then(|answer| answer.index()).or(index).ok_or_else(|| {
            Error::unavailable("the NBD driver does not say which device it made; name one")
        })
    }

    async fn replace(
        &mut self,
        index: u32,
        settings: &DeviceSettings,
        socket: BorrowedFd<'_>,
    ) -> Result<bool> {
        let mut attributes = common(settings);
        attributes.push(Attribute::Index(index));
        attributes.push(Attribute::Sockets(vec![socket.as_raw_fd()]));
        match self.ask(NetlinkCommand::Reconfigure, attributes).await {
            Ok(_) => Ok(true),
            Err(CommandFailure::Errno(errno::NO_SPACE)) => Ok(false),
            Err(CommandFailure::Errno(errno::INVALID)) => {
                let name = format!("/dev/nbd{index}");
                // It says the same when nobody has the device and when somebody else has.
                Err(match self.devices.backend(index)? {
                    Some(backend) if backend != settings.backend => Error::conflict(format!(
                        "{name} is of another server ({backend}) now; it is left alone"
                    )),
                    _ => Error::not_found(format!("{name} is not connected any more")),
                })
            }
            Err(refusal) => Err(refusal.error(&format!("reconnecting /dev/nbd{index}"))),
        }
    }

    async fn resize(&mut self, index: u32, settings: &DeviceSettings) -> Result<()> {
        let mut attributes = common(settings);
        attributes.push(Attribute::Index(index));
        let asked = self.ask(NetlinkCommand::Reconfigure, attributes).await;
        asked.map(|_| ()).map_err(|refusal| match refusal {
            CommandFailure::Errno(errno::INVALID) => {
                Error::not_found(format!("/dev/nbd{index} is not connected"))
            }
            other => other.error(&format!("resizing /dev/nbd{index}")),
        })
    }

    async fn disconnect(&mut self, index: u32) -> Result<()> {
        let asked = self.ask(NetlinkCommand::Disconnect, vec![Attribute::Index(index)]).await;
        asked.map(|_| ()).map_err(|refusal| match refusal {
            CommandFailure::Errno(errno::INVALID) => {
                Error::not_found(format!("/dev/nbd{index} is not connected"))
            }
            other => other.error(&format!("disconnecting /dev/nbd{index}")),
        })
    }

    fn is_connected(&self, index: u32) -> Result<bool> {
        self.devices.is_connected(index)
    }

    fn device(&self, index: u32) -> Result<Option<ConnectedDevice>> {
        self.devices.device(index)
    }

    async fn died(&mut self) -> Result<Option<u32>> {
        loop {
            if let Some(index) = self.dead.pop_front() {
                return Ok(Some(index));
            }
            let datagram = match self.reports.receive().await {
                Ok(datagram) => datagram,
                Err(e) if e.raw_os_error() == Some(errno::NO_MEMORY_FOR_REPORTS) => {
                    return Ok(None);
                }
                Err(e) => return Err(Error::io("listening to the NBD driver", e)),
            };
            for message in messages::<GenlMessage<NbdMessage>>(&datagram) {
                let NetlinkPayload::InnerMessage(message) = message.payload else { continue };
                let is_ours = message.payload.command == NetlinkCommand::LinkDead;
                self.dead.extend(message.payload.index().filter(|_| is_ours));
            }
        }
    }
}

/// Why a command was not carried out.
#[derive(Debug)]
enum CommandFailure {
    /// The kernel's error number, above zero.
    Errno(i32),
    /// Netlink itself failed.
    Failed(io::Error),
}

impl CommandFailure {
    fn error(self, what: &str) -> Error {
        match self {
            Self::Errno(errno::PERMISSION | errno::ACCESS) => {
                Error::denied(format!("{what}: not allowed; run it as root"))
            }
            Self::Errno(errno::INVALID) => {
                Error::new(ErrorKind::Invalid, format!("{what}: the NBD driver refuses it"))
            }
            Self::Errno(number) => Error::io(what, io::Error::from_raw_os_error(number)),
            Self::Failed(error) => Error::io(what, error),
        }
    }
}

/// A netlink socket.
struct Channel {
    socket: TokioSocket,
    sequence: u32,
}

impl Channel {
    fn open() -> Result<Self> {
        let opened = TokioSocket::new(NETLINK_GENERIC).and_then(|mut socket| {
            socket.socket_mut().bind_auto()?;
            socket.socket_ref().connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        });
        let socket = opened.map_err(|e| Error::io("opening a netlink socket", e))?;
        Ok(Self { socket, sequence: 0 })
    }

    fn join(&self, group: u32) -> Result<()> {
        let joined = self.socket.socket_ref().add_membership(group);
        joined.map_err(|e| Error::io("listening to the NBD driver", e))
    }

    /// Sends a message, and waits for the kernel's verdict; gives what it answered before that.
    async fn ask<F>(
        &mut self,
        mut message: GenlMessage<F>,
        family: u16,
    ) -> std::result::Result<Option<F>, CommandFailure>
    where
        GenlMessage<F>: NetlinkSerializable + NetlinkDeserializable,
        F: std::fmt::Debug,
    {
        message.set_resolved_family_id(family);
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes).await.map_err(CommandFailure::Failed)?;
        let verdict = async {
            let mut answer = None;
            loop {
                let datagram = self.receive().await.map_err(CommandFailure::Failed)?;
                for message in messages::<GenlMessage<F>>(&datagram) {
                    if message.header.sequence_number != self.sequence {
                        continue; // of a command that was given up
                    }
                    match message.payload {
                        NetlinkPayload::InnerMessage(inner) => answer = Some(inner.payload),
                        NetlinkPayload::Error(error) => match error.raw_code() {
                            0 => return Ok(answer),
                            number => return Err(CommandFailure::Errno(number.wrapping_neg())),
                        },
                        _ => {}
                    }
                }
            }
        };
        match tokio::time::timeout(PATIENCE, verdict).await {
            Ok(verdict) => verdict,
            Err(_) => Err(CommandFailure::Failed(io::ErrorKind::TimedOut.into())),
        }
    }

    /// The next datagram. Nothing is lost when the future is dropped.
    async fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = Vec::with_capacity(LONGEST);
        self.socket.recv(&mut buffer).await?;
        Ok(buffer)
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// The messages of a datagram that can be understood.
fn messages<I: NetlinkDeserializable>(datagram: &[u8]) -> Vec<NetlinkMessage<I>> {
    const ALIGNMENT: usize = 4;
    let mut all = Vec::new();
    let mut rest = datagram;
    while let Some(len) = rest.first_chunk().map(|len| u32::from_ne_bytes(*len) as usize) {
        let Some(message) = rest.get(..len).filter(|message| !message.is_empty()) else { break };
        all.extend(NetlinkMessage::deserialize(message).ok());
        rest = rest.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_datagram_panics_or_is_read_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            messages::<GenlMessage<NbdMessage>>(&bytes);
            messages::<GenlMessage<GenlCtrl>>(&bytes);
        }
    }

    #[tokio::test]
    async fn a_kernel_without_the_driver_is_named_with_the_remedy() {
        if std::path::Path::new("/sys/block/nbd0").exists() {
            return; // this one has it
        }
        let error = Netlink::open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("modprobe nbd"), "{error}");
    }
}
