//! An empty router advertisement (RFC 4861, 4.2), which ends iPXE's wait for an IPv6 router.
//!
//! iPXE asks for routers while it asks by DHCP, and goes on when both have an answer: where no router is, after
//! 15 seconds. An advertisement that offers no prefix, no DHCPv6 and no way out is an answer, too. It goes to
//! the card of one machine, which has just said by DHCP that it is in iPXE, and to an address that is made of that
//! card's: nobody else hears of it, and a system whose address is made in another way drops it.

use crate::{Frames, MacAddress};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

/// How long a real router has. It answers within half a second (RFC 4861, 10: MAX_RA_DELAY_TIME), and iPXE takes
/// the first answer.
const PAUSE: Duration = Duration::from_millis(600);
/// Machines that wait for theirs at the most; a further one waits for its own time-out.
const MOST: usize = 1024;
const ETHERNET: usize = 14;
const IPV6: usize = 40;
const ADVERTISEMENT: usize = 16;
/// IPv6's number of ICMPv6.
const ICMPV6: u8 = 58;
/// ICMPv6's number of a router advertisement.
const ROUTER_ADVERTISEMENT: u8 = 134;
/// What came through a router has a lower one, and is dropped.
const HOP_LIMIT: u8 = 255;

/// The length of a frame, in bytes.
pub const LENGTH: usize = ETHERNET + IPV6 + ADVERTISEMENT;

/// The frame in which the card `from` tells the card `to` that it has nothing to offer.
pub fn frame(from: MacAddress, to: MacAddress) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    let (header, message) = frame[ETHERNET..].split_at_mut(IPV6);
    header[0] = 6 << 4;
    header[5] = ADVERTISEMENT as u8;
    header[6] = ICMPV6;
    header[7] = HOP_LIMIT;
    header[8..24].copy_from_slice(&link_local(from));
    header[24..40].copy_from_slice(&link_local(to));
    // Hop limit, flags, lifetime and both timers are zero: nothing is said about any of them.
    message[0] = ROUTER_ADVERTISEMENT;
    let sum = checksum(&header[8..40], message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The address that a card has by itself (RFC 4291, appendix A).
fn link_local(card: MacAddress) -> [u8; 16] {
    let [a, b, c, d, e, f] = card.0;
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// The checksum of a message between two addresses (RFC 4443, 2.3), if its own field is zero.
fn checksum(addresses: &[u8], message: &[u8]) -> u16 {
    let pairs = addresses.chunks_exact(2).chain(message.chunks_exact(2));
    let words = pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = words.sum::<u32>() + message.len() as u32 + u32::from(ICMPV6);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Advertises to machines that were seen in iPXE.
pub struct RouterAdvertiser {
    own: MacAddress,
    due: mpsc::Sender<(Instant, MacAddress)>,
    waiting: Mutex<mpsc::Receiver<(Instant, MacAddress)>>,
}

impl RouterAdvertiser {
    /// One that sends from the card `own`.
    pub fn new(own: MacAddress) -> Self {
        let (due, waiting) = mpsc::channel(MOST);
        Self { own, due, waiting: Mutex::new(waiting) }
    }

    /// A machine is in iPXE.
    pub(crate) fn saw(&self, machine: MacAddress) {
        let _ = self.due.try_send((Instant::now() + PAUSE, machine));
    }

    /// Sends what is due until the future is dropped.
    pub async fn serve(&self, frames: &dyn Frames) {
        let mut waiting = self.waiting.lock().await;
        while let Some((due, machine)) = waiting.recv().await {
            sleep_until(due).await;
            if let Err(error) = frames.send(&frame(self.own, machine)) {
                tracing::debug!(%error, mac = %machine, "cannot advertise that there is no IPv6 router");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io;

    const HERE: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x11]);
    const MACHINE: MacAddress = MacAddress([0x52, 0x54, 0, 0x77, 0, 1]);

    #[test]
    fn a_frame_is_as_the_rfcs_have_it() {
        let frame = frame(HERE, MACHINE);
        assert_eq!(frame[..14], [0x52, 0x54, 0, 0x77, 0, 1, 2, 0, 0, 0, 0, 0x11, 0x86, 0xdd]);
        assert_eq!(frame[14..22], [0x60, 0, 0, 0, 0, 16, 58, 255]);
        assert_eq!(frame[22..38], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0x11]);
        let to = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 1];
        assert_eq!(frame[38..54], to);
        // The checksum was worked out apart from this code.
        assert_eq!(frame[54..70], [134, 0, 0x2d, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn a_receiver_finds_the_checksum_right_and_the_frame_for_one_machine(from: [u8; 6], mut to: [u8; 6]) {
            to[0] &= !1;
            let frame = frame(MacAddress(from), MacAddress(to));
            let sum = checksum(&frame[22..54], &frame[54..]);
            prop_assert_eq!(sum, 0);
            prop_assert_eq!(frame[0] & 1, 0);
            prop_assert_ne!(frame[38], 0xff);
        }
    }

    /// Frames that were sent, and when.
    #[derive(Default)]
    struct Sent(parking_lot::Mutex<Vec<(Instant, Vec<u8>)>>);

    impl Frames for Sent {
        fn send(&self, frame: &[u8]) -> io::Result<()> {
            self.0.lock().push((Instant::now(), frame.to_vec()));
            Err(io::ErrorKind::NetworkDown.into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_real_router_has_its_time_and_a_flood_is_bounded() {
        let (sent, advertiser) = (Sent::default(), RouterAdvertiser::new(HERE));
        let began = Instant::now();
        for _ in 0..100_000 {
            advertiser.saw(MACHINE);
        }
        let served = tokio::time::timeout(PAUSE * 10, advertiser.serve(&sent)).await;
        assert!(served.is_err(), "it goes on");
        let sent = sent.0.lock();
        assert_eq!(sent.len(), MOST);
        assert!(sent.iter().all(|(when, frame)| *when == began + PAUSE && frame[..6] == MACHINE.0));
    }
}
