//! A single request to a store's service: made once, and ended by nobody but who waits for it.

use object_store::{ClientOptions, RetryConfig};
use std::time::Duration;

/// One attempt: [`Patience`](crate::Patience) has it done again, nobody else.
pub(super) fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..Default::default() }
}

/// Time limits of single requests: [`Patience`](crate::Patience) has them, which knows how much is written.
pub(super) fn client_options() -> ClientOptions {
    ClientOptions::new().with_timeout_disabled().with_connect_timeout(Duration::from_secs(5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ClientConfigKey;

    #[test]
    fn no_request_ends_before_the_patience_with_it() {
        assert_eq!(client_options().get_config_value(&ClientConfigKey::Timeout), None);
    }
}
