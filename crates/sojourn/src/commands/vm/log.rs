//! `sojourn vm log`: what a machine said, or its end, in pieces: a guest may say very much.

use super::args::LogArgs;
use super::folder::MachineFolder;
use crate::output;
use block::{Error, Result};
use engine::Home;
use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// How much is printed at a time.
const PIECE: usize = 256 << 10;

/// A log that is there, from where it starts to where it ended just now.
struct OpenedLog {
    file: File,
    start: u64,
    end: u64,
}

impl OpenedLog {
    fn open(path: &Path) -> Result<Option<Self>> {
        let failed = |e| Error::io(path.display(), e);
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let end = file.metadata().map_err(failed)?.len();
        // What was cut off it reads as zeroes (`vm::console_log`).
        let start = seek(&file, SeekFrom::Data(0)).map_or(0, |start| start.min(end));
        Ok(Some(Self { file, start, end }))
    }
}

pub(super) fn run(args: &LogArgs, home: &Home) -> Result<()> {
    let folder = MachineFolder::of(home, &args.name)?;
    folder.spec()?;
    let names: &[&str] = if args.qemu { &["qemu.log", "keeper.log"] } else { &["console.log"] };
    let mut logs = Vec::new();
    for path in names.iter().map(|name| folder.path().join(name)) {
        logs.extend(OpenedLog::open(&path)?.map(|log| (path, log)));
    }
    let all: u64 = logs.iter().map(|(_, log)| log.end - log.start).sum();
    let mut skip = args.last.map_or(0, |last| all.saturating_sub(last.0));
    let mut piece = vec![0; PIECE];
    for (path, OpenedLog { mut file, start, end }) in logs {
        let failed = |e| Error::io(path.display(), e);
        let skipped = skip.min(end - start);
        skip -= skipped;
        seek(&file, SeekFrom::Start(start + skipped)).map_err(|e| failed(e.into()))?;
        let mut left = end - start - skipped;
        while left > 0 {
            let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = file.read(&mut piece[..most]).map_err(failed)?;
            if read == 0 {
                break;
            }
            output::raw(&piece[..read])?;
            left -= read as u64;
        }
    }
    Ok(())
}
