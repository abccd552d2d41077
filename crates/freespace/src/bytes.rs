//! Integers in byte slices whose length the caller has checked. Offsets are constants of a format,
//! never numbers from a disk.

macro_rules! integer {
    ($name:ident, $type:ty, $from:ident) => {
        pub(crate) fn $name(bytes: &[u8], at: usize) -> $type {
            let mut raw = [0; size_of::<$type>()];
            raw.copy_from_slice(&bytes[at..at + size_of::<$type>()]);
            <$type>::$from(raw)
        }
    };
}

integer!(le16, u16, from_le_bytes);
integer!(le32, u32, from_le_bytes);
integer!(le64, u64, from_le_bytes);
integer!(be16, u16, from_be_bytes);
integer!(be32, u32, from_be_bytes);
integer!(be64, u64, from_be_bytes);

/// A UUID as people write it, from its 16 bytes in writing order; `None` when all are zero.
pub(crate) fn uuid(bytes: &[u8]) -> Option<String> {
    if bytes.iter().all(|b| *b == 0) {
        return None;
    }
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.iter().take(16).enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    Some(text)
}

/// A label up to its first zero byte, without control characters; `None` when empty.
pub(crate) fn label(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text: String =
        String::from_utf8_lossy(&bytes[..end]).chars().filter(|c| !c.is_control()).collect();
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}
