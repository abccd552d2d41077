//! Which addresses may be listened on: without encryption, only those of this machine.

use block::{Error, Result};
use nbd::Address;
use std::net::SocketAddr;

/// Fails for an address that other machines reach, unless the user insists.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) naming the address and the remedy.
pub(crate) async fn check(address: &Address, insecure: bool) -> Result<()> {
    let Address::Tcp(host, port) = address else { return Ok(()) };
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), *port))
        .await
        .map_err(|e| {
            Error::not_found(format!(
                "cannot listen at {address}: {e}; use an address of this machine"
            ))
        })?
        .collect();
    let local = !found.is_empty() && found.iter().all(|address| address.ip().is_loopback());
    allow(&address.to_string(), local, insecure)
}

/// The same for an HTTP address.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_http(address: SocketAddr, insecure: bool) -> Result<()> {
    allow(&address.to_string(), address.ip().is_loopback(), insecure)
}

fn allow(address: &str, local: bool, insecure: bool) -> Result<()> {
    if local {
        return Ok(());
    }
    if insecure {
        tracing::warn!(
            address,
            "INSECURE: everyone who reaches this address can read and write every disk"
        );
        return Ok(());
    }
    Err(Error::denied(format!(
        "{address} can be reached from other machines, without encryption or authentication; \
         listen on 127.0.0.1 or a unix socket, or insist with --insecure"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[tokio::test]
    async fn only_this_machine_is_served_by_default() {
        for local in ["unix:/tmp/x", "127.0.0.1:1", "[::1]:1", "127.9.9.9:1", "localhost:1"] {
            check(&local.parse().unwrap(), false).await.unwrap();
        }
        for wide in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let error = check(&wide.parse().unwrap(), false).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.message().contains("--insecure"), "{error}");
            check(&wide.parse().unwrap(), true).await.unwrap();
        }
    }
}
