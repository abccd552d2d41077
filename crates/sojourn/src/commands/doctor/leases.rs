//! Disks of the store whose servers have died: nobody serves them.

use super::finding::Finding;
use super::patient::Patient;
use engine::api::ElsewhereView;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    match &patient.elsewhere {
        None => Vec::new(),
        Some(Ok(disks)) => judged(disks),
        Some(Err(error)) => vec![Finding::trouble(
            format!("the disks of other servers cannot be listed: {}", error.message()),
            "whether one of them waits to be taken is not known",
            "sojourn disk list --elsewhere; sojourn verify when it says that something is damaged",
        )],
    }
}

fn judged(disks: &[ElsewhereView]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = disks
        .iter()
        .filter_map(|disk| {
            let error = disk.error.as_ref()?;
            Some(Finding::trouble(
                format!("the record of the disk {} is damaged: {error}", disk.name),
                "no server can take it",
                "sojourn verify, then sojourn repair --from a copy of the store",
            ))
        })
        .collect();
    let left =
        disks.iter().filter(|disk| disk.error.is_none() && disk.holder.is_some() && !disk.alive);
    let left: Vec<&str> = left.map(|disk| disk.name.as_str()).collect();
    if let Some(first) = left.first() {
        findings.push(Finding::advice(
            format!("{} disks are held by servers that have died, {first} among them", left.len()),
            "nobody serves them; what those servers had not published is in their homes",
            format!("start that server again, or go on here: sojourn disk take {first}"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("no disk of this store waits for a server that has died"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Level;

    #[test]
    fn disks_of_dead_servers_are_told_and_those_that_nobody_holds_are_not() {
        let disk = |holder: Option<&str>, alive, error: Option<&str>| ElsewhereView {
            name: "alice".to_owned(),
            image: "debian:1".to_owned(),
            size: 1,
            created: 1,
            holder: holder.map(str::to_owned),
            host: None,
            alive,
            error: error.map(str::to_owned),
        };
        let level = |disk: ElsewhereView| judged(&[disk])[0].level;
        assert_eq!(level(disk(None, false, None)), Level::Ok);
        assert_eq!(level(disk(Some("x"), true, None)), Level::Ok);
        assert_eq!(level(disk(Some("x"), false, None)), Level::Advice);
        assert_eq!(level(disk(None, false, Some("x"))), Level::Trouble);
    }
}
