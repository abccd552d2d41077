//! What a partition holds, by name.
