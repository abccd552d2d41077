//! CPU time and memory of a server: of a process and all that descend from it, out of `/proc`.

use std::collections::HashMap;
use std::fs;

/// Nanoseconds of a clock tick in `/proc/PID/stat`: `USER_HZ` is fixed in Linux' interface.
const TICK: u64 = 10_000_000;

/// A process and its descendants.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: u32,
    members: Vec<u32>,
}

/// What `/proc/PID/stat` says.
struct Stat {
    parent: u32,
    /// User and system time.
    ticks: u64,
    zombie: bool,
}

/// CPU time used so far by each thread of a tree, nanoseconds by thread id. Threads and not
/// processes, so that one that ends between two readings takes nothing back.
#[derive(Debug, Clone, Default)]
pub(crate) struct CpuTimes(HashMap<u32, u64>);

impl CpuTimes {
    /// CPU time used since `earlier`, seconds.
    pub(crate) fn since(&self, earlier: &Self) -> f64 {
        let used = |(thread, now): (&u32, &u64)| {
            now.saturating_sub(earlier.0.get(thread).copied().unwrap_or(0))
        };
        self.0.iter().map(used).sum::<u64>() as f64 / 1e9
    }
}

impl Tree {
    /// The tree below `root`.
    pub(crate) fn new(root: u32) -> Self {
        let mut tree = Self { root, members: Vec::new() };
        tree.refresh();
        tree
    }

    /// Looks again which processes belong to it.
    pub(crate) fn refresh(&mut self) {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && let Some(stat) = stat(pid)
            {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        self.members.clear();
        let mut todo = vec![self.root];
        while let Some(pid) = todo.pop() {
            self.members.push(pid);
            todo.extend(children.remove(&pid).unwrap_or_default());
        }
    }

    /// The processes, the root first.
    pub(crate) fn members(&self) -> &[u32] {
        &self.members
    }

    /// CPU time used so far by the threads that run now.
    pub(crate) fn usage(&self) -> CpuTimes {
        let mut usage = HashMap::new();
        for pid in &self.members {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"));
            for entry in tasks.into_iter().flatten().flatten() {
                let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
                if let Some(thread) = thread
                    && let Some(time) = thread_time(*pid, thread)
                {
                    usage.insert(thread, time);
                }
            }
        }
        CpuTimes(usage)
    }

    /// Resident memory now, bytes. Pages that several processes share count for each of them.
    pub(crate) fn memory(&self) -> u64 {
        self.members.iter().filter_map(|pid| resident(*pid)).sum()
    }

    /// Whether the root process runs.
    pub(crate) fn alive(&self) -> bool {
        stat(self.root).is_some_and(|stat| !stat.zombie)
    }
}

/// CPU time of a thread, nanoseconds. The scheduler's own figure where the kernel shows it: with
/// a process for each client, ticks of 10 ms are too coarse.
fn thread_time(pid: u32, thread: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/task/{thread}");
    if let Ok(text) = fs::read_to_string(format!("{path}/schedstat")) {
        return text.split_ascii_whitespace().next()?.parse().ok();
    }
    Some(stat_at(&format!("{path}/stat"))?.ticks * TICK)
}

fn stat(pid: u32) -> Option<Stat> {
    stat_at(&format!("/proc/{pid}/stat"))
}

fn stat_at(path: &str) -> Option<Stat> {
    let text = fs::read_to_string(path).ok()?;
    // The second field is the program's name in parentheses, and may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        parent: number(1)? as u32,
        ticks: number(11)? + number(12)?,
        zombie: fields.first() == Some(&"Z"),
    })
}

fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_childs_work_counts_and_its_end_takes_nothing_back() {
        let mut shell = Command::new("sh")
            .args([
                "-c",
                "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; read x'; read y",
            ])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut tree = Tree::new(shell.id());
        let start = tree.usage();
        let mut busy = CpuTimes::default();
        for _ in 0..3000 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            tree.refresh();
            busy = tree.usage();
            if tree.members().len() == 2 && busy.since(&start) >= 0.05 {
                break;
            }
        }
        assert!(busy.since(&start) >= 0.05, "the child's loop took {} s", busy.since(&start));
        assert!(busy.since(&start) < 60.0);
        assert_eq!(tree.members().len(), 2);
        assert!(tree.memory() > 0 && tree.alive());
        use std::io::Write as _;
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while tree.members().len() > 1 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            tree.refresh();
        }
        assert!(tree.usage().since(&busy) < 0.05);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(!tree.alive());
    }

    #[test]
    fn a_thread_that_is_new_counts_in_whole_and_one_that_ended_not_at_all() {
        let before = CpuTimes(HashMap::from([(1, 1_000_000_000), (2, 5_000_000_000)]));
        let after = CpuTimes(HashMap::from([(1, 1_500_000_000), (3, 250_000_000)]));
        assert_eq!(after.since(&before), 0.75);
    }
}
