//! `INITIAL_CONTACT`, our own.

use super::{Negotiated, OptionOutcome};
use crate::codec::constants::option_reply::ERR_INVALID;
use crate::codec::option::OptionReply;
use block::Result;

/// Notes that the client's system has just begun: what it had before is of one that has ended.
pub(super) async fn initial_contact(
    negotiated: &mut Negotiated<'_>,
    option: u32,
) -> Result<OptionOutcome> {
    match negotiated.reinstates {
        Some(reinstatement) => {
            negotiated.keeper = Some(negotiated.peer().begun(reinstatement.id));
            negotiated.reply(option, &OptionReply::Ack);
        }
        None => {
            let why = "say with REINSTATE first which connections are of the new system";
            negotiated.refuse(option, ERR_INVALID, why);
        }
    }
    Ok(OptionOutcome::Continue)
}
