//! `LIST`, `INFO`, `GO` and `EXPORT_NAME`.

use super::{Negotiated, OptionOutcome};
use crate::codec::constants::option_reply::ERR_BLOCK_SIZE_REQD;
use crate::codec::constants::{export_flags, info};
use crate::codec::option::{EXPORT_NAME_PADDING, Info, InfoRequest, OptionReply, put_export};
use crate::codec::{ReplyStyle, fault};
use crate::server::exports::{Purpose, Session, SessionEnding};
use block::{Device, Result};

/// Lists the exports.
pub(super) async fn list(negotiated: &mut Negotiated<'_>, option: u32) -> Result<OptionOutcome> {
    match negotiated.exports.list(negotiated.peer()).await {
        Ok(list) => {
            for export in &list {
                let (name, description) = (&*export.name, &*export.description);
                negotiated.reply(option, &OptionReply::Server { name, description });
            }
            negotiated.reply(option, &OptionReply::Ack);
        }
        Err(e) => negotiated.refuse(option, fault::option_number(e.kind()), e.message()),
    }
    Ok(OptionOutcome::Continue)
}

/// Tells about an export.
pub(super) async fn info(
    negotiated: &mut Negotiated<'_>,
    option: u32,
    request: InfoRequest<'_>,
) -> Result<OptionOutcome> {
    if let Some(session) = negotiated.open(option, &request, Purpose::Info).await {
        session.close(SessionEnding::Clean).await;
    }
    Ok(OptionOutcome::Continue)
}

/// Tells about an export and uses it.
pub(super) async fn go(
    negotiated: &mut Negotiated<'_>,
    option: u32,
    request: InfoRequest<'_>,
) -> Result<OptionOutcome> {
    Ok(match negotiated.open(option, &request, Purpose::Use).await {
        Some(session) => {
            negotiated.keep_allocation_of(request.name);
            OptionOutcome::Use(session)
        }
        None => OptionOutcome::Continue,
    })
}

/// Uses an export, the old way: without information, and without a reply to refuse by.
pub(super) async fn export_name(
    negotiated: &mut Negotiated<'_>,
    _option: u32,
    name: &str,
) -> Result<OptionOutcome> {
    let session = negotiated.exports.open(name, negotiated.peer(), Purpose::Use).await?;
    let (size, flags) = {
        let device = &**session.device();
        (device.size(), flags(device, negotiated.style))
    };
    put_export(size, flags, &mut negotiated.out);
    if !negotiated.flags.no_zeroes {
        negotiated.out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
    }
    negotiated.keep_allocation_of(name);
    Ok(OptionOutcome::Use(session))
}

impl Negotiated<'_> {
    /// The choice of contexts holds for the export it was made for.
    fn keep_allocation_of(&mut self, name: &str) {
        self.allocation.take_if(|chosen| chosen != name);
    }

    /// Opens the export for `INFO` or `GO` and tells about it, or refuses.
    async fn open(
        &mut self,
        option: u32,
        request: &InfoRequest<'_>,
        purpose: Purpose,
    ) -> Option<Box<dyn Session>> {
        let session = match self.exports.open(request.name, self.peer(), purpose).await {
            Ok(session) => session,
            Err(e) => {
                self.refuse(option, fault::option_number(e.kind()), e.message());
                return None;
            }
        };
        let device = &**session.device();
        let limits = device.limits();
        if limits.minimum > 512 && !request.wanted.contains(&info::BLOCK_SIZE) {
            let why = format!("the export takes only multiples of {} bytes", limits.minimum);
            self.refuse(option, ERR_BLOCK_SIZE_REQD, &why);
            session.close(SessionEnding::Clean).await;
            return None;
        }
        let (size, flags) = (device.size(), flags(device, self.style));
        self.reply(option, &OptionReply::Info(Info::Export { size, flags }));
        if request.wanted.contains(&info::NAME) {
            self.reply(option, &OptionReply::Info(Info::Name(session.name())));
        }
        if request.wanted.contains(&info::DESCRIPTION)
            && let Some(text) = session.description()
        {
            self.reply(option, &OptionReply::Info(Info::Description(text)));
        }
        if request.wanted.contains(&info::CONTENT)
            && let Some(text) = session.content()
        {
            self.reply(option, &OptionReply::Info(Info::Content(&text)));
        }
        let sizes = Info::BlockSize {
            minimum: limits.minimum,
            preferred: limits.preferred.max(512),
            maximum: self.limits.max_request,
        };
        self.reply(option, &OptionReply::Info(sizes));
        self.reply(option, &OptionReply::Ack);
        Some(session)
    }
}

/// What an export can do, as the protocol tells it.
fn flags(device: &dyn Device, style: ReplyStyle) -> u16 {
    use export_flags as f;
    let mut flags = f::HAS_FLAGS | f::SEND_FLUSH | f::SEND_FUA | f::SEND_CACHE | f::CAN_MULTI_CONN;
    flags |= if device.read_only() {
        f::READ_ONLY
    } else {
        f::SEND_TRIM | f::SEND_WRITE_ZEROES | f::SEND_FAST_ZERO
    };
    if style != ReplyStyle::Simple {
        flags |= f::SEND_DF;
    }
    flags
}
