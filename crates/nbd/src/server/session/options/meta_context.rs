//! `LIST_META_CONTEXT` and `SET_META_CONTEXT`: `base:allocation` is what there is.

use super::{Negotiated, OptionOutcome};
use crate::codec::constants::{BASE_ALLOCATION, option_reply::ERR_INVALID};
use crate::codec::option::{MetaRequest, OptionReply};
use crate::codec::{ReplyStyle, fault};
use crate::server::exports::{Purpose, SessionEnding};
use block::Result;

/// Under which number block status replies of `base:allocation` go.
pub(in super::super) const ALLOCATION_ID: u32 = 1;

/// Lists the contexts of an export.
pub(super) async fn list(
    negotiated: &mut Negotiated<'_>,
    option: u32,
    request: MetaRequest<'_>,
) -> Result<OptionOutcome> {
    if negotiated.has_contexts(option, &request).await {
        let queries = &request.queries;
        if queries.is_empty() || queries.iter().any(|q| matches!(*q, "base:" | BASE_ALLOCATION)) {
            negotiated.reply(option, &OptionReply::MetaContext { id: 0, name: BASE_ALLOCATION });
        }
        negotiated.reply(option, &OptionReply::Ack);
    }
    Ok(OptionOutcome::Continue)
}

/// Chooses contexts of an export.
pub(super) async fn set(
    negotiated: &mut Negotiated<'_>,
    option: u32,
    request: MetaRequest<'_>,
) -> Result<OptionOutcome> {
    negotiated.allocation = None; // even when this one fails
    if negotiated.has_contexts(option, &request).await {
        if request.queries.contains(&BASE_ALLOCATION) {
            let (id, name) = (ALLOCATION_ID, BASE_ALLOCATION);
            negotiated.reply(option, &OptionReply::MetaContext { id, name });
            negotiated.allocation = Some(request.name.to_owned());
        }
        negotiated.reply(option, &OptionReply::Ack);
    }
    Ok(OptionOutcome::Continue)
}

impl Negotiated<'_> {
    /// Whether contexts of an export can be asked for; refuses otherwise.
    async fn has_contexts(&mut self, option: u32, request: &MetaRequest<'_>) -> bool {
        if self.style == ReplyStyle::Simple {
            let why = "metadata contexts need structured replies: negotiate these first";
            self.refuse(option, ERR_INVALID, why);
            return false;
        }
        match self.exports.open(request.name, self.peer(), Purpose::Info).await {
            Ok(session) => session.close(SessionEnding::Clean).await,
            Err(e) => {
                self.refuse(option, fault::option_number(e.kind()), e.message());
                return false;
            }
        }
        true
    }
}
