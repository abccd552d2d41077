//! What an initiator sends, as far as it is decoded and judged before anything is done: PDUs with and
//! without digests, logins with and without secrets, text keys, CDBs.
#![no_main]

use iscsi::codec::{Digests, HEADER, PduCut, RequestPdu, cut, text};
use iscsi::login::Login;
use iscsi::scsi::Command;
use iscsi::{Secrets, chap::CHALLENGE};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, OnceLock};

/// The longest data segment, in bytes.
const LONGEST: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    static SECRETS: OnceLock<Arc<Secrets>> = OnceLock::new();
    let Some((how, mut stream)) = data.split_first() else { return };
    if let Ok(text) = std::str::from_utf8(stream) {
        let _ = Secrets::parse(text);
    }
    let secrets = SECRETS.get_or_init(|| {
        let text = "alice:open sesame!!\nbob:correct horse:me:battery staple";
        Arc::new(Secrets::parse(text).expect("secrets"))
    });
    let digests = Digests { header: how & 1 != 0, data: how & 2 != 0 };
    let known = (how & 4 != 0).then(|| Arc::clone(secrets));
    let mut login = Some(Login::new(known, [3; CHALLENGE + 1]));
    while let Ok(PduCut::Whole(pdu, length)) = cut(stream, digests, LONGEST) {
        assert!(length >= HEADER + pdu.data.len() && length <= stream.len());
        stream = &stream[length..];
        let request = RequestPdu::decode(pdu.header);
        assert_eq!(RequestPdu::decode(&request.encode()), request);
        match &request {
            RequestPdu::Login(request) => {
                let Some(mut at) = login.take() else { return };
                match at.receive(request, pdu.data) {
                    Ok(answer) if answer.done => drop(at.agreed()),
                    Ok(answer) => {
                        assert!(text::parse(&answer.text).is_ok());
                        login = Some(at);
                    }
                    Err(_) => return,
                }
            }
            RequestPdu::Command(command) => {
                if let Ok(command) = Command::decode(&command.cdb) {
                    let _ = (command.data_out(512), command.data_in(512));
                    let _ = (command.data_out(4096), command.data_in(4096));
                }
            }
            _ => drop(text::parse(pdu.data)),
        }
    }
});
