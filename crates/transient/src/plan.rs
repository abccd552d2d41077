//! What is lent of which disks, held from the first look until the end.

use crate::clock::BootClock;
use crate::{DiskKey, HostDisk, Layout, Lent, Loan, Member, Stitched, Watch};
use block::{BLOCK, Device, Error, Result, Span};
use std::sync::Arc;

/// Loans that make up one disk.
///
/// A plan is made and used by one process and never saved: what was free before a reboot need not
/// be free after it.
#[derive(Debug)]
pub struct Plan {
    loans: Vec<Loan>,
    disks: Vec<Arc<HostDisk>>,
    lent: Vec<Lent>,
    watch: Arc<Watch>,
}

impl Plan {
    /// A plan of these loans, in their order. Each range is cut to whole blocks of its disk, so that
    /// no page holds lent and kept bytes.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace) when nothing is left of them; any error from opening the
    /// disks another time.
    pub fn new(loans: Vec<Loan>) -> Result<Self> {
        Self::with_clock(loans, BootClock::since_boot())
    }

    /// The same with another clock for the watch.
    pub(crate) fn with_clock(loans: Vec<Loan>, clock: BootClock) -> Result<Self> {
        let mut disks: Vec<Arc<HostDisk>> = Vec::new();
        let mut lent = Vec::new();
        for loan in &loans {
            let known = disks.iter().position(|disk| Arc::ptr_eq(disk, &loan.disk));
            let member = known.unwrap_or_else(|| {
                disks.push(Arc::clone(&loan.disk));
                disks.len() - 1
            });
            let claim = &loan.claim;
            let own = Span::between(claim.base, claim.base.saturating_add(claim.size));
            for span in &loan.spans {
                if own.intersect(*span) != Some(*span) {
                    return Err(Error::internal(format!(
                        "{} bytes at {} of {} are not of the file system that lends them",
                        span.len(),
                        span.offset(),
                        loan.disk.path().display()
                    )));
                }
                lent.extend(span.align_inward(BLOCK).map(|span| Lent { member, span }));
            }
        }
        if lent.is_empty() {
            return Err(Error::no_space(
                "nothing can be borrowed; see `sojourn borrow scan --why` for the reasons",
            ));
        }
        let watch = Watch::with_clock(&loans, clock)?;
        Ok(Self { loans, disks, lent, watch })
    }

    /// Bytes lent in all.
    pub fn capacity(&self) -> u64 {
        self.lent.iter().map(|lent| lent.span.len()).sum()
    }

    /// The loans.
    pub fn loans(&self) -> &[Loan] {
        &self.loans
    }

    /// The disks, in the order in which [`lent`](Self::lent) numbers them.
    pub fn disks(&self) -> &[Arc<HostDisk>] {
        &self.disks
    }

    /// The lent ranges, in the order of the borrowed disk.
    pub fn lent(&self) -> &[Lent] {
        &self.lent
    }

    /// The watch over the file systems that lend: every write to a member waits for it.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Gives up the hold of the disks, but keeps the watch over their file systems.
    pub(crate) fn release(self) -> Arc<Watch> {
        self.watch
    }

    /// The disks, opened for writing.
    ///
    /// # Errors
    /// Any error from [`Member::open`].
    pub fn members(&self) -> Result<Vec<Arc<Member>>> {
        let open = |disk: &Arc<HostDisk>| {
            Member::open(Arc::clone(disk), Arc::clone(&self.watch)).map(Arc::new)
        };
        self.disks.iter().map(open).collect()
    }

    /// Looks at the file systems once more and makes a disk of `size` bytes of the loans, encrypted
    /// with `key`. Nothing is written yet; each is looked at again before anything is. Returns it with
    /// its members, which hold the owner's disks.
    ///
    /// # Errors
    /// Any error from [`Watch::look`], [`Member::open`] and [`Stitched::new`].
    pub fn stitch(&self, size: u64, key: &DiskKey) -> Result<(Stitched, Vec<Arc<Member>>)> {
        let members = self.members()?;
        let sizes: Vec<u64> = members.iter().map(|member| member.size()).collect();
        let layout = Layout::new(&self.lent, &sizes)?;
        self.watch.look()?;
        self.watch.expire();
        let devices = members.iter().map(|member| Arc::clone(member) as Arc<dyn Device>).collect();
        let wait = members.iter().any(|member| member.is_written_through());
        Ok((Stitched::new(devices, layout, size, Some(key))?.writes_wait(wait), members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Claim;
    use block::{Attempt, Durability, ErrorKind};
    use freespace::{FileSystem, Level, Stamp, Window};
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    fn image(dir: &tempfile::TempDir) -> PathBuf {
        let path = dir.path().join("image");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&vec![0xee; 1 << 20]).unwrap();
        path
    }

    /// A loan of a "file system" at 64 KiB whose first 4 KiB tell of its state.
    fn loan(disk: &Arc<HostDisk>, spans: Vec<Span>) -> Loan {
        let (base, size) = (64 << 10, 512 << 10);
        let window = Window::part(&**disk, base, size).unwrap();
        let stamp = Stamp::take(&window, vec![Span::between(0, 4096)]).unwrap();
        Loan {
            disk: Arc::clone(disk),
            claim: Claim { kind: FileSystem::EXT4, level: Level::Fast, base, size, stamp },
            spans,
        }
    }

    fn key() -> DiskKey {
        DiskKey::generate(|bytes| {
            bytes[1] = 1;
            Ok(())
        })
        .unwrap()
    }

    #[tokio::test]
    async fn a_disk_is_made_of_whole_blocks_and_writes_only_those() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(&dir);
        let disk = Arc::new(HostDisk::open(&path).unwrap());
        let odd = Span::between(100_000, 200_000);
        let plan = Plan::new(vec![loan(&disk, vec![odd])]).unwrap();
        assert_eq!(plan.lent()[0].span, odd.align_inward(BLOCK).unwrap());
        let (stitched, members) = plan.stitch(plan.capacity(), &key()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![0xee; 1 << 20], "nothing is written yet");
        let all = Span::whole(plan.capacity());
        let data = vec![7; all.len() as usize];
        stitched.write(all, &data, Durability::Buffered).await.unwrap();
        stitched.flush().await.unwrap();
        let now = std::fs::read(&path).unwrap();
        let lent = plan.lent()[0].span;
        for (at, byte) in now.iter().enumerate() {
            assert!(*byte == 0xee || (lent.offset()..lent.end()).contains(&(at as u64)), "at {at}");
        }
        // Given back on request: exactly the lent range becomes a hole.
        members[0].trim(lent).unwrap();
        let trimmed = std::fs::read(&path).unwrap();
        assert!(trimmed[lent.index_in(Span::whole(1 << 20))].iter().all(|byte| *byte == 0));
        assert!(trimmed[..lent.offset() as usize].iter().all(|byte| *byte == 0xee));
        assert!(trimmed[lent.end() as usize..].iter().all(|byte| *byte == 0xee));
    }

    #[test]
    fn a_file_system_that_was_used_since_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(&dir);
        let disk = Arc::new(HostDisk::open(&path).unwrap());
        let plan = Plan::new(vec![loan(&disk, vec![Span::between(128 << 10, 256 << 10)])]).unwrap();
        plan.watch().look().unwrap();
        plan.watch().expire();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"x", (64 << 10) + 4095).unwrap();
        let error = plan.stitch(4096, &key()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.message().contains("changed"), "{error}");
    }

    /// A disk of 4 KiB on an image, and what is written to the image behind its back.
    fn disturbed() -> (tempfile::TempDir, Plan, Stitched, impl Fn(&[u8])) {
        let dir = tempfile::tempdir().unwrap();
        let path = image(&dir);
        let disk = Arc::new(HostDisk::open(&path).unwrap());
        let plan = Plan::new(vec![loan(&disk, vec![Span::between(128 << 10, 256 << 10)])]).unwrap();
        let (stitched, _) = plan.stitch(4096, &key()).unwrap();
        let write = move |bytes: &[u8]| {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(bytes, 64 << 10).unwrap();
        };
        (dir, plan, stitched, write)
    }

    #[tokio::test]
    async fn a_file_system_that_was_used_between_up_and_the_first_write_is_not_written() {
        let (dir, _plan, stitched, disturb) = disturbed();
        disturb(b"mounted");
        let before = std::fs::read(dir.path().join("image")).unwrap();
        let block = Span::whole(4096);
        let now = stitched.try_write(block, &[1; 4096]);
        assert!(matches!(now, Ok(Attempt::WouldWait)), "nothing is written without a look");
        let error = stitched.write(block, &[1; 4096], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(std::fs::read(dir.path().join("image")).unwrap() == before, "it was written");
        // For good, also when it looks as before again.
        disturb(&[0xee; 7]);
        let error = stitched.write(block, &[1; 4096], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }

    #[tokio::test]
    async fn a_file_system_that_is_used_while_it_lends_is_not_written_after_the_next_look() {
        let (dir, plan, stitched, disturb) = disturbed();
        let block = Span::whole(4096);
        stitched.write(block, &[1; 4096], Durability::Buffered).await.unwrap();
        assert_eq!(stitched.try_write(block, &[2; 4096]).unwrap(), Attempt::Done, "it holds");
        disturb(b"mounted");
        plan.watch().expire();
        let before = std::fs::read(dir.path().join("image")).unwrap();
        assert_eq!(stitched.try_write(block, &[3; 4096]).unwrap(), Attempt::WouldWait);
        let error = stitched.write(block, &[3; 4096], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(std::fs::read(dir.path().join("image")).unwrap() == before, "it was written");
        assert_eq!(stitched.flush().await.unwrap_err().kind(), ErrorKind::Conflict);
        // What is read there may be the owner's by now.
        assert!(stitched.try_read(block, &mut [0; 4096]).is_err());
        assert!(stitched.read(block, &mut [0; 4096]).await.is_err());
    }

    #[tokio::test]
    async fn a_disk_that_cannot_be_read_for_a_while_is_not_written_for_that_long() {
        let (dir, plan, stitched, disturb) = disturbed();
        let block = Span::whole(4096);
        stitched.write(block, &[1; 4096], Durability::Buffered).await.unwrap();
        stitched.flush().await.unwrap();
        // Reading what was cut off fails, as it does of a disk that is broken there.
        let path = dir.path().join("image");
        let bytes = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(64 << 10).unwrap();
        plan.watch().expire();
        let error = plan.watch().look().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        plan.watch().intact().unwrap();
        assert_eq!(stitched.try_write(block, &[2; 4096]).unwrap(), Attempt::WouldWait);
        let error = stitched.write(block, &[2; 4096], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        file.write_all_at(&bytes, 0).unwrap();
        let mut back = [0; 4096];
        stitched.read(block, &mut back).await.unwrap();
        assert_eq!(back, [1; 4096], "so that it can be written back");
        stitched.write(block, &[2; 4096], Durability::Buffered).await.unwrap();
        // Who uses it ends it for good all the same.
        disturb(b"mounted");
        plan.watch().expire();
        assert_eq!(plan.watch().look().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(plan.watch().intact().unwrap_err().kind(), ErrorKind::Conflict);
    }

    #[test]
    fn who_uses_one_lender_is_found_although_another_one_cannot_be_read() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = dirs.each_ref().map(image);
        let span = Span::between(128 << 10, 256 << 10);
        let open = |path: &PathBuf| loan(&Arc::new(HostDisk::open(path).unwrap()), vec![span]);
        let plan = Plan::new(paths.iter().map(open).collect()).unwrap();
        let write = |path: &PathBuf| std::fs::OpenOptions::new().write(true).open(path).unwrap();
        write(&paths[0]).set_len(0).unwrap();
        write(&paths[1]).write_all_at(b"mounted", 64 << 10).unwrap();
        assert_eq!(plan.watch().look().unwrap_err().kind(), ErrorKind::Conflict);
    }

    #[tokio::test]
    async fn a_look_is_as_old_as_the_clock_says_whether_or_not_anybody_ran_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(&dir);
        let disk = Arc::new(HostDisk::open(&path).unwrap());
        let now = Arc::new(AtomicU64::new(1));
        let hands = Arc::clone(&now);
        let clock = BootClock::new(move || hands.load(Ordering::Relaxed));
        let loans = vec![loan(&disk, vec![Span::between(128 << 10, 256 << 10)])];
        let plan = Plan::with_clock(loans, clock).unwrap();
        let (stitched, _) = plan.stitch(4096, &key()).unwrap();
        let block = Span::whole(4096);
        stitched.write(block, &[1; 4096], Durability::Buffered).await.unwrap();
        let holds = Watch::HOLDS.as_nanos() as u64;
        now.fetch_add(holds - 1, Ordering::Relaxed);
        assert_eq!(stitched.try_write(block, &[2; 4096]).unwrap(), Attempt::Done, "it holds");
        // Stopped, suspended, or starved: no timer has gone off.
        now.fetch_add(1, Ordering::Relaxed);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"mounted", 64 << 10).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert_eq!(stitched.try_write(block, &[3; 4096]).unwrap(), Attempt::WouldWait);
        let error = stitched.write(block, &[3; 4096], Durability::Buffered).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(std::fs::read(&path).unwrap() == before, "it was written");
    }

    #[test]
    fn a_look_that_takes_longer_than_it_holds_is_repeated_once_and_holds_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(HostDisk::open(&image(&dir)).unwrap());
        let now = Arc::new(AtomicU64::new(1));
        let hands = Arc::clone(&now);
        let holds = Watch::HOLDS.as_nanos() as u64;
        // Whoever asks for the time has been stopped for long before that.
        let clock = BootClock::new(move || hands.fetch_add(2 * holds, Ordering::Relaxed));
        let loans = vec![loan(&disk, vec![Span::between(128 << 10, 256 << 10)])];
        let watch = Watch::with_clock(&loans, clock).unwrap();
        watch.look().unwrap();
        assert_eq!(now.load(Ordering::Relaxed), 1 + 5 * 2 * holds, "began, ended, twice; the end");
        assert!(!watch.is_fresh());
    }

    #[test]
    fn what_is_not_of_the_file_system_cannot_be_lent() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(HostDisk::open(&image(&dir)).unwrap());
        for outside in [Span::between(0, 70_000), Span::between(570 << 10, 577 << 10)] {
            let error = Plan::new(vec![loan(&disk, vec![outside])]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
        }
        let crumbs = vec![Span::between(100_000, 102_000)];
        let error = Plan::new(vec![loan(&disk, crumbs)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn a_disk_stays_held_while_its_member_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(&dir);
        let plan = {
            let disk = Arc::new(HostDisk::open(&path).unwrap());
            Plan::new(vec![loan(&disk, vec![Span::between(128 << 10, 256 << 10)])]).unwrap()
        };
        let (stitched, members) = plan.stitch(4096, &key()).unwrap();
        drop(plan);
        assert!(HostDisk::open(&path).is_err(), "somebody else could have had it");
        drop((stitched, members));
        assert!(HostDisk::open(&path).is_ok());
    }

    /// An image that nothing but the member holds, and what of it is lent.
    fn alone(path: &std::path::Path, clock: BootClock) -> (Arc<Member>, Span) {
        let disk = Arc::new(HostDisk::open(path).unwrap());
        let span = Span::between(128 << 10, 132 << 10);
        let plan = Plan::with_clock(vec![loan(&disk, vec![span])], clock).unwrap();
        (plan.members().unwrap().remove(0), span)
    }

    #[tokio::test]
    async fn a_disk_stays_held_while_a_write_goes_on_that_nobody_waits_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(&dir);
        let (closed, waits) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (gate, waiting) = (Arc::clone(&closed), Arc::clone(&waits));
        let clock = BootClock::new(move || {
            waiting.store(true, Ordering::Relaxed);
            while gate.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            1
        });
        let (member, span) = alone(&path, clock);
        let mut writes = tokio::task::JoinSet::new();
        writes.spawn(async move { member.write(span, &[7; 4096], Durability::Durable).await });
        let pause = || tokio::time::sleep(std::time::Duration::from_millis(1));
        while !waits.load(Ordering::Relaxed) {
            pause().await;
        }
        // The client is gone, and the borrowed disk with it.
        writes.shutdown().await;
        let meanwhile = HostDisk::open(&path).map(drop);
        closed.store(false, Ordering::Relaxed);
        assert_eq!(meanwhile.unwrap_err().code, freespace::Code::InUse);
        while HostDisk::open(&path).is_err() {
            pause().await;
        }
        let mut written = [0; 4096];
        std::fs::File::open(&path).unwrap().read_exact_at(&mut written, span.offset()).unwrap();
        assert_eq!(written, [7; 4096], "it was written while the disk was held");
    }

    #[tokio::test]
    async fn a_write_that_nobody_waits_for_lands_before_a_later_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = image(&dir);
        let (closed, waits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (gate, waiting) = (Arc::clone(&closed), Arc::clone(&waits));
        let clock = BootClock::new(move || {
            // The first who comes to a closed gate waits there, and nobody else.
            if gate.load(Ordering::Relaxed) && !waiting.swap(true, Ordering::Relaxed) {
                while gate.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            1
        });
        let (member, span) = alone(&path, clock);
        member.write(span, &[6; 4096], Durability::Buffered).await.unwrap();
        closed.store(true, Ordering::Relaxed);
        let mut writes = tokio::task::JoinSet::new();
        let (abandoned, later) = (Arc::clone(&member), Arc::clone(&member));
        writes.spawn(async move { abandoned.write(span, &[7; 4096], Durability::Durable).await });
        let pause = || tokio::time::sleep(std::time::Duration::from_millis(1));
        while !waits.load(Ordering::Relaxed) {
            pause().await;
        }
        writes.shutdown().await;
        assert_eq!(member.try_write(span, &[8; 4096]).unwrap(), Attempt::WouldWait);
        writes.spawn(async move { later.write(span, &[9; 4096], Durability::Buffered).await });
        // It would be over by now, and overwritten then.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        closed.store(false, Ordering::Relaxed);
        writes.join_next().await.unwrap().unwrap().unwrap();
        drop(member);
        while HostDisk::open(&path).is_err() {
            pause().await;
        }
        let mut written = [0; 4096];
        std::fs::File::open(&path).unwrap().read_exact_at(&mut written, span.offset()).unwrap();
        assert_eq!(written, [9; 4096]);
    }
}
