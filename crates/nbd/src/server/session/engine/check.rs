//! The check of a request before the device sees it: its command, its flags, its range.

use super::Engine;
use crate::codec::ReplyStyle;
use crate::codec::constants::{command, command_flags as flag, errno};
use crate::codec::names::{command_name, flag_names};
use crate::codec::reply::Mark;
use crate::codec::request::RequestHeader;
use crate::server::session::checked::{CheckedRequest, RequestKind};
use block::{Durability, Result, Span, ZeroMode};

/// Why a request is refused before the device sees it.
pub(super) struct RequestRefusal {
    pub(super) number: u32,
    pub(super) message: String,
}

impl Engine {
    /// Looks whether a request may be done: its command, its flags, its range.
    #[inline]
    pub(super) fn check(&self, request: &RequestHeader) -> Result<CheckedRequest, RequestRefusal> {
        let refuse = |number, message: String| Err(RequestRefusal { number, message });
        let structured = self.terms.style != ReplyStyle::Simple;
        let mut legal = flag::FUA; // valid with every command, even where it means nothing
        match request.command {
            command::READ if structured => legal |= flag::DF,
            // It says what a write has anyhow, and in a compact header no less.
            command::WRITE => legal |= flag::PAYLOAD_LEN,
            command::WRITE_ZEROES => legal |= flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => legal |= flag::REQ_ONE,
            _ => {}
        }
        let changes =
            matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        let kind = match request.command {
            command::READ => RequestKind::Read,
            command::WRITE => RequestKind::Write,
            command::FLUSH => RequestKind::Flush,
            command::TRIM => RequestKind::Trim,
            command::CACHE => RequestKind::Cache,
            command::WRITE_ZEROES => RequestKind::Zero(ZeroMode {
                may_punch: request.flags & flag::NO_HOLE == 0,
                only_if_fast: request.flags & flag::FAST_ZERO != 0,
            }),
            command::BLOCK_STATUS => {
                RequestKind::Status { one: request.flags & flag::REQ_ONE != 0 }
            }
            other => {
                return refuse(errno::EINVAL, format!("{} is not known", command_name(other)));
            }
        };
        if request.flags & !legal != 0 {
            return refuse(
                errno::EINVAL,
                format!(
                    "the flags {} do not belong to {}",
                    flag_names(request.flags & !legal),
                    command_name(request.command)
                ),
            );
        }
        if changes && self.read_only {
            let export = &self.terms.export;
            return refuse(errno::EPERM, format!("export {export:?} is read-only"));
        }
        let mark = Mark { cookie: request.cookie, offset: request.offset };
        let durability = match request.flags & flag::FUA {
            0 => Durability::Buffered,
            _ => Durability::Durable,
        };
        if matches!(kind, RequestKind::Flush) {
            return Ok(CheckedRequest { mark, span: Span::whole(0), durability, kind });
        }
        if matches!(kind, RequestKind::Read | RequestKind::Write)
            && request.len > self.max_payload()
        {
            return refuse(
                errno::EINVAL,
                format!(
                    "a {} of {} bytes is longer than the {} that are accepted",
                    command_name(request.command),
                    request.len,
                    self.terms.max_request
                ),
            );
        }
        if let RequestKind::Status { .. } = kind {
            if !self.terms.allocation {
                return refuse(
                    errno::EINVAL,
                    "BLOCK_STATUS, and no metadata context was negotiated".into(),
                );
            }
            if request.len == 0 {
                return refuse(errno::EINVAL, "BLOCK_STATUS of an empty range".into());
            }
        }
        let size = self.terms.device.size();
        let span = match Span::within(request.offset, request.len, size) {
            Ok(span) => span,
            Err(e) => {
                let overflows = request.offset.checked_add(request.len).is_none();
                let full = matches!(kind, RequestKind::Write | RequestKind::Zero(_)) && !overflows;
                let number = if full { errno::ENOSPC } else { errno::EINVAL };
                return refuse(number, e.message().to_owned());
            }
        };
        if self.minimum > 1 && !span.is_aligned(self.minimum) {
            return refuse(
                errno::EINVAL,
                format!("offset and length must be multiples of {} bytes", self.minimum),
            );
        }
        Ok(CheckedRequest { mark, span, durability, kind })
    }
}
