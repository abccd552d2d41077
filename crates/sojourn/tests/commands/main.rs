//! The commands, by the real binary, in one binary of tests: linking is what takes the time.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

mod bad_input;
mod begun_anew;
mod borrow_scan;
mod calibrate;
mod common;
mod config;
mod dashboard;
mod disk;
mod disk_io;
mod doctor;
mod encrypted;
mod gc;
mod generated;
mod heal;
mod http_api;
mod http_client;
mod http_ends;
mod http_import;
mod http_lab;
mod http_media;
mod http_vms;
mod image;
mod model;
mod operations;
mod recorded_boots;
mod remote;
mod serve;
mod simulate;
mod simulate_disk;
mod store;
mod throttle;
mod token;
mod trace;
