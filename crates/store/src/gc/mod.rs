//! Garbage collection: what nothing refers to any more is found, condemned, and later deleted.
//!
//! A collection marks what names lead to, and writes a list of the rest. A later one, after a grace
//! period for readers, marks again and deletes what is on the list and still unreferenced. Writers
//! are [sessions](crate::Session): those that began before a list was written hold it back, and those
//! that began later use nothing that is on it. So nothing depends on how long anything takes.
//!
//! Packs of which little is referenced are rewritten; `moved` objects lead from the old to the new
//! ones.
//!
//! | module | concept |
//! |---|---|
//! | `collect` | one collection, from the census to the sweep |
//! | `round` | what it begins with: listing, burying dead sessions, who else is at work |
//! | `census` | all names and pins at one moment |
//! | `mark` | what is reachable from the names |
//! | `marked` | what was found to be in use, and what cannot be judged |
//! | `lost` | chunks that are not where maps say |
//! | `copies` | whether a pack that goes has the only copy of a chunk that is of use |
//! | `rewrite` | moving what is in use out of packs that are mostly garbage |
//! | `sweep` | deleting what was condemned |
//! | `damage` | lists that were damaged |
//! | `trim` | old records of names |
//! | `report` | [`GcOptions`] and [`GcReport`] |

pub(crate) mod census;
mod collect;
mod copies;
mod damage;
mod lost;
pub(crate) mod mark;
pub(crate) mod marked;
mod report;
mod rewrite;
mod round;
mod sweep;
mod trim;

pub use collect::collect;
pub(crate) use collect::is_at_work;
pub(crate) use damage::replace_lists;
pub use report::{GcOptions, GcReport, LiveObjects, WaitingGarbage};
pub(crate) use round::WHAT;

#[cfg(test)]
mod tests;
