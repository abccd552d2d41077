//! A server under a client that speaks the raw protocol, over a stream in memory.

mod attaching;
mod hostility;
mod limits;
mod negotiation;
mod passing;
mod rig;
mod transmission;
