//! `sojourn borrow scan`.

use super::map::{Map, legend, svg};
use super::selection::SelectionArgs;
use crate::output::{Output, Table};
use block::{ByteSize, Error, Result, Span};
use freespace::{Code, Level, Refusal};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use transient::{Accepted, PartitionReport, Scan};

/// Arguments of `sojourn borrow scan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn borrow scan
  sojourn borrow scan --why --map
  sojourn borrow scan --size 20G /dev/sda /dev/sdb
  sojourn --json borrow scan --extents disk.img | jq '.disks[].parts[].verdict'")]
pub(crate) struct Args {
    #[command(flatten)]
    selection: SelectionArgs,
    /// Explain every verdict
    #[arg(long)]
    why: bool,
    /// Draw what is used, free and lent on each disk
    #[arg(long)]
    map: bool,
    /// Write that picture to a new file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// With --json, list the ranges that would be lent
    #[arg(long)]
    extents: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct ScanView {
    disks: Vec<DiskView>,
    suspended: Vec<SleeperView>,
    lendable_bytes: u64,
    extents: usize,
}

#[derive(Serialize)]
struct SleeperView {
    place: String,
    sentence: String,
}

#[derive(Serialize)]
struct DiskView {
    path: String,
    size: u64,
    rotational: Option<bool>,
    table: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<RefusalView>,
    parts: Vec<PartView>,
}

#[derive(Serialize)]
struct RefusalView {
    code: Code,
    sentence: String,
}

impl From<&Refusal> for RefusalView {
    fn from(refusal: &Refusal) -> Self {
        Self { code: refusal.code, sentence: refusal.sentence.clone() }
    }
}

#[derive(Serialize)]
struct PartView {
    name: String,
    offset: u64,
    size: u64,
    holds: Option<&'static str>,
    #[serde(flatten)]
    verdict: ScanVerdict,
}

#[derive(Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
enum ScanVerdict {
    Accepted(AcceptedView),
    Refused(RefusalView),
}

#[derive(Serialize)]
struct AcceptedView {
    uuid: Option<String>,
    label: Option<String>,
    proof: &'static str,
    unit: u32,
    free_bytes: u64,
    lendable_bytes: u64,
    extents: usize,
    largest_extent: u64,
    smallest_extent: u64,
    /// Offset on the disk and length, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    ranges: Option<Vec<(u64, u64)>>,
}

pub(crate) async fn run(args: &Args, output: Output) -> Result<()> {
    let scan = args.selection.for_server().scan().await?;
    if !rustix::process::geteuid().is_root()
        && let Some(sentence) = all_unreadable(&scan)
    {
        return Err(Error::denied(format!("{sentence}; run it as root, who may read disks")));
    }
    let lent = scan.choose(&args.selection.for_server().policy);
    let view = ScanView::new(&scan, &lent, args.extents);
    if let Some(path) = &args.svg {
        // A file that exists may be a disk.
        let mut file = File::create_new(path).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::conflict(format!(
                "{} exists, and scan overwrites nothing; give the picture another name",
                path.display()
            )),
            _ => Error::io(path.display(), e),
        })?;
        file.write_all(svg(&Map::of(&scan, &lent)).as_bytes())
            .map_err(|e| Error::io(path.display(), e))?;
    }
    output.print(&view, || {
        let mut text = view.describe(args.why);
        if args.map {
            for map in Map::of(&scan, &lent) {
                let _ = writeln!(text, "\n|{}|", map.line(78));
            }
            let _ = writeln!(text, "{}", legend());
        }
        text
    })
}

/// Why the first disk could not be read, when none could.
fn all_unreadable(scan: &Scan) -> Option<&str> {
    let unreadable = |refusal: &&Refusal| refusal.code == Code::ReadError;
    let refusals = scan.disks.iter().map(|disk| disk.refusal.as_ref().filter(unreadable));
    let refusals: Option<Vec<&Refusal>> = refusals.collect();
    refusals?.first().map(|refusal| refusal.sentence.as_str())
}

impl ScanView {
    fn new(scan: &Scan, lent: &[Vec<Span>], ranges: bool) -> Self {
        let mut lists = lent.iter();
        let disks = scan
            .disks
            .iter()
            .map(|disk| DiskView {
                path: disk.path.display().to_string(),
                size: disk.size,
                rotational: disk.rotational,
                table: disk.table,
                refusal: disk.refusal.as_ref().map(RefusalView::from),
                parts: disk
                    .parts
                    .iter()
                    .map(|part| PartView::new(part, &mut lists, ranges))
                    .collect(),
            })
            .collect();
        let suspended = scan.sleepers.iter().map(|sleeper| SleeperView {
            place: sleeper.place.clone(),
            sentence: sleeper.sentence.clone(),
        });
        Self {
            disks,
            suspended: suspended.collect(),
            lendable_bytes: lent.iter().flatten().map(|span| span.len()).sum(),
            extents: lent.iter().map(Vec::len).sum(),
        }
    }

    fn describe(&self, why: bool) -> String {
        let mut table =
            Table::new(&["PART", "HOLDS", ">SIZE", ">FREE", ">LENDABLE", ">RANGES", "VERDICT"]);
        let dash = || "-".to_owned();
        for disk in &self.disks {
            if let Some(refusal) = &disk.refusal {
                table.row([
                    disk.path.clone(),
                    dash(),
                    if disk.size > 0 { ByteSize(disk.size).to_string() } else { dash() },
                    dash(),
                    dash(),
                    dash(),
                    format!("refused: {}", refusal.code),
                ]);
            }
            for part in &disk.parts {
                let holds = part.holds.map_or_else(dash, str::to_owned);
                let size = ByteSize(part.size).to_string();
                let cells = match &part.verdict {
                    ScanVerdict::Accepted(view) => [
                        ByteSize(view.free_bytes).to_string(),
                        ByteSize(view.lendable_bytes).to_string(),
                        view.extents.to_string(),
                        "accepted".to_owned(),
                    ],
                    ScanVerdict::Refused(refusal) => {
                        [dash(), dash(), dash(), format!("refused: {}", refusal.code)]
                    }
                };
                table.row([part.name.clone(), holds, size].into_iter().chain(cells));
            }
        }
        let mut text = table.render();
        let _ = writeln!(
            text,
            "\n{} in {} ranges can be borrowed",
            ByteSize(self.lendable_bytes),
            self.extents
        );
        for sleeper in &self.suspended {
            let _ = writeln!(text, "suspended system: {}: {}", sleeper.place, sleeper.sentence);
        }
        if why {
            text.push('\n');
            self.explain(&mut text);
        }
        text
    }

    fn explain(&self, text: &mut String) {
        for disk in &self.disks {
            let refuse = |text: &mut String, name: &str, refusal: &RefusalView| {
                let _ = writeln!(
                    text,
                    "{name}: {}\n    {}: {}",
                    refusal.sentence,
                    refusal.code,
                    refusal.code.meaning()
                );
            };
            if let Some(refusal) = &disk.refusal {
                refuse(text, &disk.path, refusal);
            }
            for part in &disk.parts {
                match &part.verdict {
                    ScanVerdict::Refused(refusal) => refuse(text, &part.name, refusal),
                    ScanVerdict::Accepted(view) => {
                        let _ = writeln!(text, "{}: {}", part.name, view.explain());
                    }
                }
            }
        }
    }
}

impl PartView {
    fn new<'l>(
        part: &PartitionReport,
        lists: &mut impl Iterator<Item = &'l Vec<Span>>,
        ranges: bool,
    ) -> Self {
        let verdict = match &part.verdict {
            Ok(accepted) => {
                let lent = lists.next().map(Vec::as_slice).unwrap_or_default();
                ScanVerdict::Accepted(AcceptedView::new(accepted, lent, ranges))
            }
            Err(refusal) => ScanVerdict::Refused(refusal.into()),
        };
        Self {
            name: part.name.clone(),
            offset: part.span.offset(),
            size: part.span.len(),
            holds: part.kind.map(|kind| kind.as_str()),
            verdict,
        }
    }
}

impl AcceptedView {
    fn new(accepted: &Accepted, lent: &[Span], ranges: bool) -> Self {
        let lens = || lent.iter().map(|span| span.len());
        Self {
            uuid: accepted.volume.uuid.clone(),
            label: accepted.volume.label.clone(),
            proof: match accepted.claim.level {
                Level::Fast => "fast",
                Level::Deep => "deep",
            },
            unit: accepted.unit,
            free_bytes: accepted.free,
            lendable_bytes: lens().sum(),
            extents: lent.len(),
            largest_extent: lens().max().unwrap_or(0),
            smallest_extent: lens().min().unwrap_or(0),
            ranges: ranges.then(|| lent.iter().map(|span| (span.offset(), span.len())).collect()),
        }
    }

    fn explain(&self) -> String {
        let how = match self.proof {
            "fast" => "its checksums and counts agree",
            _ => "no file claims a free block",
        };
        let kept = self.free_bytes.saturating_sub(self.lendable_bytes);
        format!(
            "clean, {how}; {} stay with the owner (margins, small ranges, what is not needed)",
            ByteSize(kept)
        )
    }
}
