//! FAT.
pub(crate) mod table;
use crate::refusal::refuse;
use crate::{Found, Options, Refusal, Window};

/// Reads what is free.
pub(crate) fn read(_window: &Window<'_>, _options: &Options) -> Result<Found, Refusal> {
    refuse!(OtherFileSystem, "FAT is not read");
}
