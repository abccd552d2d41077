//! [`ScriptedDevice`], the device that tests are written with, and what other doubles are made of.

mod blank;
mod calls;
mod scripted;

pub use blank::Blank;
pub use calls::{CallLog, CallRecorder, InFlight, UnderWay};
pub use scripted::{Fault, Operation, ScriptedDevice};
