//! CPU time and memory of a server: of a process and all that descend from it, out of `/proc`.

use std::collections::HashMap;
use std::fs;

/// Clock ticks per second in `/proc/PID/stat`: `USER_HZ`, fixed in Linux' interface to programs.
const TICKS: f64 = 100.0;

/// A process and its descendants.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: u32,
    members: Vec<u32>,
}

/// What `/proc/PID/stat` says.
struct Stat {
    parent: u32,
    /// User and system time of the process and of its children that ended and were waited for,
    /// so that a child's time is counted once, before and after its end.
    ticks: u64,
    zombie: bool,
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

    /// CPU time used so far, seconds.
    pub(crate) fn cpu(&self) -> f64 {
        let ticks: u64 = self.members.iter().filter_map(|pid| stat(*pid)).map(|s| s.ticks).sum();
        ticks as f64 / TICKS
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

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        parent: number(1)? as u32,
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
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
    fn a_childs_work_counts_while_it_lives_and_after_its_end() {
        let mut shell = Command::new("sh")
            .args([
                "-c",
                "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; read x'; read y",
            ])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut tree = Tree::new(shell.id());
        let mut last = 0.0;
        for _ in 0..200 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            tree.refresh();
            last = tree.cpu();
            if tree.members().len() == 2 && last >= 0.05 {
                break;
            }
        }
        assert!(last >= 0.05, "the child's loop took {last} s");
        assert_eq!(tree.members().len(), 2);
        assert!(tree.memory() > 0 && tree.alive());
        use std::io::Write as _;
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while tree.members().len() > 1 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            tree.refresh();
        }
        assert!(tree.cpu() >= last);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(!tree.alive());
    }
}
