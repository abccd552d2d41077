//! One transfer, as a state machine without sockets or time.

use super::packet::{self, ReadRequest};
use bytes::Bytes;
use std::ops::Range;
use std::time::Duration;

/// The block size without the option.
const PLAIN: u64 = 512;
/// The smallest and largest block size that is granted; the largest is whole in a frame of Ethernet
/// with the headers of IPv4, UDP and TFTP.
const BLOCK_SIZES: (u64, u64) = (8, 1468);
/// The most blocks under way.
const MOST_WINDOW: u64 = 16;
/// How often something is sent again before the client is given up.
const TRIES: u32 = 5;

/// A file on its way.
#[derive(Debug)]
pub struct Transfer {
    file: Bytes,
    block_size: u64,
    window: u64,
    timeout: Duration,
    /// What was granted, until the client says that it knows.
    granted: Option<Vec<u8>>,
    /// Blocks that the client has.
    acked: u64,
    /// Times in a row that nothing came.
    tries: u32,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum TransferStep {
    /// Send these packets, and wait.
    Send(Vec<Vec<u8>>),
    /// Wait on.
    Wait,
    /// The client has the file.
    Done,
    /// The client is gone, or ended it.
    GivenUp,
}

impl Transfer {
    /// A file for who asked for it.
    pub fn new(file: Bytes, request: &ReadRequest<'_>) -> Self {
        let mut granted = Vec::new();
        let block_size = match request.block_size {
            Some(size) if size >= BLOCK_SIZES.0 => {
                granted.push(("blksize", size.min(BLOCK_SIZES.1)));
                size.min(BLOCK_SIZES.1)
            }
            _ => PLAIN,
        };
        let window = match request.window {
            Some(window) if window >= 1 => {
                granted.push(("windowsize", window.min(MOST_WINDOW)));
                window.min(MOST_WINDOW)
            }
            _ => 1,
        };
        let timeout = match request.timeout {
            Some(seconds) if (1..=10).contains(&seconds) => {
                granted.push(("timeout", seconds));
                Duration::from_secs(seconds)
            }
            _ => Duration::from_secs(1),
        };
        if request.wants_size {
            granted.push(("tsize", file.len() as u64));
        }
        let granted = (!granted.is_empty()).then(|| packet::options(&granted));
        Self { file, block_size, window, timeout, granted, acked: 0, tries: 0 }
    }

    /// How long to wait for the client now.
    pub fn patience(&self) -> Duration {
        self.timeout * (1 << self.tries.min(4))
    }

    /// The first packets.
    pub fn begin(&self) -> Vec<Vec<u8>> {
        match &self.granted {
            Some(options) => vec![options.clone()],
            None => self.under_way(),
        }
    }

    /// The client has everything up to a block.
    pub fn acknowledged(&mut self, block: u16) -> TransferStep {
        if self.granted.is_some() {
            if block != 0 {
                return TransferStep::Wait;
            }
            self.granted = None;
        } else {
            // The number has 16 bits: it is one of those under way, or an old one.
            let ahead = u64::from(block.wrapping_sub(self.acked as u16));
            let expected = self.sent().end - self.acked;
            if ahead == 0 || ahead > expected {
                return TransferStep::Wait; // sending again for every old one would double them for ever
            }
            self.acked += ahead;
        }
        self.tries = 0;
        match self.acked == self.blocks() {
            true => TransferStep::Done,
            false => TransferStep::Send(self.under_way()),
        }
    }

    /// Nothing came in time.
    pub fn timed_out(&mut self) -> TransferStep {
        self.tries += 1;
        match self.tries > TRIES {
            true => TransferStep::GivenUp,
            false => TransferStep::Send(self.begin()),
        }
    }

    /// Blocks of the file; the last one is short, and empty where the size is a multiple.
    fn blocks(&self) -> u64 {
        self.file.len() as u64 / self.block_size + 1
    }

    /// The blocks under way, from 0.
    fn sent(&self) -> Range<u64> {
        self.acked..(self.acked + self.window).min(self.blocks())
    }

    fn under_way(&self) -> Vec<Vec<u8>> {
        let length = self.file.len() as u64;
        let block = |index: u64| {
            let start = (index * self.block_size).min(length);
            let end = (start + self.block_size).min(length);
            packet::data((index + 1) as u16, &self.file[start as usize..end as usize])
        };
        self.sent().map(block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(block_size: Option<u64>, window: Option<u64>) -> ReadRequest<'static> {
        ReadRequest { name: "f", binary: true, block_size, window, ..ReadRequest::default() }
    }

    /// A client that loses packets and doubles acknowledgements.
    fn fetch(
        transfer: &mut Transfer,
        block_size: usize,
        window: u64,
        mut lost: impl FnMut() -> bool,
    ) -> Vec<u8> {
        let mut got = Vec::new();
        let mut next = 1u16;
        let mut since = 0;
        let mut queue = transfer.begin();
        loop {
            let mut acks = Vec::new();
            for packet in std::mem::take(&mut queue) {
                if lost() {
                    continue;
                }
                match packet[..2] {
                    [0, 6] => acks.push(0),
                    [0, 3] if packet[2..4] == next.to_be_bytes() => {
                        got.extend(&packet[4..]);
                        next = next.wrapping_add(1);
                        since += 1;
                        if since == window || packet.len() < block_size + 4 {
                            acks.push(next.wrapping_sub(1));
                            since = 0;
                        }
                    }
                    _ => {
                        acks.push(next.wrapping_sub(1));
                        since = 0;
                    }
                }
            }
            if acks.is_empty() {
                match transfer.timed_out() {
                    TransferStep::Send(packets) => queue = packets,
                    other => panic!("{other:?}"),
                }
            }
            for ack in acks.iter().flat_map(|ack| [*ack, *ack]) {
                match transfer.acknowledged(ack) {
                    TransferStep::Send(packets) => queue = packets,
                    TransferStep::Wait => {}
                    TransferStep::Done => return got,
                    TransferStep::GivenUp => panic!("given up"),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_file_arrives_whole_over_a_bad_network(
            length in 0..20_000usize, size in proptest::option::of(8..2000u64), window in proptest::option::of(1..40u64), seed: u32,
        ) {
            let file: Vec<u8> = (0..length).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut transfer = Transfer::new(Bytes::from(file.clone()), &request(size, window));
            let (mut state, mut run) = (seed, 0);
            let lost = || {
                state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                // No more than a few in a row, so that the client is not given up.
                run = if (state >> 16) % 8 == 0 && run < 2 { run + 1 } else { 0 };
                run > 0
            };
            let size = size.unwrap_or(512).min(1468) as usize;
            let got = fetch(&mut transfer, size, window.unwrap_or(1).min(16), lost);
            prop_assert_eq!(got, file);
        }
    }

    #[test]
    fn a_client_that_never_acknowledges_is_given_up() {
        let mut transfer = Transfer::new(vec![0; 100_000].into(), &request(None, None));
        let mut sent = transfer.begin().len();
        let mut waited = transfer.patience();
        while let TransferStep::Send(packets) = transfer.timed_out() {
            sent += packets.len();
            waited += transfer.patience();
        }
        assert_eq!(sent, 6);
        assert!(waited < Duration::from_secs(60), "{waited:?}");
    }

    #[test]
    fn block_numbers_go_round() {
        let file = vec![1; 8 * 70_000];
        let mut transfer = Transfer::new(file.clone().into(), &request(Some(8), Some(16)));
        assert_eq!(fetch(&mut transfer, 8, 16, || false), file);
    }

    #[test]
    fn old_acknowledgements_send_nothing() {
        let mut transfer = Transfer::new(vec![0; 5000].into(), &request(None, None));
        assert!(matches!(transfer.acknowledged(1), TransferStep::Send(_)));
        assert_eq!(transfer.acknowledged(1), TransferStep::Wait);
        assert_eq!(transfer.acknowledged(9), TransferStep::Wait);
    }
}
