//! What one peer asks another, and what it says that it has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use peers::summary::{ClaimedChunks, MOST, SummaryPart};
use peers::wire::{Hello, PeerQuestion, StoreTag};

const TAG: StoreTag = [0xa5; 16];

/// A question has one form, and asks for what can be.
fn question(text: &str) {
    let Some(asked) = PeerQuestion::parse(&TAG, text) else { return };
    assert_eq!(asked.text(&TAG), text);
    if let PeerQuestion::Chunk { at, .. } = asked {
        assert!(at.len > 0 && at.len % 4096 == 0 && at.encoding.allows(at.stored, at.len));
    }
}

/// The same, of the question's own part: the tag is the peers' secret.
fn behind_the_tag(text: &str) {
    question(&format!("/v1/{}/{text}", "a5".repeat(16)));
}

/// Parts of a log, whatever they say, take bounded room.
fn summary(bytes: &[u8]) {
    let mut claimed = ClaimedChunks::default();
    for part in bytes.chunks(40) {
        let Some(part) = SummaryPart::decode(part) else { continue };
        assert_eq!(SummaryPart::decode(&part.encode()), Some(part.clone()));
        if claimed.take(&part) {
            assert!(part.bits.iter().all(|bits| {
                let mut id = [0; 32];
                id[..4].copy_from_slice(&bits.to_le_bytes());
                claimed.claims(&id)
            }));
        }
        assert!(claimed.known().1 <= 2 * MOST as u64);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((selector, rest)) = data.split_first() else { return };
    match (selector % 4, std::str::from_utf8(rest)) {
        (0, Ok(text)) => question(text),
        (1, Ok(text)) => behind_the_tag(text),
        (2, _) => summary(rest),
        (3, _) => drop(serde_json::from_slice::<Hello>(rest).map(|hello| hello.member())),
        _ => {}
    }
});
