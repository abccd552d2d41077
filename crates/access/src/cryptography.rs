//! The cryptography of TLS: keys and signatures by aws-lc, records by whichever of two libraries
//! encrypts faster on this processor.

use rustls::CipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// What every connection is made with, of servers and of clients.
///
/// AES-128-GCM comes first: nobody breaks it either, it takes less of the CPU than AES-256-GCM, and
/// most of what TLS costs a server of disks is the cipher. Peers that do not offer it get what they
/// offer.
///
/// aws-lc has AES-GCM for AVX-512 and for plain AES instructions, but none for the processors
/// between them, with 256-bit vectors of AES (AMD's Zen 3, Intel's Alder Lake); there ring's is
/// twice as fast.
pub fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && !is_x86_feature_detected!("avx512f")
    {
        provider.cipher_suites = rustls::crypto::ring::default_provider().cipher_suites;
    }
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}
