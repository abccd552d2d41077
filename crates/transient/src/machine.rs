//! Rules for the whole machine: hibernation anywhere refuses everything.
