//! A DNS message as bytes (RFC 1035, 4). Total: whatever is no message is `None`.

use std::fmt;
use std::net::Ipv4Addr;

/// The longest message that is looked at, in bytes (RFC 6762, 17).
pub const LONGEST: usize = 9000;
/// The longest name, in bytes as sent.
const LONGEST_NAME: usize = 255;
/// The longest label, in bytes.
pub(crate) const LONGEST_LABEL: usize = 63;
/// Records and questions of a message that are looked at.
pub(crate) const MOST: usize = 256;
const HEADER: usize = 12;
/// The class of the Internet.
const INTERNET: u16 = 1;
/// In a question: answer me alone. In a record: there are no others of this name and kind.
const TOP_BIT: u16 = 0x8000;
/// The flag of a question whose known answers go on in the next message.
const CUT: u16 = 0x0200;
/// The flags of an answer by who knows it at first hand.
const RESPONSE: u16 = 0x8400;

/// Numbers of kinds of record.
pub mod kind {
    /// An IPv4 address.
    pub const A: u16 = 1;
    /// Another name.
    pub const PTR: u16 = 12;
    /// Texts.
    pub const TXT: u16 = 16;
    /// Host and port.
    pub const SRV: u16 = 33;
    /// All kinds, in a question.
    pub const ANY: u16 = 255;
}

/// A name: labels of bytes, in UTF-8 where an honest peer wrote them. Names are equal whatever the case of
/// their ASCII letters.
#[derive(Debug, Clone, Eq)]
pub struct DnsName(Vec<Vec<u8>>);

impl DnsName {
    /// The name of these labels. Longer ones are cut to 63 bytes, at the end of a character.
    pub fn of<S: AsRef<str>>(labels: &[S]) -> Self {
        let cut = |label: &S| {
            let label = label.as_ref();
            label.as_bytes()[..label.floor_char_boundary(LONGEST_LABEL)].to_vec()
        };
        Self(labels.iter().map(cut).filter(|label| !label.is_empty()).collect())
    }

    /// Its first label, when the rest is `parent`.
    pub fn child_of(&self, parent: &Self) -> Option<&[u8]> {
        let (first, rest) = self.0.split_first()?;
        same(rest, &parent.0).then_some(first.as_slice())
    }

    /// Its first label.
    pub fn first(&self) -> &[u8] {
        self.0.first().map_or(&[], Vec::as_slice)
    }

    fn put(&self, out: &mut Vec<u8>) {
        for label in &self.0 {
            out.push(label.len() as u8);
            out.extend_from_slice(label);
        }
        out.push(0);
    }
}

fn same(a: &[Vec<u8>], b: &[Vec<u8>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.eq_ignore_ascii_case(b))
}

impl PartialEq for DnsName {
    fn eq(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.0.iter().map(|label| String::from_utf8_lossy(label));
        f.write_str(&labels.collect::<Vec<_>>().join("."))
    }
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsQuestion {
    /// The name.
    pub name: DnsName,
    /// See [`kind`].
    pub kind: u16,
}

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsRecord {
    /// The name.
    pub name: DnsName,
    /// For so many seconds; 0 when it is no longer so.
    pub seconds: u32,
    /// Whether nobody else has records of this name and kind.
    pub unique: bool,
    /// What it is.
    pub data: RecordData,
}

/// The data of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordData {
    /// An address.
    Address(Ipv4Addr),
    /// Another name.
    Pointer(DnsName),
    /// Texts, each at most 255 bytes.
    Text(Vec<Vec<u8>>),
    /// The host that offers something, and the port.
    Service {
        /// The port.
        port: u16,
        /// The host.
        host: DnsName,
    },
    /// Anything else, which is not looked at, and not written.
    Other(u16),
}

impl RecordData {
    /// See [`kind`].
    pub fn kind(&self) -> u16 {
        match self {
            Self::Address(_) => kind::A,
            Self::Pointer(_) => kind::PTR,
            Self::Text(_) => kind::TXT,
            Self::Service { .. } => kind::SRV,
            Self::Other(kind) => *kind,
        }
    }
}

/// A message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsMessage {
    /// What ties an answer to its question, where that came from another port than 5353.
    pub id: u16,
    /// Whether it answers.
    pub response: bool,
    /// Whether a question's known answers go on in the next message of who asks.
    pub cut: bool,
    /// What is asked.
    pub questions: Vec<DnsQuestion>,
    /// What is answered, or known already.
    pub answers: Vec<DnsRecord>,
    /// What will be asked next.
    pub additional: Vec<DnsRecord>,
}

impl DnsMessage {
    /// Reads a message; `None` when it is none, or an answer that tells of an error.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > LONGEST {
            return None;
        }
        let mut reader = MessageReader { bytes, at: 0 };
        let id = reader.u16()?;
        let flags = reader.u16()?;
        let (response, cut) = (flags & 0x8000 != 0, flags & CUT != 0);
        // Neither another operation than a query, nor an error, nor an answer that is cut.
        if flags & 0x780f != 0 || response && cut {
            return None;
        }
        let counts: [u16; 4] = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
        if counts.iter().map(|count| usize::from(*count)).sum::<usize>() > MOST {
            return None;
        }
        let mut message = Self { id, response, cut, ..Self::default() };
        for _ in 0..counts[0] {
            let (name, kind, class) = (reader.name()?, reader.u16()?, reader.u16()?);
            if class & !TOP_BIT == INTERNET {
                message.questions.push(DnsQuestion { name, kind });
            }
        }
        for (section, count) in counts[1..].iter().enumerate() {
            for _ in 0..*count {
                let Some(record) = reader.record()? else { continue };
                match section {
                    0 => message.answers.push(record),
                    // Of records that a prober claims nothing is known yet.
                    1 => {}
                    _ => message.additional.push(record),
                }
            }
        }
        Some(message)
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let counts = [self.questions.len(), self.answers.len(), 0, self.additional.len()];
        let flags = match (self.response, self.cut) {
            (true, _) => RESPONSE,
            (false, true) => CUT,
            (false, false) => 0,
        };
        for word in [self.id, flags] {
            out.extend(word.to_be_bytes());
        }
        for count in counts {
            out.extend((count as u16).to_be_bytes());
        }
        debug_assert_eq!(out.len(), HEADER);
        for question in &self.questions {
            question.name.put(&mut out);
            out.extend(question.kind.to_be_bytes());
            out.extend(INTERNET.to_be_bytes());
        }
        for record in self.answers.iter().chain(&self.additional) {
            put_record(record, &mut out);
        }
        out
    }
}

fn put_record(record: &DnsRecord, out: &mut Vec<u8>) {
    let mut data = Vec::new();
    match &record.data {
        RecordData::Address(address) => data.extend(address.octets()),
        RecordData::Pointer(name) => name.put(&mut data),
        RecordData::Text(texts) => {
            for text in texts {
                let text = &text[..text.len().min(255)];
                data.push(text.len() as u8);
                data.extend_from_slice(text);
            }
            if texts.is_empty() {
                data.push(0); // RFC 6763, 6.1: one empty text
            }
        }
        RecordData::Service { port, host } => {
            data.extend([0; 4]); // priority and weight
            data.extend(port.to_be_bytes());
            host.put(&mut data);
        }
        RecordData::Other(_) => {}
    }
    record.name.put(out);
    out.extend(record.data.kind().to_be_bytes());
    out.extend((INTERNET | if record.unique { TOP_BIT } else { 0 }).to_be_bytes());
    out.extend(record.seconds.to_be_bytes());
    out.extend((data.len() as u16).to_be_bytes());
    out.extend(data);
}

struct MessageReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> MessageReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// A name, which may go on at an earlier place: each jump goes further back, so it ends.
    fn name(&mut self) -> Option<DnsName> {
        let (mut labels, mut length) = (Vec::new(), 1);
        let (mut at, mut end, mut limit) = (self.at, None, self.at);
        loop {
            let first = *self.bytes.get(at)?;
            match first >> 6 {
                0 if first == 0 => {
                    self.at = end.unwrap_or(at + 1);
                    return Some(DnsName(labels));
                }
                0 => {
                    let label = self.bytes.get(at + 1..at + 1 + usize::from(first))?;
                    length += label.len() + 1;
                    if length > LONGEST_NAME {
                        return None;
                    }
                    labels.push(label.to_vec());
                    at += 1 + label.len();
                }
                3 => {
                    let second = *self.bytes.get(at + 1)?;
                    end = end.or(Some(at + 2));
                    let to = usize::from(u16::from_be_bytes([first & 0x3f, second]));
                    if to >= limit {
                        return None;
                    }
                    (at, limit) = (to, to);
                }
                _ => return None,
            }
        }
    }

    /// A record; `Some(None)` for one of another class.
    fn record(&mut self) -> Option<Option<DnsRecord>> {
        let (name, kind, class) = (self.name()?, self.u16()?, self.u16()?);
        let seconds = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        let len = usize::from(self.u16()?);
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len())?;
        let data = match kind {
            kind::A => RecordData::Address(<[u8; 4]>::try_from(self.take(len)?).ok()?.into()),
            kind::PTR => RecordData::Pointer(self.name()?),
            kind::SRV => {
                self.take(4)?;
                RecordData::Service { port: self.u16()?, host: self.name()? }
            }
            kind::TXT => {
                let mut texts = Vec::new();
                while self.at < end {
                    let len = usize::from(self.take(1)?[0]);
                    texts.push(self.take(len)?.to_vec());
                }
                texts.retain(|text| !text.is_empty());
                RecordData::Text(texts)
            }
            other => {
                self.take(len)?;
                RecordData::Other(other)
            }
        };
        let fits = self.at == end;
        let ours = class & !TOP_BIT == INTERNET;
        fits.then(|| {
            ours.then_some(DnsRecord { name, seconds, unique: class & TOP_BIT != 0, data })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = DnsName> {
        vec(vec(any::<u8>(), 1..20), 0..6).prop_map(DnsName)
    }

    fn record() -> impl Strategy<Value = DnsRecord> {
        let data = prop_oneof![
            any::<[u8; 4]>().prop_map(|bytes| RecordData::Address(bytes.into())),
            name().prop_map(RecordData::Pointer),
            vec(vec(any::<u8>(), 1..256), 0..4).prop_map(RecordData::Text),
            (any::<u16>(), name()).prop_map(|(port, host)| RecordData::Service { port, host }),
        ];
        (name(), any::<u32>(), any::<bool>(), data)
            .prop_map(|(name, seconds, unique, data)| DnsRecord { name, seconds, unique, data })
    }

    fn message() -> impl Strategy<Value = DnsMessage> {
        let question = (name(), any::<u16>()).prop_map(|(name, kind)| DnsQuestion { name, kind });
        let records = || vec(record(), 0..4);
        let flags = prop_oneof![Just((true, false)), Just((false, true)), Just((false, false))];
        (any::<u16>(), flags, vec(question, 0..4), records(), records()).prop_map(
            |(id, (response, cut), questions, answers, additional)| DnsMessage {
                id,
                response,
                cut,
                questions,
                answers,
                additional,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(message in message()) {
            prop_assert_eq!(DnsMessage::decode(&message.encode()), Some(message));
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200), message in message(), at: usize, by: u8) {
            let _ = DnsMessage::decode(&bytes);
            let mut bytes = message.encode();
            let at = at % bytes.len();
            bytes[at] ^= by;
            let _ = DnsMessage::decode(&bytes);
            let _ = DnsMessage::decode(&bytes[..at]);
        }
    }

    /// A question for the name that begins behind the header.
    fn question(name: &[u8]) -> Option<DnsMessage> {
        let mut bytes = vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(name);
        bytes.extend([0, 12, 0, 1]);
        DnsMessage::decode(&bytes)
    }

    #[test]
    fn a_name_that_points_at_itself_or_forward_is_refused() {
        assert!(question(b"\x03abc\x00").is_some());
        assert_eq!(question(b"\xc0\x0c"), None, "at itself");
        assert_eq!(question(b"\x01a\xc0\x0c"), None, "at its own start");
        assert_eq!(question(b"\xc0\x20"), None, "forward");
        let long = [[63; 64]; 4].concat();
        assert_eq!(question(&[&long[..], b"\x00"].concat()), None, "257 bytes");
    }

    #[test]
    fn a_name_may_end_as_an_earlier_one_does() {
        let mut bytes = vec![0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0];
        bytes.extend(b"\x04_nbd\x04_tcp\x05local\x00\x00\x0c\x00\x01");
        bytes.extend(b"\x06_iscsi\xc0\x11\x00\x0c\x80\x01");
        let message = DnsMessage::decode(&bytes).unwrap();
        assert_eq!(message.questions[1].name, DnsName::of(&["_ISCSI", "_tcp", "local"]));
    }

    #[test]
    fn a_long_label_is_cut_at_a_character() {
        let name = DnsName::of(&["ü".repeat(40)]);
        assert_eq!(name.first().len(), 62);
        assert!(std::str::from_utf8(name.first()).is_ok());
    }
}
