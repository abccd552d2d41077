use super::*;
use crate::conformance::{self, Sequence};
use crate::ring::RingDriver;
use crate::{Device, Durability, ZeroMode};
use async_trait::async_trait;
use futures::FutureExt;
use proptest::prelude::*;
use tokio::task::JoinSet;

/// A way for files to wait for the disk.
struct Way {
    ring: Option<Ring>,
    /// What completes the ring's operations.
    _driver: JoinSet<()>,
}

impl Way {
    /// Both ways; the ring only where the kernel has it. To be called in a runtime.
    fn both() -> Vec<Self> {
        let portable = Self { ring: None, _driver: JoinSet::new() };
        let ring = Ring::start(2).map(|(ring, driver)| Self::by(ring, driver));
        if let Err(error) = &ring {
            eprintln!("only the portable way is tested: {error}");
        }
        [portable].into_iter().chain(ring).collect()
    }

    fn by(ring: Ring, driver: RingDriver) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(driver.run());
        Self { ring: Some(ring), _driver: tasks }
    }

    /// An open file that waits in this way.
    fn of(&self, file: impl Into<File>) -> RandomFile {
        RandomFile::new(file.into(), "f".into(), self.ring.clone())
    }

    /// A new file.
    fn file(&self) -> RandomFile {
        self.of(tempfile::tempfile().unwrap())
    }
}

fn scratch() -> RandomFile {
    RandomFile::from_file(tempfile::tempfile().unwrap(), "f")
}

#[tokio::test]
async fn what_is_written_is_read_and_the_rest_is_zero() {
    for way in Way::both() {
        let file = way.file();
        file.write(5000, b"hello").unwrap();
        file.write_durable(9000, b"world").await.unwrap();
        let mut buf = vec![1; 10_000];
        file.read_waiting(0, &mut buf).await.unwrap();
        assert_eq!(&buf[5000..5005], b"hello");
        assert_eq!(&buf[9000..9005], b"world");
        assert!(buf[..5000].iter().chain(&buf[9005..]).all(|b| *b == 0));
        file.sync().await.unwrap();
    }
}

#[test]
fn a_kernel_that_calls_what_is_not_in_memory_the_end_of_the_file_is_not_believed() {
    let file = scratch();
    file.write(0, &[7; 8192]).unwrap();
    let mut buf = [1; 4096];
    // What Linux 5.10 answers: the first page is in memory, the second is not.
    let mut answers = [2048, 0].into_iter();
    let attempt = file.try_read_by(2048, &mut buf, |_, _| Ok(answers.next().unwrap()));
    assert_eq!((attempt.unwrap(), answers.next()), (Attempt::WouldWait, None));
    assert_eq!(file.try_read_by(8192, &mut buf, |_, _| Ok(0)).unwrap(), Attempt::Done);
    assert_eq!(buf, [0; 4096]);
}

#[test]
fn what_is_dropped_from_the_page_cache_is_read_from_storage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = RandomFile::open(&path, &options).unwrap();
    let bytes = Sequence::new(7).bytes(65536); // nothing that a file system compresses
    file.write(0, &bytes).unwrap();
    let mut buf = [0; 65536];
    assert_eq!(file.try_read(0, &mut buf).unwrap(), Attempt::Done);
    // Reads that must not wait do not tell: they begin read-ahead, and a fast disk is done before they look.
    let on_disk = [EXT, XFS, BTRFS].contains(&rustix::fs::statfs(&path).unwrap().f_type);
    if !on_disk || read_from_storage().is_none() {
        eprintln!("skipped: the kernel does not count reads of {}", path.display());
        return;
    }
    let before = read_from_storage();
    file.drop_cached().unwrap();
    file.read_blocking(0, &mut buf).unwrap();
    assert!(read_from_storage() >= before.map(|bytes| bytes + 65536));
    assert!(buf == bytes[..]);
}

/// The bytes that this thread has had read from storage; none where the kernel does not count them
/// (`CONFIG_TASK_IO_ACCOUNTING`).
fn read_from_storage() -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

/// Kinds of file systems on disks (linux/magic.h).
const EXT: rustix::fs::FsWord = 0xef53;
const XFS: rustix::fs::FsWord = 0x5846_5342;
const BTRFS: rustix::fs::FsWord = 0x9123_683e;

#[tokio::test]
async fn punched_ranges_read_as_zeroes_and_show_as_holes() {
    let file = scratch();
    file.write(0, &[7; 1 << 20]).unwrap();
    file.punch(Span::between(65536, 131_072)).unwrap();
    let mut buf = vec![1; 65536];
    file.read(65536, &mut buf).await.unwrap();
    assert!(buf.iter().all(|b| *b == 0));
    let extents = file.extents(Span::whole(1 << 20), 16).unwrap();
    let hole = extents.iter().find(|e| e.kind == ExtentKind::Hole).unwrap();
    assert_eq!(hole.span, Span::between(65536, 131_072));
    assert_eq!(extents.last().unwrap().span.end(), 1 << 20);
}

#[test]
fn long_writes_work_wherever_they_are_made() {
    let file = scratch();
    let data = vec![7; LONG_WRITE + 1];
    let check = |file: &RandomFile, offset| {
        file.write(offset, &data).unwrap();
        let mut buf = vec![0; data.len()];
        file.read_blocking(offset, &mut buf).unwrap();
        assert!(buf == data);
    };
    check(&file, 0);
    let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
    single.block_on(async { check(&file, 1 << 20) });
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    many.block_on(async { check(&file, 2 << 20) });
    many.block_on(offload(move || {
        file.write(3 << 20, &vec![7; LONG_WRITE + 1])?;
        Ok(())
    }))
    .unwrap();
}

#[tokio::test]
async fn a_panic_in_offloaded_work_is_an_error() {
    let result: Result<()> = offload(|| panic!("no")).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Internal);
}

/// A device on a file, as simple as can be. Not a double: it is what the file is checked through.
struct OnFile(RandomFile, u64);

#[async_trait]
impl Device for OnFile {
    fn size(&self) -> u64 {
        self.1
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.0.read_waiting(span.offset(), buf).await
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        match durability {
            Durability::Buffered => self.0.write(span.offset(), data),
            Durability::Durable => self.0.write_durable(span.offset(), data).await,
        }
    }

    async fn flush(&self) -> Result<()> {
        self.0.sync().await
    }

    async fn discard(&self, span: Span, _durability: Durability) -> Result<()> {
        self.0.punch(span)
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        if mode.only_if_fast {
            return Err(Error::unsupported("zeroes are written one by one"));
        }
        self.write(span, &vec![0; span.len() as usize], durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.0.extents(span, limit)
    }
}

#[tokio::test]
async fn a_file_is_a_device_in_both_ways() {
    for way in Way::both() {
        conformance::check(|size| {
            let file = way.file();
            file.set_len(size).unwrap();
            async move { Arc::new(OnFile(file, size)) as Arc<dyn Device> }
        })
        .await;
    }
}

#[tokio::test]
async fn both_ways_fail_alike() {
    let (pipe, _writer) = std::io::pipe().unwrap();
    let pipe = std::fs::File::from(std::os::fd::OwnedFd::from(pipe));
    let directory = std::fs::File::open(std::env::temp_dir()).unwrap();
    let scratch = tempfile::NamedTempFile::new().unwrap();
    let write_only = OpenOptions::new().write(true).open(scratch.path()).unwrap();
    for way in Way::both() {
        let again = |file: &std::fs::File| way.of(file.try_clone().unwrap());
        let mut buf = [0; 512];
        let isdir = again(&directory).read_waiting(0, &mut buf).await.unwrap_err();
        assert!(isdir.message().contains("directory"), "{isdir}");
        assert_eq!(isdir.kind(), ErrorKind::Unavailable);
        let closed = again(&write_only).read_waiting(0, &mut buf).await.unwrap_err();
        assert!(closed.message().contains("descriptor"), "{closed}");
        // Where nothing can be read at an offset.
        let nowhere = again(&pipe).read(0, &mut buf).await;
        assert_eq!(nowhere.unwrap_err().kind(), ErrorKind::Unavailable);
        // What no file has; the kernel takes the very last one for "where it was read last".
        for offset in [1 << 63, u64::MAX - 511] {
            let beyond = way.file().read_waiting(offset, &mut buf).await;
            assert_eq!(beyond.unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}

/// What is done to a file.
#[derive(Debug, Clone)]
enum Step {
    Write {
        offset: u64,
        len: usize,
        durable: bool,
    },
    Resize(u64),
    Sync,
    /// So many reads at the same time.
    Read(Vec<(u64, usize)>),
    /// A read that is given up as soon as it has begun.
    Drop(u64, usize),
}

const LONGEST: u64 = 40_000;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (offset, len) = (0..LONGEST, 0..9000_usize);
    let step = prop_oneof![
        3 => (offset.clone(), len.clone(), any::<bool>())
            .prop_map(|(offset, len, durable)| Step::Write { offset, len, durable }),
        1 => offset.clone().prop_map(Step::Resize),
        1 => Just(Step::Sync),
        3 => prop::collection::vec((offset.clone(), len.clone()), 1..9).prop_map(Step::Read),
        3 => (offset, len).prop_map(|(offset, len)| Step::Drop(offset, len)),
    ];
    prop::collection::vec(step, 1..40)
}

/// What a read of `model` gives.
fn expected(model: &[u8], offset: u64, len: usize) -> Vec<u8> {
    let known = model.iter().skip(offset as usize).copied();
    known.chain(std::iter::repeat(0)).take(len).collect()
}

async fn against_bytes(way: &Way, steps: &[Step]) {
    const UNTOUCHED: u8 = 0xa5;
    let (file, mut model, mut random) = (way.file(), Vec::new(), Sequence::new(1));
    let mut given_up = Vec::new();
    for step in steps {
        match step {
            Step::Write { offset, len, durable } => {
                let data: Vec<u8> = (0..*len).map(|_| random.number() as u8).collect();
                match durable {
                    true => file.write_durable(*offset, &data).await.unwrap(),
                    false => file.write(*offset, &data).unwrap(),
                }
                let end = *offset as usize + len;
                if *len > 0 {
                    model.resize(model.len().max(end), 0);
                    model[*offset as usize..end].copy_from_slice(&data);
                }
            }
            Step::Resize(len) => {
                file.set_len(*len).unwrap();
                model.resize(*len as usize, 0);
            }
            Step::Sync => file.sync().await.unwrap(),
            Step::Read(places) => {
                let (file, model) = (&file, &model);
                let reads = places.iter().map(|&(offset, len)| async move {
                    let mut buf = vec![1; len];
                    file.read_waiting(offset, &mut buf).await.unwrap();
                    assert!(buf == expected(model, offset, len), "read at {offset}");
                });
                futures::future::join_all(reads).await;
            }
            Step::Drop(offset, len) => {
                let mut buf = vec![UNTOUCHED; *len];
                match file.read_waiting(*offset, &mut buf).now_or_never() {
                    Some(done) => {
                        done.unwrap();
                        assert!(buf == expected(&model, *offset, *len), "read at {offset}");
                    }
                    None => given_up.push(buf),
                }
            }
        }
    }
    // Whatever the kernel still did, it did to memory of its own.
    assert!(given_up.iter().flatten().all(|byte| *byte == UNTOUCHED));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_file_holds_the_bytes_of_its_model_whoever_gives_up(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for way in Way::both() {
                against_bytes(&way, &steps).await;
            }
        });
    }
}

#[tokio::test]
async fn work_stays_on_a_thread_that_wants_it_so() {
    let Some(way) = Way::both().into_iter().find(|way| way.ring.is_some()) else { return };
    let file = way.file();
    file.write(0, b"here").unwrap();
    let _inline = crate::offload::Inline::on_this_thread();
    let mut buf = [0; 4];
    // At once: nothing else takes part.
    file.read_waiting(0, &mut buf).now_or_never().unwrap().unwrap();
    assert_eq!(&buf, b"here");
}

#[test]
fn links_are_followed_to_where_nothing_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::os::unix::fs::symlink(at("second"), at("first")).unwrap();
    std::os::unix::fs::symlink("nothing", at("second")).unwrap();
    std::os::unix::fs::symlink("ring", at("ring")).unwrap();
    assert_eq!(behind_links(&at("first")), at("nothing"));
    assert_eq!(behind_links(&at("plain")), at("plain"));
    assert_eq!(behind_links(&at("ring")), at("ring"));
}
