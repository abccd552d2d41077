use super::*;
use crate::GuestRam;
use crate::ram::WRITTEN;
use crate::save::MemorySource;
use crate::spec::tests::spec;
use block::{ErrorKind, Span};

fn parts<'a>(
    spec: &'a MachineSpec,
    local: &Pages,
    changed: &'a Pages,
    number: u64,
) -> SuspendedParts<'a> {
    SuspendedParts {
        spec,
        number,
        token: "0".repeat(32),
        created: 7,
        disk_mark: "mark".into(),
        base: None,
        local: local.clone(),
        changed,
        tail: MachineTail { state: b"devices", resume_set: &[3, 0, 0, 0], first_pages: &[50, 48] },
    }
}

async fn memory(machine: &Path, byte: u8) -> (Pages, Pages) {
    let ram = GuestRam::new(machine, spec().memory, None).unwrap();
    ram.write(Span::between(PAGE, 2 * PAGE), &[byte; PAGE as usize]).unwrap();
    ram.sync().await.unwrap();
    let frozen = ram.freeze().unwrap();
    let (local, changed) = frozen.pages();
    (local, changed.clone())
}

async fn first_byte(found: &PendingSuspension, machine: &Path, page: u64) -> u8 {
    let pages = found.earlier(machine).unwrap();
    let memory = PendingMemory { size: found.machine.memory, base: None, pages };
    let mut buf = vec![1; 2 * PAGE as usize];
    memory.read(Span::between(page * PAGE, (page + 2) * PAGE), &mut buf).await.unwrap();
    buf[0]
}

#[tokio::test]
async fn a_suspension_is_found_as_it_was_kept_and_replaced_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, spec) = (dir.path(), spec());
    assert_eq!(PendingSuspension::find(machine).unwrap(), None);
    PendingSuspension::forget(machine).unwrap();
    let (local, changed) = memory(machine, 7).await;
    let kept = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
    let found = PendingSuspension::find(machine).unwrap().unwrap();
    assert_eq!((&found, found.parcel().as_str()), (&kept, "work@5"));
    assert_eq!(found.state(machine).unwrap(), b"devices");
    let first = FirstReads { extents: vec![3], pages: vec![50, 48] };
    assert_eq!(found.first_reads(machine).unwrap(), first);
    // An older build does not keep which pages these are.
    std::fs::remove_file(PendingSuspension::directory(machine).join(FIRST_PAGES)).unwrap();
    assert!(found.first_reads(machine).unwrap().pages.is_empty());
    assert_eq!(found.bytes(machine).unwrap(), PAGE + 7);
    assert_eq!(
        (first_byte(&found, machine, 1).await, first_byte(&found, machine, 2).await),
        (7, 0)
    );
    PendingSuspension::note_resumed(machine).await.unwrap();
    assert!(found.was_resumed(machine));
    // A machine that goes on has another file; what is kept does not change.
    let (local, changed) = memory(machine, 8).await;
    assert_eq!(first_byte(&found, machine, 1).await, 7);
    // One that cannot be kept leaves the one before.
    std::fs::remove_file(machine.join(WRITTEN)).unwrap();
    let failed = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 6)).await;
    assert!(failed.is_err() && !machine.join(FRESH).exists());
    assert_eq!(PendingSuspension::find(machine).unwrap().unwrap(), kept);
    let (local, changed) = memory(machine, 9).await;
    PendingSuspension::keep(machine, parts(&spec, &local, &changed, 6)).await.unwrap();
    let found = PendingSuspension::find(machine).unwrap().unwrap();
    assert!(found.number == 6 && !found.was_resumed(machine) && !machine.join(FRESH).exists());
    assert_eq!(first_byte(&found, machine, 1).await, 9);
    PendingSuspension::forget(machine).unwrap();
    assert_eq!(PendingSuspension::find(machine).unwrap(), None);
}

#[tokio::test]
async fn what_is_set_aside_is_not_found_until_it_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, spec) = (dir.path(), spec());
    PendingSuspension::set_aside(machine).unwrap();
    PendingSuspension::put_back(machine).unwrap();
    PendingSuspension::drop_aside(machine).unwrap();
    let (local, changed) = memory(machine, 7).await;
    let kept = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
    PendingSuspension::set_aside(machine).unwrap();
    assert!(PendingSuspension::is_set_aside(machine));
    assert_eq!(PendingSuspension::find(machine).unwrap(), None);
    PendingSuspension::put_back(machine).unwrap();
    assert!(!PendingSuspension::is_set_aside(machine));
    assert_eq!(PendingSuspension::find(machine).unwrap(), Some(kept));
    PendingSuspension::set_aside(machine).unwrap();
    PendingSuspension::drop_aside(machine).unwrap();
    PendingSuspension::put_back(machine).unwrap();
    assert_eq!(PendingSuspension::find(machine).unwrap(), None);
    assert!(!machine.join(FRESH).exists());
}

#[tokio::test]
async fn a_suspension_whose_name_cannot_be_synced_is_not_found_and_the_one_before_is() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, spec) = (dir.path(), spec());
    let (local, changed) = memory(machine, 7).await;
    let failing = |directory: &Path| match directory == machine {
        true => Err(Error::unavailable("the disk failed")),
        false => sync(directory),
    };
    let files = [(DESCRIPTION, b"of a guest that runs on".to_vec())];
    let fresh = machine.join(FRESH);
    write(machine, &fresh, &files, &failing).unwrap_err();
    assert_eq!(PendingSuspension::find(machine).unwrap(), None);
    let kept = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
    write(machine, &fresh, &files, &failing).unwrap_err();
    assert_eq!(PendingSuspension::find(machine).unwrap(), Some(kept));
}

#[test]
fn a_suspension_that_was_given_up_before_it_was_kept_does_not_come_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, spec) = (dir.path(), spec());
    // One thread for what waits for the disk: it does one thing after the other.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    let (local, changed) = runtime.block_on(memory(machine, 7));
    let replacing = REPLACING.lock();
    runtime.block_on(async {
        let keeping = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5));
        let given_up = tokio::time::timeout(std::time::Duration::ZERO, keeping).await;
        assert!(given_up.is_err(), "it was kept while somebody else was at it");
    });
    drop(replacing);
    runtime.block_on(offload(|| Ok(()))).unwrap();
    assert_eq!(PendingSuspension::find(machine).unwrap(), None);
    assert!(!machine.join(FRESH).exists());
}

#[tokio::test]
async fn what_is_damaged_or_newer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, spec) = (dir.path(), spec());
    let (local, changed) = memory(machine, 7).await;
    let kept = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
    let place = PendingSuspension::directory(machine);
    for (file, len) in [(PAGES, 100), (RESUME_SET, 3), (FIRST_PAGES, 3), (STATE, MAX_STATE + 1)] {
        let path = place.join(file);
        let before = std::fs::read(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        let read = match file {
            PAGES => kept.earlier(machine).map(drop),
            RESUME_SET | FIRST_PAGES => kept.first_reads(machine).map(drop),
            _ => kept.state(machine).map(drop),
        };
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt, "{file}");
        std::fs::write(&path, before).unwrap();
    }
    let text = std::fs::read_to_string(place.join(DESCRIPTION)).unwrap();
    // Of another machine's memory where the layout can be read.
    let base = |version: u32, more: &str| {
        let layout = format!(
            "{{\"version\":{version},{more}\"memory\":1048576,\"state\":7,\"resume_set\":4}}"
        );
        format!("\"base\":{{\"manifest\":\"{}\",\"layout\":{layout}}}", "ab".repeat(32))
    };
    for (bad, kind) in [
        (
            text.replace("\"version\":1,\"number\"", "\"version\":2,\"number\""),
            ErrorKind::Unsupported,
        ),
        (text.replace("\"token\"", "\"taken\""), ErrorKind::Corrupt),
        (
            text.replace("{\"version\":1,\"name\"", "{\"version\":3,\"more\":[],\"name\""),
            ErrorKind::Unsupported,
        ),
        (text.replace("\"base\":null", &base(3, "\"more\":[],")), ErrorKind::Unsupported),
        (text.replace("\"base\":null", &base(1, "\"more\":[],")), ErrorKind::Corrupt),
        (text.replace("\"base\":null", &base(1, "")), ErrorKind::Corrupt),
        (text.replace("\"cpus\":2", "\"cpus\":0"), ErrorKind::Invalid),
        ("{}".to_owned(), ErrorKind::Corrupt),
    ] {
        assert_ne!(bad, text);
        std::fs::write(place.join(DESCRIPTION), bad).unwrap();
        let refused = PendingSuspension::find(machine).unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        let is_newer = refused.message().contains("a newer sojourn made");
        assert_eq!(is_newer, kind == ErrorKind::Unsupported, "{refused}");
    }
}
