//! `STRUCTURED_REPLY` and `EXTENDED_HEADERS`.

use super::{Negotiated, OptionOutcome};
use crate::codec::ReplyStyle;
use crate::codec::constants::option_reply::ERR_EXT_HEADER_REQD;
use crate::codec::option::OptionReply;
use block::Result;

/// Replies are structured from now on.
pub(super) async fn structured_reply(
    negotiated: &mut Negotiated<'_>,
    option: u32,
) -> Result<OptionOutcome> {
    if negotiated.style == ReplyStyle::Extended {
        let why = "extended headers were negotiated already";
        negotiated.refuse(option, ERR_EXT_HEADER_REQD, why);
    } else {
        negotiated.style = ReplyStyle::Structured;
        negotiated.reply(option, &OptionReply::Ack);
    }
    Ok(OptionOutcome::Continue)
}

/// Requests and replies have extended headers from now on.
pub(super) async fn extended_headers(
    negotiated: &mut Negotiated<'_>,
    option: u32,
) -> Result<OptionOutcome> {
    negotiated.style = ReplyStyle::Extended;
    negotiated.reply(option, &OptionReply::Ack);
    Ok(OptionOutcome::Continue)
}
