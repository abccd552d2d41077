//! Which extents are taken.
