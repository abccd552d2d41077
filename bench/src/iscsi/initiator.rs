//! One iSCSI session (RFC 7143) of one connection, driven at a fixed depth, as [`BenchConnection`] is for NBD: one
//! receive takes all that is there, one vectored send carries all commands that follow, and every answer's
//! tag, status and content is checked. Reads take data in any number of pieces; writes carry their data with
//! the command.
//!
//! [`BenchConnection`]: crate::client::BenchConnection

use crate::client::{ConnectionResult, Job, send_all};
use crate::content;
use crate::side_by_side::Driven;
use crate::wire::u32_at;
use anyhow::{Context, Result, bail, ensure};
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Length of a PDU's header, bytes.
const HEADER: usize = 48;
/// Length of a logical block, bytes.
const BLOCK: u64 = 512;
/// The longest write: what every target takes as immediate data, bytes.
const IMMEDIATE: usize = 4096;
/// The longest data segment that is taken, bytes.
const SEGMENT: usize = 256 << 10;
/// How long a server may be silent before the connection counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Conditions that a new session is told of, at the most.
const ATTENTIONS: usize = 8;

/// Opcodes of what is sent.
mod opcode {
    pub(super) const COMMAND: u8 = 0x01;
    pub(super) const LOGIN: u8 = 0x43;
    pub(super) const LOGOUT: u8 = 0x46;
}

/// Opcodes of what comes.
mod answer {
    pub(super) const COMMAND: u8 = 0x21;
    pub(super) const LOGIN: u8 = 0x23;
    pub(super) const DATA: u8 = 0x25;
    pub(super) const LOGOUT: u8 = 0x26;
}

/// The keys of the login, but for the target's name: what the Linux kernel offers, without digests.
const KEYS: &str = "InitiatorName=iqn.2026-11.io.sojourn:bench\0SessionType=Normal\0HeaderDigest=None\0\
                    DataDigest=None\0InitialR2T=No\0ImmediateData=Yes\0MaxConnections=1\0ErrorRecoveryLevel=0\0\
                    MaxRecvDataSegmentLength=262144\0MaxBurstLength=262144\0FirstBurstLength=65536\0";

/// A session in its full feature phase.
pub(super) struct Initiator {
    stream: TcpStream,
    lun: u8,
    cmd_sn: u32,
    exp_stat_sn: u32,
    /// The last command that the target takes.
    max_cmd_sn: u32,
    /// The tag of the next command that is not one of a load.
    tag: u32,
}

/// A command on its way to the target.
struct Sent {
    offset: u64,
    /// `None` when it was answered.
    since: Option<Instant>,
    tag: u32,
    /// Bytes that came of a read.
    came: usize,
}

impl Initiator {
    /// Logs in to `target`, whose unit `lun` has `size` bytes or more.
    pub(super) fn open(address: SocketAddr, target: &str, lun: u8, size: u64) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).context("cannot connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut session =
            Self { stream, lun, cmd_sn: 1, exp_stat_sn: 0, max_cmd_sn: 1, tag: u32::MAX / 2 };
        session.log_in(target).context("the login failed")?;
        // A new session is told of what happened before it.
        let mut told = 0;
        while !session.is_ready()? {
            told += 1;
            ensure!(told < ATTENTIONS, "the unit is not ready");
        }
        let capacity = session.capacity()?;
        ensure!(capacity >= size, "{target} has {capacity} bytes, {size} were expected");
        Ok(session)
    }

    fn log_in(&mut self, target: &str) -> Result<()> {
        let mut keys = KEYS.as_bytes().to_vec();
        keys.extend_from_slice(format!("TargetName={target}\0").as_bytes());
        let mut header = [0; HEADER];
        // From the operational stage to the full feature phase; an ISID of the random kind.
        header[..2].copy_from_slice(&[opcode::LOGIN, 0x87]);
        header[8..14].copy_from_slice(&[0x80, 0, 0, 1, 0, 0]);
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(header, &keys)?;
        let (header, text) = self.receive()?;
        ensure!(header[0] == answer::LOGIN, "no answer to a login (opcode {:#x})", header[0]);
        let status = (header[36], header[37]);
        ensure!(status == (0, 0), "status {:02x}{:02x}", status.0, status.1);
        let text = String::from_utf8_lossy(&text);
        ensure!(header[1] & 0x83 == 0x83, "the target wants more to be negotiated: {text:?}");
        for key in text.split('\0') {
            let smaller = |value: &str| value.parse::<usize>().is_ok_and(|value| value < IMMEDIATE);
            match key.split_once('=') {
                Some(("ImmediateData", value)) => ensure!(value == "Yes", "no immediate data"),
                Some(("MaxRecvDataSegmentLength" | "FirstBurstLength", value)) => {
                    ensure!(!smaller(value), "{key} is too small");
                }
                _ => {}
            }
        }
        self.note(&header);
        Ok(())
    }

    /// TEST UNIT READY.
    fn is_ready(&mut self) -> Result<bool> {
        let (status, _) = self.ask([0; 16], 0)?;
        Ok(status == 0)
    }

    /// READ CAPACITY (10), bytes.
    fn capacity(&mut self) -> Result<u64> {
        let mut cdb = [0; 16];
        cdb[0] = 0x25;
        let (status, data) = self.ask(cdb, 8)?;
        ensure!(status == 0 && data.len() == 8, "the unit has no capacity (status {status:#x})");
        let (last, block) = (u32_at(&data, 0), u32_at(&data, 4));
        ensure!(u64::from(block) == BLOCK, "blocks have {block} bytes, {BLOCK} were expected");
        Ok((u64::from(last) + 1) * BLOCK)
    }

    /// One command that gives up to `expected` bytes, to its end: its status and data.
    fn ask(&mut self, cdb: [u8; 16], expected: u32) -> Result<(u8, Vec<u8>)> {
        self.tag += 1;
        let header = self.command(self.tag, cdb, expected, false);
        self.send(header, &[])?;
        let mut all = Vec::new();
        loop {
            let (header, data) = self.receive()?;
            self.note(&header);
            ensure!(u32_at(&header, 16) == self.tag, "an answer to no command");
            match header[0] {
                answer::DATA => {
                    all.extend_from_slice(&data);
                    if header[1] & 1 != 0 {
                        return Ok((header[3], all));
                    }
                }
                answer::COMMAND => return Ok((header[3], all)),
                other => bail!("an unexpected answer (opcode {other:#x})"),
            }
        }
    }

    /// A command's header, and its number taken.
    fn command(&mut self, tag: u32, cdb: [u8; 16], bytes: u32, writes: bool) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let direction = match (bytes, writes) {
            (0, _) => 0,
            (_, true) => 0x20,
            (_, false) => 0x40,
        };
        header[..2].copy_from_slice(&[opcode::COMMAND, 0x80 | direction | 1]);
        if writes {
            header[5..8].copy_from_slice(&bytes.to_be_bytes()[1..]);
        }
        header[9] = self.lun;
        header[16..20].copy_from_slice(&tag.to_be_bytes());
        header[20..24].copy_from_slice(&bytes.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        header[32..].copy_from_slice(&cdb);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        header
    }

    /// READ (10) or WRITE (10).
    fn transfer(&mut self, job: Job, tag: u32, offset: u64) -> [u8; HEADER] {
        let mut cdb = [0; 16];
        cdb[0] = if job.writes { 0x2a } else { 0x28 };
        cdb[2..6].copy_from_slice(&((offset / BLOCK) as u32).to_be_bytes());
        cdb[7..9].copy_from_slice(&((job.bytes as u64 / BLOCK) as u16).to_be_bytes());
        self.command(tag, cdb, job.bytes as u32, job.writes)
    }

    fn send(&mut self, mut header: [u8; HEADER], data: &[u8]) -> Result<()> {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut pdu = header.to_vec();
        pdu.extend_from_slice(data);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        self.stream.write_all(&pdu).context("cannot send")
    }

    fn receive(&mut self) -> Result<([u8; HEADER], Vec<u8>)> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).context("no answer")?;
        let length = segment(&header)?;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.stream.read_exact(&mut data).context("no data")?;
        data.truncate(length);
        Ok((header, data))
    }

    /// Takes the numbers out of an answer: Data-In has a status number only with its status.
    fn note(&mut self, header: &[u8]) {
        if header[0] != answer::DATA || header[1] & 1 != 0 {
            self.exp_stat_sn = u32_at(header, 24).wrapping_add(1);
        }
        self.max_cmd_sn = u32_at(header, 32);
    }

    /// Whether the target takes one more command.
    fn has_room(&self) -> bool {
        self.max_cmd_sn.wrapping_sub(self.cmd_sn) < u32::MAX / 2
    }
}

/// The length of a PDU's data, bytes.
fn segment(header: &[u8]) -> Result<usize> {
    ensure!(header[4] == 0, "an additional header that nobody asked for");
    let length = (u32_at(header, 4) & 0xff_ffff) as usize;
    ensure!(length <= SEGMENT, "a data segment of {length} bytes is longer than was agreed");
    Ok(length)
}

impl Driven for Initiator {
    fn drive(
        &mut self,
        job: Job,
        until: Option<Instant>,
        next: &mut dyn FnMut() -> Option<u64>,
    ) -> Result<ConnectionResult> {
        ensure!(!job.writes || job.bytes <= IMMEDIATE, "the write is too long");
        let mut flight = CommandsInFlight::new(job);
        let start = Instant::now();
        for slot in 0..job.depth {
            let Some(offset) = next() else { break };
            flight.launch(self, slot, offset, start)?;
        }
        let mut tally = ConnectionResult::default();
        let mut input = vec![0; 4 * (HEADER + SEGMENT)];
        let (mut from, mut to) = (0, 0);
        flight.send(&mut self.stream)?;
        while flight.in_flight > 0 {
            if input.len() - to < HEADER + SEGMENT {
                input.copy_within(from..to, 0);
                (from, to) = (0, to - from);
            }
            let count = match self.stream.read(&mut input[to..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                count => count.context("no answer")?,
            };
            ensure!(count > 0, "the server closed the connection");
            to += count;
            let now = Instant::now();
            let open = until.is_none_or(|until| now < until);
            while to - from >= HEADER {
                let (header, rest) = input[from..to].split_at(HEADER);
                let length = segment(header)?;
                let Some(data) = rest.get(..length.next_multiple_of(4)) else { break };
                from += HEADER + data.len();
                let landed = flight.land(header, &data[..length])?;
                self.note(header);
                let Some((slot, sent)) = landed else { continue };
                let nanos = now.duration_since(sent).as_nanos();
                tally.latency.add(u64::try_from(nanos).unwrap_or(u64::MAX));
                tally.in_window += u64::from(open);
                if open && let Some(offset) = next() {
                    flight.launch(self, slot, offset, now)?;
                }
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

    fn longest_write(&self) -> usize {
        IMMEDIATE
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&[opcode::LOGOUT, 0x80]);
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        self.send(header, &[])?;
        let (header, _) = self.receive()?;
        ensure!(header[0] == answer::LOGOUT && header[2] == 0, "the logout failed");
        Ok(())
    }
}

/// The commands in flight.
struct CommandsInFlight {
    job: Job,
    /// Header and data of each slot, one after the other.
    frames: Vec<u8>,
    frame: usize,
    slots: Vec<Sent>,
    /// Slots whose frames are to be sent.
    ready: Vec<usize>,
    in_flight: usize,
}

impl CommandsInFlight {
    fn new(job: Job) -> Self {
        let frame = HEADER + if job.writes { job.bytes } else { 0 };
        // A tag is the command's number times the depth plus the slot: no two commands share one.
        let sent = |slot| Sent { offset: 0, since: None, tag: slot as u32, came: 0 };
        Self {
            job,
            frames: vec![0x5a; frame * job.depth],
            frame,
            slots: (0..job.depth).map(sent).collect(),
            ready: Vec::with_capacity(job.depth),
            in_flight: 0,
        }
    }

    fn launch(
        &mut self,
        session: &mut Initiator,
        slot: usize,
        offset: u64,
        now: Instant,
    ) -> Result<()> {
        ensure!(session.has_room(), "the target takes fewer than {} commands", self.job.depth);
        let entry = &mut self.slots[slot];
        entry.tag = entry.tag.wrapping_add(self.job.depth as u32);
        (entry.offset, entry.since, entry.came) = (offset, Some(now), 0);
        let bytes = &mut self.frames[slot * self.frame..][..self.frame];
        bytes[..HEADER].copy_from_slice(&session.transfer(self.job, entry.tag, offset));
        content::stamp(&mut bytes[HEADER..], offset);
        self.ready.push(slot);
        self.in_flight += 1;
        Ok(())
    }

    fn send(&mut self, stream: &mut TcpStream) -> Result<()> {
        if self.ready.is_empty() {
            return Ok(());
        }
        let frame = |slot: &usize| &self.frames[slot * self.frame..][..self.frame];
        let mut slices: Vec<IoSlice<'_>> =
            self.ready.iter().map(|slot| IoSlice::new(frame(slot))).collect();
        send_all(stream, &mut slices).context("cannot send")?;
        self.ready.clear();
        Ok(())
    }

    /// Checks a PDU; with the last one of a command its slot, free again, and when it was sent.
    fn land(&mut self, header: &[u8], data: &[u8]) -> Result<Option<(usize, Instant)>> {
        let tag = u32_at(header, 16);
        let slot = tag as usize % self.job.depth;
        let entry = &mut self.slots[slot];
        ensure!(entry.tag == tag, "an answer to no command (tag {tag})");
        let Some(since) = entry.since else { bail!("a second answer (tag {tag})") };
        let done = match header[0] {
            answer::DATA => {
                let at = u32_at(header, 40) as usize;
                ensure!(at == entry.came && !self.job.writes, "data in the wrong place");
                content::check(data, entry.offset + at as u64)?;
                entry.came += data.len();
                header[1] & 1 != 0
            }
            answer::COMMAND => true,
            other => bail!("an unexpected answer (opcode {other:#x})"),
        };
        if !done {
            return Ok(None);
        }
        ensure!(header[3] == 0, "a command failed (status {:#x})", header[3]);
        ensure!(self.job.writes || entry.came == self.job.bytes, "a read came short");
        entry.since = None;
        self.in_flight -= 1;
        Ok(Some((slot, since)))
    }
}
