//! One module per noun or verb: its arguments, and the code that carries them out.

pub(crate) mod boot_list;
pub(crate) mod borrow;
pub(crate) mod cache;
pub(crate) mod calibrate;
pub(crate) mod cert;
pub(crate) mod completions;
pub(crate) mod device;
pub(crate) mod disk;
pub(crate) mod drain;
pub(crate) mod gc;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod man;
pub(crate) mod media;
pub(crate) mod model;
pub(crate) mod predict;
mod prune;
pub(crate) mod reload;
pub(crate) mod repair;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod verify;
