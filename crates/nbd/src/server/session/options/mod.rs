//! What a server does with each option of the [table](crate::codec::options_table).
//!
//! | module | options |
//! |---|---|
//! | `session` | leaving, encrypting |
//! | `style` | how requests and replies look |
//! | `export` | exports are listed, described and chosen |
//! | `meta_context` | what block status tells of |
//! | `reinstate` | which connections this one takes the place of |
//! | `initial_contact` | that those of an earlier system are over |

mod export;
mod initial_contact;
mod meta_context;
mod reinstate;
mod session;
mod style;

pub(super) use meta_context::ALLOCATION_ID;

use crate::codec::ReplyStyle;
use crate::codec::constants::{option, option_reply};
use crate::codec::option::{ClientFlags, OptionReply, OptionRequest, Reinstatement};
use crate::codec::options_table::for_each_option;
use crate::server::admission::limits::ServerLimits;
use crate::server::exports::{Exports, Peer, Session};
use block::{Error, Result};

/// What a negotiation runs over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Channel {
    /// A connection that is not encrypted, and cannot be.
    Plain,
    /// One that the client may encrypt.
    MayEncrypt,
    /// One that the client must encrypt before it asks for anything.
    MustEncrypt,
    /// An encrypted one; the flags were sent before it was.
    Encrypted(ClientFlags),
}

/// What an option led to.
pub(super) enum OptionOutcome {
    Continue,
    Leave,
    Encrypt,
    Use(Box<dyn Session>),
}

/// What was negotiated until now, and the replies that were not sent yet.
pub(super) struct Negotiated<'a> {
    pub(super) exports: &'a dyn Exports,
    pub(super) limits: &'a ServerLimits,
    pub(super) peer: &'a Peer,
    pub(super) channel: Channel,
    pub(super) out: Vec<u8>,
    pub(super) flags: ClientFlags,
    pub(super) style: ReplyStyle,
    /// The export whose `base:allocation` was asked for.
    pub(super) allocation: Option<String>,
    pub(super) reinstates: Option<Reinstatement>,
    /// The client, once it said that it keeps a device, or that its system has begun.
    pub(super) keeper: Option<Peer>,
}

/// Has an option answered by what the table names.
macro_rules! answer {
    (@bound $holds:ty, $body:ident) => {
        $body
    };
    ($negotiated:ident, $code:ident, $request:ident;
     $($number:literal, $name:ident, $form:ident$(($holds:ty))?, $module:ident::$answer:ident;)*) => {
        match $request {
            $(OptionRequest::$form$((answer!(@bound $holds, body)))? => {
                $module::$answer($negotiated, $code $(, answer!(@bound $holds, body))?).await
            })*
            OptionRequest::Unknown(_) => {
                let why = format!("option {} is not known", $code);
                $negotiated.refuse($code, option_reply::ERR_UNSUP, &why);
                Ok(OptionOutcome::Continue)
            }
        }
    };
}

impl Negotiated<'_> {
    /// The client, by the identity that counts for it now.
    fn peer(&self) -> &Peer {
        self.keeper.as_ref().unwrap_or(self.peer)
    }

    pub(super) fn reply(&mut self, option: u32, reply: &OptionReply<'_>) {
        reply.put(option, &mut self.out);
    }

    pub(super) fn refuse(&mut self, option: u32, code: u32, message: &str) {
        tracing::debug!(peer = %self.peer, option, message, "option refused");
        self.reply(option, &OptionReply::Error { code, message });
    }

    /// Does what an option asks for, and notes the replies.
    ///
    /// # Errors
    /// Where the protocol wants the connection closed instead of a reply.
    pub(super) async fn option(&mut self, code: u32, body: &[u8]) -> Result<OptionOutcome> {
        if matches!(self.channel, Channel::MustEncrypt)
            && !matches!(code, option::STARTTLS | option::ABORT)
        {
            let why = "TLS is required here: encrypt the connection first";
            if code == option::EXPORT_NAME {
                return Err(Error::denied(why)); // this option has no error reply
            }
            self.refuse(code, option_reply::ERR_TLS_REQD, why);
            return Ok(OptionOutcome::Continue);
        }
        let request = match OptionRequest::parse(code, body) {
            Ok(request) => request,
            // This option has no error reply: the protocol wants the connection closed.
            Err(e) if code == option::EXPORT_NAME => return Err(e),
            Err(e) => {
                self.refuse(code, option_reply::ERR_INVALID, e.message());
                return Ok(OptionOutcome::Continue);
            }
        };
        let negotiated = self;
        for_each_option!(answer negotiated, code, request;)
    }
}
