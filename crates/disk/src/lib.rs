//! (interface to come)
