//! Reads that the page cache does not hold: by threads that wait and by the kernel's ring, in the same
//! run: `make bench-file`.
//!
//! `bench_file DIR [READS]`: a file of 1 GiB is made in `DIR` (and is gone at the end). In each round
//! both ways take turns: the file's pages are dropped from the cache, and so many blocks of 4 KiB
//! (10,000 unless told otherwise), each of them once, are read in random order by as many tasks as the
//! depth says. The median of five rounds counts. CPU time is that of the process, with the kernel's
//! threads that work for it.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use block::conformance::Sequence;
use block::{Error, RandomFile, Result, Ring};
use rustix::fs::Advice;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

const SIZE: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const ROUNDS: usize = 5;

/// One window's figures.
#[derive(Debug, Clone, Copy)]
struct Figures {
    per_second: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// All blocks in random order.
fn shuffled(random: &mut Sequence) -> Vec<u64> {
    let mut blocks: Vec<u64> = (0..SIZE / BLOCK).collect();
    for last in (1..blocks.len()).rev() {
        blocks.swap(last, random.below(last as u64 + 1) as usize);
    }
    blocks
}

fn make(dir: &Path) -> Result<File> {
    let failed = |e| Error::io(dir.display(), e);
    let file = tempfile::tempfile_in(dir).map_err(failed)?;
    let (mut random, mut bytes) = (Sequence::new(1), vec![0; 1 << 20]);
    let whole = RandomFile::from_file(file.try_clone().map_err(failed)?, dir);
    for at in (0..SIZE).step_by(bytes.len()) {
        bytes
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.number().to_le_bytes()));
        whole.write(at, &bytes)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(file)
}

/// Lets `depth` tasks read `blocks`.
async fn window(file: &Arc<RandomFile>, depth: usize, blocks: Arc<[u64]>) -> Result<Figures> {
    let next = Arc::new(AtomicUsize::new(0));
    let (began, before) = (Instant::now(), cpu());
    let mut tasks = JoinSet::new();
    for _ in 0..depth {
        let (file, blocks, next) = (Arc::clone(file), Arc::clone(&blocks), Arc::clone(&next));
        tasks.spawn(async move {
            let (mut buf, mut took) = (vec![0; BLOCK as usize], Vec::new());
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let asked = Instant::now();
                file.read(block * BLOCK, &mut buf).await?;
                took.push(asked.elapsed());
            }
            Ok::<_, Error>(took)
        });
    }
    let mut took = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let done = done.map_err(|e| Error::internal("a task panicked").with_source(e))?;
        took.extend(done?);
    }
    let (elapsed, used) = (began.elapsed(), cpu() - before);
    took.sort_unstable();
    let at = |part: f64| took[(took.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    let count = took.len() as f64;
    Ok(Figures {
        per_second: count / elapsed.as_secs_f64(),
        cpu_us: used.as_secs_f64() * 1e6 / count,
        p50_us: at(0.5),
        p99_us: at(0.99),
    })
}

fn median(rounds: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or_else(|| Error::invalid("bench_file DIR [READS]"))?;
    let reads = arguments.next().map_or(Ok(10_000), |text| text.parse());
    let reads: usize = reads.map_err(|e| Error::invalid(format!("READS: {e}")))?;
    let file = make(dir.as_ref())?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (ring, driver) = Ring::start(threads)?;
    let mut driving = JoinSet::new();
    driving.spawn(driver.run());

    let again = || file.try_clone().map_err(|e| Error::io(&dir, e));
    let ways = [
        ("threads", Arc::new(RandomFile::from_file(again()?, &*dir))),
        ("ring", Arc::new(RandomFile::with_ring(again()?, &*dir, ring))),
    ];
    let mut random = Sequence::new(2);
    println!("depth  way      per second  CPU us   p50 us   p99 us");
    for depth in [1, 16, 64] {
        let mut rounds = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for ((_, by), figures) in ways.iter().zip(&mut rounds) {
                let mut blocks = shuffled(&mut random);
                blocks.truncate(reads.max(1));
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
                    .map_err(|e| Error::io(&dir, e.into()))?;
                figures.push(window(by, depth, blocks.into()).await?);
            }
        }
        for ((way, _), figures) in ways.iter().zip(&rounds) {
            println!(
                "{depth:>5}  {way:<8} {:>10.0} {:>7.1} {:>8.0} {:>8.0}",
                median(figures, |f| f.per_second),
                median(figures, |f| f.cpu_us),
                median(figures, |f| f.p50_us),
                median(figures, |f| f.p99_us),
            );
        }
    }
    Ok(())
}
