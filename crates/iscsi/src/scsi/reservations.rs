//! Who may use a unit: RESERVE (SPC-2) and PERSISTENT RESERVE (SPC-4, 5.13). Pure. Whoever has registered for that
//! (APTPL) finds registrations and reservation again when the server was started anew, by their [`record`].

mod record;

pub use record::LONGEST;

use super::Sense;
use crate::codec::u64_at;

/// Registrations of one unit at the most.
const MOST: usize = 256;

/// What a command does, as far as reservations go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is allowed to everybody.
    Free,
    /// It reads.
    Read,
    /// It changes something.
    Write,
}

/// A persistent reservation's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservationType(u8);

impl ReservationType {
    /// The type of this code; `None` for a code that no type has.
    pub fn new(code: u8) -> Option<Self> {
        matches!(code, 1 | 3 | 5..=8).then_some(Self(code))
    }

    /// All registrants hold it.
    const fn is_of_all(self) -> bool {
        self.0 >= 7
    }

    /// Registrants may do what the holder may.
    const fn spares_registrants(self) -> bool {
        self.0 >= 5
    }

    const fn allows_reads(self) -> bool {
        matches!(self.0, 1 | 5 | 7)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Registration {
    nexus: String,
    key: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reservation {
    kind: ReservationType,
    /// Its holder, and with which key; any registrant holds one that is of all.
    nexus: String,
    key: u64,
}

/// The reservations of a unit. Initiators are told apart by the names of their ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservations {
    /// The holder of an SPC-2 reservation.
    simple: Option<String>,
    registrations: Vec<Registration>,
    persistent: Option<Reservation>,
    generation: u32,
    /// Registrations and the reservation outlive the server, as the last registration wanted it.
    kept: bool,
}

/// An initiator is to be told of something.
pub type Notice = (String, Sense);

/// What PERSISTENT RESERVE OUT ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// A reservation conflict.
    Conflict,
    /// Another fault.
    Sense(Sense),
}

impl From<Sense> for Refused {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

impl Reservations {
    /// Whether there is neither a reservation nor a registration.
    pub fn is_empty(&self) -> bool {
        self.simple.is_none() && self.registrations.is_empty()
    }

    /// Whether `nexus` may do that.
    pub fn allow(&self, nexus: &str, access: Access) -> bool {
        if access == Access::Free {
            return true;
        }
        if self.simple.as_deref().is_some_and(|holder| holder != nexus) {
            return false;
        }
        let Some(reservation) = &self.persistent else { return true };
        let registered = self.key_of(nexus).is_some();
        let spared = registered && reservation.kind.spares_registrants();
        self.holds(nexus) || spared || access == Access::Read && reservation.kind.allows_reads()
    }

    /// RESERVE; whether it may.
    pub fn reserve(&mut self, nexus: &str) -> bool {
        if !self.registrations.is_empty()
            && self.key_of(nexus).is_none()
            && self.persistent.is_some()
            || !self.registrations.is_empty() && self.persistent.is_none()
        {
            return false;
        }
        if self.persistent.is_some() {
            // A registrant's RESERVE changes nothing where the holder's would (SPC-3, 5.6.3).
            return self.holds(nexus);
        }
        if self.simple.as_deref().is_some_and(|holder| holder != nexus) {
            return false;
        }
        self.simple = Some(nexus.to_owned());
        true
    }

    /// RELEASE; `false` for a conflict. Who holds nothing releases nothing.
    pub fn release(&mut self, nexus: &str) -> bool {
        if self.persistent.is_some() || !self.registrations.is_empty() {
            return self.holds(nexus);
        }
        self.forget(nexus);
        true
    }

    /// Ends the SPC-2 reservation of an initiator that leaves.
    pub fn forget(&mut self, nexus: &str) {
        if self.simple.as_deref() == Some(nexus) {
            self.simple = None;
        }
    }

    /// Ends the SPC-2 reservation of whoever holds it, as a reset does.
    pub fn reset(&mut self) {
        self.simple = None;
    }

    /// Takes over what a [`change`](Self::change) made of a copy; an SPC-2 reservation stays as it is.
    pub fn adopt(&mut self, changed: Self) {
        let simple = self.simple.take();
        *self = Self { simple, ..changed };
    }

    /// Whether somebody else has an SPC-2 reservation: it keeps all commands out but a few.
    pub fn is_simply_reserved(&self, nexus: &str) -> bool {
        self.simple.as_deref().is_some_and(|holder| holder != nexus)
    }

    fn key_of(&self, nexus: &str) -> Option<u64> {
        self.registrations.iter().find(|one| one.nexus == nexus).map(|one| one.key)
    }

    fn holds(&self, nexus: &str) -> bool {
        self.persistent.as_ref().is_some_and(|reservation| {
            if reservation.kind.is_of_all() {
                self.key_of(nexus).is_some()
            } else {
                reservation.nexus == nexus
            }
        })
    }

    /// PERSISTENT RESERVE IN.
    ///
    /// # Errors
    /// Sense data for an action that there is not.
    pub fn report(&self, action: u8) -> Result<Vec<u8>, Sense> {
        let mut body = Vec::new();
        let holder = |one: &Registration| self.holds(&one.nexus);
        match action {
            0 => self
                .registrations
                .iter()
                .for_each(|one| body.extend_from_slice(&one.key.to_be_bytes())),
            1 => {
                if let Some(reservation) = &self.persistent {
                    let key = if reservation.kind.is_of_all() { 0 } else { reservation.key };
                    body.extend_from_slice(&key.to_be_bytes());
                    body.extend_from_slice(&[0, 0, 0, 0, 0, reservation.kind.0, 0, 0]);
                }
            }
            2 => {
                // Length; they can be kept over a loss of power; the type mask is valid, and whether they
                // are kept; all six types.
                let kept = 0x80 | u8::from(self.kept);
                return Ok(vec![0, 8, 0x01, kept, 0xea, 0x01, 0, 0]);
            }
            3 => {
                for one in &self.registrations {
                    let kind = self.persistent.as_ref().map_or(0, |reservation| reservation.kind.0);
                    body.extend_from_slice(&one.key.to_be_bytes());
                    body.extend_from_slice(&[0, 0, 0, 0]);
                    let held = holder(one);
                    body.extend_from_slice(&[
                        u8::from(held),
                        if held { kind } else { 0 },
                        0,
                        0,
                        0,
                        0,
                        0,
                        1,
                    ]);
                    let length = (one.nexus.len() + 1).next_multiple_of(4);
                    let id = u32::try_from(length + 4).unwrap_or(0);
                    body.extend_from_slice(&id.to_be_bytes());
                    // An iSCSI initiator port's TransportID.
                    let [high, low] = u16::try_from(length).unwrap_or(0).to_be_bytes();
                    body.extend_from_slice(&[0x45, 0, high, low]);
                    let end = body.len() + length;
                    body.extend_from_slice(one.nexus.as_bytes());
                    body.resize(end, 0);
                }
            }
            _ => return Err(Sense::field(1)),
        }
        let mut data = self.generation.to_be_bytes().to_vec();
        data.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        data.extend_from_slice(&body);
        Ok(data)
    }

    /// PERSISTENT RESERVE OUT; who is to be told of what.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn change(
        &mut self,
        nexus: &str,
        action: u8,
        (scope, kind): (u8, u8),
        data: &[u8],
    ) -> Result<Vec<Notice>, Refused> {
        if action > 6 {
            return Err(Sense::field(1).into());
        }
        if data.len() != 24 {
            return Err(Sense::PARAMETER_LENGTH.into());
        }
        let (key, new) = (u64_at(data, 0), u64_at(data, 8));
        if data[20] & 0x08 != 0 {
            return Err(Sense::parameter(20).into()); // other ports are not registered
        }
        if self.simple.is_some() {
            return Err(Refused::Conflict);
        }
        let own = self.key_of(nexus);
        match (action, own) {
            (6, _) => {}
            (0, None) if key == 0 => {}
            (0, Some(own)) if own == key => {}
            (0, _) => return Err(Refused::Conflict),
            (_, Some(own)) if own == key => {}
            _ => return Err(Refused::Conflict),
        }
        if matches!(action, 1 | 2 | 4 | 5) && scope != 0 {
            return Err(Sense::field(2).into());
        }
        match action {
            0 | 6 => self.register(nexus, own, new, data[20] & 0x01 != 0),
            1 => self.hold(nexus, key, ReservationType::new(kind).ok_or(Sense::field(2))?),
            2 => self.give_up(nexus, kind),
            3 => Ok(self.clear(nexus)),
            _ => self.preempt(nexus, key, new, ReservationType::new(kind)),
        }
    }

    fn register(
        &mut self,
        nexus: &str,
        own: Option<u64>,
        new: u64,
        kept: bool,
    ) -> Result<Vec<Notice>, Refused> {
        let mut notices = Vec::new();
        match (own, new) {
            // Nothing was registered and nothing is: not even whether registrations are kept changes (SPC-4, table 67).
            (None, 0) => return Ok(notices),
            (None, _) => {
                if self.registrations.len() >= MOST {
                    return Err(Sense::NO_REGISTRATIONS.into());
                }
                self.registrations.push(Registration { nexus: nexus.to_owned(), key: new });
            }
            (Some(_), 0) => notices = self.remove(nexus),
            (Some(_), _) => {
                for one in self.registrations.iter_mut().filter(|one| one.nexus == nexus) {
                    one.key = new;
                }
                if let Some(reservation) = &mut self.persistent
                    && reservation.nexus == nexus
                {
                    reservation.key = new;
                }
            }
        }
        self.kept = kept;
        self.generation = self.generation.wrapping_add(1);
        Ok(notices)
    }

    /// Removes a registration, and the reservation that it held.
    fn remove(&mut self, nexus: &str) -> Vec<Notice> {
        let held = self.holds(nexus);
        self.registrations.retain(|one| one.nexus != nexus);
        let Some(reservation) = &self.persistent else { return Vec::new() };
        let kind = reservation.kind;
        if !held || kind.is_of_all() && !self.registrations.is_empty() {
            return Vec::new();
        }
        self.persistent = None;
        if kind.spares_registrants() {
            self.tell(nexus, Sense::RESERVATIONS_RELEASED)
        } else {
            Vec::new()
        }
    }

    /// Every registrant but one is told.
    fn tell(&self, but: &str, sense: Sense) -> Vec<Notice> {
        let others = self.registrations.iter().filter(|one| one.nexus != but);
        others.map(|one| (one.nexus.clone(), sense)).collect()
    }

    fn hold(
        &mut self,
        nexus: &str,
        key: u64,
        kind: ReservationType,
    ) -> Result<Vec<Notice>, Refused> {
        if let Some(reservation) = &self.persistent {
            let same = self.holds(nexus) && reservation.kind == kind;
            return if same { Ok(Vec::new()) } else { Err(Refused::Conflict) };
        }
        self.persistent = Some(Reservation { kind, nexus: nexus.to_owned(), key });
        Ok(Vec::new())
    }

    fn give_up(&mut self, nexus: &str, kind: u8) -> Result<Vec<Notice>, Refused> {
        if !self.holds(nexus) {
            return Ok(Vec::new());
        }
        let Some(reservation) = &self.persistent else { return Ok(Vec::new()) };
        let held = reservation.kind;
        if held.0 != kind {
            return Err(Sense::INVALID_RELEASE.into());
        }
        self.persistent = None;
        let notices = self.tell(nexus, Sense::RESERVATIONS_RELEASED);
        Ok(if held.spares_registrants() { notices } else { Vec::new() })
    }

    fn clear(&mut self, nexus: &str) -> Vec<Notice> {
        let notices = self.tell(nexus, Sense::RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.persistent = None;
        self.generation = self.generation.wrapping_add(1);
        notices
    }

    fn preempt(
        &mut self,
        nexus: &str,
        own: u64,
        victim: u64,
        kind: Option<ReservationType>,
    ) -> Result<Vec<Notice>, Refused> {
        let held = self.persistent.as_ref().map(|r| (r.kind, r.key));
        let takes = match held {
            Some((held, _)) if held.is_of_all() => victim == 0,
            Some((_, key)) => key == victim,
            None => false,
        };
        if victim == 0 && !takes {
            return Err(Sense::parameter(8).into());
        }
        if takes && kind.is_none() {
            return Err(Sense::field(2).into());
        }
        let goes =
            |one: &Registration| one.nexus != nexus && (one.key == victim || takes && victim == 0);
        let hit = |one: &Registration| one.key == victim;
        if !takes && !self.registrations.iter().any(hit) {
            return Err(Refused::Conflict);
        }
        let mut notices: Vec<Notice> = self
            .registrations
            .iter()
            .filter(|one| goes(one))
            .map(|one| (one.nexus.clone(), Sense::REGISTRATIONS_PREEMPTED))
            .collect();
        // Who preempts its own key without a reservation to take removes itself, too.
        self.registrations.retain(|one| !goes(one) && (takes || !hit(one)));
        if self.registrations.is_empty() {
            // The last holder of one that is of all removed itself.
            self.persistent = None;
        }
        if takes && let Some(kind) = kind {
            let changed = held.is_some_and(|(held, _)| held != kind);
            self.persistent = Some(Reservation { kind, nexus: nexus.to_owned(), key: own });
            if changed {
                notices.extend(self.tell(nexus, Sense::RESERVATIONS_RELEASED));
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(notices)
    }
}

#[cfg(test)]
mod tests;
