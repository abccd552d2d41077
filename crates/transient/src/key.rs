//! The key: in memory only.
