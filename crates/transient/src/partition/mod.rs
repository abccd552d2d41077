//! Partition tables.
