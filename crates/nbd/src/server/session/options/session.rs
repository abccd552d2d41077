//! `ABORT` and `STARTTLS`.

use super::{Channel, Negotiated, OptionOutcome};
use crate::codec::constants::option_reply::{ERR_INVALID, ERR_POLICY};
use crate::codec::option::OptionReply;
use block::Result;

/// The client leaves in good order.
pub(super) async fn abort(negotiated: &mut Negotiated<'_>, option: u32) -> Result<OptionOutcome> {
    negotiated.reply(option, &OptionReply::Ack);
    Ok(OptionOutcome::Leave)
}

/// The client wants to encrypt the connection.
pub(super) async fn start_tls(
    negotiated: &mut Negotiated<'_>,
    option: u32,
) -> Result<OptionOutcome> {
    match negotiated.channel {
        Channel::MayEncrypt | Channel::MustEncrypt => {
            negotiated.reply(option, &OptionReply::Ack);
            return Ok(OptionOutcome::Encrypt);
        }
        Channel::Plain => negotiated.refuse(option, ERR_POLICY, "TLS is not offered here"),
        Channel::Encrypted(_) => {
            negotiated.refuse(option, ERR_INVALID, "the connection is encrypted already");
        }
    }
    Ok(OptionOutcome::Continue)
}
