//! The home, and its configuration.

use super::finding::Finding;
use super::patient::Patient;
use crate::commands::config::Examined;
use block::ByteSize;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    let dir = patient.home.dir().display();
    let path = patient.home.config();
    let Some(examined) = &patient.examined else {
        let what = match patient.home.must_exist() {
            Err(error) => error.message().to_owned(),
            Ok(()) => format!("no home at {dir}"),
        };
        let remedy = format!("sojourn --home {dir} init, or name the home that you mean by --home");
        return vec![Finding::trouble(what, "without a home there are no disks to serve", remedy)];
    };
    let Examined { mistakes, config } = match examined {
        Ok(examined) => examined,
        Err(error) => {
            let why = "no command and no server reads this home";
            let remedy = format!("make {} a text file that this user may read", path.display());
            return vec![Finding::trouble(error.message(), why, remedy)];
        }
    };
    let mut findings: Vec<Finding> = mistakes
        .iter()
        .map(|mistake| {
            let line = mistake.line.map_or(String::new(), |line| format!("line {line}: "));
            Finding::trouble(
                format!("sojourn.toml: {line}{}", mistake.text),
                "a server does not start with it; one that runs goes on with what it read before",
                format!("edit {}, then sojourn config check", path.display()),
            )
        })
        .collect();
    if let Some(config) = config {
        findings.extend(memory(config.cache.size.0));
        let fine = format!("{} can be read", path.display());
        findings.insert(0, Finding::ok(fine));
    }
    findings
}

/// Whether the cache fits this machine.
fn memory(cache: u64) -> Option<Finding> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = total.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.saturating_mul(1024);
    (cache > total / 4 * 3).then(|| {
        Finding::trouble(
            format!("the cache may take {} of {} of memory", ByteSize(cache), ByteSize(total)),
            "what connections and the system need has no room beside it: the machine swaps, or ends the server",
            "a smaller cache.size in sojourn.toml; `sojourn top` says what half of it would cost",
        )
    })
}
