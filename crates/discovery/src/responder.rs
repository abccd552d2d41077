//! What a server announces, and what it answers.

use crate::ServiceKind;
use crate::message::{
    DnsMessage, DnsName, DnsQuestion, DnsRecord, LONGEST, LONGEST_LABEL, RecordData, kind,
};
use std::net::Ipv4Addr;

/// Seconds for which records are good that name a host or its address (RFC 6762, 10).
const HOST_SECONDS: u32 = 120;
/// The same, for others.
const OTHER_SECONDS: u32 = 4500;
/// The same for one who asks once, and keeps nothing up to date (RFC 6762, 6.7).
const ONCE_SECONDS: u32 = 10;

/// Something that a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedService {
    /// What.
    pub kind: ServiceKind,
    /// At which port.
    pub port: u16,
}

/// What a server says of itself in one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// What people know it by; at most 63 bytes are announced.
    pub name: String,
    /// Its host's name in `.local`, which no other host may have.
    pub host: String,
    /// Its address in this network.
    pub address: Ipv4Addr,
    /// What is told with each service, as `key=value`.
    pub text: Vec<String>,
    /// What it offers there.
    pub services: Vec<OfferedService>,
}

pub(crate) fn type_name(kind: ServiceKind) -> DnsName {
    let [first, second] = kind.labels();
    DnsName::of(&[first, second, "local"])
}

impl Announcement {
    /// What people know a server by: its host's name, as much as there is room for, and the number that tells it from
    /// others, which is short.
    pub fn name_of(host: &str, number: &str) -> String {
        let end = format!(" ({number})");
        let room = LONGEST_LABEL.saturating_sub(end.len());
        format!("{}{end}", &host[..host.floor_char_boundary(room)])
    }

    /// What is sent to all when it begins to be so, and when it changes.
    pub fn announce(&self) -> DnsMessage {
        let answers = self
            .services
            .iter()
            .flat_map(|service| [self.pointer(service), self.port(service), self.text(service)]);
        let answers = answers.chain([self.host_address()]).collect();
        DnsMessage { response: true, answers, ..DnsMessage::default() }
    }

    /// What is sent to all when it is no longer so.
    pub fn goodbye(&self) -> DnsMessage {
        let mut message = self.announce();
        message.answers.iter_mut().for_each(|record| record.seconds = 0);
        message
    }

    /// The answer to a message, with each record once; `None` when it asks for nothing of this, or the answer
    /// would be longer than [`LONGEST`]. `once` is for who asked from another port than 5353, and gets the
    /// answer alone.
    pub fn answer(&self, query: &DnsMessage, once: bool) -> Option<DnsMessage> {
        if query.response {
            return None;
        }
        let mut answer = DnsMessage { response: true, ..DnsMessage::default() };
        let mut answered: Vec<DnsQuestion> = Vec::new();
        for question in &query.questions {
            if !answered.contains(question) && self.answer_one(question, &mut answer) {
                answered.push(question.clone());
            }
        }
        // Who asks tells what it knows already (RFC 6762, 7.1).
        answer.answers.retain(|record| {
            !query.answers.iter().any(|known| {
                known.name == record.name
                    && known.data == record.data
                    && known.seconds >= record.seconds / 2
            })
        });
        if answer.answers.is_empty() {
            return None;
        }
        let told = std::mem::take(&mut answer.additional);
        let is_new = |record: &DnsRecord| !answer.answers.contains(record);
        answer.additional.extend(told.into_iter().filter(is_new));
        if once {
            answer.id = query.id;
            answer.questions = answered;
            for record in answer.answers.iter_mut().chain(&mut answer.additional) {
                record.seconds = record.seconds.min(ONCE_SECONDS);
                record.unique = false;
            }
        }
        (answer.encode().len() <= LONGEST).then_some(answer)
    }

    /// Adds what answers a question and is not there yet; whether anything does.
    fn answer_one(&self, question: &DnsQuestion, answer: &mut DnsMessage) -> bool {
        let (mut answers, mut additional) = (Vec::new(), Vec::new());
        let wants = |kind| question.kind == kind || question.kind == kind::ANY;
        let all = DnsName::of(&["_services", "_dns-sd", "_udp", "local"]);
        for service in &self.services {
            let (of_type, instance) = (type_name(service.kind), self.instance(service));
            if wants(kind::PTR) && question.name == all {
                let pointer = RecordData::Pointer(of_type.clone());
                answers.push(record(&all, OTHER_SECONDS, pointer));
            }
            if wants(kind::PTR) && question.name == of_type {
                answers.push(self.pointer(service));
                additional.extend([self.port(service), self.text(service), self.host_address()]);
            }
            if question.name == instance {
                if wants(kind::SRV) {
                    answers.push(self.port(service));
                    additional.push(self.host_address());
                }
                if wants(kind::TXT) {
                    answers.push(self.text(service));
                }
            }
        }
        if wants(kind::A) && question.name == self.host_name() {
            answers.push(self.host_address());
        }
        let is_answered = !answers.is_empty();
        add(&mut answer.answers, answers);
        add(&mut answer.additional, additional);
        is_answered
    }

    fn host_name(&self) -> DnsName {
        DnsName::of(&[self.host.as_str(), "local"])
    }

    fn instance(&self, service: &OfferedService) -> DnsName {
        let [first, second] = service.kind.labels();
        DnsName::of(&[self.name.as_str(), first, second, "local"])
    }

    fn pointer(&self, service: &OfferedService) -> DnsRecord {
        let instance = RecordData::Pointer(self.instance(service));
        record(&type_name(service.kind), OTHER_SECONDS, instance)
    }

    fn port(&self, service: &OfferedService) -> DnsRecord {
        let data = RecordData::Service { port: service.port, host: self.host_name() };
        unique(&self.instance(service), HOST_SECONDS, data)
    }

    fn text(&self, service: &OfferedService) -> DnsRecord {
        let text = self.text.iter().map(|text| text.as_bytes().to_vec()).collect();
        unique(&self.instance(service), OTHER_SECONDS, RecordData::Text(text))
    }

    fn host_address(&self) -> DnsRecord {
        unique(&self.host_name(), HOST_SECONDS, RecordData::Address(self.address))
    }
}

/// Adds the records that are not there yet.
fn add(records: &mut Vec<DnsRecord>, more: Vec<DnsRecord>) {
    for record in more {
        if !records.contains(&record) {
            records.push(record);
        }
    }
}

fn record(name: &DnsName, seconds: u32, data: RecordData) -> DnsRecord {
    DnsRecord { name: name.clone(), seconds, unique: false, data }
}

fn unique(name: &DnsName, seconds: u32, data: RecordData) -> DnsRecord {
    DnsRecord { unique: true, ..record(name, seconds, data) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn announcement() -> Announcement {
        Announcement {
            name: "lab (1a2b3c4d)".into(),
            host: "sojourn-1a2b3c4d".into(),
            address: Ipv4Addr::new(10, 0, 0, 1),
            text: vec!["version=0.1.0".into()],
            services: vec![
                OfferedService { kind: ServiceKind::Nbd, port: 10809 },
                OfferedService { kind: ServiceKind::Iscsi, port: 3260 },
            ],
        }
    }

    fn ask(labels: &[&str], kind: u16) -> DnsMessage {
        let questions = vec![DnsQuestion { name: DnsName::of(labels), kind }];
        DnsMessage { id: 7, questions, ..DnsMessage::default() }
    }

    #[test]
    fn who_asks_for_a_kind_is_told_name_port_and_address_at_once() {
        let query = ask(&["_NBD", "_tcp", "local"], kind::PTR);
        let answer = announcement().answer(&query, false).unwrap();
        let kinds =
            |records: &[DnsRecord]| records.iter().map(|r| r.data.kind()).collect::<Vec<_>>();
        assert_eq!(kinds(&answer.answers), [kind::PTR]);
        assert_eq!(kinds(&answer.additional), [kind::SRV, kind::TXT, kind::A]);
        assert_eq!((answer.id, answer.questions.len()), (0, 0));
    }

    #[test]
    fn who_asks_once_gets_the_question_back_and_nothing_that_lasts() {
        let query = ask(&["_nbd", "_tcp", "local"], kind::ANY);
        let answer = announcement().answer(&query, true).unwrap();
        assert_eq!((answer.id, &answer.questions), (7, &query.questions));
        let mut all = answer.answers.iter().chain(&answer.additional);
        assert!(all.all(|record| record.seconds <= ONCE_SECONDS && !record.unique));
    }

    #[test]
    fn a_long_name_of_a_host_is_cut_and_never_its_number() {
        let number = "1a2b3c4d";
        assert_eq!(Announcement::name_of("lab", number), "lab (1a2b3c4d)");
        for host in ["h".repeat(52), "h".repeat(64), "ü".repeat(32)] {
            let name = Announcement::name_of(&host, number);
            let named = Announcement { name: name.clone(), ..announcement() };
            let instance = named.instance(&named.services[0]);
            assert_eq!(instance.first(), name.as_bytes(), "announced as it is");
            assert!(name.ends_with(" (1a2b3c4d)") && name.len() >= 62, "{name}");
        }
    }

    #[test]
    fn what_is_known_already_is_not_told_again() {
        let mut query = ask(&["_nbd", "_tcp", "local"], kind::PTR);
        let told = announcement().answer(&query, false).unwrap();
        query.answers = told.answers;
        assert_eq!(announcement().answer(&query, false), None);
        query.answers[0].seconds = OTHER_SECONDS / 2 - 1;
        assert!(announcement().answer(&query, false).is_some(), "it is about to be forgotten");
    }

    #[test]
    fn who_asks_the_same_often_is_answered_once_and_hears_nothing_of_what_is_not_answered() {
        let once = ask(&["_nbd", "_tcp", "local"], kind::PTR);
        let mut often = once.clone();
        often.questions = vec![once.questions[0].clone(); 250];
        often.questions.extend(ask(&["_http", "_tcp", "local"], kind::PTR).questions);
        for alone in [false, true] {
            let answer = announcement().answer(&often, alone);
            assert_eq!(answer, announcement().answer(&once, alone));
        }
    }

    #[test]
    fn an_answer_that_is_too_long_is_not_sent() {
        let long = Announcement { text: vec!["x".repeat(250); 40], ..announcement() };
        assert_eq!(long.answer(&ask(&["_nbd", "_tcp", "local"], kind::PTR), true), None);
        let host = ask(&["sojourn-1a2b3c4d", "local"], kind::A);
        assert!(long.answer(&host, true).is_some());
    }

    #[test]
    fn questions_for_others_and_answers_are_nobodys_business() {
        for labels in [["_http", "_tcp", "local"], ["_sojourn", "_tcp", "local"], ["x", "y", "z"]] {
            assert_eq!(announcement().answer(&ask(&labels, kind::PTR), true), None);
        }
        let host = ["sojourn-1a2b3c4d", "local"];
        assert!(announcement().answer(&ask(&host, kind::A), true).is_some());
        assert_eq!(announcement().answer(&ask(&host, 28), true), None, "no IPv6");
        assert_eq!(announcement().answer(&announcement().announce(), true), None);
    }

    #[test]
    fn a_goodbye_takes_back_all_that_was_announced() {
        let (said, taken) = (announcement().announce(), announcement().goodbye());
        assert_eq!(said.answers.len(), 7);
        assert_eq!(said.answers.len(), taken.answers.len());
        assert!(taken.answers.iter().all(|record| record.seconds == 0));
    }
}
