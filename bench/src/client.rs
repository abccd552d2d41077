//! One connection to an export, driven at a fixed depth. Lean, so that the server is what is
//! measured: one receive takes all replies that are there, one vectored send carries all requests
//! that follow. Every reply's cookie, error and content is checked.

use crate::content;
use crate::place::Endpoint;
use crate::wire::{self, RequestHeader};
use anyhow::{Context, Result, bail, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trace::TimeHistogram;

/// How long a server may be silent before the connection counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Slices of one vectored send; the kernel's limit is 1024.
const SLICES: usize = 512;
/// What one receive takes of an encrypted connection, bytes.
const RECEIVED: usize = 256 << 10;

/// Reads or writes, their length and how many are in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// Whether requests are writes.
    pub(crate) writes: bool,
    /// Length of a request, bytes: a multiple of 4096.
    pub(crate) bytes: usize,
    /// Requests in flight, at least 1.
    pub(crate) depth: usize,
}

/// What one connection did.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionResult {
    /// Requests answered before the window's end.
    pub(crate) in_window: u64,
    /// The window's end, or when the last request was answered if they ran out before.
    pub(crate) end: Option<Instant>,
    /// Time from sending to answer, of each request: those, and the ones in flight at the end.
    pub(crate) latency: TimeHistogram,
}

/// What connections did together since `start`, in requests per second, up to the end of the last of them:
/// where they run out of requests, a server that serves one after the other is no quicker for it.
pub(crate) fn rate<'a>(start: Instant, tallies: impl Iterator<Item = &'a ConnectionResult>) -> f64 {
    let both = |(count, end): (u64, Option<Instant>), tally: &ConnectionResult| {
        (count + tally.in_window, end.max(tally.end))
    };
    let (count, end) = tallies.fold((0, None), both);
    let seconds = end.map_or(0.0, |end| end.duration_since(start).as_secs_f64());
    if count == 0 { 0.0 } else { count as f64 / seconds }
}

/// A connection in the transmission phase.
pub(crate) struct BenchConnection {
    stream: ClientStream,
    size: u64,
}

/// What carries it.
enum ClientStream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Encrypted(Box<StreamOwned<ClientConnection, BufferedSocket>>),
}

/// A socket that is received from in large pieces, for the TLS library, which asks for 4 KiB at a time.
struct BufferedSocket(BufReader<TcpStream>);

impl Read for BufferedSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for BufferedSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(buf)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for ClientStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buf),
            Self::Tcp(stream) => stream.read(buf),
            Self::Encrypted(stream) => stream.read(buf),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buf),
            Self::Tcp(stream) => stream.write(buf),
            Self::Encrypted(stream) => stream.write(buf),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write_vectored(slices),
            Self::Tcp(stream) => stream.write_vectored(slices),
            Self::Encrypted(stream) => stream.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => Ok(()),
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}

impl BenchConnection {
    /// Connects to `socket` and chooses `export`.
    pub(crate) fn open(socket_path: &Path, export: &str) -> Result<Self> {
        Self::agree(ClientStream::Unix(dial(socket_path)?), export)
    }

    /// Connects over TCP and chooses `export`. The server may be silent for `patience`.
    pub(crate) fn open_tcp(address: SocketAddr, export: &str, patience: Duration) -> Result<Self> {
        Self::agree(ClientStream::Tcp(dial_tcp(address, patience)?), export)
    }

    /// Connects to a server wherever it listens, and chooses `export`.
    pub(crate) fn open_at(place: &Endpoint, export: &str) -> Result<Self> {
        match place {
            Endpoint::Unix(path) => Self::open(path, export),
            Endpoint::Tcp(address) => Self::open_tcp(*address, export, PATIENCE),
        }
    }

    /// Connects over TCP, encrypts the connection, and chooses `export`.
    pub(crate) fn open_encrypted(
        address: SocketAddr,
        export: &str,
        config: Arc<ClientConfig>,
    ) -> Result<Self> {
        let mut stream = dial_tcp(address, PATIENCE)?;
        let flags = greet(&mut stream)?;
        let mut out = u32::from(flags).to_be_bytes().to_vec();
        out.extend(wire::OPTION_MAGIC.to_be_bytes());
        out.extend(wire::OPTION_STARTTLS.to_be_bytes());
        out.extend(0u32.to_be_bytes());
        stream.write_all(&out)?;
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        ensure!(wire::u32_at(&head, 12) == wire::REPLY_ACK, "the server does not encrypt");
        let name = "localhost".try_into().context("the server's name")?;
        let session = ClientConnection::new(config, name).context("TLS")?;
        let stream = BufferedSocket(BufReader::with_capacity(RECEIVED, stream));
        let mut stream = ClientStream::Encrypted(Box::new(StreamOwned::new(session, stream)));
        let size = choose(&mut stream, None, export).context("handshake failed")?;
        Ok(Self { stream, size })
    }

    fn agree(mut stream: ClientStream, export: &str) -> Result<Self> {
        let size = greet(&mut stream)
            .and_then(|flags| choose(&mut stream, Some(flags), export))
            .context("handshake failed")?;
        Ok(Self { stream, size })
    }

    /// The export's size, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Keeps `job.depth` requests in flight, at the offsets that `next` gives, until it gives none
    /// or `until` has come; returns when all are answered.
    pub(crate) fn drive(
        &mut self,
        job: Job,
        until: Option<Instant>,
        mut next: impl FnMut() -> Option<u64>,
    ) -> Result<ConnectionResult> {
        let mut flight = RequestsInFlight::new(job);
        let start = Instant::now();
        for slot in 0..job.depth {
            match next() {
                Some(offset) => flight.launch(slot, offset, start),
                None => break,
            }
        }
        let mut tally = ConnectionResult::default();
        let mut input = vec![0; (256 << 10).max(4 * (job.bytes + wire::REPLY))];
        let reply = wire::REPLY + if job.writes { 0 } else { job.bytes };
        let (mut from, mut to) = (0, 0);
        flight.send(&mut self.stream)?;
        while flight.in_flight > 0 {
            if input.len() - from < reply {
                input.copy_within(from..to, 0);
                (from, to) = (0, to - from);
            }
            let count = match self.stream.read(&mut input[to..]) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                count => count.context("no reply")?,
            };
            ensure!(count > 0, "the server closed the connection");
            to += count;
            let now = Instant::now();
            let open = until.is_none_or(|until| now < until);
            while to - from >= reply {
                let (slot, sent) = flight.land(&input[from..from + reply])?;
                from += reply;
                let nanos = now.duration_since(sent).as_nanos();
                tally.latency.add(u64::try_from(nanos).unwrap_or(u64::MAX));
                tally.in_window += u64::from(open);
                if open && let Some(offset) = next() {
                    flight.launch(slot, offset, now);
                }
            }
            if to - from >= wire::REPLY {
                check_header(&input[from..])?; // an error's reply is short: do not wait for data
            }
            if from == to {
                (from, to) = (0, 0);
            }
            flight.send(&mut self.stream)?;
        }
        let now = Instant::now();
        tally.end = Some(until.map_or(now, |until| until.min(now)));
        Ok(tally)
    }

    /// Reads at `offset`, and waits for it.
    pub(crate) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let length = u32::try_from(buffer.len()).context("a read is too long")?;
        let mut bytes = [0; wire::REQUEST];
        RequestHeader { kind: wire::READ, cookie: 0, offset, length }.encode(&mut bytes);
        self.stream.write_all(&bytes).context("cannot send")?;
        let mut reply = [0; wire::REPLY];
        self.stream.read_exact(&mut reply).context("no reply")?;
        check_header(&reply)?;
        self.stream.read_exact(buffer).context("no data")
    }

    /// Asks for everything answered so far to be made durable, and waits for that.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let mut bytes = [0; wire::REQUEST];
        RequestHeader { kind: wire::FLUSH, cookie: 0, offset: 0, length: 0 }.encode(&mut bytes);
        self.stream.write_all(&bytes).context("cannot send")?;
        let mut reply = [0; wire::REPLY];
        self.stream.read_exact(&mut reply).context("no reply")?;
        check_header(&reply)
    }

    /// Says goodbye, so that a server which logs lost connections has nothing to log.
    pub(crate) fn close(mut self) {
        let mut bytes = [0; wire::REQUEST];
        RequestHeader { kind: wire::DISCONNECT, cookie: 0, offset: 0, length: 0 }
            .encode(&mut bytes);
        // A server that is gone already needs no goodbye.
        let _ = self.stream.write_all(&bytes);
    }
}

/// Connects to a server's socket.
fn dial(socket_path: &Path) -> Result<UnixStream> {
    let fd = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    // A connect waits for room in the server's accept queue; bound that as well.
    set_socket_timeout(&fd, Timeout::Send, Some(PATIENCE))?;
    set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
    connect(&fd, &SocketAddrUnix::new(socket_path)?).context("cannot connect")?;
    Ok(UnixStream::from(fd))
}

fn dial_tcp(address: SocketAddr, patience: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience).context("cannot connect")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// The requests in flight of one connection.
struct RequestsInFlight {
    job: Job,
    /// Header and payload of each slot, one after the other.
    frames: Vec<u8>,
    frame: usize,
    slots: Vec<RequestSlot>,
    /// Slots whose frames are to be sent.
    ready: Vec<usize>,
    in_flight: usize,
}

#[derive(Clone, Copy)]
struct RequestSlot {
    /// The request's number times the depth plus the slot: no two requests share a cookie.
    cookie: u64,
    offset: u64,
    sent: Option<Instant>,
}

impl RequestsInFlight {
    fn new(job: Job) -> Self {
        let frame = wire::REQUEST + if job.writes { job.bytes } else { 0 };
        let slots =
            (0..job.depth).map(|slot| RequestSlot { cookie: slot as u64, offset: 0, sent: None });
        Self {
            job,
            frames: vec![0x5a; frame * job.depth],
            frame,
            slots: slots.collect(),
            ready: Vec::with_capacity(job.depth),
            in_flight: 0,
        }
    }

    fn launch(&mut self, slot: usize, offset: u64, now: Instant) {
        let entry = &mut self.slots[slot];
        entry.cookie += self.job.depth as u64;
        entry.offset = offset;
        entry.sent = Some(now);
        let kind = if self.job.writes { wire::WRITE } else { wire::READ };
        let length = self.job.bytes as u32;
        let bytes = &mut self.frames[slot * self.frame..][..self.frame];
        RequestHeader { kind, cookie: entry.cookie, offset, length }.encode(bytes);
        content::stamp(&mut bytes[wire::REQUEST..], offset);
        self.ready.push(slot);
        self.in_flight += 1;
    }

    fn send(&mut self, stream: &mut impl Write) -> Result<()> {
        for batch in self.ready.chunks(SLICES) {
            let frame = |slot: &usize| &self.frames[slot * self.frame..][..self.frame];
            let mut slices: Vec<IoSlice<'_>> =
                batch.iter().map(|slot| IoSlice::new(frame(slot))).collect();
            send_all(stream, &mut slices).context("cannot send")?;
        }
        self.ready.clear();
        Ok(())
    }

    /// Checks a whole reply; gives its slot, free again, and when its request was sent.
    fn land(&mut self, reply: &[u8]) -> Result<(usize, Instant)> {
        check_header(reply)?;
        let cookie = wire::u64_at(reply, 8);
        let slot = (cookie % self.job.depth as u64) as usize;
        let entry = &mut self.slots[slot];
        ensure!(entry.cookie == cookie, "a reply to no request (cookie {cookie})");
        let Some(sent) = entry.sent.take() else { bail!("a second reply (cookie {cookie})") };
        content::check(&reply[wire::REPLY..], entry.offset)?;
        self.in_flight -= 1;
        Ok((slot, sent))
    }
}

fn check_header(reply: &[u8]) -> Result<()> {
    let magic = wire::u32_at(reply, 0);
    ensure!(magic == wire::SIMPLE_REPLY_MAGIC, "not a simple reply (magic {magic:#x})");
    let error = wire::u32_at(reply, 4);
    ensure!(error == 0, "the server answered error {error}");
    Ok(())
}

/// Sends all of `slices`.
pub(crate) fn send_all(stream: &mut impl Write, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut rest = slices;
    while !rest.is_empty() {
        let count = stream.write_vectored(rest)?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, count);
    }
    Ok(())
}

/// Takes the server's greeting; gives the flags to answer with.
fn greet(stream: &mut impl Read) -> Result<u16> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).context("the server does not speak")?;
    ensure!(
        wire::u64_at(&greeting, 0) == wire::SERVER_MAGIC
            && wire::u64_at(&greeting, 8) == wire::OPTION_MAGIC,
        "not an NBD server of the newstyle kind"
    );
    Ok(u16::from_be_bytes([greeting[16], greeting[17]]) & wire::HANDSHAKE_FLAGS)
}

/// Sends the flags, unless that was done, and chooses the export; gives its size.
fn choose(stream: &mut (impl Read + Write), flags: Option<u16>, export: &str) -> Result<u64> {
    let mut out = flags.map_or(Vec::new(), |flags| u32::from(flags).to_be_bytes().to_vec());
    out.extend(wire::OPTION_MAGIC.to_be_bytes());
    out.extend(wire::OPTION_GO.to_be_bytes());
    out.extend((export.len() as u32 + 6).to_be_bytes());
    out.extend((export.len() as u32).to_be_bytes());
    out.extend(export.as_bytes());
    out.extend([0, 0]); // no information requests
    stream.write_all(&out)?;
    let mut size = None;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        ensure!(wire::u64_at(&head, 0) == wire::OPTION_REPLY_MAGIC, "not an option reply");
        let length = wire::u32_at(&head, 16) as usize;
        ensure!(length <= 64 << 10, "an option reply of {length} bytes");
        let mut data = vec![0; length];
        stream.read_exact(&mut data)?;
        match wire::u32_at(&head, 12) {
            wire::REPLY_ACK => return size.context("no export information"),
            wire::REPLY_INFO if length >= 12 && data[..2] == wire::INFO_EXPORT.to_be_bytes() => {
                size = Some(wire::u64_at(&data, 2));
            }
            reply if reply & (1 << 31) != 0 => bail!(
                "export {export:?} refused (reply {reply:#x}: {})",
                String::from_utf8_lossy(&data)
            ),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw;

    const SIZE: u64 = 64 << 20;

    fn connection(alter: impl FnOnce(&mut Vec<u8>)) -> BenchConnection {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw.sock");
        let mut memory = raw::memory(SIZE);
        alter(&mut memory);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // Ends with the client's goodbye or disappearance.
            let _ = raw::serve_one(stream, &memory);
        });
        BenchConnection::open(&path, "any").unwrap()
    }

    fn offsets(bytes: u64, count: u64) -> impl FnMut() -> Option<u64> {
        let mut at = 0;
        move || {
            at += 1;
            (at <= count).then(|| (at * 7919 * bytes) % SIZE / bytes * bytes)
        }
    }

    #[test]
    fn every_request_is_answered_once_whatever_the_depth_and_length() {
        for (writes, bytes, depth, count) in
            [(false, 4096, 1, 100), (true, 4096, 16, 1000), (false, 131_072, 16, 300)]
        {
            let mut connection = connection(|_| ());
            assert_eq!(connection.size(), SIZE);
            let job = Job { writes, bytes, depth };
            let tally = connection.drive(job, None, offsets(bytes as u64, count)).unwrap();
            assert_eq!((tally.latency.count(), tally.in_window), (count, count));
            connection.close();
        }
    }

    #[test]
    fn a_window_ends_although_offsets_remain() {
        let mut connection = connection(|_| ());
        let until = Instant::now() + Duration::from_secs(1);
        let job = Job { writes: false, bytes: 4096, depth: 4 };
        let tally = connection.drive(job, Some(until), offsets(4096, u64::MAX)).unwrap();
        assert!(tally.in_window > 0 && tally.latency.count() >= tally.in_window);
        assert_eq!(tally.end, Some(until));
    }

    #[test]
    fn clients_that_are_served_one_after_the_other_have_the_rate_of_one() {
        let start = Instant::now();
        let tally = |in_window, seconds| ConnectionResult {
            in_window,
            end: Some(start + Duration::from_secs(seconds)),
            ..ConnectionResult::default()
        };
        assert_eq!(rate(start, [tally(100, 1), tally(100, 2)].iter()), 100.0);
        assert_eq!(rate(start, [tally(100, 1), tally(100, 1)].iter()), 200.0);
        assert_eq!(rate(start, [].iter()), 0.0);
    }

    #[test]
    fn wrong_content_is_an_error_not_a_number() {
        let mut connection = connection(|memory| memory[3 * 4096] ^= 1);
        let job = Job { writes: false, bytes: 4096, depth: 1 };
        let mut next = (0..10u64).map(|block| block * 4096);
        let error = connection.drive(job, None, || next.next()).unwrap_err();
        assert_eq!(error.to_string(), "wrong content in the block at 12288");
    }
}
