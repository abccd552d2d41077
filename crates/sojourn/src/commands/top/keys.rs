//! The keys of `sojourn top`, from the bytes that a terminal sends.

use super::rates::SortKey;

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAction {
    Quit,
    Help,
    Show(Page),
    Sort(SortKey),
    Move(Move),
}

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Disks,
    Clients,
}

/// Where in a list that is longer than the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

/// The longest sequence that stands for a key, bytes. A terminal that sends longer ones means nothing to us.
const LONGEST: usize = 8;

/// Takes bytes as they come: an arrow key is three of them, and they may come one by one.
#[derive(Debug, Default)]
pub(super) struct KeyParser {
    /// The beginning of a sequence.
    begun: Vec<u8>,
}

impl KeyParser {
    /// The keys that these bytes complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<KeyAction> {
        bytes.iter().filter_map(|byte| self.take(*byte)).collect()
    }

    fn take(&mut self, byte: u8) -> Option<KeyAction> {
        const ESCAPE: u8 = 0x1b;
        if byte == ESCAPE {
            self.begun = vec![byte];
            return None;
        }
        if self.begun.is_empty() {
            return single_byte(byte);
        }
        self.begun.push(byte);
        let introduces = self.begun.len() == 2 && matches!(byte, b'[' | b'O');
        let goes_on = self.begun.len() > 2
            && self.begun.len() < LONGEST
            && matches!(byte, b'0'..=b'9' | b';');
        if introduces || goes_on {
            return None;
        }
        sequence(&std::mem::take(&mut self.begun)[1..]).map(KeyAction::Move)
    }
}

fn single_byte(byte: u8) -> Option<KeyAction> {
    Some(match byte {
        b'q' | b'Q' | 3 | 4 => KeyAction::Quit, // also Ctrl-C and Ctrl-D
        b'?' | b'h' => KeyAction::Help,
        b'd' => KeyAction::Show(Page::Disks),
        b'c' => KeyAction::Show(Page::Clients),
        b'i' => KeyAction::Sort(SortKey::Iops),
        b'b' => KeyAction::Sort(SortKey::Bytes),
        b'l' => KeyAction::Sort(SortKey::Latency),
        b'g' => KeyAction::Sort(SortKey::Growth),
        b'n' => KeyAction::Sort(SortKey::Name),
        b'k' => KeyAction::Move(Move::Up),
        b'j' => KeyAction::Move(Move::Down),
        b' ' => KeyAction::Move(Move::PageDown),
        _ => return None,
    })
}

/// What follows Escape (ECMA-48, as xterm and the Linux console send it).
fn sequence(rest: &[u8]) -> Option<Move> {
    Some(match rest {
        b"[A" | b"OA" => Move::Up,
        b"[B" | b"OB" => Move::Down,
        b"[5~" => Move::PageUp,
        b"[6~" => Move::PageDown,
        b"[H" | b"OH" | b"[1~" | b"[7~" => Move::First,
        b"[F" | b"OF" | b"[4~" | b"[8~" => Move::Last,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arrows_are_understood_however_their_bytes_arrive() {
        let text = b"j\x1b[A\x1b[6~\x1bOBq";
        let expected = [
            KeyAction::Move(Move::Down),
            KeyAction::Move(Move::Up),
            KeyAction::Move(Move::PageDown),
            KeyAction::Move(Move::Down),
            KeyAction::Quit,
        ];
        assert_eq!(KeyParser::default().feed(text), expected);
        let mut keys = KeyParser::default();
        let single: Vec<KeyAction> = text.iter().flat_map(|byte| keys.feed(&[*byte])).collect();
        assert_eq!(single, expected);
    }

    #[test]
    fn keys_that_mean_nothing_take_no_other_key_with_them() {
        // F5, Shift-Up, a lone Escape before another key's sequence.
        assert_eq!(KeyParser::default().feed(b"\x1b[15~n"), [KeyAction::Sort(SortKey::Name)]);
        assert_eq!(KeyParser::default().feed(b"\x1b[1;2An"), [KeyAction::Sort(SortKey::Name)]);
        assert_eq!(KeyParser::default().feed(b"\x1b\x1b[Bz"), [KeyAction::Move(Move::Down)]);
    }

    proptest! {
        #[test]
        fn whatever_is_typed_q_still_quits(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut keys = KeyParser::default();
            keys.feed(&bytes);
            prop_assert!(keys.feed(&[b'q'; LONGEST]).contains(&KeyAction::Quit));
        }
    }
}
