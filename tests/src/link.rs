//! A link that can be cut, and may be thin: connections to a server go through it, and the bytes in both
//! directions are counted.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A link to one server, at a port of its own.
pub struct Link {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: SocketAddr,
    cut: AtomicBool,
    up: AtomicU64,
    down: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
    thin: Option<ThinLink>,
    shared: Option<SharedLink>,
}

/// What a link has that all clients share.
struct SharedLink {
    /// Bytes in a second to all of them.
    rate: u32,
    /// Held by whoever's bytes are on the way.
    way: Mutex<()>,
}

/// What a thin link has.
struct ThinLink {
    /// Bytes in a second to each client.
    rate: u32,
    /// What clients said, in the order in which it came.
    said: Mutex<Vec<u8>>,
}

impl Link {
    /// A link to `server`.
    pub fn to(server: SocketAddr) -> Self {
        Self::made(server, None, None)
    }

    /// A link to `server` that carries `rate` bytes in a second to each client, and keeps what clients say.
    pub fn thin(server: SocketAddr, rate: u32) -> Self {
        Self::made(server, Some(ThinLink { rate, said: Mutex::default() }), None)
    }

    /// A link to `server` that carries `rate` bytes in a second to all clients together.
    pub fn shared(server: SocketAddr, rate: u32) -> Self {
        Self::made(server, None, Some(SharedLink { rate, way: Mutex::default() }))
    }

    fn made(server: SocketAddr, thin: Option<ThinLink>, shared: Option<SharedLink>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(State {
            server,
            cut: AtomicBool::new(false),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            open: Mutex::default(),
            thin,
            shared,
        });
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                served.carry(client);
            }
        });
        Self { address, state }
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections, and carries none until it is mended.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
        for stream in self.state.open.lock().expect("connections").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Carries connections again.
    pub fn mend(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
    }

    /// Bytes that went to the server since the start.
    pub fn up(&self) -> u64 {
        self.state.up.load(Ordering::SeqCst)
    }

    /// What clients of a thin link said since the start, in the order in which it came: the words of several
    /// connections follow each other.
    pub fn said(&self) -> String {
        let said = self.state.thin.as_ref().map(|thin| thin.said.lock().expect("words").clone());
        String::from_utf8_lossy(&said.unwrap_or_default()).into_owned()
    }

    /// Bytes that came from the server since the start.
    pub fn down(&self) -> u64 {
        self.state.down.load(Ordering::SeqCst)
    }
}

impl State {
    fn carry(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let copy = |stream: &TcpStream| stream.try_clone().expect("a socket");
        let (up, down) = ((copy(&client), copy(&server)), (copy(&server), copy(&client)));
        {
            let mut open = self.open.lock().expect("connections");
            // Under the lock: no connection is carried that a cut does not see.
            if self.cut.load(Ordering::SeqCst) {
                return; // dropped
            }
            open.extend([client, server]);
        }
        for (streams, upward) in [(up, true), (down, false)] {
            let this = Arc::clone(self);
            std::thread::spawn(move || {
                let counter = if upward { &this.up } else { &this.down };
                pass(streams, counter, |bytes| this.slow_down(bytes, upward));
            });
        }
    }
}

impl State {
    /// What a thin link does with bytes before it carries them.
    fn slow_down(&self, bytes: &[u8], upward: bool) {
        match &self.thin {
            Some(thin) if upward => thin.said.lock().expect("words").extend_from_slice(bytes),
            Some(thin) => std::thread::sleep(Duration::from_secs(bytes.len() as u64) / thin.rate),
            None => {}
        }
        if let Some(shared) = self.shared.as_ref().filter(|_| !upward) {
            let _way = shared.way.lock().expect("the way");
            std::thread::sleep(Duration::from_secs(bytes.len() as u64) / shared.rate);
        }
    }
}

fn pass((mut from, mut to): (TcpStream, TcpStream), counter: &AtomicU64, before: impl Fn(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        before(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
        counter.fetch_add(length as u64, Ordering::SeqCst);
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
