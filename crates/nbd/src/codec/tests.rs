use super::constants::{chunk, command, errno, option};
use super::option::{
    ClientFlags, Info, InfoRequest, MetaRequest, OptionHeader, OptionReply, OptionReplyHeader,
    OptionRequest, Reinstatement, parse_greeting, put_greeting,
};
use super::reply::{self, Mark, ReplyHeader};
use super::request::RequestHeader;
use super::{Parsed, ReplyStyle};
use block::{Extent, ExtentKind, Span};
use proptest::prelude::*;

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

fn style() -> impl Strategy<Value = ReplyStyle> {
    prop::sample::select(STYLES.to_vec())
}

fn complete<T>(parsed: block::Result<Parsed<T>>) -> (T, usize) {
    match parsed.unwrap() {
        Parsed::Complete(value, used) => (value, used),
        Parsed::Incomplete(needed) => panic!("asks for {needed} bytes"),
    }
}

/// Requests as a server reads them off a stream that arrives in these pieces.
fn requests_in(style: ReplyStyle, pieces: &[&[u8]]) -> Vec<RequestHeader> {
    let (mut buffer, mut list) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Parsed::Complete(request, used) = RequestHeader::parse(style, &buffer).unwrap() {
            list.push(request);
            buffer.drain(..used);
        }
    }
    assert!(buffer.is_empty());
    list
}

fn request() -> impl Strategy<Value = RequestHeader> {
    (any::<u16>(), any::<u16>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
        |(flags, command, cookie, offset, len)| RequestHeader {
            flags,
            command,
            cookie,
            offset,
            len: u64::from(len),
        },
    )
}

#[test]
fn the_greeting_is_the_specifications() {
    let mut bytes = Vec::new();
    put_greeting(&mut bytes);
    assert_eq!(bytes, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(complete(parse_greeting(&bytes)), (3, 18));
    assert_eq!(parse_greeting(&bytes[..17]).unwrap(), Parsed::Incomplete(18));
    bytes[17] = 2;
    assert!(parse_greeting(&bytes).is_err(), "not fixed newstyle");
}

#[test]
fn client_flags_that_were_not_offered_are_refused() {
    let (flags, _) = complete(ClientFlags::parse(&[0, 0, 0, 3]));
    assert!(flags.fixed_newstyle && flags.no_zeroes);
    assert!(ClientFlags::parse(&[0, 0, 0, 4]).is_err());
    assert!(ClientFlags::parse(&[0x80, 0, 0, 1]).is_err());
}

#[test]
fn bodies_with_lengths_that_do_not_add_up_are_refused() {
    let go = |name_len: u32, name: &[u8], count: u16, rest: &[u8]| {
        let mut body = name_len.to_be_bytes().to_vec();
        body.extend_from_slice(name);
        body.extend_from_slice(&count.to_be_bytes());
        body.extend_from_slice(rest);
        OptionRequest::parse(option::GO, &body).map(|r| r.code())
    };
    assert!(go(1, b"a", 1, &[0, 3]).is_ok());
    assert!(go(2, b"a", 1, &[0, 3]).is_err(), "the name eats the count");
    assert!(go(u32::MAX, b"a", 0, &[]).is_err());
    assert!(go(1, b"a", 2, &[0, 3]).is_err(), "fewer kinds than counted");
    assert!(go(1, b"a", 0, &[0, 3]).is_err(), "more kinds than counted");
    assert!(go(1, &[0xff], 0, &[]).is_err(), "not UTF-8");
    let long = [b'x'; 4097];
    assert!(go(4097, &long, 0, &[]).is_err(), "longer than the protocol's texts");
    assert!(OptionRequest::parse(option::EXPORT_NAME, &long).is_err());
    assert!(OptionRequest::parse(option::LIST, b"x").is_err());
    assert!(OptionRequest::parse(option::STRUCTURED_REPLY, b"x").is_err());
    assert!(
        OptionRequest::parse(option::SET_META_CONTEXT, &[0, 0, 0, 0, 255, 255, 255, 255]).is_err()
    );
}

#[test]
fn a_read_reply_has_one_data_chunk() {
    let mut out = Vec::new();
    let mark = Mark { cookie: 7, offset: 4096 };
    reply::put_read_head(ReplyStyle::Structured, mark, 512, &mut out);
    assert_eq!(out.len(), reply::STRUCTURED + reply::DATA_OFFSET);
    let (header, _) = complete(ReplyHeader::parse(ReplyStyle::Structured, &out));
    let data = ReplyHeader::Chunk { cookie: 7, done: true, kind: chunk::OFFSET_DATA, len: 520 };
    assert_eq!(header, data);
    assert_eq!(out[20..], 4096u64.to_be_bytes());
}

#[test]
fn a_reply_of_another_style_is_refused() {
    for written in STYLES {
        let mut out = Vec::new();
        reply::put_done(written, Mark { cookie: 1, offset: 2 }, &mut out);
        for read in STYLES {
            let fits =
                written == read || (written, read) == (ReplyStyle::Simple, ReplyStyle::Structured);
            assert_eq!(ReplyHeader::parse(read, &out).is_ok(), fits, "{written:?} {read:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_stream_gives_the_same_requests_however_it_is_cut(
        style in style(), list in prop::collection::vec(request(), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut stream = Vec::new();
        for request in &list {
            request.put(style, &mut stream);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
        prop_assert_eq!(requests_in(style, &pieces), list);
    }

    #[test]
    fn options_survive_the_round_trip(
        name in "[a-zé]{0,40}", wanted in prop::collection::vec(any::<u16>(), 0..5),
        queries in prop::collection::vec("[a-z:]{0,20}", 0..5), code in 12u32..,
    ) {
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let info = InfoRequest { name: &name, wanted };
        let meta = MetaRequest { name: &name, queries };
        for request in [
            OptionRequest::ExportName(&name), OptionRequest::Abort, OptionRequest::List,
            OptionRequest::StartTls, OptionRequest::Info(info.clone()), OptionRequest::Go(info),
            OptionRequest::StructuredReply, OptionRequest::ExtendedHeaders,
            OptionRequest::ListMetaContext(meta.clone()), OptionRequest::SetMetaContext(meta),
            OptionRequest::Reinstate(Reinstatement { id: [7; 16], number: 1 << 40 }),
            OptionRequest::InitialContact,
            OptionRequest::Unknown(code),
        ] {
            let mut out = Vec::new();
            request.put(&mut out);
            let (header, used) = complete(OptionHeader::parse(&out));
            prop_assert_eq!(header.len as usize, out.len() - used);
            prop_assert_eq!(OptionRequest::parse(header.code, &out[used..]).unwrap(), request);
        }
    }

    #[test]
    fn option_replies_survive_the_round_trip(
        name in "[a-zé]{0,40}", text in "[a-zé ]{0,40}", size: u64, flags: u16, id: u32, error in 1u32..99,
    ) {
        for reply in [
            OptionReply::Ack,
            OptionReply::Server { name: &name, description: &text },
            OptionReply::Info(Info::Export { size, flags }),
            OptionReply::Info(Info::Name(&name)),
            OptionReply::Info(Info::Description(&text)),
            OptionReply::Info(Info::Content(&text)),
            OptionReply::Info(Info::BlockSize { minimum: 1, preferred: id, maximum: error }),
            OptionReply::MetaContext { id, name: &name },
            OptionReply::Error { code: error | 1 << 31, message: &text },
        ] {
            let mut out = Vec::new();
            reply.put(option::GO, &mut out);
            let (header, used) = complete(OptionReplyHeader::parse(&out));
            prop_assert_eq!(header.len as usize, out.len() - used);
            prop_assert_eq!(header.option, option::GO);
            prop_assert_eq!(OptionReply::parse(header.kind, &out[used..]).unwrap(), reply);
        }
    }

    #[test]
    fn replies_survive_the_round_trip(
        style in style(), cookie: u64, offset in 0u64..1 << 40, len in 1u32..1 << 25,
        text in ".{0,60}", lens in prop::collection::vec(1u64..1 << 20, 1..20),
    ) {
        let mark = Mark { cookie, offset };
        let mut out = Vec::new();
        reply::put_error(style, mark, errno::EIO, &text, &mut out);
        match complete(ReplyHeader::parse(style, &out)) {
            (ReplyHeader::Simple { cookie: c, error }, used) => {
                prop_assert_eq!((c, error, used), (cookie, errno::EIO, out.len()));
            }
            (ReplyHeader::Chunk { cookie: c, done, kind, len }, used) => {
                prop_assert_eq!((c, done, kind), (cookie, true, chunk::ERROR));
                prop_assert_eq!(len as usize, out.len() - used);
                let error = reply::parse_error(&out[used..]).unwrap();
                prop_assert_eq!(error, (errno::EIO, text));
            }
        }
        if style == ReplyStyle::Simple {
            return Ok(());
        }
        out.clear();
        reply::put_hole(style, mark, false, offset, len, &mut out);
        let (header, used) = complete(ReplyHeader::parse(style, &out));
        let hole = ReplyHeader::Chunk { cookie, done: false, kind: chunk::OFFSET_HOLE, len: 12 };
        prop_assert_eq!(header, hole);
        prop_assert_eq!(reply::parse_hole(&out[used..]).unwrap(), (offset, len));

        let kinds = [ExtentKind::Data, ExtentKind::Zero, ExtentKind::Hole];
        let mut at = offset;
        let mut extents = Vec::new();
        for (i, len) in lens.iter().enumerate() {
            extents.push(Extent { span: Span::between(at, at + len), kind: kinds[i % 3] });
            at += len;
        }
        out.clear();
        reply::put_extents(style, mark, 5, &extents, &mut out);
        let (_, used) = complete(ReplyHeader::parse(style, &out));
        let read = reply::parse_extents(style, Span::between(offset, at), &out[used..]).unwrap();
        prop_assert_eq!(read, (5, extents));
    }

    #[test]
    fn no_bytes_panic(style in style(), code in 0u32..13, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = RequestHeader::parse(style, &bytes);
        let _ = ReplyHeader::parse(style, &bytes);
        let _ = OptionHeader::parse(&bytes);
        let _ = OptionReplyHeader::parse(&bytes);
        let _ = ClientFlags::parse(&bytes);
        let _ = parse_greeting(&bytes);
        let _ = OptionRequest::parse(code, &bytes);
        for kind in [code, code | 1 << 31] {
            let _ = OptionReply::parse(kind, &bytes);
        }
        let _ = reply::parse_error(&bytes);
        let _ = reply::parse_hole(&bytes);
        let _ = reply::parse_extents(style, Span::whole(u64::MAX), &bytes);
    }
}

#[test]
fn a_compact_header_has_the_specifications_layout() {
    let request = RequestHeader {
        flags: 1,
        command: command::WRITE,
        cookie: 0x0102_0304_0506_0708,
        offset: 0x1112_1314_1516_1718,
        len: 0x2122_2324,
    };
    let mut out = Vec::new();
    request.put(ReplyStyle::Simple, &mut out);
    let expected = [
        0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15,
        0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24,
    ];
    assert_eq!(out, expected);
}
