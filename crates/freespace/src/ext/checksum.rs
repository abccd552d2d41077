//! The checksums of ext4: CRC-32C without the final inversion, and CRC-16 (ANSI).

/// CRC-32C of `bytes`, continued from `seed`, as the kernel's `crc32c()` gives it.
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = n as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xA001 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

/// CRC-16 of `bytes`, continued from `seed`.
pub(super) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| (crc >> 8) ^ CRC16[usize::from((crc as u8) ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_give_the_published_check_values() {
        // "123456789" in the catalogue of parametrised CRC algorithms: CRC-32/ISCSI, CRC-16/ARC.
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    }
}
