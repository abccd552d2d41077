//! A plain NBD client (fixed newstyle, simple replies), for what proper clients do not do: break
//! off, send garbage, be killed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// `NBD_CMD_READ`.
pub const READ: u16 = 0;
/// `NBD_CMD_WRITE`.
pub const WRITE: u16 = 1;
/// `NBD_CMD_DISC`.
pub const DISCONNECT: u16 = 2;
/// `NBD_CMD_FLUSH`.
pub const FLUSH: u16 = 3;
/// `NBD_CMD_TRIM`.
pub const TRIM: u16 = 4;
/// `NBD_CMD_WRITE_ZEROES`.
pub const WRITE_ZEROES: u16 = 6;
/// `NBD_CMD_FLAG_NO_HOLE`.
pub const NO_HOLE: u16 = 1 << 1;

/// Error numbers of the protocol.
pub const EPERM: u32 = 1;
/// No room.
pub const ENOSPC: u32 = 28;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection in the transmission phase.
pub struct Client<S = UnixStream> {
    stream: S,
    /// The export's size, bytes.
    pub size: u64,
    cookie: u64,
}

/// A connection that has said nothing yet.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

/// The header of a request.
pub fn header(kind: u16, cookie: u64, offset: u64, length: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

impl Client {
    /// Attaches to an export that must be there and free.
    pub fn attach(socket: &Path, export: &str) -> Self {
        Self::try_attach(socket, export).unwrap_or_else(|error| panic!("{export}: {error}"))
    }

    /// Attaches to an export; on refusal gives the server's text.
    ///
    /// # Errors
    /// The text of the server's refusal.
    pub fn try_attach(socket: &Path, export: &str) -> Result<Self, String> {
        Self::negotiate(connect(socket), export).expect("negotiation")
    }
}

impl Client<TcpStream> {
    /// Attaches to an export over TCP.
    pub fn attach_tcp(address: SocketAddr, export: &str) -> Self {
        let stream = TcpStream::connect(address).expect("connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
        let agreed = Self::negotiate(stream, export).expect("negotiation");
        agreed.unwrap_or_else(|error| panic!("{export}: {error}"))
    }
}

impl<S: Read + Write> Client<S> {
    /// The same over a connection that may break at any time; on refusal gives the server's text
    /// inside.
    ///
    /// # Errors
    /// Any error from the connection.
    pub fn negotiate(mut stream: S, export: &str) -> io::Result<Result<Self, String>> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut out = 3u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend(7u32.to_be_bytes()); // NBD_OPT_GO
        out.extend((export.len() as u32 + 6).to_be_bytes());
        out.extend((export.len() as u32).to_be_bytes());
        out.extend(export.as_bytes());
        out.extend([0, 0]);
        stream.write_all(&out)?;
        let mut size = 0;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut data = vec![0; number(16) as usize];
            stream.read_exact(&mut data)?;
            match number(12) {
                1 => return Ok(Ok(Self { stream, size, cookie: 0 })),
                3 if data[..2] == [0, 0] => {
                    size = u64::from_be_bytes(data[2..10].try_into().unwrap());
                }
                reply if reply >> 31 == 1 => {
                    return Ok(Err(String::from_utf8_lossy(&data).into()));
                }
                _ => {}
            }
        }
    }

    /// Sends a request and gives the reply's error number, 0 for success.
    pub fn request(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> u32 {
        self.try_request(kind, offset, length, data).expect("request")
    }

    /// The same of a request without data, with command flags.
    pub fn request_with(&mut self, flags: u16, kind: u16, offset: u64, length: u32) -> u32 {
        self.cookie += 1;
        let mut head = header(kind, self.cookie, offset, length);
        head[4..6].copy_from_slice(&flags.to_be_bytes());
        self.send(&head);
        let (cookie, error) = self.reply().expect("request");
        assert_eq!(cookie, self.cookie, "cookie");
        error
    }

    /// The same over a connection that may break.
    ///
    /// # Errors
    /// Any error from the connection.
    pub fn try_request(
        &mut self,
        kind: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> io::Result<u32> {
        self.cookie += 1;
        self.stream.write_all(&header(kind, self.cookie, offset, length))?;
        self.stream.write_all(data)?;
        let (cookie, error) = self.reply()?;
        assert_eq!(cookie, self.cookie, "cookie");
        Ok(error)
    }

    /// Takes the next reply without its data: its cookie and error number.
    ///
    /// # Errors
    /// Any error from the connection.
    pub fn reply(&mut self) -> io::Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes(), "simple reply's magic");
        let cookie = u64::from_be_bytes(reply[8..].try_into().unwrap());
        Ok((cookie, u32::from_be_bytes(reply[4..8].try_into().unwrap())))
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        assert_eq!(self.request(READ, offset, length as u32, &[]), 0, "read at {offset}");
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).expect("data");
        data
    }

    /// Writes; gives the error number.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.request(WRITE, offset, data.len() as u32, data)
    }

    /// Flushes; gives the error number.
    pub fn flush(&mut self) -> u32 {
        self.request(FLUSH, 0, 0, &[])
    }

    /// Says goodbye.
    pub fn detach(mut self) {
        self.stream.write_all(&header(DISCONNECT, 0, 0, 0)).expect("goodbye");
        // The server closes; so the lease is free when this returns.
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("end of the connection");
        assert!(rest.is_empty());
    }

    /// Sends bytes as they are: requests ahead of their answers, or what is no request.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send");
    }

    /// Takes `count` replies without data; each must tell success.
    pub fn replies(&mut self, count: usize) {
        for _ in 0..count {
            let mut reply = [0; 16];
            self.stream.read_exact(&mut reply).expect("reply");
            assert_eq!(reply[4..8], [0; 4], "error reply");
        }
    }

    /// The socket, to misuse it.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }
}
