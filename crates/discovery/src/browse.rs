//! Looking for servers: what is asked, and what came back.

use crate::ServiceKind;
use crate::message::{DnsMessage, DnsName, DnsQuestion, RecordData, kind};
use crate::responder::type_name;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Services that are remembered; what is made up beyond that is not.
const MOST: usize = 1000;
/// Addresses of one host that are remembered.
const MOST_ADDRESSES: usize = 16;
/// The longest of the texts that are kept, in bytes.
const LONGEST_TEXT: usize = 200;

/// A service of a server in the network. All that is told here was claimed by somebody: nobody proved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundService {
    /// What people know the server by.
    pub name: String,
    /// What it offers.
    pub kind: ServiceKind,
    /// The host's name.
    pub host: String,
    /// Its addresses.
    pub addresses: Vec<Ipv4Addr>,
    /// The port.
    pub port: u16,
    /// What else it tells, by key.
    pub text: BTreeMap<String, String>,
}

/// What has been heard so far.
#[derive(Debug, Default)]
pub struct Browse {
    /// By kind and the instance's label.
    services: BTreeMap<(ServiceKind, Vec<u8>), Heard>,
    /// Addresses of hosts, by name in lower case.
    hosts: BTreeMap<String, Vec<Ipv4Addr>>,
}

#[derive(Debug, Default)]
struct Heard {
    at: Option<(DnsName, u16)>,
    text: BTreeMap<String, String>,
}

impl Browse {
    /// What is sent to all.
    pub fn query(id: u16) -> DnsMessage {
        let ask = |service| DnsQuestion { name: type_name(service), kind: kind::PTR };
        let questions = ServiceKind::ALL.map(ask).to_vec();
        DnsMessage { id, questions, ..DnsMessage::default() }
    }

    /// Takes an answer.
    pub fn take(&mut self, message: &DnsMessage) {
        if !message.response {
            return;
        }
        let records = message.answers.iter().chain(&message.additional);
        for record in records.filter(|record| record.seconds > 0) {
            match &record.data {
                RecordData::Pointer(instance) => {
                    let of =
                        ServiceKind::ALL.into_iter().find(|kind| type_name(*kind) == record.name);
                    let label = of.and_then(|kind| Some((kind, instance.child_of(&record.name)?)));
                    if let Some((kind, label)) = label {
                        self.heard(kind, label);
                    }
                }
                RecordData::Service { port, host } => {
                    if let Some(heard) = self.instance(&record.name) {
                        heard.at = Some((host.clone(), *port));
                    }
                }
                RecordData::Text(texts) => {
                    if let Some(heard) = self.instance(&record.name) {
                        heard.text = texts.iter().filter_map(|text| key_and_value(text)).collect();
                    }
                }
                RecordData::Address(address) => {
                    let host = record.name.to_string().to_lowercase();
                    if self.hosts.len() < MOST || self.hosts.contains_key(&host) {
                        let known = self.hosts.entry(host).or_default();
                        if known.len() < MOST_ADDRESSES && !known.contains(address) {
                            known.push(*address);
                        }
                    }
                }
                RecordData::Other(_) => {}
            }
        }
    }

    /// The services of which port and host are known, by name.
    pub fn found(&self) -> Vec<FoundService> {
        let mut list: Vec<FoundService> = self
            .services
            .iter()
            .filter_map(|((kind, label), heard)| {
                let (host, port) = heard.at.as_ref()?;
                let addresses = self.hosts.get(&host.to_string().to_lowercase());
                Some(FoundService {
                    name: printable(label),
                    kind: *kind,
                    host: printable(host.to_string().as_bytes()),
                    addresses: addresses.cloned().unwrap_or_default(),
                    port: *port,
                    text: heard.text.clone(),
                })
            })
            .collect();
        list.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
        list
    }

    fn heard(&mut self, kind: ServiceKind, label: &[u8]) -> Option<&mut Heard> {
        let key = (kind, label.to_vec());
        let room = self.services.len() < MOST || self.services.contains_key(&key);
        room.then(|| self.services.entry(key).or_default())
    }

    fn instance(&mut self, name: &DnsName) -> Option<&mut Heard> {
        let (kind, label) = ServiceKind::ALL
            .into_iter()
            .find_map(|kind| Some((kind, name.child_of(&type_name(kind))?)))?;
        self.heard(kind, label)
    }
}

fn key_and_value(text: &[u8]) -> Option<(String, String)> {
    let text = printable(&text[..text.len().min(LONGEST_TEXT)]);
    let (key, value) = text.split_once('=')?;
    (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
}

/// Text of a stranger, without what a terminal would obey.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::DnsRecord;
    use crate::responder::tests::announcement;

    #[test]
    fn what_a_server_answers_is_found() {
        let answer = announcement().answer(&Browse::query(3), true).unwrap();
        let mut browse = Browse::default();
        browse.take(&DnsMessage::decode(&answer.encode()).unwrap());
        let found = browse.found();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].name, "lab (1a2b3c4d)");
        assert_eq!((found[0].kind, found[0].port), (ServiceKind::Nbd, 10809));
        assert_eq!((found[1].kind, found[1].port), (ServiceKind::Iscsi, 3260));
        assert_eq!(found[0].addresses, [Ipv4Addr::new(10, 0, 0, 1)]);
        assert_eq!(found[0].text["version"], "0.1.0");
    }

    #[test]
    fn made_up_services_take_a_bounded_room_and_cannot_write_to_a_terminal() {
        let mut browse = Browse::default();
        for number in 0..3 * MOST {
            let mut made_up = announcement();
            made_up.name = format!("\u{1b}[2J{number}");
            made_up.host = format!("h{number}");
            browse.take(&made_up.announce());
        }
        let found = browse.found();
        assert_eq!(found.len(), MOST);
        assert!(found.iter().all(|found| !found.name.contains('\u{1b}')));
    }

    #[test]
    fn a_service_whose_port_nobody_told_is_not_found() {
        let name = type_name(ServiceKind::Nbd);
        let data = RecordData::Pointer(DnsName::of(&["x", "_nbd", "_tcp", "local"]));
        let answers = vec![DnsRecord { name, seconds: 9, unique: false, data }];
        let mut browse = Browse::default();
        browse.take(&DnsMessage { response: true, answers, ..DnsMessage::default() });
        assert_eq!(browse.found(), []);
    }
}
