//! Directory trees and disk images, indexed by content.
//!
//! The files of a tree, or all of an image, are cut as an import cuts an image, under the store's key.
//! What the index says of a file holds while its size and its time of change are the same; every answer
//! is verified like any other.
//!
//! | module | concept |
//! |---|---|
//! | `index` | [`ContentIndex`]: which chunk is where; its file |
//! | `build` | [`index_tree`], [`index_image`]: reading and cutting, what did not change excepted |
//! | `answer` | [`Indexed`]: an index and what it is of, as a source |

mod answer;
mod build;
pub(crate) mod index;
#[cfg(test)]
mod tests;

pub use answer::Indexed;
pub use build::{IndexReport, index_image, index_tree};
pub use index::{ContentIndex, FileStamp, IndexedKind, decode};
