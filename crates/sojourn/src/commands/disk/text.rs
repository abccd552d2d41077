//! What people read of disks.

use crate::output::{Table, fields, moment};
use block::ByteSize;
use engine::api::{DiskView, ElsewhereView, RebaseView};

/// Which snapshots were removed, or would be.
pub(super) fn pruned(snapshots: &[String], dry_run: bool) -> String {
    let removed = if dry_run { "would be removed" } else { "removed" };
    match snapshots {
        [] => "nothing to remove".to_owned(),
        some => some.iter().map(|name| format!("snapshot {name} {removed}\n")).collect(),
    }
}

/// A list of disks.
pub(super) fn table(disks: &[DiskView]) -> String {
    let mut table =
        Table::new(&["NAME", "IMAGE", "MODE", ">SIZE", ">PRIVATE", ">SNAPSHOTS", "CREATED"]);
    for disk in disks {
        match &disk.error {
            Some(error) => table.row([disk.name.clone(), format!("damaged: {error}")]),
            None => table.row([
                disk.name.clone(),
                disk.image.clone(),
                disk.mode.clone(),
                ByteSize(disk.size).to_string(),
                ByteSize(disk.private_bytes).to_string(),
                disk.snapshots.len().to_string(),
                moment(disk.created),
            ]),
        }
    }
    table.render()
}

/// A list of disks that are not here.
pub(super) fn elsewhere(disks: &[ElsewhereView]) -> String {
    let mut table = Table::new(&["NAME", "IMAGE", ">SIZE", "CREATED", "HELD BY"]);
    for disk in disks {
        if let Some(error) = &disk.error {
            table.row([disk.name.clone(), format!("damaged: {error}")]);
            continue;
        }
        let holder = match (&disk.holder, &disk.host) {
            (None, _) => "nobody".to_owned(),
            (Some(id), None) => format!("server {id}"),
            (Some(_), Some(host)) if disk.alive => format!("{host}, at work"),
            (Some(_), Some(host)) => format!("{host}, gone"),
        };
        table.row([
            disk.name.clone(),
            disk.image.clone(),
            ByteSize(disk.size).to_string(),
            moment(disk.created),
            holder,
        ]);
    }
    table.render()
}

/// One disk, and its snapshots.
pub(super) fn describe(disk: &DiskView) -> String {
    let mut pairs = vec![("name", disk.name.clone())];
    if let Some(error) = &disk.error {
        pairs.push(("damaged", error.clone()));
        return fields(&pairs);
    }
    pairs.extend([
        ("image", disk.image.clone()),
        ("mode", disk.mode.clone()),
        ("size", format!("{} ({} bytes)", ByteSize(disk.size), disk.size)),
        ("private", ByteSize(disk.private_bytes).to_string()),
        ("created", moment(disk.created)),
    ]);
    let mut text = fields(&pairs);
    if !disk.snapshots.is_empty() {
        let mut table = Table::new(&["SNAPSHOT", ">SIZE", "CREATED"]);
        for snapshot in &disk.snapshots {
            let (size, created) = match &snapshot.error {
                None => (ByteSize(snapshot.size).to_string(), moment(snapshot.created)),
                Some(error) => ("-".into(), format!("damaged: {error}")),
            };
            table.row([snapshot.name.clone(), size, created]);
        }
        text.push('\n');
        text.push_str(&table.render());
    }
    text
}

/// What a rebase found.
pub(super) fn rebased(report: &RebaseView) -> String {
    let disk = &report.disk;
    let mut text = format!("disk {} stands on {} now\n", disk.name, disk.image);
    if !report.both_changed.is_empty() {
        let bytes: u64 = report.both_changed.iter().map(|range| range.length).sum();
        text.push_str(&format!(
            "both had changed {} in {} ranges; the disk's content was kept there\n",
            ByteSize(bytes),
            report.both_changed.len()
        ));
    }
    text
}
