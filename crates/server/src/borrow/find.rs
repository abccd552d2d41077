//! Which free blocks of which disks are taken.

use super::selection::BorrowSelection;
use block::{ByteSize, Error, ErrorKind, Result, Span};
use freespace::{Code, FreeSpaceOptions, Refusal};
use std::path::Path;
use transient::{BorrowPolicy, Loan, Plan, Scan, ScanOptions};

/// How many bytes are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// No more than this; `None` for all that can be lent.
    pub most: Option<u64>,
    /// Less is of no use.
    pub least: u64,
}

impl Amount {
    /// No more and no less.
    pub const fn exactly(bytes: u64) -> Self {
        Self { most: Some(bytes), least: bytes }
    }
}

/// Looks at the selected disks and takes as much as is wanted of what is free there. Returns the plan
/// and the size of the disk that it makes, in bytes.
///
/// # Errors
/// [`ErrorKind::NoSpace`] when there is less; when nothing at all, the first reason.
pub async fn plan(selection: &BorrowSelection, amount: Amount) -> Result<(Plan, u64)> {
    let scan = selection.scan().await?;
    let loans = scan.loans(&BorrowPolicy { want: amount.most, ..selection.policy });
    if loans.is_empty()
        && let Some((name, refusal)) = reasons(&scan).next()
    {
        return Err(refused(&name, refusal));
    }
    let plan = Plan::new(loans)?;
    if plan.capacity() < amount.least {
        let mut message = format!(
            "{} are wanted and only {} can be borrowed; ask for less, or for as much as there is \
             (--size all), name more disks, or lower --min-extent",
            ByteSize(amount.least),
            ByteSize(plan.capacity())
        );
        for (name, refusal) in reasons(&scan) {
            message += &format!("; {name}: {refusal}");
        }
        return Err(Error::no_space(message));
    }
    let size = plan.capacity().min(amount.most.unwrap_or(u64::MAX));
    Ok((plan, size))
}

/// What is refused, and why.
fn reasons(scan: &Scan) -> impl Iterator<Item = (String, &Refusal)> {
    scan.disks.iter().flat_map(|disk| {
        let whole = disk.refusal.iter().map(|why| (disk.path.display().to_string(), why));
        let parts = disk.parts.iter();
        whole
            .chain(parts.filter_map(|part| Some((part.name.clone(), part.verdict.as_ref().err()?))))
    })
}

fn refused(name: &str, refusal: &Refusal) -> Error {
    let kind = match refusal.code {
        Code::InUse | Code::Hibernated => ErrorKind::Conflict,
        Code::ReadError => ErrorKind::Unavailable,
        _ => ErrorKind::Denied,
    };
    Error::new(kind, format!("{name} lends nothing: {refusal}"))
}

/// The loans that a disk has made, found again by what it lent.
///
/// # Errors
/// When the disk, or the file system that a range belongs to, is refused now.
pub(crate) fn again(path: &Path, spans: &[Span]) -> Result<Vec<Loan>> {
    let reader = FreeSpaceOptions { level: None, btrfs: true, shadow_copies: true };
    let options = ScanOptions { reader, nothing_hidden: true };
    let scan = Scan::run(&[path.to_owned()], &options);
    let mut loans =
        scan.loans(&BorrowPolicy { floor: Some(0), most: usize::MAX, ..BorrowPolicy::default() });
    let mut placed = 0;
    for loan in &mut loans {
        let claim = &loan.claim;
        let own = Span::between(claim.base, claim.base.saturating_add(claim.size));
        loan.spans = spans.iter().copied().filter(|s| own.intersect(*s) == Some(*s)).collect();
        placed += loan.spans.len();
    }
    loans.retain(|loan| !loan.spans.is_empty());
    if placed != spans.len() {
        return Err(match reasons(&scan).next() {
            Some((name, refusal)) => refused(&name, refusal),
            None => Error::corrupt("lent ranges lie in no file system"),
        });
    }
    Ok(loans)
}
