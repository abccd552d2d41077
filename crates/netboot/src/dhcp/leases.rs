//! Addresses that are handed out. Kept by card and not by client identifier: firmware, iPXE and the
//! system of one machine identify themselves differently, and the machine is to keep one address
//! all through its boot.

use crate::MacAddress;
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// The most addresses of a range.
const MOST: u32 = 65_536;
/// How long an offered address waits for the client, in seconds.
const OFFERED: u64 = 30;
/// How long an address rests that somebody else was found to use, in seconds.
const REST: u64 = 600;

/// A range of addresses, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    first: u32,
    last: u32,
}

impl AddressRange {
    /// Whether it holds an address.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&u32::from(address))
    }

    /// Its first and last address.
    pub fn ends(self) -> (Ipv4Addr, Ipv4Addr) {
        (self.first.into(), self.last.into())
    }

    fn len(self) -> u32 {
        self.last - self.first + 1
    }
}

impl FromStr for AddressRange {
    type Err = Error;

    /// Reads `10.0.0.100-10.0.0.200`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            || Error::invalid(format!("{text:?} is not a range: write 10.0.0.100-10.0.0.200"));
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let number =
            |text: &str| text.trim().parse::<Ipv4Addr>().map(u32::from).map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        match last.checked_sub(first) {
            None => Err(Error::invalid(format!("the range {text} ends before it begins"))),
            Some(length) if length >= MOST => {
                Err(Error::invalid(format!("the range {text} has more than {MOST} addresses")))
            }
            Some(_) => Ok(Self { first, last }),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.ends();
        write!(f, "{first}-{last}")
    }
}

/// An address that a card has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// The card.
    #[serde(with = "crate::registry::as_text")]
    pub mac: MacAddress,
    /// Unix seconds at which it ends.
    pub until: u64,
}

/// Who an address is kept from others for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReservedAddress {
    mac: MacAddress,
    until: u64,
    /// The client took it, and was not only offered it.
    taken: bool,
}

/// All leases of a range.
#[derive(Debug)]
pub struct Leases {
    range: AddressRange,
    /// Addresses of the range that somebody has already, and that are no machine's: nobody gets them.
    reserved: BTreeSet<Ipv4Addr>,
    /// Seconds that a lease lasts.
    lasts: u64,
    held: BTreeMap<u32, ReservedAddress>,
    by_mac: HashMap<MacAddress, u32>,
    /// The addresses that may be lent and that nobody holds or has held.
    vacant: BTreeSet<u32>,
    /// Those that are held, by their ends: whoever asks is answered without a look at all of them.
    ends: BTreeSet<(u64, u32)>,
}

impl Leases {
    /// The leases of a range, with earlier ones that are in it. They last for so many
    /// seconds. Nobody gets what is reserved: the addresses of this server and of others that machines are told of,
    /// and those of the network itself.
    pub fn new(
        range: AddressRange,
        reserved: BTreeSet<Ipv4Addr>,
        lasts: u64,
        earlier: Vec<Lease>,
    ) -> Self {
        let (held, by_mac, ends) = (BTreeMap::new(), HashMap::new(), BTreeSet::new());
        let mut vacant: BTreeSet<u32> = (range.first..=range.last).collect();
        for address in &reserved {
            vacant.remove(&u32::from(*address));
        }
        let mut leases = Self { range, reserved, lasts, held, by_mac, vacant, ends };
        for lease in earlier {
            let key = u32::from(lease.address);
            let free = !leases.held.contains_key(&key) && !leases.by_mac.contains_key(&lease.mac);
            if free && leases.may_lend(lease.address) {
                leases
                    .hold(key, ReservedAddress { mac: lease.mac, until: lease.until, taken: true });
            }
        }
        leases
    }

    /// The range.
    pub fn range(&self) -> AddressRange {
        self.range
    }

    /// Seconds that a lease lasts.
    pub fn lasts(&self) -> u64 {
        self.lasts
    }

    /// The leases that clients took, by address.
    pub fn list(&self) -> Vec<Lease> {
        let taken = self.held.iter().filter(|(_, held)| held.taken);
        taken
            .map(|(key, held)| Lease { address: (*key).into(), mac: held.mac, until: held.until })
            .collect()
    }

    /// An address for a card: the one it has or had, the one it wishes, or any other that is free.
    /// `None` when there is none. It is kept for the card for a moment.
    pub fn offer(&mut self, mac: MacAddress, wish: Option<Ipv4Addr>, now: u64) -> Option<Ipv4Addr> {
        if let Some(key) = self.by_mac.get(&mac).copied() {
            let held = *self.held.get(&key)?;
            self.put(key, ReservedAddress { until: held.until.max(now + OFFERED), ..held });
            return Some(key.into());
        }
        let wished = wish.filter(|wish| self.may_lend(*wish)).map(u32::from);
        let key = wished.filter(|key| self.is_free(*key, now)).or_else(|| self.find(mac, now))?;
        self.hold(key, ReservedAddress { mac, until: now + OFFERED, taken: false });
        Some(key.into())
    }

    /// Gives a card an address that it asks for, if it is the card's or free; says whether it did.
    pub fn take(&mut self, mac: MacAddress, address: Ipv4Addr, now: u64) -> bool {
        let key = u32::from(address);
        let own = self.held.get(&key).is_some_and(|held| held.mac == mac);
        if !own && (!self.may_lend(address) || !self.is_free(key, now)) {
            return false;
        }
        self.hold(key, ReservedAddress { mac, until: now + self.lasts, taken: true });
        true
    }

    /// A card gives its address back.
    pub fn release(&mut self, mac: MacAddress, address: Ipv4Addr) {
        let key = u32::from(address);
        if self.held.get(&key).is_some_and(|held| held.mac == mac) {
            self.clear(key);
            self.by_mac.remove(&mac);
        }
    }

    /// A card found its address in use: nobody gets it for a while.
    pub fn decline(&mut self, mac: MacAddress, address: Ipv4Addr, now: u64) {
        let key = u32::from(address);
        if self.held.get(&key).is_some_and(|held| held.mac == mac) {
            self.by_mac.remove(&mac);
            let nobody = MacAddress([0; 6]);
            self.put(key, ReservedAddress { mac: nobody, until: now + REST, taken: false });
        }
    }

    fn may_lend(&self, address: Ipv4Addr) -> bool {
        self.range.contains(address) && !self.reserved.contains(&address)
    }

    fn is_free(&self, key: u32, now: u64) -> bool {
        self.held.get(&key).is_none_or(|held| held.until <= now)
    }

    fn hold(&mut self, key: u32, held: ReservedAddress) {
        if let Some(earlier) = self.put(key, held) {
            self.by_mac.remove(&earlier.mac);
        }
        if let Some(other) = self.by_mac.insert(held.mac, key).filter(|other| *other != key) {
            self.clear(other);
        }
    }

    /// Notes who an address is kept for; who it was kept for before.
    fn put(&mut self, key: u32, held: ReservedAddress) -> Option<ReservedAddress> {
        let earlier = self.held.insert(key, held);
        self.vacant.remove(&key);
        if let Some(earlier) = earlier {
            self.ends.remove(&(earlier.until, key));
        }
        self.ends.insert((held.until, key));
        earlier
    }

    /// An address is nobody's any more.
    fn clear(&mut self, key: u32) {
        if let Some(held) = self.held.remove(&key) {
            self.ends.remove(&(held.until, key));
            self.vacant.insert(key);
        }
    }

    /// A free address: one that nobody ever had while there are any, from a place that is the card's
    /// own, so that a card gets the same one even if its lease was forgotten; else the one whose end is longest ago.
    fn find(&self, mac: MacAddress, now: u64) -> Option<u32> {
        let hash = mac.0.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193) // FNV-1a
        });
        let place = self.range.first + hash % self.range.len();
        let vacant = self.vacant.range(place..).next().or_else(|| self.vacant.first());
        vacant.copied().or_else(|| {
            let (until, key) = *self.ends.first()?;
            (until <= now).then_some(key)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

    fn mac(number: u8) -> MacAddress {
        MacAddress([0x52, 0x54, 0, 0, 0, number])
    }

    #[test]
    fn nobody_gets_an_address_that_is_reserved() {
        let range: AddressRange = "10.0.0.0-10.0.0.5".parse().unwrap();
        let reserved: BTreeSet<Ipv4Addr> =
            [0, 1, 2, 3, 5].map(|last| Ipv4Addr::new(10, 0, 0, last)).into();
        let only = Ipv4Addr::new(10, 0, 0, 4);
        let before = Lease { address: OWN, mac: mac(9), until: 1000 };
        let mut leases = Leases::new(range, reserved.clone(), 3600, vec![before]);
        assert!(leases.list().is_empty(), "one that was lent before it was reserved");
        for address in &reserved {
            assert!(!leases.take(mac(1), *address, 0), "{address}");
            assert_eq!(leases.offer(mac(1), Some(*address), 0), Some(only));
        }
        assert_eq!(leases.offer(mac(2), None, 0), None);
    }

    fn leases() -> Leases {
        Leases::new("10.0.0.1-10.0.0.8".parse().unwrap(), BTreeSet::from([OWN]), 3600, Vec::new())
    }

    #[derive(Debug, Clone)]
    enum Step {
        Offer(u8, Option<u8>),
        Take(u8, u8),
        Release(u8, u8),
        Decline(u8, u8),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..12u8, proptest::option::of(0..12u8)).prop_map(|(m, wish)| Step::Offer(m, wish)),
            (1..12u8, 0..12u8).prop_map(|(m, a)| Step::Take(m, a)),
            (1..12u8, 0..12u8).prop_map(|(m, a)| Step::Release(m, a)),
            (1..12u8, 0..12u8).prop_map(|(m, a)| Step::Decline(m, a)),
            (1..5000u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// Against a list of who was granted what until when.
        #[test]
        fn no_two_cards_have_one_address_at_a_time(steps in proptest::collection::vec(step(), 1..200)) {
            let (mut leases, mut now) = (leases(), 1000);
            let mut granted: Vec<(u8, Ipv4Addr, u64)> = Vec::new();
            let address = |number: u8| Ipv4Addr::new(10, 0, 0, number);
            for step in steps {
                match step {
                    Step::Offer(m, wish) => if let Some(offer) = leases.offer(mac(m), wish.map(address), now) {
                        prop_assert!(leases.range().contains(offer) && offer != OWN);
                        prop_assert!(granted.iter().all(|(o, a, until)| *a != offer || *o == m || *until <= now));
                    },
                    Step::Take(m, a) => if leases.take(mac(m), address(a), now) {
                        let a = address(a);
                        prop_assert!(leases.range().contains(a) && a != OWN);
                        prop_assert!(granted.iter().all(|(o, b, until)| *b != a || *o == m || *until <= now));
                        granted.retain(|(o, b, _)| *o != m && *b != a);
                        granted.push((m, a, now + 3600));
                    },
                    Step::Release(m, a) => {
                        leases.release(mac(m), address(a));
                        granted.retain(|(o, b, _)| *o != m || *b != address(a));
                    }
                    Step::Decline(m, a) => {
                        leases.decline(mac(m), address(a), now);
                        granted.retain(|(o, b, _)| *o != m || *b != address(a));
                    }
                    Step::Wait(seconds) => now += seconds,
                }
                prop_assert!(leases.held.len() <= 8);
                prop_assert_eq!(leases.held.len() + leases.vacant.len(), 7);
                let ends: BTreeSet<_> = leases.held.iter().map(|(key, held)| (held.until, *key)).collect();
                prop_assert_eq!(&leases.ends, &ends);
                prop_assert!(leases.by_mac.len() <= leases.held.len());
            }
        }
    }

    #[test]
    fn a_full_range_gives_nothing_until_an_offer_runs_out() {
        let mut leases = leases();
        for number in 1..=7 {
            leases.offer(mac(number), None, 0).unwrap();
        }
        assert_eq!(leases.offer(mac(9), None, 1), None);
        assert!(leases.offer(mac(9), None, OFFERED).is_some());
    }

    /// With a look at every address for every card this would take minutes.
    #[test]
    fn cards_that_a_full_range_has_no_address_for_cost_little() {
        let range: AddressRange = "10.1.0.0-10.1.255.255".parse().unwrap();
        let mut leases = Leases::new(range, BTreeSet::from([OWN]), 3600, Vec::new());
        let card = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            MacAddress([2, 0, a, b, c, d])
        };
        let all = (0..MOST).map(|number| leases.offer(card(number), None, 0));
        assert_eq!(all.flatten().collect::<BTreeSet<_>>().len(), MOST as usize);
        for number in MOST..3 * MOST {
            assert_eq!(leases.offer(card(number), None, 1), None);
        }
        assert_eq!(
            leases.offer(card(MOST), None, OFFERED).map(|at| range.contains(at)),
            Some(true)
        );
    }

    #[test]
    fn a_card_keeps_its_address_over_a_restart_and_without_its_lease() {
        let mut first = leases();
        let address = first.offer(mac(5), None, 0).unwrap();
        assert!(first.take(mac(5), address, 0));
        let list = first.list();
        assert_eq!(list.len(), 1);
        let mut second = Leases::new(first.range(), BTreeSet::from([OWN]), 3600, list);
        assert_eq!(second.offer(mac(5), None, 10), Some(address));
        assert_eq!(leases().offer(mac(5), None, 10), Some(address));
    }

    #[test]
    fn a_range_is_bounded() {
        for text in ["10.0.0.9-10.0.0.1", "10.0.0.0-10.1.0.0", "10.0.0.1", "a-b"] {
            text.parse::<AddressRange>().unwrap_err();
        }
        assert_eq!(
            "10.0.0.1-10.0.0.8".parse::<AddressRange>().unwrap().to_string(),
            "10.0.0.1-10.0.0.8"
        );
    }
}
