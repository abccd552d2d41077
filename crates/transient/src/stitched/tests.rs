use super::*;
use crate::Lent;
use block::conformance::{self, SIZE, Sequence};
use block::{ErrorKind, Fault, Memory, Operation, ScriptedDevice};
use parking_lot::Mutex;
use proptest::prelude::*;

const MEMBERS: usize = 3;
/// Bytes of each member.
const MEMBER: u64 = 3 << 20;

fn key(seed: u64) -> DiskKey {
    let mut random = Sequence::new(seed);
    DiskKey::generate(|bytes| {
        bytes.fill_with(|| random.number() as u8);
        Ok(())
    })
    .unwrap()
}

/// What the owner has on a member: no block is zero, no two are alike.
fn owned(member: usize) -> Vec<u8> {
    let mut random = Sequence::new(member as u64 + 100);
    (0..MEMBER / 8).flat_map(|_| (random.number() | 1).to_le_bytes()).collect()
}

/// Ranges of 1 to 40 blocks with gaps between them, on all members, at least `size` bytes of them.
fn ranges(size: u64, seed: u64) -> Vec<Lent> {
    let mut random = Sequence::new(seed);
    let mut ends = [1 + random.below(20); MEMBERS];
    let (mut ranges, mut bytes) = (Vec::new(), 0);
    while bytes < size {
        let member = random.below(MEMBERS as u64) as usize;
        let (start, blocks) = (ends[member], 1 + random.below(40));
        if (start + blocks + 1) * BLOCK > MEMBER {
            continue;
        }
        ends[member] = start + blocks + 1 + random.below(3);
        let span = Span::between(start * BLOCK, (start + blocks) * BLOCK);
        ranges.push(Lent { member, span });
        bytes += span.len();
    }
    ranges
}

/// Members of the owner, and a disk on them.
struct Rig {
    members: Vec<Arc<Memory>>,
    ranges: Vec<Lent>,
    disk: Arc<Stitched>,
}

impl Rig {
    fn new(size: u64, seed: u64, key: Option<&DiskKey>) -> Self {
        let members: Vec<_> = (0..MEMBERS).map(|m| Arc::new(Memory::from(owned(m)))).collect();
        let ranges = ranges(size, seed);
        let disk = disk(members.iter().map(|m| Arc::clone(m) as _).collect(), &ranges, size, key);
        Self { members, ranges, disk }
    }

    /// The first byte outside of the lent ranges that is not the owner's any more.
    fn damage(&self) -> Option<(usize, u64)> {
        self.members.iter().enumerate().find_map(|(member, memory)| {
            let (now, before) = (memory.to_vec(), owned(member));
            let lent = |at| {
                let here =
                    |r: &Lent| r.member == member && (r.span.offset()..r.span.end()).contains(&at);
                self.ranges.iter().any(here)
            };
            Span::whole(MEMBER)
                .pieces(512)
                .find(|p| {
                    let place = p.index_in(Span::whole(MEMBER));
                    now[place.clone()] != before[place] && !lent(p.offset())
                })
                .map(|piece| (member, piece.offset()))
        })
    }
}

fn disk(
    members: Vec<Arc<dyn Device>>,
    ranges: &[Lent],
    size: u64,
    key: Option<&DiskKey>,
) -> Arc<Stitched> {
    let layout = Layout::new(ranges, &[MEMBER; MEMBERS]).unwrap();
    Arc::new(Stitched::new(members, layout, size, key).unwrap())
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn write(disk: &Stitched, offset: u64, data: &[u8]) -> Result<()> {
    let span = Span::within(offset, data.len() as u64, disk.size())?;
    disk.write(span, data, Durability::Buffered).await
}

async fn read(disk: &Stitched, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut buf = vec![0xa5; len as usize];
    disk.read(Span::within(offset, len, disk.size())?, &mut buf).await?;
    Ok(buf)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stitched_disk_keeps_the_device_contract_and_the_owners_bytes() {
    for key in [None, Some(key(1))] {
        let rigs = Mutex::new(Vec::new());
        conformance::check(async |size| {
            let rig = Rig::new(size, 7, key.as_ref());
            let disk = Arc::clone(&rig.disk);
            rigs.lock().push(rig);
            disk as _
        })
        .await;
        for rig in rigs.into_inner() {
            assert_eq!(rig.damage(), None);
            assert!(rig.disk.written() > SIZE / 4, "the disk was used");
        }
    }
}

type Noted = Arc<ScriptedDevice<Memory, fn(Operation) -> Fault>>;

/// Members that note what they are asked.
fn noted() -> Vec<Noted> {
    let noting = |member| Arc::new(ScriptedDevice::noting(Memory::from(owned(member))));
    (0..MEMBERS).map(noting).collect()
}

fn devices(members: &[Noted]) -> Vec<Arc<dyn Device>> {
    members.iter().map(|member| Arc::clone(member) as _).collect()
}

/// Where a member was read, written and discarded.
fn accesses(member: &Noted) -> Vec<Span> {
    let log = member.calls.log();
    let access = |call: &Operation| match *call {
        Operation::Read(span) | Operation::Write(span) | Operation::Discard(span) => Some(span),
        _ => None,
    };
    log.asked.iter().filter_map(access).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn any_stitching_is_a_plain_vector_of_bytes(seed: u64, size in 1u64..SIZE, encrypted: bool) {
        let key = encrypted.then(|| key(seed));
        let rig = Rig::new(size, seed, key.as_ref());
        run(conformance::against_bytes(&*rig.disk, vec![0; size as usize], seed));
        prop_assert_eq!(rig.damage(), None);
    }

    #[test]
    fn every_access_of_a_member_lies_in_a_lent_range(seed: u64) {
        let ranges = ranges(SIZE, seed);
        let members = noted();
        let disk = disk(devices(&members), &ranges, SIZE, Some(&key(seed)));
        run(conformance::against_bytes(&*disk, vec![0; SIZE as usize], seed));
        // One member may lend next to nothing, but not all of them.
        let uses: usize = members.iter().map(|member| accesses(member).len()).sum();
        prop_assert!(uses > 1000, "the members were used {} times only", uses);
        for (member, device) in members.iter().enumerate() {
            for span in accesses(device) {
                let inside = ranges
                    .iter()
                    .any(|r| r.member == member && r.span.intersect(span) == Some(span));
                prop_assert!(inside, "{:?} of member {} is not lent", span, member);
            }
        }
    }
}

#[test]
fn a_range_that_is_one_block_too_long_would_be_seen() {
    for (grow_front, at) in [(true, 0), (false, 3), (false, 5)] {
        let mut rig = Rig::new(SIZE, 7, Some(&key(1)));
        let mut wrong = rig.ranges.clone();
        let span = wrong[at].span;
        wrong[at].span = if grow_front {
            Span::between(span.offset() - BLOCK, span.end())
        } else {
            Span::between(span.offset(), span.end() + BLOCK)
        };
        let members = rig.members.iter().map(|m| Arc::clone(m) as _).collect();
        rig.disk = disk(members, &wrong, SIZE, Some(&key(1)));
        run(conformance::against_bytes(&*rig.disk, vec![0; SIZE as usize], 1));
        let (member, offset) = rig.damage().expect("the block too many was written");
        assert!(wrong.iter().any(|r| r.member == member && r.span.end() > offset));
    }
}

#[test]
fn a_range_that_is_shifted_by_a_sector_is_refused() {
    let mut wrong = ranges(SIZE, 7);
    let span = wrong[2].span;
    wrong[2].span = Span::between(span.offset() + 512, span.end() + 512);
    let error = Layout::new(&wrong, &[MEMBER; MEMBERS]).unwrap_err();
    assert!(error.message().contains("whole blocks"), "{error}");
}

#[test]
fn what_was_never_written_reads_as_zeroes_and_is_not_read() {
    let members = noted();
    let is_read = |call: &Operation| matches!(call, Operation::Read(_));
    let reads = || members.iter().map(|member| member.calls.log().count(is_read)).sum::<usize>();
    let ranges = ranges(SIZE, 3);
    let disk = disk(devices(&members), &ranges, SIZE, Some(&key(1)));
    run(async {
        assert!(read(&disk, 0, SIZE).await.unwrap().iter().all(|byte| *byte == 0));
        // A part of a block: the rest of it is zero, and not what the owner deleted.
        write(&disk, 10 * BLOCK + 100, b"x").await.unwrap();
        assert_eq!(reads(), 0);
        let block = read(&disk, 10 * BLOCK, BLOCK).await.unwrap();
        assert_eq!(block.iter().filter(|byte| **byte != 0).count(), 1);
        assert_eq!(reads(), 1);
        let list = disk.extents(Span::whole(SIZE), 9).await.unwrap();
        let spans: Vec<_> = list.iter().map(|e| (e.span.offset(), e.kind)).collect();
        let expected =
            [(0, ExtentKind::Hole), (10 * BLOCK, ExtentKind::Data), (11 * BLOCK, ExtentKind::Hole)];
        assert_eq!(spans, expected);
    });
}

#[test]
fn nothing_but_ciphertext_is_left_and_another_key_reads_none_of_it() {
    let rig = Rig::new(SIZE, 5, Some(&key(1)));
    let word = b"what nobody else may read";
    let data: Vec<u8> = word.iter().copied().cycle().take(SIZE as usize).collect();
    run(async {
        write(&rig.disk, 0, &data).await.unwrap();
        rig.disk.flush().await.unwrap();
    });
    let mut seen = std::collections::BTreeSet::new();
    for lent in &rig.ranges {
        let bytes = rig.members[lent.member].to_vec();
        for block in lent.span.pieces(BLOCK).take(200) {
            let block = &bytes[block.index_in(Span::whole(MEMBER))];
            assert!(!block.windows(word.len()).any(|w| w == word), "plain text is left");
            assert!(seen.insert(block.to_vec()), "two blocks are alike");
        }
    }
    // The next borrower of the same ranges.
    let members = rig.members.iter().map(|m| Arc::clone(m) as _).collect();
    let next = disk(members, &rig.ranges, SIZE, Some(&key(2)));
    run(async {
        assert!(read(&next, 0, SIZE).await.unwrap().iter().all(|byte| *byte == 0));
        next.written.put(Span::whole(SIZE), true);
        let bytes = read(&next, 0, SIZE).await.unwrap();
        assert!(!bytes.windows(word.len()).any(|w| w == word));
    });
}

#[test]
fn a_flush_reaches_every_member_also_behind_one_that_fails() {
    let members: Vec<_> = (0..MEMBERS)
        .map(|member| {
            let plan = move |operation| match operation {
                Operation::Flush if member == 0 => Fault::Fail(ErrorKind::Unavailable),
                _ => Fault::None,
            };
            Arc::new(ScriptedDevice::new(Memory::from(owned(member)), plan))
        })
        .collect();
    let devices = members.iter().map(|member| Arc::clone(member) as Arc<dyn Device>).collect();
    let disk = disk(devices, &ranges(SIZE, 7), SIZE, None);
    let error = run(disk.flush()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for member in members {
        assert_eq!(member.calls.log().count(|call| *call == Operation::Flush), 1);
    }
}

#[test]
fn an_error_of_one_member_is_an_error_and_nothing_goes_elsewhere() {
    let ranges = ranges(SIZE, 7);
    let memories: Vec<_> = (0..MEMBERS).map(|m| Arc::new(Memory::from(owned(m)))).collect();
    let members = memories.iter().enumerate().map(|(member, memory)| {
        let plan = move |operation| match operation {
            Operation::Write(_) if member == 1 => Fault::Fail(ErrorKind::Unavailable),
            _ => Fault::None,
        };
        Arc::new(ScriptedDevice::new(Arc::clone(memory), plan)) as Arc<dyn Device>
    });
    let disk = disk(members.collect(), &ranges, SIZE, Some(&key(1)));
    run(async {
        let mut at = 0;
        for lent in &ranges {
            let len = lent.span.len().min(SIZE.saturating_sub(at));
            let result = write(&disk, at, &vec![7; len as usize]).await;
            assert_eq!(result.is_err(), lent.member == 1 && len > 0, "{lent:?}");
            let now = read(&disk, at, len).await.unwrap();
            let expected = if lent.member == 1 { 0 } else { 7 };
            assert!(now.iter().all(|byte| *byte == expected), "{lent:?}");
            at += len;
        }
    });
    assert!(memories[1].to_vec() == owned(1));
}

#[test]
fn disks_that_cannot_be_are_refused() {
    let members: Vec<Arc<dyn Device>> = vec![Arc::new(Memory::new(MEMBER))];
    let lent = |end| [Lent { member: 0, span: Span::between(0, end) }];
    for (size, end, claimed) in
        [(0, BLOCK, MEMBER), (BLOCK + 1, BLOCK, MEMBER), (1, 2 * MEMBER, 2 * MEMBER)]
    {
        let layout = Layout::new(&lent(end), &[claimed]).unwrap();
        let error = Stitched::new(members.clone(), layout, size, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
