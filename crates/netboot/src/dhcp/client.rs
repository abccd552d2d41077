//! Who boots: what firmware and iPXE say of themselves in their requests.

use super::{Message, option};
use crate::MachineUuid;
use crate::identity::Claim;

/// What runs on the machine and asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirmwareKind {
    /// Firmware that starts a program over TFTP.
    Pxe,
    /// UEFI that starts a program over HTTP.
    HttpBoot,
    /// iPXE, which runs a script.
    Ipxe,
}

/// A machine that asks what to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootClient {
    /// Who it says it is.
    pub machine: Claim,
    /// What asks.
    pub firmware: FirmwareKind,
    /// Its processor and firmware by IANA's numbers (RFC 4578, 2.1); 0 is a BIOS.
    pub architecture: u16,
    /// Option 97 as it came, to be sent back.
    pub(crate) identifier: Option<Vec<u8>>,
}

impl BootClient {
    /// Who sent a request; `None` when it is nobody that boots, such as a running system that wants
    /// an address.
    pub fn of(message: &Message) -> Option<Self> {
        if !message.request || !message.mac.is_unicast() {
            return None;
        }
        let class = message.option(option::VENDOR_CLASS).unwrap_or_default();
        let user = message.option(option::USER_CLASS).unwrap_or_default();
        // iPXE sends its name as it is; RFC 3004 wants its length before it.
        let names_ipxe = user == b"iPXE" || user == b"\x04iPXE";
        let firmware = match () {
            () if names_ipxe || message.option(option::IPXE).is_some() => FirmwareKind::Ipxe,
            () if class.starts_with(b"HTTPClient") => FirmwareKind::HttpBoot,
            () if class.starts_with(b"PXEClient") => FirmwareKind::Pxe,
            () => return None,
        };
        let architecture = match message.option(option::ARCHITECTURE) {
            Some([high, low, ..]) => u16::from_be_bytes([*high, *low]),
            _ => 0,
        };
        let identifier = message.option(option::MACHINE).filter(|value| value.len() == 17);
        let uuid = match identifier {
            Some([0, number @ ..]) => number.try_into().ok().map(MachineUuid),
            _ => None,
        };
        Some(Self {
            machine: Claim { mac: message.mac, uuid: uuid.filter(|uuid| uuid.is_set()) },
            firmware,
            architecture,
            identifier: identifier.map(<[u8]>::to_vec),
        })
    }
}
