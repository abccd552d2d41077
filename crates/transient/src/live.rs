//! Scratch space on a mounted file system.
