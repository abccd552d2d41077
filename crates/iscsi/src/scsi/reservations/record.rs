//! Reservations as text, to be kept while no server runs:
//!
//! ```text
//! sojourn iSCSI reservations 1
//! generation 3
//! registration 00000000000000a1 iqn.2026-11.test:one,i,0x800000000001
//! registration 00000000000000b2 iqn.2026-11.test:two,i,0x800000000001
//! reservation 5 00000000000000a1 iqn.2026-11.test:one,i,0x800000000001
//! ```
//!
//! Keys are hexadecimal; a reservation has its type in front, and a reservation of all registrants whoever made it.

use super::{MOST, Registration, Reservation, ReservationType, Reservations};
use block::{Error, Result};
use std::fmt::Write;

/// What a record begins with, and the version.
const TITLE: &str = "sojourn iSCSI reservations ";
const VERSION: u32 = 1;
/// The longest name of an initiator port, bytes: an iSCSI name, and the number of its session.
const LONGEST_PORT: usize = crate::name::LONGEST + ",i,0x000000000000".len();
/// The longest record that is read, bytes.
pub const LONGEST: u64 = ((MOST + 3) * (LONGEST_PORT + 64)) as u64;

impl Reservations {
    /// What has to be kept; `None` when there is nothing, or nobody wanted it.
    pub fn record(&self) -> Option<String> {
        if !self.kept || self.registrations.is_empty() {
            return None;
        }
        let mut text = format!("{TITLE}{VERSION}\ngeneration {}\n", self.generation);
        // Writing to a string does not fail.
        for Registration { nexus, key } in &self.registrations {
            let _ = writeln!(text, "registration {key:016x} {nexus}");
        }
        if let Some(Reservation { kind, nexus, key }) = &self.persistent {
            let _ = writeln!(text, "reservation {} {key:016x} {nexus}", kind.0);
        }
        Some(text)
    }

    /// The reservations of a [`record`](Self::record).
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a record of another version, and for what is none.
    pub fn restore(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let version = lines.next().and_then(|line| line.strip_prefix(TITLE));
        match version.and_then(|version| version.parse::<u32>().ok()) {
            Some(VERSION) => {}
            Some(other) => {
                let why = format!(
                    "version {other}, which a newer sojourn reads; this one reads {VERSION}"
                );
                return Err(Error::invalid(why));
            }
            None => return Err(Error::invalid("it is no list of reservations")),
        }
        let mut all = Self { kept: true, ..Self::default() };
        for (line, number) in lines.zip(2..) {
            all.take(line).ok_or_else(|| Error::invalid(format!("line {number} is damaged")))?;
        }
        if let Some(reservation) = &all.persistent {
            let of_all = reservation.kind.is_of_all();
            let registered = all.key_of(&reservation.nexus) == Some(reservation.key);
            if all.registrations.is_empty() || !of_all && !registered {
                return Err(Error::invalid("who holds the reservation is not registered"));
            }
        }
        Ok(all)
    }

    /// Takes a line of a record; `None` when it is wrong.
    fn take(&mut self, line: &str) -> Option<()> {
        let (what, rest) = line.split_once(' ')?;
        match what {
            "generation" => self.generation = rest.parse().ok()?,
            "registration" => {
                let (key, nexus) = parse(rest)?;
                if key == 0 || self.registrations.len() >= MOST || self.key_of(&nexus).is_some() {
                    return None;
                }
                self.registrations.push(Registration { nexus, key });
            }
            "reservation" if self.persistent.is_none() => {
                let (kind, rest) = rest.split_once(' ')?;
                let (key, nexus) = parse(rest)?;
                let kind = ReservationType::new(kind.parse().ok()?)?;
                self.persistent = Some(Reservation { kind, nexus, key });
            }
            _ => return None,
        }
        Some(())
    }
}

/// A key and the name of an initiator port.
fn parse(text: &str) -> Option<(u64, String)> {
    let (key, nexus) = text.split_once(' ')?;
    let is_port = (1..=LONGEST_PORT).contains(&nexus.len())
        && nexus.bytes().all(|byte| byte.is_ascii_graphic());
    let key = (key.len() == 16).then(|| u64::from_str_radix(key, 16).ok())??;
    is_port.then(|| (key, nexus.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parameters of PERSISTENT RESERVE OUT that ask for being kept, or do not.
    fn keys(key: u64, new: u64, kept: bool) -> Vec<u8> {
        let mut data = key.to_be_bytes().to_vec();
        data.extend_from_slice(&new.to_be_bytes());
        data.resize(24, 0);
        data[20] = u8::from(kept);
        data
    }

    proptest! {
        #[test]
        fn what_was_kept_is_restored(
            steps in prop::collection::vec((0u8..4, 0u8..7, 0u8..9, 0u64..4, 0u64..4, any::<bool>()), 1..40),
        ) {
            let mut all = Reservations::default();
            for (port, action, kind, key, new, kept) in steps {
                let port = format!("iqn.2026-11.test:{port},i,0x800000000001");
                let _ = all.change(&port, action, (0, kind), &keys(key, new, kept));
                let Some(record) = all.record() else { continue };
                prop_assert!(record.len() as u64 <= LONGEST);
                let restored = Reservations::restore(&record).unwrap();
                prop_assert_eq!(&restored, &all);
            }
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,200}", damage in any::<prop::sample::Index>(), byte in 0u8..128) {
            let _ = Reservations::restore(&text);
            let mut all = Reservations::default();
            all.change("a", 0, (0, 0), &keys(0, 1, true)).unwrap();
            all.change("a", 1, (0, 5), &keys(1, 0, true)).unwrap();
            let mut bytes = all.record().unwrap().into_bytes();
            let at = damage.index(bytes.len());
            bytes[at] = byte;
            let text = String::from_utf8(bytes).unwrap();
            if let Ok(restored) = Reservations::restore(&text) {
                prop_assert!(!restored.is_empty() || restored.persistent.is_none());
            }
        }
    }

    #[test]
    fn nothing_is_kept_that_nobody_wants_to_be() {
        let mut all = Reservations::default();
        all.change("a", 0, (0, 0), &keys(0, 1, false)).unwrap();
        assert_eq!(all.record(), None);
        all.change("b", 6, (0, 0), &keys(0, 2, true)).unwrap();
        assert!(all.record().is_some_and(|record| record.contains(" a\n")), "of all of them");
        assert_eq!(all.report(2).unwrap()[2..4], [0x01, 0x81]);
        all.change("b", 3, (0, 0), &keys(2, 0, false)).unwrap();
        assert_eq!(all.record(), None, "there is nothing");
    }

    #[test]
    fn a_record_that_is_none_or_newer_is_refused() {
        for (text, why) in [
            ("", "no list of reservations"),
            ("sojourn iSCSI reservations 2\n", "version 2"),
            ("sojourn iSCSI reservations 1\nregistration 1 a\n", "line 2"),
            ("sojourn iSCSI reservations 1\nreservation 5 0000000000000001 a\n", "not registered"),
            (
                "sojourn iSCSI reservations 1\nregistration 0000000000000001 a\n\
                 registration 0000000000000002 a\n",
                "line 3",
            ),
        ] {
            let error = Reservations::restore(text).unwrap_err();
            assert!(error.message().contains(why), "{text:?}: {error}");
        }
    }
}
