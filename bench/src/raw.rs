//! The raw ping-pong: a server that answers NBD reads out of one buffer and swallows writes, with
//! one receive and one vectored send for all requests that a receive brought. It does no checks, keeps
//! nothing and shares nothing between connections: the least that a server can do with these
//! messages on this kind of socket. No disk, but a limit to compare with.

use crate::client::send_all;
use crate::content;
use crate::place::Endpoint;
use crate::wire::{self, RequestHeader};
use anyhow::{Context, Result, bail, ensure};
use std::io::{IoSlice, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

/// Has-flags, FLUSH, FUA, TRIM, WRITE_ZEROES, multi-conn.
const TRANSMISSION_FLAGS: u16 = 0x1 | 0x4 | 0x8 | 0x20 | 0x40 | 0x100;
/// Replies of one vectored send, each a header and data; the kernel's limit is 1024 slices.
const BATCH: usize = 256;

/// Serves `size` bytes of [`content`] at `place` until the process is ended.
pub(crate) fn serve(place: &Endpoint, size: u64) -> Result<()> {
    let memory = Arc::new(memory(size));
    let failed = || format!("cannot listen on {place}");
    match place {
        Endpoint::Unix(path) => {
            let listener = UnixListener::bind(path).with_context(failed)?;
            listener.incoming().try_for_each(|stream| serve_beside(stream?, &memory))
        }
        Endpoint::Tcp(address) => {
            let listener = TcpListener::bind(address).with_context(failed)?;
            listener.incoming().try_for_each(|stream| {
                let stream = stream?;
                stream.set_nodelay(true)?;
                serve_beside(stream, &memory)
            })
        }
    }
}

/// Serves one client on a thread of its own.
fn serve_beside(stream: impl Read + Write + Send + 'static, memory: &Arc<Vec<u8>>) -> Result<()> {
    let memory = Arc::clone(memory);
    // A client that goes away ends its connection and nothing else.
    std::thread::spawn(move || serve_one(stream, &memory));
    Ok(())
}

/// A disk of `size` bytes in memory.
pub(crate) fn memory(size: u64) -> Vec<u8> {
    let mut memory = vec![0; size as usize];
    content::fill(&mut memory, 0);
    memory
}

/// Serves one client until it says goodbye.
pub(crate) fn serve_one(mut stream: impl Read + Write, memory: &[u8]) -> Result<()> {
    negotiate(&mut stream, memory.len() as u64)?;
    let mut input = vec![0; 256 << 10];
    let (mut from, mut to) = (0, 0);
    let mut headers: Vec<[u8; wire::REPLY]> = Vec::with_capacity(BATCH);
    let mut data: Vec<&[u8]> = Vec::with_capacity(BATCH);
    loop {
        headers.clear();
        data.clear();
        while to - from >= wire::REQUEST && headers.len() < BATCH {
            let request = RequestHeader::decode(&input[from..]).context("not a request")?;
            from += wire::REQUEST;
            let length = request.length as usize;
            let payload = match request.kind {
                wire::READ => {
                    let end = request.offset.saturating_add(u64::from(request.length));
                    ensure!(end <= memory.len() as u64, "a read behind the end");
                    &memory[request.offset as usize..][..length]
                }
                wire::WRITE => {
                    (from, to) = swallow(&mut stream, &mut input, from, to, length)?;
                    &[]
                }
                wire::DISCONNECT => return Ok(()),
                kind => bail!("command {kind} is not part of the ping-pong"),
            };
            let mut header = [0; wire::REPLY];
            header[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
            header[8..].copy_from_slice(&request.cookie.to_be_bytes());
            headers.push(header);
            data.push(payload);
        }
        if headers.is_empty() {
            input.copy_within(from..to, 0);
            (from, to) = (0, to - from);
            let count = stream.read(&mut input[to..])?;
            if count == 0 {
                return Ok(());
            }
            to += count;
            continue;
        }
        let mut slices = Vec::with_capacity(2 * headers.len());
        for (header, data) in headers.iter().zip(&data) {
            slices.push(IoSlice::new(header));
            if !data.is_empty() {
                slices.push(IoSlice::new(data));
            }
        }
        send_all(&mut stream, &mut slices)?;
    }
}

/// Takes `length` bytes of a write's data: what is in `input`, then what is still to come. Gives
/// the new bounds of what `input` holds.
fn swallow(
    stream: &mut impl Read,
    input: &mut [u8],
    from: usize,
    to: usize,
    length: usize,
) -> Result<(usize, usize)> {
    if to - from >= length {
        return Ok((from + length, to));
    }
    let mut left = length - (to - from);
    loop {
        let count = stream.read(input)?;
        ensure!(count > 0, "the client went away in a write");
        if count >= left {
            return Ok((left, count));
        }
        left -= count;
    }
}

/// The server's side of the handshake, up to the transmission phase of an export of `size` bytes.
pub(crate) fn negotiate(stream: &mut (impl Read + Write), size: u64) -> Result<()> {
    let mut greeting = Vec::with_capacity(18);
    greeting.extend(wire::SERVER_MAGIC.to_be_bytes());
    greeting.extend(wire::OPTION_MAGIC.to_be_bytes());
    greeting.extend(wire::HANDSHAKE_FLAGS.to_be_bytes());
    stream.write_all(&greeting)?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let (option, length) = (wire::u32_at(&head, 8), wire::u32_at(&head, 12));
        ensure!(length <= 4096, "an option of {length} bytes");
        stream.read_exact(&mut vec![0; length as usize])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut out = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
            out.extend(option.to_be_bytes());
            out.extend(kind.to_be_bytes());
            out.extend((data.len() as u32).to_be_bytes());
            out.extend(data);
            stream.write_all(&out)
        };
        if option == wire::OPTION_GO {
            let mut info = wire::INFO_EXPORT.to_be_bytes().to_vec();
            info.extend(size.to_be_bytes());
            info.extend(TRANSMISSION_FLAGS.to_be_bytes());
            reply(wire::REPLY_INFO, &info)?;
            reply(wire::REPLY_ACK, &[])?;
            return Ok(());
        }
        reply(wire::REPLY_UNSUPPORTED, &[])?;
    }
}
