use super::rig::{Prober, Rig};
use crate::codec::ReplyStyle;
use crate::codec::constants::{export_flags, option, option_reply as rep};
use crate::codec::option::{Info, InfoRequest, MetaRequest, OptionReply, OptionRequest};
use crate::server::SessionEnding;
use block::Memory;
use tokio::io::AsyncWriteExt;

const SIZE: u64 = 1 << 20;

fn info(name: &str, wanted: Vec<u16>) -> OptionRequest<'_> {
    OptionRequest::Info(InfoRequest { name, wanted })
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|r| r.0).collect()
}

async fn greeted() -> (Rig, Prober) {
    let mut rig = Rig::new(Memory::new(SIZE));
    let mut prober = rig.connect();
    prober.greet().await;
    (rig, prober)
}

#[tokio::test]
async fn unknown_options_are_refused_in_step() {
    let (mut rig, mut prober) = greeted().await;
    for code in [0, 4, 12, 77, u32::MAX] {
        assert_eq!(kinds(&prober.raw_option(code, b"whatever").await), [rep::ERR_UNSUP]);
    }
    assert_eq!(kinds(&prober.option(&OptionRequest::StartTls).await), [rep::ERR_POLICY]);
    prober.abort().await;
    rig.ended().await.unwrap();
}

#[tokio::test]
async fn malformed_options_are_refused_in_step() {
    let (_rig, mut prober) = greeted().await;
    for code in [
        option::INFO,
        option::GO,
        option::SET_META_CONTEXT,
        option::LIST_META_CONTEXT,
        option::LIST,
        option::STRUCTURED_REPLY,
        option::EXTENDED_HEADERS,
    ] {
        for body in [&b"\xff\xff\xff\xffx"[..], &[0, 0, 0, 9, 1], &[1]] {
            assert_eq!(kinds(&prober.raw_option(code, body).await), [rep::ERR_INVALID], "{code}");
        }
    }
    prober.abort().await;
}

#[tokio::test]
async fn an_option_longer_than_the_limit_is_refused_at_once_and_skipped() {
    let (_rig, mut prober) = greeted().await;
    let len = 300_000u32;
    let mut head = b"IHAVEOPT".to_vec();
    head.extend_from_slice(&option::GO.to_be_bytes());
    head.extend_from_slice(&len.to_be_bytes());
    prober.send(&head).await;
    assert_eq!(prober.option_reply(option::GO).await.0, rep::ERR_TOO_BIG);
    prober.send(&vec![7; len as usize]).await;
    prober.abort().await;
}

#[tokio::test]
async fn exports_are_listed_with_their_descriptions() {
    let (_rig, mut prober) = greeted().await;
    let replies = prober.option(&OptionRequest::List).await;
    assert_eq!(kinds(&replies), [rep::SERVER, rep::ACK]);
    let server = OptionReply::parse(rep::SERVER, &replies[0].1).unwrap();
    assert_eq!(server, OptionReply::Server { name: "disk", description: "the device disk" });
}

#[tokio::test]
async fn info_tells_size_flags_name_description_and_block_sizes() {
    let (rig, mut prober) = greeted().await;
    let replies = prober.option(&info("", vec![1, 2, 3, 99])).await;
    let parsed: Vec<_> =
        replies.iter().map(|(kind, body)| OptionReply::parse(*kind, body).unwrap()).collect();
    let OptionReply::Info(Info::Export { size, flags }) = parsed[0] else { panic!() };
    assert_eq!(size, SIZE);
    for flag in [
        export_flags::HAS_FLAGS,
        export_flags::SEND_FLUSH,
        export_flags::SEND_FUA,
        export_flags::SEND_TRIM,
        export_flags::SEND_WRITE_ZEROES,
        export_flags::SEND_FAST_ZERO,
        export_flags::SEND_CACHE,
        export_flags::CAN_MULTI_CONN,
    ] {
        assert_ne!(flags & flag, 0, "{flag:#x}");
    }
    assert_eq!(flags & (export_flags::READ_ONLY | export_flags::SEND_DF), 0);
    assert_eq!(
        parsed[1..],
        [
            OptionReply::Info(Info::Name("disk")),
            OptionReply::Info(Info::Description("a test device")),
            OptionReply::Info(Info::BlockSize { minimum: 1, preferred: 4096, maximum: 32 << 20 }),
            OptionReply::Ack,
        ]
    );
    assert!(rig.endings.lock().unwrap().is_empty(), "information opens no session");
}

#[tokio::test]
async fn a_refused_export_is_named_and_the_negotiation_goes_on() {
    let (_rig, mut prober) = greeted().await;
    for (name, code, text) in
        [("nope", rep::ERR_UNKNOWN, "nope"), ("private", rep::ERR_POLICY, "used by pid:1")]
    {
        for request in [info(name, vec![]), OptionRequest::Go(InfoRequest { name, wanted: vec![] })]
        {
            let replies = prober.option(&request).await;
            assert_eq!(kinds(&replies), [code]);
            assert!(String::from_utf8_lossy(&replies[0].1).contains(text));
        }
    }
    prober.attach_after_greeting().await;
    prober.is_in_step().await;
}

impl Prober {
    async fn attach_after_greeting(&mut self) {
        let go = OptionRequest::Go(InfoRequest { name: "disk", wanted: vec![] });
        assert_eq!(self.option(&go).await.last(), Some(&(rep::ACK, Vec::new())));
    }
}

#[tokio::test]
async fn metadata_contexts_need_structured_replies() {
    let (_rig, mut prober) = greeted().await;
    let meta = |queries| MetaRequest { name: "disk", queries };
    for request in
        [OptionRequest::SetMetaContext(meta(vec![])), OptionRequest::ListMetaContext(meta(vec![]))]
    {
        assert_eq!(kinds(&prober.option(&request).await), [rep::ERR_INVALID]);
    }
    prober.option(&OptionRequest::StructuredReply).await;
    for (queries, found) in [
        (vec![], true),
        (vec!["base:"], true),
        (vec!["base:allocation"], true),
        (vec!["qemu:x", "base:all"], false),
    ] {
        let replies = prober.option(&OptionRequest::ListMetaContext(meta(queries))).await;
        assert_eq!(replies.len() == 2, found);
    }
    for (queries, found) in [
        (vec![], false),
        (vec!["base:"], false),
        (vec!["x:y", "base:allocation", "base:allocation"], true),
    ] {
        let replies = prober.option(&OptionRequest::SetMetaContext(meta(queries))).await;
        assert_eq!(replies.len() == 2, found);
    }
    let unknown = OptionRequest::SetMetaContext(MetaRequest { name: "x", queries: vec![] });
    assert_eq!(kinds(&prober.option(&unknown).await), [rep::ERR_UNKNOWN]);
}

#[tokio::test]
async fn extended_headers_replace_structured_replies_and_not_the_reverse() {
    let (_rig, mut prober) = greeted().await;
    assert_eq!(kinds(&prober.option(&OptionRequest::StructuredReply).await), [rep::ACK]);
    assert_eq!(kinds(&prober.option(&OptionRequest::ExtendedHeaders).await), [rep::ACK]);
    let replies = prober.option(&OptionRequest::StructuredReply).await;
    assert_eq!(kinds(&replies), [rep::ERR_EXT_HEADER_REQD]);
    prober.style = ReplyStyle::Extended;
    prober.attach_after_greeting().await;
    prober.is_in_step().await;
}

#[tokio::test]
async fn export_name_answers_with_or_without_padding_and_closes_on_an_unknown_name() {
    for (flags, len) in [([0, 0, 0, 3], 10), ([0, 0, 0, 1], 134), ([0, 0, 0, 0], 134)] {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.connect();
        prober.receive(18).await;
        prober.send(&flags).await;
        prober.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").await;
        let answer = prober.receive(len).await;
        assert_eq!(answer[..8], SIZE.to_be_bytes());
        assert!(answer[10..].iter().all(|b| *b == 0));
        prober.is_in_step().await;
        prober.disconnect().await;
        rig.ended().await.unwrap();
        assert_eq!(*rig.endings.lock().unwrap(), [("disk".to_owned(), SessionEnding::Clean)]);
    }
    let (mut rig, mut prober) = greeted().await;
    prober.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x04nope").await;
    assert!(prober.is_closed().await);
    assert!(rig.ended().await.is_err());
    assert_eq!(rig.server.counters().failed_handshakes, 1);
}

#[tokio::test]
async fn requests_sent_together_with_the_negotiation_are_served() {
    let mut rig = Rig::new(Memory::new(SIZE));
    let mut prober = rig.connect();
    let mut all = vec![0, 0, 0, 3];
    OptionRequest::Go(InfoRequest { name: "", wanted: vec![] }).put(&mut all);
    super::rig::request(0, 0, 0, 16).put(ReplyStyle::Simple, &mut all);
    prober.send(&all).await;
    prober.receive(18).await;
    let (mut kind, mut replies) = (0, 0);
    while kind != rep::ACK {
        kind = prober.option_reply(option::GO).await.0;
        replies += 1;
    }
    assert_eq!(replies, 3); // export, block sizes, ACK
    assert_eq!(prober.reply(16).await.data, [0; 16]);
}

#[tokio::test]
async fn a_client_without_the_right_flags_or_magic_is_closed_and_counted() {
    for bytes in
        [&b"\0\0\0\x07"[..], b"\0\0\0\x03IHAVEOPX\0\0\0\x01\0\0\0\0", b"GET / HTTP/1.1\r\n"]
    {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.connect();
        prober.send(bytes).await;
        assert!(prober.is_closed().await);
        assert!(rig.ended().await.is_err());
        assert_eq!(rig.server.counters().failed_handshakes, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_negotiation_ends_at_its_deadline() {
    for sent in [&b""[..], b"\0\0", b"\0\0\0\x03IHAVE", b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x10x"]
    {
        let mut rig = Rig::new(Memory::new(SIZE));
        let mut prober = rig.connect();
        prober.stream.write_all(sent).await.unwrap();
        let start = tokio::time::Instant::now();
        let ended = rig.clients.join_next().await.unwrap().unwrap();
        assert!(ended.is_err());
        assert_eq!(start.elapsed().as_secs(), 30);
        assert_eq!(rig.server.counters().connections, 0);
    }
}

#[tokio::test]
async fn what_an_export_holds_is_told_to_whoever_asks_for_it() {
    let (_rig, mut prober) = greeted().await;
    let told = OptionReply::Info(Info::Content("as it was made"));
    for (wanted, is_told) in [(vec![], false), (vec![crate::codec::constants::info::CONTENT], true)]
    {
        let replies = prober.option(&info("disk", wanted)).await;
        let parsed = replies.iter().map(|(kind, body)| OptionReply::parse(*kind, body).unwrap());
        assert_eq!(parsed.filter(|reply| *reply == told).count(), usize::from(is_told));
    }
    prober.abort().await;
}
