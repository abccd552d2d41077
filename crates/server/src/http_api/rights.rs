//! Which right each verb takes, and what a token must cover.

use crate::bearer::Caller;
use access::TokenRight;
use block::Result;
use engine::api::DiskRequest;

/// The right that a verb takes: `Admin` for what loses data, or takes a disk from whoever uses it.
fn right(request: &DiskRequest) -> TokenRight {
    match request {
        DiskRequest::List
        | DiskRequest::Show { .. }
        | DiskRequest::Map { .. }
        | DiskRequest::Elsewhere
        | DiskRequest::PrivateBytes { .. }
        | DiskRequest::Holds { .. }
        | DiskRequest::Mark { set: false, .. } => TokenRight::Read,
        DiskRequest::Create { .. }
        | DiskRequest::CreateAll { .. }
        | DiskRequest::Snapshot { .. }
        | DiskRequest::Commit { .. }
        | DiskRequest::Grow { .. }
        | DiskRequest::Publish { .. }
        | DiskRequest::Mark { set: true, .. }
        | DiskRequest::Take { force: false, .. }
        | DiskRequest::Keep { .. } => TokenRight::Operate,
        DiskRequest::Rollback { .. }
        | DiskRequest::Rebase { .. }
        | DiskRequest::Reset { .. }
        | DiskRequest::Remove { .. }
        | DiskRequest::RemoveSnapshot { .. }
        | DiskRequest::Take { force: true, .. }
        | DiskRequest::Release { .. } => TokenRight::Admin,
    }
}

/// Fails when a caller may not have this carried out.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied), whether or not what is named is there.
pub(super) fn check(caller: &Caller, request: &DiskRequest) -> Result<()> {
    caller.must_have(right(request))?;
    let from = |from: &str| match from.split_once('@') {
        Some((disk, _)) => caller.must_see_disk(disk),
        None => caller.must_see_image(from),
    };
    match request {
        DiskRequest::List | DiskRequest::Elsewhere => Ok(()),
        DiskRequest::Create { name, from: source, .. } => {
            caller.must_see_disk(name)?;
            from(source)
        }
        DiskRequest::CreateAll { names, from: source, .. } => {
            names.iter().try_for_each(|name| caller.must_see_disk(name))?;
            from(source)
        }
        DiskRequest::Commit { name, image } | DiskRequest::Rebase { name, image, .. } => {
            caller.must_see_disk(name)?;
            caller.must_see_image(image)
        }
        DiskRequest::Keep { name, new } => {
            caller.must_see_disk(name)?;
            caller.must_see_disk(new)
        }
        DiskRequest::Show { name }
        | DiskRequest::Map { name, .. }
        | DiskRequest::Snapshot { name, .. }
        | DiskRequest::Rollback { name, .. }
        | DiskRequest::Reset { name }
        | DiskRequest::Grow { name, .. }
        | DiskRequest::Remove { name, .. }
        | DiskRequest::RemoveSnapshot { name, .. }
        | DiskRequest::Take { name, .. }
        | DiskRequest::Publish { name }
        | DiskRequest::Mark { name, .. }
        | DiskRequest::PrivateBytes { name }
        | DiskRequest::Holds { name, .. }
        | DiskRequest::Release { name } => caller.must_see_disk(name),
    }
}
