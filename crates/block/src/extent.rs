//! What the ranges of a device hold.

use crate::Span;

/// What a range holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Data.
    Data,
    /// Reads as zeroes, and has room reserved.
    Zero,
    /// Reads as zeroes, and takes no room.
    Hole,
}

impl ExtentKind {
    /// Whether the range is known to read as zeroes.
    pub const fn reads_zero(self) -> bool {
        !matches!(self, Self::Data)
    }
}

/// A range and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where.
    pub span: Span,
    /// What.
    pub kind: ExtentKind,
}

/// Appends an extent to an ordered list, joining it with the last one when they are alike.
/// Empty spans are dropped.
pub fn push(list: &mut Vec<Extent>, span: Span, kind: ExtentKind) {
    if span.is_empty() {
        return;
    }
    match list.last_mut() {
        Some(last) if last.kind == kind && last.span.end() == span.offset() => {
            last.span = Span::between(last.span.offset(), span.end());
        }
        _ => list.push(Extent { span, kind }),
    }
}
