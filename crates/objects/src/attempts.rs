//! How long a single request to a store's service may take, and that it is one.

use object_store::{ClientOptions, RetryConfig};
use std::time::Duration;

/// One attempt: [`Patience`](crate::Patience) has it done again, nobody else.
pub(super) fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..Default::default() }
}

/// Time limits of single requests; [`Patience`](crate::Patience) has an operation's.
pub(super) fn client_options() -> ClientOptions {
    ClientOptions::new()
        .with_timeout(Duration::from_secs(180))
        .with_connect_timeout(Duration::from_secs(5))
}
