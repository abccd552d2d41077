//! The units of systemd, where it runs: whether what they start is there.

use super::finding::Finding;
use super::patient::Patient;
use std::path::{Path, PathBuf};

/// Where units are, the one that counts first.
const PLACES: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
const UNITS: [&str; 4] = [
    "sojourn.service",
    "sojourn-netboot.service",
    "sojourn-attach@.service",
    "sojourn-attach-system@.service",
];

pub(super) fn look(_: &Patient) -> Vec<Finding> {
    if !Path::new("/run/systemd/system").is_dir() {
        return Vec::new();
    }
    let found =
        |name: &&str| PLACES.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    let units: Vec<PathBuf> = UNITS.iter().filter_map(found).collect();
    let mut findings: Vec<Finding> = units
        .iter()
        .filter_map(|unit| {
            of_text(unit, &std::fs::read_to_string(unit).ok()?, &|path| path.exists())
        })
        .collect();
    if findings.is_empty() && !units.is_empty() {
        findings.push(Finding::ok(format!("{} units of systemd start what is there", units.len())));
    }
    findings
}

/// What is wrong with the text of a unit; `there` says whether a program is.
fn of_text(unit: &Path, text: &str, there: &dyn Fn(&Path) -> bool) -> Option<Finding> {
    let started = text.lines().filter_map(|line| line.strip_prefix("ExecStart="));
    // Signs before the path say how it is started.
    let programs = started
        .filter_map(|line| line.trim_start_matches(['-', '@', ':', '+', '!']).split(' ').next());
    let gone = programs.map(Path::new).find(|path| path.is_absolute() && !there(path))?;
    Some(Finding::trouble(
        format!("{} starts {}, which is not there", unit.display(), gone.display()),
        "the unit fails at every start",
        format!(
            "install the program there, or change the path: systemctl edit {}",
            unit.file_name()?.to_string_lossy()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_whose_program_is_gone_is_told() {
        let text = "[Service]\nExecStart=-/usr/bin/sojourn --home /x serve\n";
        let unit = Path::new("/etc/systemd/system/sojourn.service");
        let found = of_text(unit, text, &|_| false).unwrap();
        assert!(found.what.contains("/usr/bin/sojourn"), "{found:?}");
        assert_eq!(of_text(unit, text, &|path| path == Path::new("/usr/bin/sojourn")), None);
    }
}
