//! The formats that can be read.

/// A format of trace files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// Our own.
    Sojourn,
}
