//! A rebase against a plain model of it, of sectors with few values, so that what changed is often the same on both sides.

use crate::common::{Home, bytes, same};
use block::{BLOCK, Device, Durability, ErrorKind, Span};
use disk::{Disk, Mode, Rebase};
use proptest::prelude::*;

const SECTOR: usize = 512;
/// Sectors of a block.
const IN_BLOCK: usize = BLOCK as usize / SECTOR;

type Sectors = Vec<u8>;

fn to_bytes(sectors: &[u8]) -> Vec<u8> {
    sectors.iter().flat_map(|value| [*value; SECTOR]).collect()
}

fn in_block(sectors: &[u8], block: usize) -> &[u8] {
    let first = block * IN_BLOCK;
    &sectors[first..sectors.len().min(first + IN_BLOCK)]
}

async fn write(disk: &Disk, sector: usize, value: u8) {
    let span = Span::between((sector * SECTOR) as u64, ((sector + 1) * SECTOR) as u64);
    disk.write(span, &[value; SECTOR], Durability::Buffered).await.unwrap();
}

#[derive(Debug)]
struct Case {
    old: Sectors,
    /// What the new version has in other places, and how many sectors.
    edits: Vec<(usize, u8)>,
    new_len: usize,
    /// What the disk writes before a snapshot, if there is one, and after it.
    before: Option<Vec<(usize, u8)>>,
    after: Vec<(usize, u8)>,
    how: Rebase,
}

fn case() -> impl Strategy<Value = Case> {
    let writes = || prop::collection::vec((0..40usize, 0..3u8), 0..6);
    let how = prop::bool::ANY.prop_map(|keep| if keep { Rebase::KeepMine } else { Rebase::Refuse });
    let old = prop::collection::vec(0..3u8, 1..40);
    (old, writes(), 1..48usize, prop::option::of(writes()), writes(), how).prop_map(
        |(old, edits, new_len, before, after, how)| Case {
            old,
            edits,
            new_len,
            before,
            after,
            how,
        },
    )
}

/// Does `writes` to sectors that are there. The blocks that they touch.
async fn write_all(disk: &Disk, mine: &mut [u8], writes: &[(usize, u8)]) -> Vec<usize> {
    let (mut touched, len) = (Vec::new(), mine.len());
    for (sector, value) in writes.iter().filter(|(sector, _)| *sector < len) {
        write(disk, *sector, *value).await;
        mine[*sector] = *value;
        touched.push(sector / IN_BLOCK);
    }
    touched
}

async fn check(case: Case) {
    let mut new = case.old.clone();
    new.resize(case.new_len, 0);
    for (sector, value) in case.edits {
        // Behind the end of the old version, too.
        if let Some(at) = new.get_mut(sector) {
            *at = value;
        }
    }
    let home = Home::new().await;
    home.image("golden:1", &to_bytes(&case.old)).await;
    home.image("golden:2", &to_bytes(&new)).await;
    home.create("a", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("a").await;
    let mut mine = case.old.clone();
    let mut old = case.old;
    let mut touched = Vec::new();
    if let Some(before) = &case.before {
        write_all(&disk, &mut mine, before).await;
        disk.snapshot("s", &()).await.unwrap();
        let blocks = 0..mine.len().div_ceil(IN_BLOCK);
        touched.extend(blocks.filter(|block| in_block(&mine, *block) != in_block(&old, *block)));
    }
    touched.extend(write_all(&disk, &mut mine, &case.after).await);

    let before = mine.clone();
    let size = mine.len().max(new.len());
    for sectors in [&mut old, &mut mine, &mut new] {
        sectors.resize(size, 0);
    }
    let mut both = Vec::new();
    for block in 0..size.div_ceil(IN_BLOCK) {
        let (old, new) = (in_block(&old, block), in_block(&new, block));
        if !touched.contains(&block) {
            mine[block * IN_BLOCK..][..new.len()].copy_from_slice(new);
        } else if new != old && new != in_block(&mine, block) {
            both.push(block as u64 * BLOCK);
        }
    }
    let outcome = disk.rebase(&"golden:2".parse().unwrap(), case.how).await;
    if case.how == Rebase::Refuse && !both.is_empty() {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Conflict);
        return same(&bytes(&*disk).await, &to_bytes(&before));
    }
    let told = outcome.unwrap().both_changed;
    let told: Vec<u64> =
        told.iter().flat_map(|span| span.pieces(BLOCK)).map(|piece| piece.offset()).collect();
    assert_eq!(told, both);
    same(&bytes(&*disk).await, &to_bytes(&mine));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_rebase_hides_nothing_that_it_does_not_tell(case in case()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(case));
    }
}

#[tokio::test]
async fn what_a_new_version_has_behind_a_short_last_block_is_not_hidden() {
    let in_last = |value| [vec![1; IN_BLOCK], vec![value]].concat();
    let behind = [in_last(7), vec![9; 3]].concat();
    let case = |how| Case {
        old: in_last(2),
        edits: behind.iter().copied().enumerate().collect(),
        new_len: behind.len(),
        before: None,
        after: vec![(IN_BLOCK, 7)],
        how,
    };
    check(case(Rebase::Refuse)).await;
    check(case(Rebase::KeepMine)).await;
}
