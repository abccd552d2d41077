//! `REINSTATE`, our own.

use super::{Negotiated, OptionOutcome};
use crate::codec::option::{OptionReply, Reinstatement};
use block::Result;

/// Notes which connections this one takes the place of, and who keeps them.
pub(super) async fn reinstate(
    negotiated: &mut Negotiated<'_>,
    option: u32,
    reinstatement: Reinstatement,
) -> Result<OptionOutcome> {
    negotiated.reinstates = Some(reinstatement);
    negotiated.keeper = negotiated.peer.keeping(&reinstatement.id);
    negotiated.reply(option, &OptionReply::Ack);
    Ok(OptionOutcome::Continue)
}
