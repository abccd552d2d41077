//! AES-256-XTS on 4 KiB sectors.
