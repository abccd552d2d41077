//! From disks and images to a report: what each part holds, and what of it can be borrowed.

mod report;
mod twins;

pub use report::{Accepted, DiskReport, PartitionReport};

use crate::machine::{FirmwareState, KernelDisk, Sleeper, firmware, sleeper};
use crate::{BorrowPolicy, Loan, Offer};
use block::Span;
use freespace::suspended::{Look, in_swap_files};
use freespace::{Code, FreeSpaceOptions, Level, Refusal};
use report::{Hidden, device_node, is_device};
use std::path::PathBuf;
use std::sync::Arc;
use twins::{DevicePlace, UsedBytes};

/// Everything that was looked at.
#[derive(Debug)]
pub struct Scan {
    /// The disks and images, in the order asked for.
    pub disks: Vec<DiskReport>,
    /// Suspended systems. When there is one, nothing is accepted anywhere.
    pub sleepers: Vec<Sleeper>,
}

/// What to look at, and how.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// For the readers.
    pub reader: FreeSpaceOptions,
    /// The owner says that no system is suspended where nobody can look (encrypted disks, volume
    /// managers).
    pub nothing_hidden: bool,
}

impl Scan {
    /// Looks at `targets`, or at all disks of this machine when there are none. Nothing is written.
    /// Every accepted disk stays held by the scan.
    pub fn run(targets: &[PathBuf], options: &ScanOptions) -> Self {
        let mut scan = Self { disks: Vec::new(), sleepers: Vec::new() };
        // Where the bytes of those disks are.
        let mut places = Vec::new();
        let mut in_use: Vec<UsedBytes> = Vec::new();
        for target in targets {
            let report = DiskReport::of_target(target, &options.reader);
            let place = device_node(target).map(|node| DevicePlace::of(&node));
            in_use.extend(place.iter().flat_map(|place| place.used(&report)));
            places.push(place);
            scan.disks.push(report);
        }
        // Whoever borrows from one disk of a machine must know about all of them.
        let devices = targets.is_empty() || targets.iter().any(|target| is_device(target));
        let mut others = Vec::new();
        let mut hidden: Vec<Hidden> = Vec::new();
        if devices {
            let named: Vec<PathBuf> =
                targets.iter().map(|t| t.canonicalize().unwrap_or_else(|_| t.clone())).collect();
            for node in KernelDisk::disks_with_media() {
                if node.is_held_somewhere() {
                    hidden.push(Hidden::unseen(&node.path.display().to_string()));
                }
                // Looked at already, and held.
                if named.contains(&node.path) {
                    continue;
                }
                let report = DiskReport::of_node(&node, &options.reader);
                let place = DevicePlace::of(&node);
                in_use.extend(place.used(&report));
                if targets.is_empty() {
                    places.push(Some(place));
                    scan.disks.push(report);
                } else {
                    others.push(report);
                }
            }
            match firmware() {
                FirmwareState::Awake => {}
                FirmwareState::Asleep(sleeper) => scan.sleepers.push(sleeper),
                FirmwareState::Unseen => hidden.push(Hidden {
                    place: "the firmware".to_owned(),
                    why: "does not show its variables (mount efivarfs on /sys/firmware/efi/efivars)",
                }),
            }
        }
        twins::refuse_used(&mut scan.disks, &places, &in_use, !targets.is_empty());
        look_into_files(scan.disks.iter_mut().chain(&mut others));
        for disk in scan.disks.iter().chain(&others) {
            if disk.may_hide() {
                hidden.push(Hidden::unseen(&disk.path.display().to_string()));
            }
            for part in &disk.parts {
                hidden.extend(part.hides());
                if let Err(refusal) = &part.verdict {
                    scan.sleepers.extend(sleeper(&part.name, refusal));
                }
            }
        }
        let parts = || scan.disks.iter().chain(&others).flat_map(|disk| &disk.parts);
        let hashes: Vec<(String, u64)> =
            parts().filter_map(|part| Some((part.name.clone(), part.hashes?))).collect();
        let store = parts().find_map(|part| {
            let (name, code) = part.store?;
            Some(Refusal::new(
                code,
                format!(
                    "{} is the {name} of another disk, which may be this one: that bears no mark of it; wipe \
                     the mark if it is stale",
                    part.name
                ),
            ))
        });
        drop(others);
        if options.nothing_hidden {
            hidden.clear();
        }
        scan.apply_rules(&hidden, &hashes, store.as_ref());
        twins::refuse_equal(&mut scan.disks, &places);
        scan
    }

    /// Takes back what was accepted when the machine as a whole does not allow it. `hidden` are
    /// places where a suspended system may be, `hashes` partitions that cover others of so many bytes, `store`
    /// what is said of disks that may be the origin of a cache or a snapshot.
    fn apply_rules(
        &mut self,
        hidden: &[Hidden],
        hashes: &[(String, u64)],
        store: Option<&Refusal>,
    ) {
        for part in self.disks.iter_mut().flat_map(|disk| &mut disk.parts) {
            let Ok(accepted) = &part.verdict else { continue };
            let sizes = [accepted.size, accepted.claim.size];
            let covered = hashes.iter().find(|(_, size)| sizes.contains(size));
            let shows = part.kind.is_some_and(|kind| kind.reader().shows_mounted);
            let beside = hidden.iter().find(|hidden| !shows && hidden.place != part.name);
            if let Some(sleeper) = self.sleepers.first() {
                part.verdict = Err(Refusal::new(
                    Code::Hibernated,
                    format!(
                        "a suspended system may use it ({}: {})",
                        sleeper.place, sleeper.sentence
                    ),
                ));
            } else if let Some(refusal) = store {
                part.verdict = Err(refusal.clone());
            } else if let Some((place, _)) = covered {
                part.verdict = Err(Refusal::new(
                    Code::UnsupportedFeature,
                    format!("dm-verity has hashes of all its blocks, free ones too, in {place}"),
                ));
            } else if let Some(Hidden { place, why }) = beside {
                part.verdict = Err(Refusal::new(
                    Code::HiddenState,
                    format!(
                        "a suspended system may be behind {place}, which {why}, and this one does not \
                         show whether it is mounted; shut that system down and say \
                         --nothing-suspended"
                    ),
                ));
            }
        }
    }

    /// What the caller should tell people before they borrow: file systems whose free blocks were
    /// proven less thoroughly than by default.
    pub fn warnings(&self) -> Vec<String> {
        let weak = self.accepted().filter(|(_, _, accepted)| {
            accepted.claim.level == Level::Fast && accepted.usual == Level::Deep
        });
        let warning = |(_, part, accepted): (&DiskReport, &PartitionReport, &Accepted)| {
            format!(
                "{}: damage to the map of free space of {} may go unseen with --proof fast, and files \
                 may be overwritten; leave the option out",
                part.name, accepted.claim.kind
            )
        };
        weak.map(warning).collect()
    }

    /// The accepted parts, with the disk that each is on.
    pub fn accepted(&self) -> impl Iterator<Item = (&DiskReport, &PartitionReport, &Accepted)> {
        let parts =
            self.disks.iter().flat_map(|disk| disk.parts.iter().map(move |part| (disk, part)));
        parts.filter_map(|(disk, part)| Some((disk, part, part.verdict.as_ref().ok()?)))
    }

    /// What `policy` takes of the accepted parts: a list for each, in their order.
    pub fn choose(&self, policy: &BorrowPolicy) -> Vec<Vec<Span>> {
        let offers = self.accepted().map(|(disk, _, accepted)| Offer {
            spans: &accepted.usable,
            rotational: disk.rotational,
        });
        policy.choose(&offers.collect::<Vec<_>>())
    }

    /// The loans that `policy` makes of the accepted parts. Those that lend nothing are left out.
    pub fn loans(&self, policy: &BorrowPolicy) -> Vec<Loan> {
        let taken = self.choose(policy);
        let lend = |(accepted, spans): (&Accepted, Vec<Span>)| Loan {
            disk: Arc::clone(&accepted.disk),
            claim: accepted.claim.clone(),
            spans,
        };
        let pairs = self.accepted().map(|(_, _, accepted)| accepted).zip(taken);
        pairs.filter(|(_, spans)| !spans.is_empty()).map(lend).collect()
    }
}

/// Looks for suspended systems in the swap files of all file systems together. Disks that lend nothing
/// keep those parts that tell something of the machine.
fn look_into_files<'d>(reports: impl Iterator<Item = &'d mut DiskReport>) {
    let mut reports: Vec<&mut DiskReport> = reports.collect();
    let mut parts: Vec<&mut PartitionReport> = reports
        .iter_mut()
        .flat_map(|report| &mut report.parts)
        .filter(|part| part.look.is_some())
        .collect();
    let looks: Vec<Look> = parts.iter_mut().filter_map(|part| part.look.take()).collect();
    for (number, path) in in_swap_files(&looks) {
        if let Some(part) = parts.get_mut(number) {
            part.verdict = Err(Refusal::new(
                Code::Hibernated,
                format!(
                    "a suspended system is stored in its swap file {}; start it and shut it down",
                    path.escape_debug()
                ),
            ));
        }
    }
    for report in reports.into_iter().filter(|report| report.refusal.is_some()) {
        report.parts.retain(|part| {
            let code = part.verdict.as_ref().err().map(|refusal| refusal.code);
            code == Some(Code::Hibernated)
                || part.hides().is_some()
                || part.hashes.is_some()
                || part.store.is_some()
        });
    }
}
