//! A server under an initiator that speaks the raw protocol, over TCP.

mod digests;
mod hostility;
mod pace;
mod rig;
mod sessions;
mod tasks;
