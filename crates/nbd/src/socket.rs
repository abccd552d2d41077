//! Options of TCP sockets, for both sides.
