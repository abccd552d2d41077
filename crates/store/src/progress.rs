//! How far a long operation is, for whoever shows it.

/// Hears how far an import or a verification is.
pub trait Progress: Send + Sync {
    /// So many more bytes of the image were done with (holes included), and so many more were
    /// written to the store (import) or read from it (verification).
    fn advance(&self, scanned: u64, stored: u64);
}

/// Nobody listens.
impl Progress for () {
    fn advance(&self, _: u64, _: u64) {}
}
