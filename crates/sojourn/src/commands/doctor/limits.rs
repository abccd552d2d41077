//! Descriptors: every connection and every open disk takes some.

use super::finding::Finding;
use super::patient::Patient;
use engine::Config;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    // Of the server that runs, else of one that would be started from here.
    let (limit, whose) = match patient.server_pid().and_then(of_process) {
        Some(limit) => (limit, "the server"),
        None => (server::descriptors::limit(), "a server started from here"),
    };
    vec![judged(limit, whose, &patient.config)]
}

fn judged(limit: u64, whose: &str, config: &Config) -> Finding {
    let connections = u64::from(config.limits.connections);
    // A quarter is for disks and the store.
    let usable = limit - limit / 4;
    if usable >= connections {
        return Finding::ok(format!(
            "{whose} may have {limit} files open, enough for {connections} connections"
        ));
    }
    Finding::advice(
        format!(
            "{whose} may have {limit} files open: {usable} connections, and limits.connections is {connections}"
        ),
        "connections beyond that are closed at once, however many limits.connections allows",
        "LimitNOFILE=65536 in the unit, or `ulimit -Hn` higher; or a smaller limits.connections",
    )
}

/// How many files a process may have open.
fn of_process(pid: u32) -> Option<u64> {
    read(&std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

fn read(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Level;

    #[test]
    fn a_low_limit_is_told_against_what_is_configured() {
        let config = Config::default();
        assert_eq!(judged(1024, "it", &config).level, Level::Advice);
        assert_eq!(judged(65_536, "it", &config).level, Level::Ok);
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 4096                 files\n";
        assert_eq!(read(text), Some(1024));
        assert_eq!(read(&text.replace("1024", "unlimited")), Some(u64::MAX));
    }
}
