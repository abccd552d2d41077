//! Garbage collection: what nothing refers to any more is found, condemned, and later deleted.

mod condemned;
pub(crate) mod pin;
mod state;

pub(crate) use condemned::Absent;
pub(crate) use pin::Pin;
pub(crate) use state::State;
