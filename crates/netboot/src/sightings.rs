//! Machines that asked and are not known: so many at most, the ones seen longest ago forgotten first.

use crate::identity::Claim;
use crate::{MacAddress, MachineUuid};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The most that are remembered. A machine that makes up cards pushes others out, and nothing else.
pub const MOST: usize = 1000;

/// A machine that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// Its card.
    #[serde(with = "crate::registry::as_text")]
    pub mac: MacAddress,
    /// The number of its board, if it told one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uuid: Option<TextUuid>,
    /// Unix seconds.
    pub first_seen: u64,
    /// Unix seconds.
    pub last_seen: u64,
    /// Times it asked.
    pub times: u64,
}

/// A board's number, as text in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TextUuid(#[serde(with = "crate::registry::as_text")] pub MachineUuid);

/// Those that were seen.
#[derive(Debug, Default)]
pub struct Sightings {
    by_mac: HashMap<MacAddress, Sighting>,
    /// Something was seen that [`take_changed`](Self::take_changed) did not give yet.
    changed: bool,
}

impl Sightings {
    /// The sightings of an earlier run.
    pub fn of(earlier: Vec<Sighting>) -> Self {
        let by_mac = earlier.into_iter().take(MOST).map(|seen| (seen.mac, seen)).collect();
        Self { by_mac, changed: false }
    }

    /// Notes that a machine asked.
    pub fn note(&mut self, machine: &Claim, now: u64) {
        if !self.by_mac.contains_key(&machine.mac) && self.by_mac.len() >= MOST {
            let oldest =
                self.by_mac.values().min_by_key(|seen| seen.last_seen).map(|seen| seen.mac);
            oldest.and_then(|mac| self.by_mac.remove(&mac));
        }
        let fresh =
            Sighting { mac: machine.mac, uuid: None, first_seen: now, last_seen: now, times: 0 };
        let seen = self.by_mac.entry(machine.mac).or_insert(fresh);
        seen.uuid = machine.uuid.map(TextUuid).or(seen.uuid);
        seen.last_seen = now;
        seen.times += 1;
        self.changed = true;
    }

    /// Forgets one, which is known now.
    pub fn forget(&mut self, mac: MacAddress) {
        self.changed |= self.by_mac.remove(&mac).is_some();
    }

    /// All of them, the last seen first, if anything changed since this was asked before.
    pub fn take_changed(&mut self) -> Option<Vec<Sighting>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let mut list: Vec<Sighting> = self.by_mac.values().copied().collect();
        list.sort_by_key(|seen| (std::cmp::Reverse(seen.last_seen), seen.mac));
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(number: u32) -> Claim {
        let [a, b, c, d] = number.to_be_bytes();
        Claim { mac: MacAddress([2, 0, a, b, c, d]), uuid: None }
    }

    #[test]
    fn made_up_cards_take_a_bounded_room() {
        let mut seen = Sightings::default();
        for number in 0..3 * MOST as u32 {
            seen.note(&claim(number), u64::from(number));
        }
        let list = seen.take_changed().unwrap();
        assert_eq!(list.len(), MOST);
        assert_eq!(list[0].last_seen, 3 * MOST as u64 - 1);
        assert_eq!(seen.take_changed(), None);
    }

    #[test]
    fn one_that_asks_again_is_one() {
        let mut seen = Sightings::default();
        seen.note(&claim(1), 5);
        let uuid = Some(MachineUuid([7; 16]));
        seen.note(&Claim { uuid, ..claim(1) }, 8);
        seen.note(&claim(1), 9);
        let [one] = seen.take_changed().unwrap()[..] else { panic!() };
        assert_eq!((one.first_seen, one.last_seen, one.times), (5, 9, 3));
        assert_eq!(one.uuid.map(|uuid| uuid.0), uuid);
        seen.forget(one.mac);
        assert_eq!(seen.take_changed().unwrap(), []);
    }
}
