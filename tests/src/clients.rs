//! The sets of client tools that the tests run with: what Debian installs, and newer ones beside it.
//! They differ in what they say to a server: QEMU 8.2 and later and libnbd 1.18 and later negotiate
//! extended headers.

use crate::tool;
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// QEMU's and libnbd's tools of one age.
#[derive(Debug)]
pub struct Clients {
    /// For people.
    pub name: &'static str,
    /// Where they are, from the top of the repository; `None` for those that are installed.
    directory: Option<&'static str>,
}

/// All sets. `scripts/setup clients` makes those that are not installed.
pub static ALL: [Clients; 2] = [
    Clients { name: "installed clients (Debian 12: QEMU 7.2, libnbd 1.14)", directory: None },
    Clients {
        name: "newer clients (QEMU 10, libnbd 1.22 or later)",
        directory: Some(".work/clients/bin"),
    },
];

thread_local! {
    static CURRENT: Cell<&'static Clients> = const { Cell::new(&ALL[0]) };
}

impl Clients {
    /// The directory that comes first on `PATH`.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        self.directory.map(|directory| top.join(directory))
    }

    /// Does something with this set on the calling thread: for threads that a test starts.
    pub fn run<T>(&'static self, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(self);
        let done = work();
        CURRENT.set(before);
        done
    }

    /// The path of one of its programs; the bare name for one that is installed.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory().map_or(name.into(), |directory| directory.join(name))
    }
}

/// What this thread runs.
pub fn current() -> &'static Clients {
    CURRENT.get()
}

/// Runs `test` with every set, one after the other. One that is not there is skipped with a message;
/// in CI that fails.
pub fn each(test: impl Fn()) {
    for clients in &ALL {
        if clients.directory().is_some_and(|directory| !directory.is_dir()) {
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            tool::skip(&test, &format!("no {}: run scripts/setup clients", clients.name));
            continue;
        }
        eprintln!("with {}", clients.name);
        clients.run(&test);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_runs_its_own_tools_of_the_age_that_it_names() {
        let seen = Cell::new(0);
        each(|| {
            if !tool::have("clients", &["qemu-img", "nbdinfo"]) {
                return;
            }
            let version = |name: &str, before: &str| {
                let out = tool::shell(Path::new("/"), &[], &format!("{name} --version"));
                let number = out.lines().next().and_then(|line| line.split(before).nth(1));
                let number = number.unwrap_or_else(|| panic!("{out}")).trim();
                let mut parts =
                    number.split(['.', ' ']).map(|part| part.parse::<u32>().unwrap_or(0));
                (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
            };
            let (qemu, libnbd) = (version("qemu-img", "version "), version("nbdinfo", "nbdinfo "));
            if current().directory.is_some() {
                assert!(qemu >= (10, 0) && libnbd >= (1, 22), "{qemu:?} {libnbd:?}");
            }
            seen.set(seen.get() + 1);
        });
        assert!(seen.get() <= ALL.len());
    }
}
