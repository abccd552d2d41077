//! What anybody in the network sends to a server that is announced, and answers to who looks for one.
#![no_main]

use discovery::message::LONGEST;
use discovery::{Announcement, Browse, DnsMessage, OfferedService, ServiceKind};
use libfuzzer_sys::fuzz_target;
use std::net::Ipv4Addr;

fn announcement() -> Announcement {
    Announcement {
        name: "lab (1a2b3c4d)".into(),
        host: "sojourn-1a2b3c4d".into(),
        address: Ipv4Addr::new(10, 0, 0, 1),
        text: vec!["version=0.1.0".into()],
        services: ServiceKind::ALL.map(|kind| OfferedService { kind, port: 10809 }).to_vec(),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(message) = DnsMessage::decode(data) else { return };
    for once in [false, true] {
        if let Some(answer) = announcement().answer(&message, once) {
            let bytes = answer.encode();
            // However often something is asked, it is told once: its kind, and name, port and text of each
            // service, and the address.
            assert!(bytes.len() <= LONGEST);
            let most = 4 * ServiceKind::ALL.len() + 1;
            assert!(answer.answers.len() + answer.additional.len() <= most);
            assert!(answer.questions.len() <= message.questions.len());
        }
    }
    let mut browse = Browse::default();
    browse.take(&message);
    for found in browse.found() {
        assert!(!found.name.chars().chain(found.host.chars()).any(char::is_control));
    }
});
