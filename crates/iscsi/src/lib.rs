//! An iSCSI target (RFC 7143): any `block::Device` as LUN 0 of a target of its own.
//!
//! This crate may know iSCSI, SCSI and `block::Device`, and of `nbd` its sockets, how long to look into them, and
//! a client's pace. It must not know what a disk is made of, who may use which one, nor where secrets and random
//! numbers come from: [`Targets`] says that.
//!
//! | module | concept |
//! |---|---|
//! | [`targets`] | [`Targets`], what is offered to whom: implemented by the daemon |
//! | [`name`] | target names, made from the names of exports and back |
//! | [`chap`] | secrets, challenges, and the answers to them |
//! | [`codec`] | PDUs and text keys as bytes: pure |
//! | [`login`] | the login phase as a state machine: pure |
//! | [`scsi`] | CDBs, sense data, mode and VPD pages, reservations, and commands on a device; knows no iSCSI |
//! | [`server`] | [`Server`]: listening, sessions, the flow of commands and data |
//!
//! What is offered: one connection per session and any number of sessions, error recovery level 0,
//! header and data digests, immediate and unsolicited data, CHAP in one or both directions.

pub mod chap;
pub mod codec;
pub mod login;
pub mod name;
pub mod scsi;
pub mod server;
pub mod targets;

pub use chap::Secrets;
pub use server::{InitiatorCounters, InitiatorLimits, Server};
pub use targets::{Attachment, Initiator, SessionEnding, Targets};
