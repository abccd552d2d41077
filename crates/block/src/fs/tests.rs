//! Every file system gives the same answers.

use super::simulated::{Machine, Nature};
use super::*;
use crate::{RandomFile, Span};
use std::io::ErrorKind;
use std::sync::Arc;

fn contract(root: &FsPath) {
    let kind = |outcome: io::Result<()>| outcome.map_err(|e| e.kind());
    let at = |name: &str| root.join(name);
    let names = |path: &FsPath| {
        let mut names: Vec<_> = path.read_dir().unwrap();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.into_iter().map(|e| (e.name.into_string().unwrap(), e.kind)).collect::<Vec<_>>()
    };

    assert_eq!(at("a").open(Open::WRITE).err().unwrap().kind(), ErrorKind::NotFound);
    let file = at("a").open(Open::NEW).unwrap();
    assert_eq!(at("a").open(Open::NEW).err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert_eq!(at("x/a").open(Open::NEW).err().unwrap().kind(), ErrorKind::NotFound);
    file.write_all_at(b"hello", 3).unwrap();
    assert_eq!(file.read_to_end(0, 100).unwrap(), b"\0\0\0hello");
    assert_eq!(file.read_to_end(2, 3).unwrap(), b"\0he");
    assert_eq!(file.read_range(6, 10).unwrap(), b"lo");
    file.set_len(4).unwrap();
    file.set_len(6).unwrap();
    assert_eq!(at("a").open(Open::READ).unwrap().read_to_end(0, 100).unwrap(), b"\0\0\0h\0\0");
    assert!(at("a").open(Open::READ).unwrap().write_all_at(b"x", 0).is_err());
    assert_eq!(file.len().unwrap(), at("a").metadata().unwrap().len);
    at("a").open(Open::IF_MISSING).unwrap();
    assert_eq!(file.len().unwrap(), 6);
    at("a").open(Open::REPLACE).unwrap();
    assert!(file.is_empty().unwrap());
    file.sync_data().unwrap();
    file.sync_all().unwrap();

    // Names.
    let identity = at("a").metadata().unwrap().identity;
    assert_eq!(kind(at("a").rename_new(&at("b"))), Ok(()));
    assert_eq!(kind(at("a").rename_new(&at("c"))), Err(ErrorKind::NotFound));
    assert_eq!(at("b").metadata().unwrap().identity, identity);
    at("a").open(Open::NEW).unwrap();
    assert_eq!(kind(at("a").rename_new(&at("b"))), Err(ErrorKind::AlreadyExists));
    assert!(at("a").exists(), "it keeps its name");
    assert!(at("b").replace(&at("a")).unwrap());
    assert_eq!(at("a").metadata().unwrap().identity, identity);
    assert!(at("b").exists(), "what was replaced");
    at("b").settle(true).unwrap();
    assert!(!at("b").exists());
    assert_eq!(at("none").replace(&at("a")).unwrap_err().kind(), ErrorKind::NotFound);
    at("n").open(Open::NEW).unwrap();
    assert!(!at("n").replace(&at("m")).unwrap());
    at("n").open(Open::NEW).unwrap();
    at("n").settle(false).unwrap();
    assert_eq!(kind(at("n").remove_file()), Ok(()), "somebody else's by now");
    assert_eq!(kind(at("m").remove_file()), Ok(()));
    file.write_all_at(b"1", 0).unwrap();
    assert_eq!(at("a").open(Open::READ).unwrap().read_to_end(0, 9).unwrap(), b"1");
    at("c").open(Open::NEW).unwrap().write_all_at(b"22", 0).unwrap();
    assert_eq!(kind(at("c").rename(&at("a"))), Ok(()));
    assert_eq!(at("a").metadata().unwrap().len, 2);
    assert_eq!(file.read_to_end(0, 9).unwrap(), b"1", "an open file stays");
    assert_eq!(kind(at("c").rename(&at("a"))), Err(ErrorKind::NotFound));
    assert_eq!(kind(at("c").remove_file()), Err(ErrorKind::NotFound));
    at("b").open(Open::NEW).unwrap();
    assert_eq!(kind(at("b").remove_file()), Ok(()));
    assert!(!at("b").exists() && !at("b").try_exists().unwrap() && at("a").exists());

    // Directories.
    assert_eq!(kind(at("d/e").create_dir()), Err(ErrorKind::NotFound));
    assert_eq!(kind(at("d/e/f").create_dir_all()), Ok(()));
    assert_eq!(kind(at("d/e/f").create_dir_all()), Ok(()));
    assert_eq!(kind(at("d/e").create_dir()), Err(ErrorKind::AlreadyExists));
    at("d/e/g").open(Open::NEW).unwrap();
    assert!(at("d").is_dir() && !at("a").is_dir() && !at("z").is_dir());
    assert_eq!(
        names(&at("d/e")),
        [("f".into(), FileType::Directory), ("g".into(), FileType::File)]
    );
    assert_eq!(kind(at("d").rename(&at("h"))), Ok(()));
    assert_eq!(names(root), [("a".into(), FileType::File), ("h".into(), FileType::Directory)]);
    assert_eq!(at("h").read_dir().unwrap().len(), 1);
    assert_eq!(at("a").read_dir().err().unwrap().kind(), ErrorKind::NotADirectory);
    assert!(at("h").open(Open::WRITE).is_err() && at("h/e").remove_file().is_err());
    at("h/e").sync_directory().unwrap();
    assert_eq!(at("none").sync_directory().unwrap_err().kind(), crate::ErrorKind::NotFound);
    at("h").remove_dir_all().unwrap();
    assert_eq!(names(root), [("a".into(), FileType::File)]);

    // Locks.
    let [one, other] = [(); 2].map(|()| at("a").open(Open::READ).unwrap());
    one.lock_shared().unwrap();
    other.lock_shared().unwrap();
    assert!(!one.try_lock().unwrap());
    drop(other);
    assert!(one.try_lock().unwrap());
    let other = at("a").open(Open::READ).unwrap();
    assert!(!other.try_lock().unwrap());
    one.unlock().unwrap();
    assert!(other.try_lock().unwrap());
}

#[test]
fn every_file_system_gives_the_same_answers() {
    let dir = tempfile::tempdir().unwrap();
    contract(&dir.path().into());
    for nature in Nature::ALL {
        for seed in 0..20 {
            let fs = Machine::new(nature, seed).start();
            let root = FsPath::on(Arc::new(fs), "/");
            contract(&root);
        }
    }
}

#[test]
fn holes_and_room_are_those_of_a_file_of_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let system = FsPath::from(dir.path());
    let simulated = FsPath::on(Arc::new(Machine::new(Nature::Journal, 1).start()), "/");
    let seen = [system, simulated].map(|root| {
        let file = RandomFile::open_on(&root.join("f"), Open::NEW).unwrap();
        file.write(0, &[1; 3 * 4096]).unwrap();
        file.write(1 << 20, &[2; 4096]).unwrap();
        file.punch(Span::between(4096, 8192)).unwrap();
        let whole = Span::whole(2 << 20);
        let before = file.extents(whole, 100).unwrap();
        file.punch(whole).unwrap();
        let mut bytes = [9; 4096];
        file.read_blocking(1 << 20, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
        let room = file.file().metadata().unwrap().room;
        (before, file.extents(whole, 100).unwrap(), file.len().unwrap(), room)
    });
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_bare_name_is_in_the_working_directory() {
    let above = |path: &str| FsPath::from(path).above().to_path_buf();
    let expected = [".", "home", "/"].map(std::path::PathBuf::from);
    assert_eq!(["disks", "home/disks", "/"].map(above), expected);
}
