//! Target names. The target of an export is [`PREFIX`] and the export's name, in which every byte but
//! lower-case ASCII letters, digits, `.`, `-` and single `:` is written as `::` and two hexadecimal
//! digits, because iSCSI names know no other characters and no upper case (RFC 3722).

/// What the name of every target begins with.
pub const PREFIX: &str = "iqn.2026-11.io.sojourn:";

/// The longest iSCSI name, in bytes (RFC 7143, 4.2.7.1).
pub const LONGEST: usize = 223;

const fn is_plain(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-')
}

/// The target of the export of this name; `None` when it would be longer than an iSCSI name may be.
pub fn of_export(export: &str) -> Option<String> {
    let bytes = export.as_bytes();
    let mut name = String::with_capacity(PREFIX.len() + bytes.len());
    name.push_str(PREFIX);
    for (index, byte) in bytes.iter().enumerate() {
        // A colon stands for itself where it cannot be taken for the beginning of an escape.
        let alone = *byte == b':' && bytes.get(index + 1).is_none_or(|next| is_plain(*next));
        if is_plain(*byte) || alone {
            name.push(char::from(*byte));
        } else {
            name.push_str(&format!("::{byte:02x}"));
        }
    }
    (name.len() <= LONGEST && !bytes.is_empty()).then_some(name)
}

/// The export of the target of this name; `None` when it is the name of none of our targets. Initiators
/// may ask in upper case.
pub fn to_export(target: &str) -> Option<String> {
    if target.len() > LONGEST {
        return None;
    }
    let target = target.to_ascii_lowercase();
    let mut rest = target.strip_prefix(PREFIX)?.as_bytes();
    let mut export = Vec::with_capacity(rest.len());
    loop {
        rest = match rest {
            [] => break,
            [b':', b':', high, low, rest @ ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let byte = digit(*high)? * 16 + digit(*low)?;
                export.push(u8::try_from(byte).ok()?);
                rest
            }
            [byte, rest @ ..] => {
                export.push(*byte);
                rest
            }
        };
    }
    let export = String::from_utf8(export).ok()?;
    // Two names of one target would be two sets of reservations.
    (of_export(&export)? == target).then_some(export)
}

/// Whether an initiator may call itself so: 1 to 223 bytes of printable ASCII without spaces.
pub fn is_initiator(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usual_names_stay_as_they_are() {
        for (export, target) in [
            ("alice", "iqn.2026-11.io.sojourn:alice"),
            ("debian:12.5", "iqn.2026-11.io.sojourn:debian:12.5"),
            ("My_disk", "iqn.2026-11.io.sojourn:::4dy::5fdisk"),
            ("debian:V1", "iqn.2026-11.io.sojourn:debian::3a::561"),
        ] {
            assert_eq!(of_export(export).as_deref(), Some(target));
            assert_eq!(to_export(target).as_deref(), Some(export));
            assert_eq!(to_export(&target.to_ascii_uppercase()).as_deref(), Some(export));
        }
    }

    #[test]
    fn what_is_no_target_of_ours_has_no_export() {
        for name in ["", "iqn.2026-11.io.sojourn:", "iqn.2001-04.com.example:x", PREFIX, "alice"] {
            assert_eq!(to_export(name), None, "{name}");
        }
        for second_name in ["::61", "My_disk", "a::", "a::5", "a::zz"] {
            assert_eq!(to_export(&format!("{PREFIX}{second_name}")), None, "{second_name}");
        }
        assert_eq!(of_export(&"x".repeat(220)), None);
    }

    proptest! {
        #[test]
        fn every_export_has_one_target(export in "[ -~äß]{1,40}") {
            if let Some(target) = of_export(&export) {
                prop_assert_eq!(to_export(&target), Some(export));
            }
        }

        #[test]
        fn a_target_is_the_only_one_of_its_export(rest in "[a-f0-9:]{1,12}") {
            let target = format!("{PREFIX}{rest}");
            if let Some(export) = to_export(&target) {
                prop_assert_eq!(of_export(&export), Some(target));
            }
        }
    }
}
