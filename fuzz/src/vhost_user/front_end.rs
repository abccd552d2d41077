//! A front end: its socket, its messages, and the files that it sends along.

use super::{AVAILABLE, DESCRIPTORS, GuestMemory, QUEUE_SIZE, USED, USER};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Messages of a front end.
#[allow(missing_docs, reason = "the protocol's names")]
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const GET_CONFIG: u32 = 24;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}
use message::*;

/// The most files in one message here.
const FILES: usize = 34;

/// A front end's side of a connection.
pub struct FrontEnd {
    socket: UnixStream,
    /// By which the ring is kicked.
    pub kick: OwnedFd,
}

impl FrontEnd {
    /// That of `socket`.
    pub fn new(socket: UnixStream) -> Self {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        socket.set_nonblocking(true).expect("a socket");
        Self { socket, kick }
    }

    /// Closes the connection.
    pub fn hang_up(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Kicks the ring.
    pub fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Sends a message; the body's length is what the header says unless `len` is given. Nobody hears of it
    /// when the server has hung up.
    pub fn send(
        &self,
        request: u32,
        flags: u32,
        body: &[u8],
        len: Option<u32>,
        files: &[BorrowedFd<'_>],
    ) {
        let len = len.unwrap_or(body.len() as u32);
        let header = [request, flags, len].map(u32::to_ne_bytes).concat();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let _ = sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
    }

    /// Sends a message of words.
    pub fn tell<T: Copy, const N: usize>(
        &self,
        request: u32,
        body: &[T],
        bytes: fn(T) -> [u8; N],
        file: Option<BorrowedFd<'_>>,
    ) {
        let body: Vec<u8> = body.iter().flat_map(|word| bytes(*word)).collect();
        self.send(request, 1, &body, None, file.as_slice());
    }

    /// Takes what the server has answered, whatever it is.
    pub fn hear(&self) {
        let mut sink = [0; 4096];
        while matches!((&self.socket).read(&mut sink), Ok(1..)) {}
    }

    /// Has a ring served as the rules have it, where it stands.
    pub fn start(&self, memory: &GuestMemory, features: u64, inflight: Option<&File>, base: u16) {
        let (word, long) = (u32::to_ne_bytes as fn(u32) -> _, u64::to_ne_bytes as fn(u64) -> _);
        self.send(GET_FEATURES, 1, &[], None, &[]);
        self.tell(SET_FEATURES, &[features], long, None);
        self.tell(SET_PROTOCOL_FEATURES, &[0xffff], long, None);
        let table = [2, 0].map(u32::to_ne_bytes).concat();
        let parts = GuestMemory::parts().concat();
        let parts: Vec<u8> = parts.into_iter().flat_map(u64::to_ne_bytes).collect();
        let file = memory.file.as_fd();
        self.send(SET_MEM_TABLE, 1, &[table, parts].concat(), None, &[file, file]);
        if let Some(inflight) = inflight {
            self.set_inflight(inflight, INFLIGHT, 0, 1, QUEUE_SIZE);
        }
        self.tell(SET_VRING_NUM, &[0, u32::from(QUEUE_SIZE)], word, None);
        self.tell(SET_VRING_BASE, &[0, u32::from(base)], word, None);
        self.address_of(0, [DESCRIPTORS, USED, AVAILABLE].map(|at| USER + at));
        self.tell(SET_VRING_KICK, &[0_u64], long, Some(self.kick.as_fd()));
        self.tell(SET_VRING_ENABLE, &[0, 1], word, None);
    }

    /// Says where a ring is: descriptors, used ring, available ring.
    pub fn address_of(&self, index: u32, at: [u64; 3]) {
        let body = [&index.to_ne_bytes()[..], &[0; 4], &at.map(u64::to_ne_bytes).concat(), &[0; 8]];
        self.send(SET_VRING_ADDR, 1, &body.concat(), None, &[]);
    }

    /// Gives memory for requests in flight.
    pub fn set_inflight(&self, file: &File, len: u64, offset: u64, queues: u16, size: u16) {
        let area = [len, offset].map(u64::to_ne_bytes).concat();
        let rings = [queues, size].map(u16::to_ne_bytes).concat();
        let body = [&area[..], &rings, &[0; 4]].concat();
        self.send(SET_INFLIGHT_FD, 1, &body, None, &[file.as_fd()]);
    }
}

/// The length of the memory for requests in flight.
const INFLIGHT: u64 = 4096;

/// A file that a front end may send.
pub enum AnyFile<'a> {
    /// One that is there.
    Known(BorrowedFd<'a>),
    /// One that was made for this.
    Made(OwnedFd),
}

impl<'a> AnyFile<'a> {
    /// The one with this number.
    pub fn pick(
        number: u8,
        memory: &'a GuestMemory,
        inflight: &'a File,
        front: &'a FrontEnd,
    ) -> Self {
        let memfd = |len| {
            let file = File::from(memfd_create("any", MemfdFlags::CLOEXEC).expect("a memfd"));
            file.set_len(len).expect("room");
            file
        };
        let event =
            |count, flags| eventfd(count, flags | EventfdFlags::CLOEXEC).expect("an eventfd");
        let opened =
            |path: &str, flags| open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("a file");
        let made = match number % 16 {
            0..3 => return Self::Known(memory.file.as_fd()),
            3 => return Self::Known(inflight.as_fd()),
            4 => return Self::Known(front.kick.as_fd()),
            5 => event(0, EventfdFlags::empty()),
            6 => {
                let full = event(0, EventfdFlags::empty());
                let _ = rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes());
                full
            }
            7 => event(u32::MAX, EventfdFlags::SEMAPHORE),
            8 => memfd(4096).into(),
            9 => memfd(0).into(),
            10 => {
                let file = memfd(1 << 20);
                opened(&format!("/proc/self/fd/{}", file.as_raw_fd()), OFlags::RDONLY)
            }
            // Nobody is at the other end.
            11 => rustix::pipe::pipe().expect("a pipe").0,
            12 => rustix::pipe::pipe().expect("a pipe").1,
            13 => opened("/dev/zero", OFlags::RDWR),
            14 => opened("/", OFlags::RDONLY),
            _ => epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll"),
        };
        Self::Made(made)
    }

    /// Its descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Known(fd) => *fd,
            Self::Made(fd) => fd.as_fd(),
        }
    }
}
