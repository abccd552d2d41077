//! The operational parameters of a session, and how they are negotiated (RFC 7143, 13).

use crate::codec::{Digests, text};

/// The longest data segment that this target takes, in bytes, as initiators are told: most writes come
/// in one PDU, with no round trip.
pub const RECEIVE: u32 = 256 << 10;

/// Lengths of data segments and bursts that are allowed, in bytes.
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=0xff_ffff;

/// The longest burst that this target asks for, in bytes.
const BURST: u32 = 1 << 20;
/// The most unsolicited data of a command, in bytes.
pub const FIRST_BURST: u32 = 256 << 10;

/// What was agreed. The defaults are those of the standard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// What PDUs carry.
    pub digests: Digests,
    /// All data waits for a request to transfer, but for immediate data.
    pub initial_r2t: bool,
    /// Data may come with a command.
    pub immediate_data: bool,
    /// The longest data segment that the initiator takes, in bytes.
    pub initiator_segment: u32,
    /// The most data of one request to transfer, and of one sequence of Data-In, in bytes.
    pub max_burst: u32,
    /// The most unsolicited data of a command, in bytes.
    pub first_burst: u32,
    /// We said how much we take at a time.
    pub(crate) declared: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            initial_r2t: true,
            immediate_data: true,
            initiator_segment: 8192,
            max_burst: 256 << 10,
            first_burst: 64 << 10,
            declared: false,
        }
    }
}

impl Parameters {
    /// Takes what the initiator offers for `key`, and writes the answer to `answers`. `false` when the
    /// key is none of the operational ones.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn offer(
        &mut self,
        key: &str,
        value: &str,
        answers: &mut Vec<u8>,
    ) -> Result<bool, &'static str> {
        let mut answer = |value: &str| text::push(answers, key, value);
        match key {
            "HeaderDigest" => self.digests.header = digest(value, answer)?,
            "DataDigest" => self.digests.data = digest(value, answer)?,
            "InitialR2T" => {
                // It holds when either side wants it, and we do not.
                self.initial_r2t = truth(value)?;
                answer(value);
            }
            "ImmediateData" => {
                self.immediate_data = truth(value)?;
                answer(value);
            }
            "MaxRecvDataSegmentLength" => self.initiator_segment = length(value)?,
            "MaxBurstLength" => {
                self.max_burst = length(value)?.min(BURST);
                answer(&self.max_burst.to_string());
            }
            "FirstBurstLength" => {
                self.first_burst = length(value)?.min(FIRST_BURST);
                answer(&self.first_burst.to_string());
            }
            "DataPDUInOrder" | "DataSequenceInOrder" => {
                truth(value)?;
                answer("Yes");
            }
            "MaxConnections" | "MaxOutstandingR2T" => {
                within(value, 1..=65535)?;
                answer("1");
            }
            "DefaultTime2Wait" => {
                let seconds = within(value, 0..=3600)?;
                answer(&seconds.to_string());
            }
            "DefaultTime2Retain" => {
                within(value, 0..=3600)?;
                answer("0");
            }
            "ErrorRecoveryLevel" => {
                within(value, 0..=2)?;
                answer("0");
            }
            "iSCSIProtocolLevel" => {
                within(value, 0..=31)?;
                answer("1");
            }
            "IFMarker" | "OFMarker" => {
                truth(value)?;
                answer("No");
            }
            "IFMarkInt" | "OFMarkInt" => answer("Reject"),
            "TaskReporting" => {
                let usual = value.split(',').any(|one| one == "RFC3720");
                answer(if usual { "RFC3720" } else { "Reject" });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Says once how much this target takes at a time.
    pub fn declare(&mut self, answers: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.declared, true) {
            text::push(answers, "MaxRecvDataSegmentLength", RECEIVE);
        }
    }

    /// Settles what depends on several keys, at the end of the login.
    pub fn settle(&mut self) {
        self.first_burst = self.first_burst.min(self.max_burst);
    }
}

fn truth(value: &str) -> Result<bool, &'static str> {
    match value {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => Err("a value that is neither Yes nor No"),
    }
}

fn within(value: &str, allowed: std::ops::RangeInclusive<u32>) -> Result<u32, &'static str> {
    let number = text::number(value).ok_or("a value that is no number")?;
    if allowed.contains(&number) { Ok(number) } else { Err("a number that is out of range") }
}

fn length(value: &str) -> Result<u32, &'static str> {
    within(value, LENGTHS)
}

/// The first digest of a list that we know.
fn digest(value: &str, mut answer: impl FnMut(&str)) -> Result<bool, &'static str> {
    for one in value.split(',') {
        match one.trim() {
            "None" => {
                answer("None");
                return Ok(false);
            }
            "CRC32C" => {
                answer("CRC32C");
                return Ok(true);
            }
            _ => {}
        }
    }
    answer("Reject");
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiate(offers: &[(&str, &str)]) -> (Parameters, Vec<(String, String)>) {
        let (mut parameters, mut answers) = (Parameters::default(), Vec::new());
        for (key, value) in offers {
            assert!(parameters.offer(key, value, &mut answers).unwrap(), "{key}");
        }
        parameters.settle();
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        (parameters, text::parse(&answers).unwrap().iter().map(own).collect())
    }

    #[test]
    fn linux_sends_most_writes_without_a_round_trip() {
        let (agreed, answers) = negotiate(&[
            ("HeaderDigest", "None,CRC32C"),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
            ("MaxRecvDataSegmentLength", "262144"),
            ("MaxBurstLength", "16776192"),
            ("FirstBurstLength", "262144"),
        ]);
        assert_eq!((agreed.initial_r2t, agreed.immediate_data), (false, true));
        assert_eq!((agreed.first_burst, agreed.max_burst), (FIRST_BURST, BURST));
        assert_eq!(agreed.initiator_segment, 262_144);
        assert!(!agreed.digests.header);
        assert!(answers.iter().all(|(key, _)| key != "MaxRecvDataSegmentLength"), "declarative");
    }

    #[test]
    fn what_is_not_offered_is_answered_with_what_there_is() {
        let (_, answers) = negotiate(&[
            ("MaxConnections", "8"),
            ("ErrorRecoveryLevel", "2"),
            ("IFMarker", "Yes"),
            ("DataPDUInOrder", "No"),
            ("HeaderDigest", "MD5"),
        ]);
        let values: Vec<_> = answers.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["1", "0", "No", "Yes", "Reject"]);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (key, value) in [
            ("MaxRecvDataSegmentLength", "511"),
            ("MaxBurstLength", "16777216"),
            ("FirstBurstLength", "x"),
            ("InitialR2T", "yes"),
            ("MaxConnections", "0"),
            ("ErrorRecoveryLevel", "3"),
        ] {
            let refused = Parameters::default().offer(key, value, &mut Vec::new());
            assert!(refused.is_err(), "{key}={value}");
        }
    }
}
