//! A raw file behind an [`Arm`], as an NBD export on a unix socket: what a qcow2 overlay stands on.

use super::arm::Arm;
use crate::raw::negotiate;
use crate::wire::{self, RequestHeader};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

/// The longest read, in bytes: NBD's default.
const LONGEST: u32 = 32 << 20;
/// `EINVAL` on the wire.
const INVALID: u32 = 22;

/// Serves `image` on `socket` until the process ends; every read takes the arm's time.
pub(crate) fn start(image: &Path, socket: &Path, arm: Arc<Arm>) -> Result<()> {
    let file = Arc::new(File::open(image)?);
    let size = file.metadata()?.len();
    let listener = UnixListener::bind(socket)
        .with_context(|| format!("cannot listen on {}", socket.display()))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (file, arm) = (Arc::clone(&file), Arc::clone(&arm));
            // A client that goes away ends its connection and nothing else.
            std::thread::spawn(move || serve_one(stream, &file, size, &arm));
        }
    });
    Ok(())
}

fn serve_one(mut stream: UnixStream, file: &File, size: u64, arm: &Arm) -> Result<()> {
    negotiate(&mut stream, size)?;
    let mut header = [0; wire::REQUEST];
    loop {
        stream.read_exact(&mut header)?;
        let request = RequestHeader::decode(&header).context("not a request")?;
        let mut data = Vec::new();
        let mut error = 0;
        match request.kind {
            wire::READ => {
                ensure!(request.length <= LONGEST, "a read of {} bytes", request.length);
                let end = request.offset.saturating_add(u64::from(request.length));
                ensure!(end <= size, "a read behind the end");
                arm.read("image", request.offset, request.length.into());
                data.resize(request.length as usize, 0);
                file.read_exact_at(&mut data, request.offset)?;
            }
            wire::DISCONNECT => return Ok(()),
            wire::FLUSH => {}
            wire::WRITE => anyhow::bail!("a write to what overlays stand on"),
            _ => error = INVALID,
        }
        let mut reply = wire::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend(error.to_be_bytes());
        reply.extend(request.cookie.to_be_bytes());
        reply.extend(data);
        stream.write_all(&reply)?;
    }
}
