//! `sojourn borrow`: the free blocks of idle disks as private scratch space.

mod down;
mod map;
mod scan;
mod selection;
mod status;
mod up;

use super::runnable::{Invocation, Runnable};
use crate::output::Output;
use crate::runtime::block_on;
use block::Result;
use clap::Subcommand;
use engine::Home;
use std::process::ExitCode;

/// The verbs of `sojourn borrow`.
#[derive(Debug, Subcommand)]
pub(crate) enum BorrowCommand {
    /// What disks and images hold, and what of them can be borrowed; writes nothing
    Scan(scan::Args),
    /// Make a private disk of free blocks, and serve it
    Up(Box<up::Args>),
    /// Take a borrowed disk down
    Down(down::Args),
    /// Which borrowed disks are in use
    Status(status::Args),
}

impl Runnable for BorrowCommand {
    fn works_as_owner(&self) -> bool {
        // Other disks are borrowed from by root alone.
        false
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        block_on(run(self, || invocation.home(), invocation.output))?
    }
}

async fn run(
    verb: &BorrowCommand,
    home: impl FnOnce() -> Result<Home>,
    output: Output,
) -> Result<ExitCode> {
    match verb {
        BorrowCommand::Scan(args) => scan::run(args, output).await?,
        BorrowCommand::Up(args) => return up::run(args, &home()?, output).await,
        BorrowCommand::Down(args) => down::run(args, &home()?, output).await?,
        BorrowCommand::Status(args) => status::run(args, &home()?, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}
