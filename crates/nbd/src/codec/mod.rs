//! The wire format of the protocol. Pure: byte slices in, byte vectors out.
