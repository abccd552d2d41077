use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const IDENTITY: Identity = Identity { disk: [9; 16], layer: 3 };
const LIMIT: u64 = 10_000;
/// A word of 32 private blocks, and one of 32 zero ones.
const PRIVATE: u64 = 0x5555_5555_5555_5555;
const ZERO: u64 = 0xaaaa_aaaa_aaaa_aaaa;

type Map = BTreeMap<u64, u64>;

fn open(path: &FsPath) -> Result<(MapLog, Map)> {
    let mut map = Map::new();
    let log = MapLog::open(path, IDENTITY, LIMIT, false, &mut |group, word, _| {
        map.insert(group, word);
    })?;
    map.retain(|_, word| *word != 0);
    Ok((log, map))
}

fn append(log: &mut MapLog, groups: &[(u64, u64)]) {
    log.append(groups.iter().copied()).unwrap();
}

/// A log of several batches, and what it holds after each of them.
fn sample(path: &FsPath) -> Vec<Map> {
    let mut log = MapLog::create(path, IDENTITY, [(1, PRIVATE), (2, PRIVATE), (7, 1)]).unwrap();
    let mut map = Map::from([(1, PRIVATE), (2, PRIVATE), (7, 1)]);
    let mut states = vec![map.clone()];
    for batch in [&[(2, ZERO), (3, 4)][..], &[(500, 2)], &[(9, 1), (10, 1), (11, 1), (12, 2)]] {
        append(&mut log, batch);
        map.extend(batch.iter().copied());
        states.push(map.clone());
    }
    states
}

fn refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}

#[test]
fn any_truncation_of_an_acknowledged_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    let states = sample(&path);
    let good = std::fs::read(&path).unwrap();
    assert_eq!(open(&path).unwrap().1, *states.last().unwrap());
    for len in 0..good.len() {
        std::fs::write(&path, &good[..len]).unwrap();
        let error = open(&path).err().unwrap_or_else(|| panic!("cut to {len} was accepted"));
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("offset") && error.message().contains("backup"));
    }
}

#[test]
fn any_flipped_byte_is_refused_or_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    let states = sample(&path);
    let good = std::fs::read(&path).unwrap();
    let mut refusals = 0;
    // Between the slots and the records nothing is written: a few bytes of it will do.
    let bytes = (0..good.len()).filter(|at| !(1100..4000).contains(at) || at % 100 == 0);
    for at in bytes {
        for flip in [1, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            std::fs::write(&path, &bad).unwrap();
            match open(&path) {
                Ok((_, map)) => assert_eq!(map, *states.last().unwrap(), "byte {at}"),
                Err(error) => {
                    assert!(refused(&error), "byte {at}: {error:?}");
                    refusals += 1;
                }
            }
        }
    }
    // The header, and every byte of every record.
    assert!(refusals >= 3 * (36 + good.len() - RECORDS as usize), "{refusals}");
}

#[test]
fn a_lagging_slot_costs_the_last_batch_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    let mut log = MapLog::create(&path, IDENTITY, []).unwrap();
    append(&mut log, &[(1, PRIVATE)]);
    append(&mut log, &[(2, PRIVATE)]);
    let before = std::fs::read(&path).unwrap();
    append(&mut log, &[(3, PRIVATE)]);
    // Power failed before the slots of the last batch reached the disk.
    let mut lost = std::fs::read(&path).unwrap();
    lost[..RECORDS as usize].copy_from_slice(&before[..RECORDS as usize]);
    let two = Map::from([(1, PRIVATE), (2, PRIVATE)]);
    let mut three = two.clone();
    three.insert(3, PRIVATE);
    for len in 0..=lost.len() {
        std::fs::write(&path, &lost[..len]).unwrap();
        match open(&path) {
            Ok((_, map)) if len == lost.len() => assert_eq!(map, three),
            Ok((_, map)) => assert!(len >= before.len() && map == two, "cut to {len}"),
            Err(error) => assert!(len < before.len() && refused(&error), "cut to {len}: {error}"),
        }
    }
}

#[test]
fn an_interrupted_batch_is_dropped_and_the_log_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    let states = sample(&path);
    let good = std::fs::read(&path).unwrap();
    // A record that was never acknowledged: take it from a log that went one batch further.
    let (mut log, _) = open(&path).unwrap();
    append(&mut log, &[(40, PRIVATE), (44, ZERO)]);
    drop(log);
    let further = std::fs::read(&path).unwrap();
    for len in good.len()..further.len() {
        let mut torn = further[..len].to_vec();
        torn[..RECORDS as usize].copy_from_slice(&good[..RECORDS as usize]);
        std::fs::write(&path, &torn).unwrap();
        let (mut log, map) = open(&path).unwrap();
        assert_eq!(map, *states.last().unwrap(), "cut to {len}");
        append(&mut log, &[(41, PRIVATE)]);
        drop(log);
        let mut expected = map;
        expected.insert(41, PRIVATE);
        assert_eq!(open(&path).unwrap().1, expected, "cut to {len}");
    }
}

#[test]
fn damage_before_an_acknowledged_record_is_refused_even_with_old_slots() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    let mut log = MapLog::create(&path, IDENTITY, []).unwrap();
    let first = std::fs::read(&path).unwrap();
    let mut ends = Vec::new();
    for group in 1..=4 {
        append(&mut log, &[(group, PRIVATE)]);
        ends.push(std::fs::metadata(&path).unwrap().len() as usize);
    }
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..RECORDS as usize].copy_from_slice(&first[..RECORDS as usize]);
    // Records 1 to 3 were acknowledged by the ones behind them; the last one is the exception.
    for at in RECORDS as usize..ends[2] {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, &bad).unwrap();
        // Damage in record 3 shows in record 4 alone, which acknowledges it.
        assert!(open(&path).is_err_and(|e| refused(&e)), "byte {at}");
    }
}

#[test]
fn a_log_of_another_disk_or_a_later_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    let other = Identity { layer: 4, ..IDENTITY };
    drop(MapLog::create(&path, other, []).unwrap());
    assert!(open(&path).err().unwrap().message().contains("another disk"));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 2;
    let checksum = crc32c::crc32c(&bytes[..508]);
    bytes[508..512].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("version 2"));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(open(&path).err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn groups_beyond_the_disk_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    drop(MapLog::create(&path, IDENTITY, [(LIMIT, PRIVATE)]).unwrap());
    let error = open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("beyond"));
}

#[test]
fn a_batch_larger_than_a_record_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = FsPath::from(dir.path().join("m"));
    // Words that neither repeat nor follow each other take most room.
    let groups: Map = (0..150_000).map(|i| (2 * i, 1 << (2 * (i % 31)))).collect();
    let read = |path: &FsPath| {
        let mut map = Map::new();
        MapLog::open(path, IDENTITY, u64::MAX, false, &mut |g, w, _| {
            map.insert(g, w);
        })
        .map(|log| (log, map))
        .unwrap()
    };
    let log = MapLog::create(&path, IDENTITY, groups.clone()).unwrap();
    assert!(log.sequence > 1 && !log.has_records_behind_checkpoint());
    drop(log);
    let (mut log, map) = read(&path);
    assert_eq!(map, groups);
    append(&mut log, &groups.keys().map(|g| (*g, ZERO)).collect::<Vec<_>>());
    drop(log);
    assert!(read(&path).1.values().all(|word| *word == ZERO));
}

/// The words that were noted beside a log, as the next process would read them.
fn noted(path: &FsPath) -> Result<Map> {
    let mut map = Map::new();
    MapLog::open(path, IDENTITY, LIMIT, false, &mut |group, word, known| {
        if known == WordOrigin::Recent {
            map.insert(group, word);
        }
    })?;
    Ok(map)
}

/// A log of two records and what was noted beside it, twice of one group.
fn noted_sample(dir: &tempfile::TempDir) -> (MapLog, FsPath, Map) {
    let path = FsPath::from(dir.path().join("0001.map"));
    let mut log = MapLog::create(&path, IDENTITY, [(1, PRIVATE)]).unwrap();
    append(&mut log, &[(2, 1)]);
    log.notes().put(&mut NotesHandle::default(), 3, &[1, PRIVATE]).unwrap();
    log.notes().put(&mut NotesHandle::default(), 2, &[5, ZERO]).unwrap();
    (log, path, Map::from([(2, 5), (3, ZERO), (4, PRIVATE)]))
}

#[test]
fn damaged_notes_are_refused_or_count_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, path, expected) = noted_sample(&dir);
    assert_eq!(noted(&path).unwrap(), expected);
    let notes = dir.path().join("0001.recent");
    let mut good = std::fs::read(&notes).unwrap();
    let end = good.iter().rposition(|byte| *byte != 0).unwrap();
    good.truncate(end + 1);
    let write = |bytes: &[u8]| std::fs::write(&notes, bytes).unwrap();
    let grounds = 128..192;
    // Between the header and the entries nothing is written.
    for at in (0..192).chain(4096..good.len()) {
        let mut bad = good.clone();
        bad[at] ^= 4;
        write(&bad);
        match noted(&path) {
            // One of the two grounds is there still, or nobody reads what was damaged.
            Ok(map) => assert!(map.is_empty() || grounds.contains(&at) && map == expected, "{at}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
                assert!(error.message().contains("0001.recent"), "{error}");
            }
        }
    }
    // A file that was cut short was not written by this program. What is left of it was noted.
    for len in (0..good.len()).step_by(7) {
        write(&good[..len]);
        if let Ok(map) = noted(&path) {
            assert!(map.iter().all(|(group, word)| expected[group] == *word), "cut to {len}");
        }
    }
}

#[test]
fn notes_of_a_newer_build_are_neither_read_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path, expected) = noted_sample(&dir);
    drop(log);
    let notes = dir.path().join("0001.recent");
    let good = std::fs::read(&notes).unwrap();
    let mut newer = good.clone();
    newer[8] += 1;
    let checksum = crc32c::crc32c(&newer[..124]);
    newer[124..128].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&notes, &newer).unwrap();
    let refused = noted(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.message().contains("newer sojourn"), "{refused}");
    assert_eq!(std::fs::read(&notes).unwrap(), newer);
    std::fs::write(&notes, &good).unwrap();
    assert_eq!(noted(&path).unwrap(), expected);
}

#[test]
fn notes_count_beside_a_log_that_has_the_record_that_they_were_told_of_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, path, mut expected) = noted_sample(&dir);
    let notes = dir.path().join("0001.recent");
    let (early_log, early) = (std::fs::read(&path).unwrap(), std::fs::read(&notes).unwrap());
    // A flush that was killed before the notes were told of it.
    append(&mut log, &[(3, ZERO), (2, 5)]);
    let late = std::fs::read(&notes).unwrap();
    std::fs::write(&notes, &early).unwrap();
    assert_eq!(noted(&path).unwrap(), expected);
    // A log from before the flush, in the place of the one that they were told of.
    drop(log);
    std::fs::write(&path, &early_log).unwrap();
    std::fs::write(&notes, &late).unwrap();
    assert!(noted(&path).unwrap().is_empty() && !notes.exists());
    // A checkpoint takes the log's place; notes go on, whichever of the two a kill leaves.
    let (mut log, _) = open(&path).unwrap();
    // While it is open, no other file gets its number.
    let _replaced = std::fs::File::open(&path).unwrap();
    log.notes().put(&mut NotesHandle::default(), 2, &[5, ZERO, PRIVATE]).unwrap();
    let (old, before) = (std::fs::read(&path).unwrap(), std::fs::read(&notes).unwrap());
    log.checkpoint([(1, PRIVATE)]).unwrap();
    assert_eq!(noted(&path).unwrap(), expected);
    log.notes().put(&mut NotesHandle::default(), 7, &[1]).unwrap();
    expected.insert(7, 1);
    drop(log);
    assert_eq!(noted(&path).unwrap(), expected);
    // Nor are they of a copy of the log, or a copy themselves.
    let copy = dir.path().join("copy");
    std::fs::copy(&notes, &copy).unwrap();
    std::fs::rename(&copy, &notes).unwrap();
    assert!(noted(&path).unwrap().is_empty() && !notes.exists());
    std::fs::write(&notes, before).unwrap();
    std::fs::write(&copy, old).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    assert!(noted(&path).unwrap().is_empty(), "they are of another file");
}

#[test]
fn notes_go_on_by_system_calls_when_the_file_cannot_take_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path, mut expected) = noted_sample(&dir);
    let notes = std::fs::File::options().write(true).open(dir.path().join("0001.recent")).unwrap();
    let length = notes.metadata().unwrap().len();
    // The pages are gone, as when a file system is full: a store into them faults.
    notes.set_len(4096 + 5 * 16).unwrap();
    log.notes().put(&mut NotesHandle::default(), 600, &[PRIVATE, 5]).unwrap();
    log.notes().put(&mut NotesHandle::default(), 4, &[ZERO]).unwrap();
    expected.extend([(600, PRIVATE), (601, 5), (4, ZERO)]);
    drop(log);
    assert_eq!(noted(&path).unwrap(), expected);
    assert!(notes.metadata().unwrap().len() < length, "written, and not mapped again");
}

#[test]
fn hands_note_side_by_side_and_start_anew_when_the_notes_are_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path, mut expected) = noted_sample(&dir);
    let (mut near, mut far) = (NotesHandle::default(), NotesHandle::default());
    log.notes().put(&mut near, 1, &[ZERO]).unwrap();
    // Farther than what `near` has mapped.
    log.notes().put(&mut far, 9000, &[PRIVATE]).unwrap();
    log.notes().put(&mut near, 0, &[5]).unwrap();
    expected.extend([(1, ZERO), (9000, PRIVATE), (0, 5)]);
    assert_eq!(noted(&path).unwrap(), expected);
    log.notes().forget([&mut near, &mut far]);
    assert!(noted(&path).unwrap().is_empty());
    log.notes().put(&mut near, 1, &[PRIVATE]).unwrap();
    assert_eq!(noted(&path).unwrap(), Map::from([(1, PRIVATE)]));
}

#[test]
fn notes_that_cannot_be_read_now_are_not_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, path, expected) = noted_sample(&dir);
    let (notes, aside) = (dir.path().join("0001.recent"), dir.path().join("aside"));
    std::fs::rename(&notes, &aside).unwrap();
    std::fs::create_dir(&notes).unwrap();
    assert!(noted(&path).is_err());
    std::fs::remove_dir(&notes).unwrap();
    std::fs::rename(&aside, &notes).unwrap();
    assert_eq!(noted(&path).unwrap(), expected);
}

#[test]
fn a_socket_under_the_name_of_notes_counts_for_nothing_and_makes_room_for_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, path, expected) = noted_sample(&dir);
    let notes = dir.path().join("0001.recent");
    std::fs::remove_file(&notes).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&notes).unwrap());
    assert!(sync_notes(&path).unwrap());
    let (log, _) = open(&path).unwrap();
    assert!(!notes.exists());
    log.notes().put(&mut NotesHandle::default(), 3, &[1, PRIVATE]).unwrap();
    log.notes().put(&mut NotesHandle::default(), 2, &[5, ZERO]).unwrap();
    assert_eq!(noted(&path).unwrap(), expected);
}

#[test]
fn notes_are_not_believed_after_a_failed_sync_nor_of_another_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, path, _) = noted_sample(&dir);
    let notes = dir.path().join("0001.recent");
    let good = std::fs::read(&notes).unwrap();
    let mut seen = 0;
    MapLog::open(&path, IDENTITY, LIMIT, true, &mut |_, _, known| {
        seen += u32::from(known == WordOrigin::Recent);
    })
    .unwrap();
    assert!(seen == 0 && !notes.exists());
    let mut other = good;
    other[40] ^= 1;
    let checksum = crc32c::crc32c(&other[..124]);
    other[124..128].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&notes, &other).unwrap();
    assert!(noted(&path).unwrap().is_empty() && !notes.exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_log_is_a_map_of_words(
        batches in prop::collection::vec(
            (prop::collection::btree_map(0..LIMIT, prop_oneof![Just(0), Just(PRIVATE), Just(ZERO), Just(6u64)], 1..60), 0..4u8),
            1..12,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = FsPath::from(dir.path().join("0001.map"));
        let mut log = MapLog::create(&path, IDENTITY, []).unwrap();
        let mut model = Map::new();
        for (batch, what) in batches {
            log.append(batch.clone()).unwrap();
            model.extend(batch);
            model.retain(|_, word| *word != 0);
            match what {
                0 => {
                    log.checkpoint(model.clone()).unwrap();
                    prop_assert!(!log.has_records_behind_checkpoint());
                }
                1 => {
                    log.seal().unwrap();
                    drop(log);
                    let (again, map) = open(&path).unwrap();
                    prop_assert_eq!(&map, &model);
                    log = again;
                }
                _ => {}
            }
        }
        prop_assert_eq!(open(&path).unwrap().1, model);
    }
}
