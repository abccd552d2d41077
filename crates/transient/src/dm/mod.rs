//! The kernel's device-mapper.
