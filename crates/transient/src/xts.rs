//! AES-256-XTS on 4 KiB sectors (IEEE Std 1619-2018, clause 5), many blocks at a time.
//!
//! The same bytes as device-mapper's `aes-xts-plain64` with `sector_size:4096 iv_large_sectors`.
//! Data units are whole blocks here, so there is no ciphertext stealing.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};

/// Bytes of a data unit: each has its own tweak.
pub(crate) const SECTOR: usize = block::BLOCK as usize;

/// Bytes of a key: one half for the data, the other for the tweaks.
pub(crate) const KEY: usize = 64;

/// AES blocks of a sector.
const BLOCKS: usize = SECTOR / 16;

/// Tweaks that are computed side by side.
const LANES: usize = 8;

/// The expanded keys. They are wiped when dropped.
pub(crate) struct Xts {
    data: Aes256,
    tweak: Aes256,
}

impl Xts {
    /// Expands a key whose halves differ (the standard's own condition, checked by who makes it).
    pub(crate) fn new(key: &[u8; KEY]) -> Self {
        let (data, tweak) = key.split_at(KEY / 2);
        let half = |bytes: &[u8]| {
            let mut half = Array::default();
            half.copy_from_slice(bytes);
            let cipher = Aes256::new(&half);
            zeroize::Zeroize::zeroize(half.as_mut_slice());
            cipher
        };
        Self { data: half(data), tweak: half(tweak) }
    }

    /// Encrypts sector number `sector` in place. `unit` is a sector, or the start of one, in whole
    /// AES blocks.
    pub(crate) fn encrypt(&self, sector: u64, unit: &mut [u8]) {
        let tweaks = self.tweaks(sector);
        whiten(unit, &tweaks);
        self.data.encrypt_blocks(Array::slice_as_chunks_mut(unit).0);
        whiten(unit, &tweaks);
    }

    /// Decrypts what [`encrypt`](Self::encrypt) made.
    pub(crate) fn decrypt(&self, sector: u64, unit: &mut [u8]) {
        let tweaks = self.tweaks(sector);
        whiten(unit, &tweaks);
        self.data.decrypt_blocks(Array::slice_as_chunks_mut(unit).0);
        whiten(unit, &tweaks);
    }

    /// The tweaks of a sector's blocks: the encrypted number times x^0, x^1, x^2, ...
    fn tweaks(&self, sector: u64) -> [u128; BLOCKS] {
        let mut first: Block = u128::from(sector).to_le_bytes().into();
        self.tweak.encrypt_block(&mut first);
        let mut tweaks = [0; BLOCKS];
        tweaks[0] = u128::from_le_bytes(first.into());
        for i in 1..LANES {
            tweaks[i] = times_x(tweaks[i - 1]);
        }
        for i in LANES..BLOCKS {
            tweaks[i] = times_x8(tweaks[i - LANES]);
        }
        tweaks
    }
}

/// Multiplies by x in GF(2^128) modulo x^128 + x^7 + x^2 + x + 1.
const fn times_x(value: u128) -> u128 {
    (value << 1) ^ ((value >> 127) * 0x87)
}

/// Multiplies by x^8: the byte that is shifted out comes back times 0x87.
const fn times_x8(value: u128) -> u128 {
    let out = value >> 120;
    (value << 8) ^ out ^ (out << 1) ^ (out << 2) ^ (out << 7)
}

fn whiten(unit: &mut [u8], tweaks: &[u128; BLOCKS]) {
    debug_assert!(unit.len() <= SECTOR && unit.len().is_multiple_of(16));
    for (block, tweak) in unit.as_chunks_mut::<16>().0.iter_mut().zip(tweaks) {
        *block = (u128::from_le_bytes(*block) ^ tweak).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }

    fn standard_key() -> [u8; KEY] {
        let key = "2718281828459045235360287471352662497757247093699959574966967627\
                   3141592653589793238462643383279502884197169399375105820974944592";
        hex(key).try_into().unwrap()
    }

    /// Vectors 10 to 14 of the standard: the number of the data unit, the first and the last block
    /// of the ciphertext. All encrypt the bytes 00 to ff, twice.
    const VECTORS: [(u64, &str, &str); 5] = [
        (0xff, "1c3b3a102f770386e4836c99e370cf9b", "c4f36ffda9fcea70b9c6e693e148c151"),
        (0xffff, "77a31251618a15e6b92d1d66dffe7b50", "a4f9e27b42af8100cb9d59cef9645803"),
        (0xff_ffff, "e387aaa58ba483afa7e8eb469778317e", "2263a1eef52dd6888c309f5a7d712826"),
        (0xffff_ffff, "bf53d2dade78e822a4d949a9bc6766b0", "4c82f335abb152c4a93411373aaa8220"),
        (0xff_ffff_ffff, "64497e5a831e4a932c09be3e5393376d", "d609d273ad5b0d59631c531f6a0a57b9"),
    ];

    #[test]
    fn the_vectors_of_the_standard_come_out() {
        let xts = Xts::new(&standard_key());
        for (sector, first, last) in VECTORS {
            let plain: Vec<u8> = (0..512u32).map(|i| i as u8).collect();
            let mut unit = plain.clone();
            xts.encrypt(sector, &mut unit);
            assert_eq!(unit[..16], hex(first), "sector {sector:#x}");
            assert_eq!(unit[496..], hex(last), "sector {sector:#x}");
            xts.decrypt(sector, &mut unit);
            assert_eq!(unit, plain);
        }
    }

    /// What OpenSSL's library makes of `plain`; `None` where it cannot be called.
    fn openssl(key: &[u8; KEY], sector: u64, plain: &[u8]) -> Option<Vec<u8>> {
        const SCRIPT: &str = "
import ctypes, sys
lib = ctypes.CDLL('libcrypto.so.3')
lib.EVP_CIPHER_CTX_new.restype = lib.EVP_aes_256_xts.restype = ctypes.c_void_p
given = sys.stdin.buffer.read()
key, number, plain = given[:64], given[64:80], given[80:]
context, made = ctypes.c_void_p(lib.EVP_CIPHER_CTX_new()), ctypes.c_int(0)
out = ctypes.create_string_buffer(len(plain))
assert lib.EVP_EncryptInit_ex(context, ctypes.c_void_p(lib.EVP_aes_256_xts()), None, key, number)
assert lib.EVP_EncryptUpdate(context, out, ctypes.byref(made), plain, len(plain))
sys.stdout.buffer.write(out.raw)";
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let number = u128::from(sector).to_le_bytes();
        child.stdin.take()?.write_all(&[&key[..], &number, plain].concat()).ok()?;
        let output = child.wait_with_output().ok()?;
        output.status.success().then_some(output.stdout)
    }

    #[test]
    fn openssl_makes_the_same_of_whole_sectors() {
        for sector in [0, 1, 255, 1 << 31, u64::MAX] {
            let key: [u8; KEY] = std::array::from_fn(|i| (i as u8).wrapping_mul(37) ^ sector as u8);
            let plain: Vec<u8> = (0..SECTOR).map(|i| (i * 7 + i / 251) as u8).collect();
            let Some(expected) = openssl(&key, sector, &plain) else {
                eprintln!("skipped: python3 with libcrypto.so.3 is needed to compare with OpenSSL");
                return;
            };
            let mut unit = plain.clone();
            Xts::new(&key).encrypt(sector, &mut unit);
            assert!(unit == expected, "sector {sector}");
        }
    }

    /// One block after the other, as the standard writes it.
    fn by_the_book(key: &[u8; KEY], sector: u64, unit: &mut [u8]) {
        let xts = Xts::new(key);
        let mut tweak: Block = u128::from(sector).to_le_bytes().into();
        xts.tweak.encrypt_block(&mut tweak);
        for block in unit.as_chunks_mut::<16>().0 {
            let mut work: Block = std::array::from_fn(|i| block[i] ^ tweak[i]).into();
            xts.data.encrypt_block(&mut work);
            *block = std::array::from_fn(|i| work[i] ^ tweak[i]);
            let mut carry = 0;
            for byte in tweak.iter_mut() {
                (*byte, carry) = ((*byte << 1) | carry, *byte >> 7);
            }
            tweak[0] ^= carry * 0x87;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn many_blocks_at_a_time_are_the_same_as_one_after_the_other(
            key in proptest::collection::vec(any::<u8>(), KEY), sector: u64, blocks in 1usize..=BLOCKS, seed: u8,
        ) {
            let key: [u8; KEY] = key.try_into().unwrap();
            let plain: Vec<u8> = (0..blocks * 16).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
            let (mut fast, mut slow) = (plain.clone(), plain.clone());
            let xts = Xts::new(&key);
            xts.encrypt(sector, &mut fast);
            by_the_book(&key, sector, &mut slow);
            prop_assert_eq!(&fast, &slow);
            xts.decrypt(sector, &mut fast);
            prop_assert_eq!(fast, plain);
        }
    }
}
