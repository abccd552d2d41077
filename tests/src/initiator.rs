//! A plain iSCSI initiator (no digests, data with its command), for what proper initiators do not do, and for
//! commands that no tool sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const HEADER: usize = 48;
const PATIENCE: Duration = Duration::from_secs(30);

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its SCSI status: 0 good, 2 sense data follow, 0x18 reservation conflict.
    pub status: u8,
    /// What it gave: data, or sense data.
    pub data: Vec<u8>,
}

/// A session.
pub struct Initiator {
    stream: TcpStream,
    number: u32,
}

impl Initiator {
    /// Logs in to the target `disk` as the initiator `name`, and takes the unit attention that a session begins
    /// with.
    ///
    /// # Errors
    /// The status with which the login is refused.
    pub fn log_in(portal: SocketAddr, name: &str, disk: &str) -> Result<Self, (u8, u8)> {
        let stream = TcpStream::connect(portal).expect("connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
        let mut session = Self { stream, number: 1 };
        let keys = format!(
            "InitiatorName=iqn.2026-11.test:{name}\0TargetName=iqn.2026-11.io.sojourn:{disk}\0\
             SessionType=Normal\0"
        );
        let mut header = [0; HEADER];
        (header[0], header[1]) = (0x43, 0x87);
        header[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, 1]);
        header[24..28].copy_from_slice(&1u32.to_be_bytes());
        session.send(header, keys.as_bytes());
        let (header, _) = session.receive();
        match (header[36], header[37]) {
            (0, 0) => {}
            status => return Err(status),
        }
        assert_eq!(session.command(&[0; 6], &[], 0).status, 2, "unit attention");
        Ok(session)
    }

    /// Carries out a command that sends `data` or gives up to `expected` bytes.
    pub fn command(&mut self, cdb: &[u8], data: &[u8], expected: u32) -> Ended {
        let mut header = [0; HEADER];
        let direction = match (data.is_empty(), expected) {
            (false, _) => 0x20,
            (true, 0) => 0,
            (true, _) => 0x40,
        };
        (header[0], header[1]) = (0x01, 0x81 | direction);
        header[16..20].copy_from_slice(&self.number.to_be_bytes());
        header[20..24].copy_from_slice(&expected.max(data.len() as u32).to_be_bytes());
        header[24..28].copy_from_slice(&self.number.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.number += 1;
        self.send(header, data);
        let mut given = Vec::new();
        loop {
            let (header, data) = self.receive();
            match header[0] & 0x3f {
                0x25 => given.extend_from_slice(&data),
                0x21 if data.is_empty() => return Ended { status: header[3], data: given },
                0x21 => return Ended { status: header[3], data },
                other => panic!("an unexpected answer (opcode {other:#x})"),
            }
            if header[1] & 1 != 0 {
                return Ended { status: header[3], data: given };
            }
        }
    }

    /// PERSISTENT RESERVE OUT: its SCSI status. `kept` asks for what outlives a loss of power (APTPL).
    pub fn reserve(&mut self, action: u8, kind: u8, key: u64, new: u64, kept: bool) -> u8 {
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        let mut data = key.to_be_bytes().to_vec();
        data.extend(new.to_be_bytes());
        data.resize(24, 0);
        data[20] = u8::from(kept);
        self.command(&cdb, &data, 0).status
    }

    /// WRITE (10) of one block: its SCSI status.
    pub fn write_block(&mut self, block: u8, byte: u8) -> u8 {
        self.command(&[0x2a, 0, 0, 0, 0, block, 0, 0, 1, 0], &[byte; 512], 0).status
    }

    fn send(&mut self, mut header: [u8; HEADER], data: &[u8]) {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.stream.write_all(&bytes).expect("send");
    }

    fn receive(&mut self) -> ([u8; HEADER], Vec<u8>) {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).expect("an answer");
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.stream.read_exact(&mut data).expect("data");
        data.truncate(length);
        (header, data)
    }
}
