//! What the kernel says of a process, a disk and a network interface.

use block::{Error, Result};
use std::path::PathBuf;

/// Clock ticks a second in /proc: the kernel's USER_HZ, 100 on every Linux of today.
const TICKS: f64 = 100.0;

/// What is watched.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched {
    /// A process.
    pub(super) pid: Option<u32>,
    /// A disk's name in /proc/diskstats.
    pub(super) disk: Option<String>,
    /// A network interface and its speed in bytes a second.
    pub(super) network: Option<(String, f64)>,
}

/// Seconds of work since some time in the past.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ResourceUse {
    pub(super) cpu: f64,
    pub(super) disk: f64,
    /// What was sent, and what was received.
    network: [f64; 2],
}

impl ResourceUse {
    /// The work done since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            disk: self.disk - before.disk,
            network: std::array::from_fn(|way| self.network[way] - before.network[way]),
        }
    }

    /// The work of the network's busier direction, which is the one that limits.
    pub(super) fn network(self) -> f64 {
        self.network.into_iter().fold(0.0, f64::max)
    }
}

/// The network interface of this name with its speed; asked of the kernel unless it is given in
/// bits a second.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is none of this name,
/// [`Unsupported`](block::ErrorKind::Unsupported) when it does not know its speed.
pub(super) fn interface(name: &str, speed: Option<u64>) -> Result<(String, f64)> {
    if let Some(bits) = speed {
        return Ok((name.to_owned(), bits as f64 / 8.0));
    }
    let text = read(&class(name, "speed"))?;
    match text.trim().parse::<f64>() {
        Ok(megabits) if megabits > 0.0 => Ok((name.to_owned(), megabits * 1e6 / 8.0)),
        _ => Err(Error::unsupported(format!(
            "interface {name} does not know its speed: give it with --speed, as in --speed 1000000000"
        ))),
    }
}

impl Watched {
    /// How much was done until now.
    ///
    /// # Errors
    /// When one of them is not there.
    pub(super) fn look(&self) -> Result<ResourceUse> {
        let mut work = ResourceUse::default();
        if let Some(pid) = self.pid {
            let path = PathBuf::from(format!("/proc/{pid}/stat"));
            work.cpu = ticks(&read(&path)?).ok_or_else(|| unreadable(&path))? / TICKS;
        }
        if let Some(disk) = &self.disk {
            let path = PathBuf::from("/proc/diskstats");
            work.disk = busy(&read(&path)?, disk).ok_or_else(|| {
                Error::not_found(format!("there is no disk {disk:?} in {}", path.display()))
            })? / 1000.0;
        }
        if let Some((name, speed)) = &self.network {
            let ways = ["statistics/tx_bytes", "statistics/rx_bytes"];
            for (counter, busy) in ways.into_iter().zip(&mut work.network) {
                let path = class(name, counter);
                let bytes = read(&path)?.trim().parse::<f64>().map_err(|_| unreadable(&path))?;
                *busy = bytes / speed;
            }
        }
        Ok(work)
    }
}

fn class(interface: &str, file: &str) -> PathBuf {
    // A name with a slash would lead elsewhere.
    PathBuf::from("/sys/class/net").join(interface.replace('/', "_")).join(file)
}

fn read(path: &std::path::Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::io(path.display(), e))
}

fn unreadable(path: &std::path::Path) -> Error {
    Error::unsupported(format!("{} is not as this version knows it", path.display()))
}

/// User and system ticks of a process, children not included.
fn ticks(stat: &str) -> Option<f64> {
    // The second field is the program's name in parentheses, and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let user: f64 = fields.nth(11)?.parse().ok()?;
    Some(user + fields.next()?.parse::<f64>().ok()?)
}

/// Milliseconds for which a disk had something to do.
fn busy(diskstats: &str, disk: &str) -> Option<f64> {
    let of = |line: &&str| line.split_ascii_whitespace().nth(2) == Some(disk);
    diskstats.lines().find(of)?.split_ascii_whitespace().nth(12)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        let stat = "7 (a) b c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 1 0 5 0 0";
        assert_eq!(ticks(stat), Some(300.0));
        let stats =
            "   8       0 sda 10 1 80 5 20 2 160 9 0 1234 14\n 8 1 sda1 1 0 8 0 0 0 0 0 0 7 7\n";
        assert_eq!((busy(stats, "sda"), busy(stats, "sda1")), (Some(1234.0), Some(7.0)));
        assert_eq!(busy(stats, "sdb"), None);
        for text in ["", ")", "7 (x) S 1", ") a b c d e f g h i j k l m"] {
            assert_eq!(ticks(text), None, "{text}");
        }
    }

    #[test]
    fn the_busier_direction_of_a_network_is_that_of_the_interval() {
        let at = |network| ResourceUse { network, ..ResourceUse::default() };
        // What was received since the machine's start is more, and hardly grows.
        let work = at([22.875, 100.125]).since(at([20.0, 100.0]));
        assert_eq!(work.network(), 2.875);
    }

    #[test]
    fn the_work_of_a_process_grows_and_a_missing_one_is_an_error() {
        let watched = Watched { pid: Some(std::process::id()), ..Watched::default() };
        let before = watched.look().unwrap();
        let mut sum = 0u64;
        while watched.look().unwrap().since(before).cpu < 0.03 {
            sum = (0..100_000u64).fold(sum, |sum, i| sum.wrapping_mul(31).wrapping_add(i));
        }
        assert!(Watched { disk: Some("none".into()), ..Watched::default() }.look().is_err());
        assert!(interface("no-such-interface", None).is_err());
        assert_eq!(interface("any", Some(8)).unwrap().1, 1.0);
    }
}
