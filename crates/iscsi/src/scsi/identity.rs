//! Who the unit is: INQUIRY data and the vital product data pages (SPC-4, 6.6 and 7.8; SBC-3, 6.5).

use super::Sense;
use sha2::{Digest, Sha256};

/// The most blocks of COMPARE AND WRITE.
pub const COMPARED: u8 = 128;
/// The longest transfer, in bytes.
pub const TRANSFER: u32 = 8 << 20;
/// The most bytes of one WRITE SAME.
pub const SAME: u64 = TRANSFER as u64;
/// The most ranges of one UNMAP.
pub const RANGES: u32 = 256;

/// What tells one unit from all others.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Sixteen hexadecimal digits.
    serial: String,
    /// A locally assigned NAA designator.
    naa: [u8; 8],
    /// The name of its target.
    target: String,
}

impl Identity {
    /// That of what is called `identity` for all time, at the target of this name.
    pub fn new(identity: &str, target: &str) -> Self {
        let hash = Sha256::digest(identity.as_bytes());
        let mut naa = [0; 8];
        naa.copy_from_slice(&hash[..8]);
        naa[0] = 0x30 | naa[0] & 0x0f;
        let serial = hash[8..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { serial, naa, target: target.to_owned() }
    }

    /// The standard INQUIRY data.
    pub fn standard() -> Vec<u8> {
        let mut data = vec![0; 96];
        data[2] = 0x06; // SPC-4
        data[3] = 0x12; // response data format 2, hierarchical addressing
        data[4] = 96 - 5;
        data[7] = 0x02; // commands are queued
        data[8..16].copy_from_slice(b"SOJOURN ");
        data[16..32].copy_from_slice(b"Disk            ");
        data[32..36].copy_from_slice(b"0001");
        // SAM-5, SPC-4, SBC-3, iSCSI
        data[58..66].copy_from_slice(&[0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
        data
    }

    /// A page of vital product data of a unit with blocks of so many bytes, which likes requests of
    /// `preferred` bytes.
    ///
    /// # Errors
    /// Sense data for a page that there is not.
    pub fn page(&self, page: u8, block: u32, preferred: u32) -> Result<Vec<u8>, Sense> {
        let mut data = vec![0, page, 0, 0];
        match page {
            0x00 => data.extend_from_slice(&[0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2]),
            0x80 => data.extend_from_slice(self.serial.as_bytes()),
            0x83 => self.designators(&mut data),
            0xb0 => data.extend_from_slice(&limits(block, preferred)[4..]),
            0xb1 => {
                data.resize(64, 0);
                data[5] = 1; // not a rotating medium
            }
            0xb2 => {
                // UNMAP and both WRITE SAME unmap, what is unmapped reads as zeroes; thin.
                data.extend_from_slice(&[0, 0xe4, 0x02, 0]);
            }
            _ => return Err(Sense::field(2)),
        }
        let length = u16::try_from(data.len() - 4).unwrap_or(0);
        data[2..4].copy_from_slice(&length.to_be_bytes());
        Ok(data)
    }

    /// Page 83: NAA, T10 vendor identification, and the name of the target.
    fn designators(&self, data: &mut Vec<u8>) {
        data.extend_from_slice(&[0x01, 0x03, 0, 8]);
        data.extend_from_slice(&self.naa);
        data.extend_from_slice(&[0x02, 0x01, 0, 8 + 16]);
        data.extend_from_slice(b"SOJOURN ");
        data.extend_from_slice(self.serial.as_bytes());
        // A SCSI name string of the target device, ended and padded with zeroes.
        let length = (self.target.len() + 1).next_multiple_of(4);
        data.extend_from_slice(&[0x53, 0xa8, 0, u8::try_from(length).unwrap_or(0)]);
        let end = data.len() + length;
        data.extend_from_slice(self.target.as_bytes());
        data.resize(end, 0);
    }
}

/// Page B0, the limits of commands.
fn limits(block: u32, preferred: u32) -> [u8; 64] {
    let mut page = [0; 64];
    page[4] = 0x01; // WRITE SAME of no blocks is refused
    page[5] = COMPARED;
    let grain = (preferred / block).max(1);
    page[6..8].copy_from_slice(&u16::try_from(grain).unwrap_or(u16::MAX).to_be_bytes());
    let mut put = |at: usize, value: u32| page[at..at + 4].copy_from_slice(&value.to_be_bytes());
    put(8, TRANSFER / block);
    put(12, (1 << 20) / block);
    put(20, u32::MAX); // blocks of one UNMAP
    put(24, RANGES);
    put(28, grain);
    put(32, 0x8000_0000); // aligned at block 0
    page[36..44].copy_from_slice(&(SAME / u64::from(block)).to_be_bytes());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_the_same_on_every_server_and_no_other() {
        let page =
            |identity: &str| Identity::new(identity, "iqn.x:y").page(0x83, 512, 4096).unwrap();
        assert_eq!(page("a"), page("a"));
        assert_ne!(page("a"), page("b"));
        assert_eq!(page("a")[8] >> 4, 3, "a locally assigned name");
        let serial = Identity::new("a", "iqn.x:y").page(0x80, 512, 4096).unwrap();
        assert!(serial[4..].iter().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn every_page_that_is_listed_is_there_and_says_how_long_it_is() {
        let identity = Identity::new("a", &"x".repeat(223));
        let list = identity.page(0, 512, 4096).unwrap();
        for page in &list[4..] {
            let data = identity.page(*page, 512, 4096).unwrap();
            assert_eq!(data[1], *page);
            assert_eq!(usize::from(data[2]) << 8 | usize::from(data[3]), data.len() - 4);
        }
        assert_eq!(identity.page(0x86, 512, 4096), Err(Sense::field(2)));
        assert_eq!(identity.page(0xb0, 512, 4096).unwrap().len(), 64);
    }
}
