//! Header and data digests on the way.

use super::rig::{Initiator, Rig, read, write};
use crate::codec::RequestPdu;

const BOTH: [(&str, &str); 2] = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];

#[tokio::test]
async fn what_is_written_with_digests_is_read_with_them() {
    for keys in [&BOTH[..], &BOTH[..1], &BOTH[1..]] {
        let rig = Rig::new().await;
        let mut initiator = Initiator::log_in(&rig, "a", 1, keys).await;
        // Padded, too: three blocks and answers of 18 bytes of sense data were checked by the login.
        let data: Vec<u8> = (0..3 * 512).map(|n| n as u8).collect();
        assert_eq!(initiator.ask(write(5, 3), 0, &data).await.status(), 0);
        let answer = initiator.ask(read(5, 3), 3 * 512, &[]).await;
        assert_eq!((answer.opcode(), answer.data), (0x25, data), "{keys:?}");
    }
}

#[tokio::test]
async fn data_with_a_wrong_digest_is_rejected_and_never_written() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &BOTH).await;
    let command = initiator.command(write(0, 1), 0, &[1; 512]);
    let mut bytes = initiator.bytes(RequestPdu::Command(command), &[1; 512]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    initiator.send_bytes(&bytes).await;
    let answer = initiator.receive().await.expect("a rejection");
    assert_eq!((answer.opcode(), answer.reason()), (0x3f, 2));
    assert_eq!(answer.data, bytes[..48], "the header that was rejected");
    assert!(initiator.receive().await.is_none(), "error recovery level 0: the session ends");
    let mut again = Initiator::log_in(&rig, "a", 1, &[]).await;
    assert_eq!(again.ask(read(0, 1), 512, &[]).await.data, [0; 512]);
}

#[tokio::test]
async fn a_header_with_a_wrong_digest_ends_the_session_and_is_not_obeyed() {
    let rig = Rig::new().await;
    let mut initiator = Initiator::log_in(&rig, "a", 1, &BOTH).await;
    let command = initiator.command(write(0, 1), 0, &[1; 512]);
    let mut bytes = initiator.bytes(RequestPdu::Command(command), &[1; 512]);
    bytes[35] ^= 1; // its first block
    initiator.send_bytes(&bytes).await;
    assert!(initiator.receive().await.is_none());
    let mut again = Initiator::log_in(&rig, "a", 1, &[]).await;
    assert_eq!(again.ask(read(0, 8), 4096, &[]).await.data, [0; 4096]);
}
