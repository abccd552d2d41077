//! Commands and their flags by the names of the specification, for people.

use super::constants::{command, command_flags};
use std::borrow::Cow;

/// The name of a command: `WRITE`; `command 77` for one that the specification does not know.
pub fn command_name(code: u16) -> Cow<'static, str> {
    Cow::Borrowed(match code {
        command::READ => "READ",
        command::WRITE => "WRITE",
        command::DISCONNECT => "DISC",
        command::FLUSH => "FLUSH",
        command::TRIM => "TRIM",
        command::CACHE => "CACHE",
        command::WRITE_ZEROES => "WRITE_ZEROES",
        command::BLOCK_STATUS => "BLOCK_STATUS",
        command::RESIZE => "RESIZE",
        other => return Cow::Owned(format!("command {other}")),
    })
}

/// The names of a command's flags: `DF, REQ_ONE`; bits that the specification does not know as a
/// number behind the others.
pub fn flag_names(flags: u16) -> String {
    const NAMES: [(u16, &str); 6] = [
        (command_flags::FUA, "FUA"),
        (command_flags::NO_HOLE, "NO_HOLE"),
        (command_flags::DF, "DF"),
        (command_flags::REQ_ONE, "REQ_ONE"),
        (command_flags::FAST_ZERO, "FAST_ZERO"),
        (command_flags::PAYLOAD_LEN, "PAYLOAD_LEN"),
    ];
    let known = NAMES.iter().filter(|(bit, _)| flags & bit != 0);
    let mut names: Vec<Cow<'_, str>> = known.map(|(_, name)| Cow::Borrowed(*name)).collect();
    let unknown = NAMES.iter().fold(flags, |flags, (bit, _)| flags & !bit);
    if unknown != 0 {
        names.push(Cow::Owned(format!("{unknown:#x}")));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_has_its_name_and_the_rest_its_number() {
        assert_eq!(command_name(command::WRITE_ZEROES), "WRITE_ZEROES");
        assert_eq!(command_name(77), "command 77");
        assert_eq!(flag_names(command_flags::DF | command_flags::REQ_ONE), "DF, REQ_ONE");
        assert_eq!(flag_names(command_flags::FUA | 1 << 9), "FUA, 0x200");
        assert_eq!(flag_names(1 << 15), "0x8000");
    }
}
