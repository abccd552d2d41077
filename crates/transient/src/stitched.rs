//! The stitched disk: many extents as one device.
