//! Every parser of the NBD wire format on any bytes.
#![no_main]

use block::Span;
use libfuzzer_sys::fuzz_target;
use nbd::codec::option::{
    ClientFlags, OptionHeader, OptionReply, OptionReplyHeader, OptionRequest,
};
use nbd::codec::reply::{self, ReplyHeader};
use nbd::codec::request::RequestHeader;
use nbd::codec::{Parsed, ReplyStyle, option};

fn within<T>(parsed: block::Result<Parsed<T>>, len: usize) {
    match parsed {
        Ok(Parsed::Complete(_, used)) => assert!(used <= len),
        Ok(Parsed::Incomplete(needed)) => assert!(needed > len),
        Err(_) => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((selector, rest)) = data.split_first() else { return };
    let styles = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
    let style = styles[usize::from(selector >> 4) % 3];
    let code = rest.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let body = rest.get(4..).unwrap_or_default();
    match selector & 15 {
        0 => within(option::parse_greeting(rest), rest.len()),
        1 => within(ClientFlags::parse(rest), rest.len()),
        2 => within(OptionHeader::parse(rest), rest.len()),
        3 => within(OptionReplyHeader::parse(rest), rest.len()),
        4 => within(RequestHeader::parse(style, rest), rest.len()),
        5 => within(ReplyHeader::parse(style, rest), rest.len()),
        6 => {
            if let Ok(request) = OptionRequest::parse(code, body) {
                let mut out = Vec::new();
                request.put(&mut out);
            }
        }
        7 => drop(OptionReply::parse(code, body)),
        8 => drop(reply::parse_hole(rest)),
        9 => drop(reply::parse_error(rest)),
        _ => {
            let span = Span::between(u64::from(code), u64::from(code) * 2);
            if let Ok((_, extents)) = reply::parse_extents(style, span, body) {
                let mut at = span.offset();
                for extent in extents {
                    assert_eq!(extent.span.offset(), at);
                    at = extent.span.end();
                }
                assert!(at <= span.end());
            }
        }
    }
});
