//! Reservations in memory.

use super::*;
use proptest::prelude::*;

fn keys(key: u64, new: u64) -> Vec<u8> {
    let mut data = key.to_be_bytes().to_vec();
    data.extend_from_slice(&new.to_be_bytes());
    data.resize(24, 0);
    data
}

fn registered() -> Reservations {
    let mut all = Reservations::default();
    for (nexus, key) in [("a", 1), ("b", 2)] {
        all.change(nexus, 0, (0, 0), &keys(0, key)).unwrap();
    }
    all
}

#[test]
fn each_type_keeps_out_whom_it_should() {
    for (kind, owner, registrant, other) in [
        // Whether holder, registrant and stranger may read and write.
        (1, (true, true), (true, false), (true, false)),
        (3, (true, true), (false, false), (false, false)),
        (5, (true, true), (true, true), (true, false)),
        (6, (true, true), (true, true), (false, false)),
        (7, (true, true), (true, true), (true, false)),
        (8, (true, true), (true, true), (false, false)),
    ] {
        let mut all = registered();
        all.change("a", 1, (0, kind), &keys(1, 0)).unwrap();
        for (nexus, expected) in [("a", owner), ("b", registrant), ("c", other)] {
            let may = (all.allow(nexus, Access::Read), all.allow(nexus, Access::Write));
            assert_eq!(may, expected, "type {kind}, {nexus}");
        }
    }
}

#[test]
fn a_reservation_is_taken_from_its_holder_who_is_told() {
    let mut all = registered();
    all.change("a", 1, (0, 3), &keys(1, 0)).unwrap();
    let told = all.change("b", 4, (0, 3), &keys(2, 1)).unwrap();
    assert_eq!(told, [("a".to_owned(), Sense::REGISTRATIONS_PREEMPTED)]);
    assert!(all.allow("b", Access::Write) && !all.allow("a", Access::Read));
    assert_eq!(all.change("a", 1, (0, 3), &keys(1, 0)), Err(Refused::Conflict));
}

#[test]
fn who_is_not_registered_and_gives_up_its_registration_changes_nothing_of_others() {
    let mut kept = keys(0, 1);
    kept[20] = 1;
    let mut all = Reservations::default();
    all.change("a", 0, (0, 0), &kept).unwrap();
    let before = (all.record(), all.report(0).unwrap());
    assert!(before.0.is_some());
    // REGISTER, and REGISTER AND IGNORE EXISTING KEY.
    for action in [0, 6] {
        assert_eq!(all.change("c", action, (0, 0), &keys(0, 0)), Ok(vec![]));
        assert_eq!((all.record(), all.report(0).unwrap()), before);
    }
}

#[test]
fn a_wrong_key_changes_nothing() {
    let mut all = registered();
    for action in [1, 2, 3, 4, 5] {
        assert_eq!(all.change("a", action, (0, 1), &keys(9, 2)), Err(Refused::Conflict));
    }
    assert_eq!(all.report(0).unwrap()[..8], [0, 0, 0, 2, 0, 0, 0, 16]);
}

#[test]
fn a_simple_reservation_is_its_holders_until_it_leaves() {
    let mut all = Reservations::default();
    assert!(all.reserve("a") && all.reserve("a") && !all.reserve("b"));
    assert!(all.release("b") && !all.allow("b", Access::Read));
    all.forget("a");
    assert!(all.allow("b", Access::Write) && all.is_empty());
}

#[test]
fn a_reservation_of_all_ends_with_the_last_of_them() {
    let mut all = Reservations::default();
    for nexus in ["a", "b"] {
        all.change(nexus, 0, (0, 0), &keys(0, 2)).unwrap();
    }
    all.change("a", 1, (0, 7), &keys(2, 0)).unwrap();
    // Its own key, which both have.
    all.change("b", 4, (0, 7), &keys(2, 2)).unwrap();
    assert!(all.is_empty() && all.allow("c", Access::Write));
    assert!(all.persistent.is_none());
}

#[test]
fn registrations_are_bounded() {
    let mut all = Reservations::default();
    for n in 0..MOST {
        all.change(&n.to_string(), 0, (0, 0), &keys(0, 1)).unwrap();
    }
    let refused = Err(Refused::Sense(Sense::NO_REGISTRATIONS));
    assert_eq!(all.change("x", 0, (0, 0), &keys(0, 1)), refused);
}

proptest! {
    #[test]
    fn the_holder_is_always_registered(
        steps in prop::collection::vec((0u8..3, 0u8..7, 0u8..9, 0u64..4, 0u64..4), 1..40),
    ) {
        let mut all = Reservations::default();
        for (nexus, action, kind, key, new) in steps {
            let _ = all.change(&nexus.to_string(), action, (0, kind), &keys(key, new));
            for report in 0..4 {
                all.report(report).unwrap();
            }
            if let Some(reservation) = &all.persistent && !reservation.kind.is_of_all() {
                prop_assert!(all.key_of(&reservation.nexus).is_some());
            }
            prop_assert!(all.persistent.is_none() || !all.registrations.is_empty());
        }
    }
}
