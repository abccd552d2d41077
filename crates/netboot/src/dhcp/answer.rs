//! What a machine that boots is told.
//!
//! Beside another server (proxy DHCP, PXE 2.1, 2.2): an offer without an address, which names this
//! server as one that knows about booting. Firmware that takes it asks again at port 4011. iPXE and a
//! BIOS take the file that the offer names; UEFI is to ask first, as some of it ignores an offer that
//! names a file.

use super::client::{BootClient, FirmwareKind};
use super::{Message, MessageType, ServerAddress, option};
use crate::{BootRequest, firmware};

/// PXE's vendor options: do not look for further boot servers, use the file that is named (PXE 2.1,
/// table 2-1, tag 6, bit 3).
const USE_THE_FILE: [u8; 4] = [6, 1, 8, option::END];

/// The answer to a request at port 67, where another server hands out addresses.
pub fn proxy(request: &Message, client: &BootClient, here: ServerAddress) -> Option<Message> {
    if request.kind() != Some(MessageType::Discover) {
        return None;
    }
    let offer = named(Message::answer(request, MessageType::Offer), client, here);
    match (client.firmware, client.architecture) {
        (FirmwareKind::Pxe, 1..) => firmware::file(client.architecture).map(|_| offer),
        (FirmwareKind::Pxe, _) => {
            boot_file(offer.with(option::VENDOR_OPTIONS, USE_THE_FILE), client, here)
        }
        _ => boot_file(offer, client, here),
    }
}

/// The answer to a request at port 4011.
pub fn boot_server(request: &Message, client: &BootClient, here: ServerAddress) -> Option<Message> {
    if !matches!(request.kind(), Some(MessageType::Request | MessageType::Inform)) {
        return None;
    }
    let mut ack = named(Message::answer(request, MessageType::Ack), client, here);
    ack.client = request.client;
    if client.firmware == FirmwareKind::Pxe {
        ack = ack.with(option::VENDOR_OPTIONS, USE_THE_FILE);
    }
    boot_file(ack, client, here)
}

/// Adds what to boot to an answer that gives an address, too.
pub(super) fn beside_address(answer: Message, client: &BootClient, here: ServerAddress) -> Message {
    let answer = match client.firmware {
        FirmwareKind::HttpBoot => answer.with(option::VENDOR_CLASS, *b"HTTPClient"),
        // Firmware would ask port 4011 in vain if this called itself a boot server.
        FirmwareKind::Pxe | FirmwareKind::Ipxe => answer,
    };
    boot_file(answer.clone(), client, here).unwrap_or(answer)
}

fn named(answer: Message, client: &BootClient, here: ServerAddress) -> Message {
    let class = match client.firmware {
        FirmwareKind::HttpBoot => &b"HTTPClient"[..],
        FirmwareKind::Pxe | FirmwareKind::Ipxe => b"PXEClient",
    };
    let answer =
        answer.with(option::SERVER, here.address.octets()).with(option::VENDOR_CLASS, class);
    match &client.identifier {
        Some(identifier) => answer.with(option::MACHINE, identifier.clone()),
        None => answer,
    }
}

/// Names the file; `None` when there is none for this machine.
fn boot_file(mut answer: Message, client: &BootClient, here: ServerAddress) -> Option<Message> {
    let server = format!("http://{}:{}", here.address, here.http);
    match client.firmware {
        FirmwareKind::Ipxe => {
            answer.file =
                crate::script::address(&server, &BootRequest::of(client.machine)).into_bytes()
        }
        FirmwareKind::HttpBoot => {
            let url = format!("{server}/firmware/{}", firmware::file(client.architecture)?);
            answer = answer.with(option::BOOT_FILE, url);
        }
        FirmwareKind::Pxe => answer.file = firmware::file(client.architecture)?.as_bytes().to_vec(),
    }
    answer.next_server = here.address;
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::message::Message;
    use crate::{MacAddress, MachineUuid};
    use std::net::Ipv4Addr;

    const HERE: ServerAddress = ServerAddress { address: Ipv4Addr::new(10, 0, 0, 1), http: 8067 };

    fn request(kind: MessageType, class: &[u8], architecture: u16) -> Message {
        let mut message = Message::decode(&{
            let mut bytes = vec![0; 236];
            (bytes[0], bytes[1], bytes[2]) = (1, 1, 6);
            bytes[28..34].copy_from_slice(&[0x52, 0x54, 0, 1, 2, 3]);
            bytes.extend([99, 130, 83, 99, 255]);
            bytes
        })
        .unwrap();
        message.transaction = 7;
        let mut identifier = vec![0];
        identifier.extend([9; 16]);
        message
            .with(option::KIND, [kind as u8])
            .with(option::VENDOR_CLASS, class)
            .with(option::ARCHITECTURE, architecture.to_be_bytes())
            .with(option::MACHINE, identifier)
    }

    fn offered(request: &Message) -> Option<Message> {
        proxy(request, &BootClient::of(request)?, HERE)
    }

    #[test]
    fn a_proxy_offers_a_file_and_never_an_address() {
        let bios = request(MessageType::Discover, b"PXEClient:Arch:00000:UNDI:002001", 0);
        let offer = offered(&bios).unwrap();
        assert_eq!(offer.file, b"undionly.kpxe");
        assert_eq!((offer.next_server, offer.yours), (HERE.address, Ipv4Addr::UNSPECIFIED));
        assert_eq!(
            (offer.kind(), offer.transaction, offer.request),
            (Some(MessageType::Offer), 7, false)
        );
        assert_eq!(offer.option(option::VENDOR_CLASS), Some(&b"PXEClient"[..]));
        assert_eq!(offer.option(option::MACHINE).map(<[u8]>::len), Some(17));
        for number in [option::MASK, option::ROUTER, option::LEASE_TIME] {
            assert_eq!(offer.option(number), None);
        }
    }

    #[test]
    fn uefi_is_sent_to_the_boot_port_and_gets_its_program_there() {
        let uefi = request(MessageType::Discover, b"PXEClient:Arch:00007:UNDI:003001", 7);
        assert!(offered(&uefi).unwrap().file.is_empty());
        let again = request(MessageType::Request, b"PXEClient:Arch:00007:UNDI:003001", 7);
        let client = BootClient::of(&again).unwrap();
        assert_eq!(boot_server(&again, &client, HERE).unwrap().file, b"snponly.efi");
    }

    #[test]
    fn ipxe_gets_a_script_whatever_started_it() {
        let ipxe = request(MessageType::Discover, b"PXEClient:Arch:00007", 7)
            .with(option::USER_CLASS, *b"iPXE");
        let client = BootClient::of(&ipxe).unwrap();
        assert_eq!(client.machine.uuid, Some(MachineUuid([9; 16])));
        assert_eq!(client.machine.mac, MacAddress([0x52, 0x54, 0, 1, 2, 3]));
        let file = String::from_utf8(offered(&ipxe).unwrap().file).unwrap();
        assert!(
            file.starts_with("http://10.0.0.1:8067/boot.ipxe?mac=52:54:00:01:02:03&uuid="),
            "{file}"
        );
        assert!(file.len() <= 127, "{file}");
    }

    #[test]
    fn http_boot_gets_an_address_of_the_program() {
        let http = request(MessageType::Discover, b"HTTPClient:Arch:00016:UNDI:003001", 16);
        let offer = offered(&http).unwrap();
        assert_eq!(offer.option(option::VENDOR_CLASS), Some(&b"HTTPClient"[..]));
        assert_eq!(
            offer.option(option::BOOT_FILE),
            Some(&b"http://10.0.0.1:8067/firmware/snponly.efi"[..])
        );
    }

    #[test]
    fn nobody_else_is_answered() {
        assert_eq!(offered(&request(MessageType::Discover, b"MSFT 5.0", 0)), None);
        assert_eq!(offered(&request(MessageType::Discover, b"", 0)), None);
        assert_eq!(
            offered(&request(MessageType::Request, b"PXEClient", 0)),
            None,
            "it asks the other server"
        );
        assert_eq!(
            offered(&request(MessageType::Discover, b"PXEClient", 2)),
            None,
            "a processor without firmware"
        );
        let mut answer = request(MessageType::Discover, b"PXEClient", 0);
        answer.request = false;
        assert_eq!(offered(&answer), None);
    }
}
