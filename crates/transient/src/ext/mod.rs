//! Ext2, ext3 and ext4.

use crate::refusal::refuse;
use crate::{Found, Options, Refusal, Window};

/// Reads what is free.
pub(crate) fn read(_window: &Window<'_>, _options: &Options) -> Result<Found, Refusal> {
    refuse!(OtherFileSystem, "ext is not read");
}
