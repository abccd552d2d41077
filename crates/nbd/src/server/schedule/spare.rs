//! Buffers for requests that wait, kept for reuse: by each connection, and by all of a server up to a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of buffers that a connection keeps for reuse, and that all of a server keep together.
const SPARE: usize = 1 << 20;
const SPARE_OF_ALL: usize = 16 << 20;

/// Bytes of buffers that all connections of a server keep for reuse.
#[derive(Debug, Default)]
pub(in crate::server) struct SpareOfAll(AtomicUsize);

impl SpareOfAll {
    fn keep(&self, bytes: usize) -> bool {
        let more = |kept: usize| kept.checked_add(bytes).filter(|kept| *kept <= SPARE_OF_ALL);
        self.0.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn let_go(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Relaxed);
    }
}

/// Buffers for requests that wait, kept so that a steady load allocates and clears none.
#[derive(Debug, Default)]
pub(in crate::server) struct SpareBuffers {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    of_all: Arc<SpareOfAll>,
}

impl Drop for SpareBuffers {
    fn drop(&mut self) {
        self.of_all.let_go(self.bytes);
    }
}

impl SpareBuffers {
    /// The buffers of one connection of a server.
    pub(in crate::server) fn of(of_all: &Arc<SpareOfAll>) -> Self {
        Self { buffers: Vec::new(), bytes: 0, of_all: Arc::clone(of_all) }
    }

    /// A buffer of `len` bytes of any content that the connection saw before.
    pub(in crate::server) fn take(&mut self, len: usize) -> Vec<u8> {
        let Some(mut buffer) = self.buffers.pop() else { return vec![0; len] };
        self.bytes -= buffer.capacity();
        self.of_all.let_go(buffer.capacity());
        if buffer.capacity() < len {
            return vec![0; len];
        }
        buffer.resize(len, 0);
        buffer
    }

    pub(in crate::server) fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > 0
            && self.bytes + buffer.capacity() <= SPARE
            && self.of_all.keep(buffer.capacity())
        {
            self.bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }

    /// Gives all buffers back.
    pub(in crate::server) fn shrink(&mut self) {
        self.of_all.let_go(std::mem::take(&mut self.bytes));
        self.buffers = Vec::new();
    }

    pub(in crate::server) fn is_grown(&self) -> bool {
        self.bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connections_keep_for_reuse_is_bounded_for_all_of_them_together() {
        let of_all = Arc::new(SpareOfAll::default());
        let mut all: Vec<_> = (0..100).map(|_| SpareBuffers::of(&of_all)).collect();
        let kept = |all: &[SpareBuffers]| all.iter().map(|spare| spare.bytes).sum::<usize>();
        for spare in &mut all {
            (0..20).for_each(|_| spare.give(Vec::with_capacity(128 << 10)));
            assert!(spare.bytes <= SPARE);
        }
        assert_eq!(kept(&all), SPARE_OF_ALL);
        assert_eq!(all[0].take(100 << 10).len(), 100 << 10);
        all[1].shrink();
        all.remove(2);
        assert_eq!(kept(&all), of_all.0.load(Relaxed));
        all[90].give(Vec::with_capacity(512 << 10));
        assert_eq!(all[90].bytes, 512 << 10);
        drop(all);
        assert_eq!(of_all.0.load(Relaxed), 0);
    }
}
