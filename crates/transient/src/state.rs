//! State copied in and written back.
