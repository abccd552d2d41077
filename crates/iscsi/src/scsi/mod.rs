//! SCSI: a direct-access block device (SPC-4, SBC-3) over `block::Device`. Knows no iSCSI.
//!
//! | module | concept |
//! |---|---|
//! | [`cdb`] | command descriptor blocks, decoded |
//! | [`opcodes`] | which commands there are, as initiators may ask |
//! | [`sense`] | why a command failed |
//! | [`identity`] | INQUIRY data and the vital product data pages |
//! | [`mode`] | mode pages |
//! | [`reservations`] | who may use a unit: RESERVE and PERSISTENT RESERVE |
//! | [`unit`](mod@unit) | a logical unit as all its initiators share it |
//! | [`execute`] | commands that are answered from what is known |
//! | [`transfer`] | commands that move blocks |

pub mod cdb;
pub mod execute;
pub mod identity;
pub mod mode;
pub mod opcodes;
pub mod reservations;
pub mod sense;
pub mod transfer;
pub mod unit;

pub use cdb::Command;
pub use sense::Sense;
pub use unit::{Nexus, ReservationKeeper, Unit};

/// The status of a command (SAM-5, 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Good,
    /// Failed; the sense data says why.
    CheckCondition,
    /// There is no room for a command, and none of the initiator's is under way.
    Busy,
    /// Another initiator has reserved the unit.
    ReservationConflict,
    /// Too many commands.
    TaskSetFull,
}

impl Status {
    /// Its code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Good => 0x00,
            Self::CheckCondition => 0x02,
            Self::Busy => 0x08,
            Self::ReservationConflict => 0x18,
            Self::TaskSetFull => 0x28,
        }
    }
}

/// How a command ended.
#[derive(Debug)]
pub enum CommandOutcome {
    /// Done, with this data for the initiator.
    Good(Vec<u8>),
    /// Failed.
    Failed(Sense),
    /// The unit is reserved by another initiator.
    Conflict,
    /// There was no room for its data: its initiator is to send it again.
    Full,
    /// The unit was reset since the command came: it was not carried out, and is not answered.
    Aborted,
}

impl From<Sense> for CommandOutcome {
    fn from(sense: Sense) -> Self {
        Self::Failed(sense)
    }
}

impl From<Result<Vec<u8>, Sense>> for CommandOutcome {
    fn from(result: Result<Vec<u8>, Sense>) -> Self {
        result.map_or_else(Self::Failed, Self::Good)
    }
}
