//! `sojourn disk create` with several names.

use super::DiskCreateArgs;
use crate::output::Output;
use crate::progress::Bar;
use crate::site::Site;
use block::{Error, ErrorKind, Result};
use engine::api::{DiskReply, DiskView, MadeView};

/// How many are asked for at a time: an interrupted command has made whole lots, and the bar moves.
const LOT: usize = 200;
/// Failures that are told one by one.
const TOLD: usize = 5;

/// Makes the disks, as many as can be made.
///
/// # Errors
/// That of the first disk that could not be made, after the others were.
pub(super) async fn run(args: &DiskCreateArgs, site: &Site, output: Output) -> Result<()> {
    let bar = Bar::disks("making disks", args.names.len() as u64);
    let (mut made, mut failed) = (Vec::new(), Vec::new());
    let mut broken = None;
    for names in args.names.chunks(LOT) {
        match site.ask(args.of_several(names)).await {
            Ok(DiskReply::Made(outcomes)) => {
                for outcome in outcomes {
                    match outcome {
                        MadeView::Disk(disk) => made.push(disk),
                        MadeView::Failed { name, kind, message } => {
                            failed.push((kind, format!("{name}: {message}")));
                        }
                    }
                }
            }
            Ok(_) => return Err(Error::internal("the server answered another question")),
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
        bar.at((made.len() + failed.len()) as u64, failed.len() as u64);
    }
    drop(bar);
    if !made.is_empty() || matches!(output, Output::Json) && broken.is_none() {
        output.print(&made, || told(&made, &args.from))?;
    }
    if let Some(error) = broken {
        return Err(match made.len() {
            0 => error,
            some => error.context(format!("after {some} of {} disks", args.names.len())),
        });
    }
    failure(&failed, args.names.len()).map_or(Ok(()), Err)
}

fn told(made: &[DiskView], from: &str) -> String {
    let from = match made {
        [first, ..] if !from.contains('@') => &first.image,
        _ => from,
    };
    match made {
        [] => String::new(),
        [only] => format!("disk {} made from {from}", only.name),
        [first, .., last] => {
            format!("{} disks made from {from}: {} to {}", made.len(), first.name, last.name)
        }
    }
}

/// One error for the disks that were not made, of the kind of the first.
fn failure(failed: &[(String, String)], of: usize) -> Option<Error> {
    let (kind, _) = failed.first()?;
    let kind = ErrorKind::ALL.into_iter().find(|known| known.as_str() == kind);
    let each: Vec<&str> = failed.iter().take(TOLD).map(|(_, why)| why.as_str()).collect();
    let more = match failed.len().saturating_sub(TOLD) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let text = format!("{} of {of} disks were not made: {}{more}", failed.len(), each.join("; "));
    Some(Error::new(kind.unwrap_or(ErrorKind::Internal), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_were_not_made_are_named_and_the_first_decides_the_exit_code() {
        assert!(failure(&[], 40).is_none());
        let failed = |count: usize| -> Vec<(String, String)> {
            (0..count).map(|i| ("conflict".to_owned(), format!("pc{i}: taken"))).collect()
        };
        let two = failure(&failed(2), 40).unwrap();
        assert_eq!(two.kind(), ErrorKind::Conflict);
        assert_eq!(two.message(), "2 of 40 disks were not made: pc0: taken; pc1: taken");
        assert!(failure(&failed(8), 40).unwrap().message().ends_with("pc4: taken; and 3 more"));
    }
}
