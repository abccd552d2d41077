//! Homes and their disks, whole, in one binary of tests: linking is what takes the time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "some of it runs in real time")]

mod against_bytes;
mod chunk_map;
mod clocks;
mod common;
mod doubtful_record;
mod ephemeral;
mod growth;
mod life;
mod lookaside;
mod moves;
mod questions;
mod rebase;
mod requests;
mod set_back;
mod shared;
mod write_back;
mod write_through;
