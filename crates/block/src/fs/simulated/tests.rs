use super::*;
use crate::fs::{FileSystem, FsPath, Open};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

fn at(machine: &Machine, path: &str) -> FsPath {
    FsPath::on(Arc::new(machine.start()), path)
}

fn read(path: &FsPath) -> Vec<u8> {
    path.open(Open::READ).unwrap().read_to_end(0, 1 << 20).unwrap()
}

/// A durable file of 8 sectors of ones.
fn ones(nature: Nature, seed: u64) -> (Machine, FsPath) {
    let machine = Machine::new(nature, seed);
    let path = at(&machine, "/f");
    let file = path.open(Open::NEW).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.sync_all().unwrap();
    path.above().sync_directory().unwrap();
    (machine, path)
}

/// What seeds leave, of a run of each.
fn left<T: Ord>(nature: Nature, run: impl Fn(Nature, u64) -> T) -> BTreeSet<T> {
    (0..400).map(|seed| run(nature, seed)).collect()
}

#[test]
fn what_was_synced_survives_every_power_cut() {
    for nature in Nature::ALL {
        let all = left(nature, |nature, seed| {
            let (machine, path) = ones(nature, seed);
            path.open(Open::WRITE).unwrap().write_all_at(&[2; 100], 4090).unwrap();
            path.open(Open::WRITE).unwrap().sync_data().unwrap();
            machine.lose_power();
            read(&at(&machine, "/f"))
        });
        let mut expected = vec![1; 4096];
        expected.resize(4190, 2);
        expected[4090..].fill(2);
        assert_eq!(all, BTreeSet::from([expected]));
    }
}

#[test]
fn a_kill_leaves_what_was_visible_and_what_the_dead_do_changes_nothing() {
    for seed in 0..100 {
        let (machine, path) = ones(Nature::None, seed);
        let file = path.open(Open::WRITE).unwrap();
        file.write_all_at(&[2; 512], 0).unwrap();
        assert!(file.try_lock().unwrap());
        machine.kill();
        assert!(file.write_all_at(&[3; 512], 0).is_err() && path.remove_file().is_err());
        let again = at(&machine, "/f");
        assert_eq!(read(&again)[..512], [2; 512]);
        assert!(again.open(Open::READ).unwrap().try_lock().unwrap());
        drop(file);
    }
}

#[test]
fn a_write_that_a_kill_cuts_off_ends_with_a_page() {
    let all = left(Nature::Journal, |nature, seed| {
        let (machine, path) = ones(nature, seed);
        let file = path.open(Open::WRITE).unwrap();
        machine.kill_after(1);
        let _ = file.write_all_at(&[2; 20_000], 100);
        let bytes = read(&at(&machine, "/f"));
        bytes.len() - bytes.iter().rev().take_while(|byte| **byte != 2).count()
    });
    assert_eq!(all, BTreeSet::from([4096, 8192, 12288, 16384, 20_100]));
}

#[test]
fn what_was_not_synced_survives_in_any_part_but_by_whole_sectors() {
    let all = left(Nature::Journal, |nature, seed| {
        let (machine, path) = ones(nature, seed);
        path.open(Open::WRITE).unwrap().write_all_at(&[2; 2048], 0).unwrap();
        machine.lose_power();
        read(&at(&machine, "/f"))
    });
    assert!(all.len() > 8, "{}", all.len());
    for bytes in all {
        assert_eq!(bytes.len(), 4096);
        assert!(bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        assert!(bytes[2048..].iter().all(|byte| *byte == 1));
    }
}

#[test]
fn a_file_that_grew_has_any_length_between_and_zeroes_where_nothing_was_stored() {
    let all = left(Nature::Log, |nature, seed| {
        let (machine, path) = ones(nature, seed);
        path.open(Open::WRITE).unwrap().write_all_at(&[2; 4096], 4096).unwrap();
        machine.lose_power();
        read(&at(&machine, "/f"))
    });
    let lengths: BTreeSet<usize> = all.iter().map(Vec::len).collect();
    assert!(lengths.contains(&4096) && lengths.contains(&8192) && lengths.len() > 3);
    assert!(all.iter().any(|bytes| bytes.len() == 8192 && bytes[4096..].contains(&0)));
}

#[test]
fn a_sync_after_a_failed_one_succeeds_and_does_not_bring_the_bytes_back() {
    let all = left(Nature::Journal, |nature, seed| {
        let (machine, path) = ones(nature, seed);
        let file = path.open(Open::WRITE).unwrap();
        file.write_all_at(&[2; 4096], 0).unwrap();
        machine.set_faults(FaultRates { sync_file: 1000, ..FaultRates::default() });
        assert!(file.sync_data().is_err());
        machine.set_faults(FaultRates::default());
        file.sync_data().unwrap();
        assert_eq!(read(&path), [2; 4096], "memory still shows it");
        let (reread, again) = (seed % 2 == 0, file);
        if reread {
            crate::RandomFile::from_file(again, "f").drop_cached().unwrap();
        }
        let visible = read(&path);
        machine.lose_power();
        let durable = read(&at(&machine, "/f"));
        assert!(!reread || visible == durable, "what was read anew is what storage has");
        durable
    });
    assert!(all.iter().any(|bytes| bytes.contains(&1)) && all.len() > 8);
}

/// The names that survive of these steps without a sync: make a, make b, rename a to c.
fn names(nature: Nature) -> BTreeSet<String> {
    left(nature, |nature, seed| {
        let machine = Machine::new(nature, seed);
        let root = at(&machine, "/");
        for name in ["a", "b"] {
            root.join(name).open(Open::NEW).unwrap();
        }
        root.join("a").rename(&root.join("c")).unwrap();
        machine.lose_power();
        let left = at(&machine, "/").read_dir().unwrap();
        left.into_iter().map(|entry| entry.name.into_string().unwrap()).collect()
    })
}

#[test]
fn names_survive_as_the_file_system_orders_them() {
    let ordered = ["", "a", "ab", "bc"].map(String::from);
    assert_eq!(names(Nature::Journal), BTreeSet::from(ordered.clone()));
    assert_eq!(names(Nature::Log), BTreeSet::from(ordered));
    // Also the second without the first; but no rename of what was never made, or half of one.
    let any = ["", "a", "b", "ab", "c", "bc"].map(String::from);
    assert_eq!(names(Nature::None), BTreeSet::from(any));
}

#[test]
fn the_sync_of_a_directory_keeps_its_names_and_that_of_a_file_only_with_a_journal() {
    for (nature, kept) in [(Nature::Journal, true), (Nature::Log, true), (Nature::None, false)] {
        let all = left(nature, |nature, seed| {
            let machine = Machine::new(nature, seed);
            let root = at(&machine, "/");
            root.join("d").create_dir().unwrap();
            root.sync_directory().unwrap();
            root.join("d/a").open(Open::NEW).unwrap();
            root.join("d").sync_directory().unwrap();
            root.join("d/b").open(Open::NEW).unwrap().sync_all().unwrap();
            machine.lose_power();
            let root = at(&machine, "/");
            assert!(root.join("d/a").exists());
            root.join("d/b").exists()
        });
        assert_eq!(all.contains(&false), !kept, "{nature:?}");
    }
}

#[test]
fn a_failed_sync_of_a_directory_ends_a_journal_or_is_forgotten() {
    for nature in Nature::ALL {
        let all = left(nature, |nature, seed| {
            let machine = Machine::new(nature, seed);
            let root = at(&machine, "/");
            root.join("a").open(Open::NEW).unwrap();
            machine.set_faults(FaultRates { sync_directory: 1000, ..FaultRates::default() });
            assert!(root.sync_directory().is_err());
            machine.set_faults(FaultRates::default());
            let refused = root.join("b").create_dir().map_err(|e| e.kind());
            let ends = nature != Nature::None;
            assert_eq!(refused == Err(ErrorKind::ReadOnlyFilesystem), ends);
            assert_eq!(machine.has_ended(), ends);
            if !ends {
                // The directory was changed once more, so its block is written again.
                root.sync_directory().unwrap();
            }
            machine.lose_power();
            at(&machine, "/").join("a").exists()
        });
        assert_eq!(all.contains(&false), nature != Nature::None);
        // The calls of the system themselves, without what `FsPath` does about a failure.
        let forgotten = left(nature, |nature, seed| {
            let machine = Machine::new(nature, seed);
            let (root, fs) = (Path::new("/"), machine.start());
            fs.open(&root.join("a"), Open::NEW).unwrap();
            machine.set_faults(FaultRates { sync_directory: 1000, ..FaultRates::default() });
            assert!(fs.sync_directory(root).is_err());
            machine.set_faults(FaultRates::default());
            let again = fs.sync_directory(root);
            assert_eq!(again.is_ok(), nature == Nature::None);
            machine.lose_power();
            at(&machine, "/").join("a").exists()
        });
        assert!(forgotten.contains(&false), "{nature:?}");
    }
}

#[test]
fn room_ends_and_comes_back() {
    let machine = Machine::new(Nature::Journal, 3);
    let root = at(&machine, "/");
    machine.set_room(8 * 4096);
    let file = root.join("a").open(Open::NEW).unwrap();
    file.write_all_at(&[1; 6 * 4096], 0).unwrap();
    let full = file.write_all_at(&[1; 6 * 4096], 6 * 4096).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    file.write_all_at(&[2; 6 * 4096], 0).unwrap();
    file.set_len(4096).unwrap();
    file.write_all_at(&[1; 4 * 4096], 4096).unwrap();
    root.join("a").remove_file().unwrap();
    let other = root.join("b").open(Open::NEW).unwrap();
    assert!(other.write_all_at(&[1; 6 * 4096], 0).is_err(), "somebody has it open");
    drop(file);
    other.write_all_at(&[1; 6 * 4096], 0).unwrap();
}

#[test]
fn a_process_is_killed_at_the_call_that_was_named_and_a_seed_takes_one_course() {
    let course = |seed| {
        let machine = Machine::new(Nature::None, seed);
        let root = at(&machine, "/");
        machine.kill_after(5);
        let made = (0..10).filter(|n| root.join(n.to_string()).create_dir().is_ok()).count();
        assert!(made == 5 && machine.is_dead());
        machine.lose_power();
        let left = at(&machine, "/").read_dir().unwrap().len();
        (machine.course(), left)
    };
    assert_eq!(course(4), course(4));
    assert!((0..50).map(|seed| course(seed).1).collect::<BTreeSet<_>>().len() > 2);
}
