//! TFTP (RFC 1350) with the options of RFC 2347, 2348, 2349 and 7440, read-only and out of a fixed
//! table: firmware without HTTP fetches iPXE by it.
//!
//! | module | concept |
//! |---|---|
//! | [`packet`] | packets as bytes and back: pure |
//! | [`transfer`] | [`Transfer`], one file on its way to one client: pure |
//! | [`server`] | [`TftpServer`]: so many transfers at a time, each from a port of its own |

pub mod packet;
pub mod server;
pub mod transfer;

pub use server::TftpServer;
pub use transfer::Transfer;
