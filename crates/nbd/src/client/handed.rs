//! A negotiated socket that is handed on: to the kernel's own NBD driver, which then sends the requests.

use super::link::{Dialed, dial, in_time};
use super::negotiate::{Features, choose_plain, encrypt_and_choose};
use super::{ClientOptions, Stream, Terms};
use crate::Uri;
use block::{Error, Result};
use std::io;
use std::os::fd::OwnedFd;
use tokio::net::UnixStream;

/// A socket on which an export was chosen, in simple replies and without contexts: all that the
/// kernel's driver knows. The next byte on it is the first request.
#[derive(Debug)]
pub struct HandedSocket {
    /// The socket. It does not block: who cares about that may change it.
    pub socket: OwnedFd,
    /// What was agreed.
    pub terms: Terms,
    /// What has to run beside the socket for as long as it is used, when the connection is encrypted.
    pub relay: Option<Relay>,
}

/// Carries bytes between a socket in clear, which is handed on, and an encrypted connection.
pub struct Relay {
    clear: UnixStream,
    encrypted: Box<dyn Stream>,
}

impl Relay {
    /// Runs until one side ends; the other side ends with it.
    pub async fn run(mut self) {
        let carried = tokio::io::copy_bidirectional(&mut self.clear, &mut self.encrypted).await;
        if let Err(error) = carried {
            tracing::debug!(%error, "an encrypted connection ended");
        }
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Relay")
    }
}

/// Connects to an export, and leaves all that follows the negotiation to whoever gets the socket.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached,
/// [`NotFound`](block::ErrorKind::NotFound) when it has no such export,
/// [`Denied`](block::ErrorKind::Denied) when it refuses it or one of the two does not trust the
/// other's certificate, [`Invalid`](block::ErrorKind::Invalid) when it is no NBD server.
pub async fn connect_socket(uri: &Uri, options: &ClientOptions) -> Result<HandedSocket> {
    let attempt = async {
        let dialed = dial(uri, options).await?;
        if uri.tls.is_some() {
            let (encrypted, terms) =
                encrypt_and_choose(dialed.boxed(), uri, options, Features::None).await?;
            let (clear, ours) = UnixStream::pair().map_err(no_socket)?;
            let relay = Some(Relay { clear: ours, encrypted });
            let socket = clear.into_std().map_err(no_socket)?.into();
            return Ok(HandedSocket { socket, terms, relay });
        }
        let (socket, terms) = match dialed {
            Dialed::Unix(mut stream) => {
                let terms = choose_plain(&mut stream, uri, options).await?;
                (OwnedFd::from(stream.into_std().map_err(no_socket)?), terms)
            }
            Dialed::Tcp(mut stream) => {
                let terms = choose_plain(&mut stream, uri, options).await?;
                (OwnedFd::from(stream.into_std().map_err(no_socket)?), terms)
            }
        };
        Ok(HandedSocket { socket, terms, relay: None })
    };
    in_time(uri, options, attempt).await
}

fn no_socket(error: io::Error) -> Error {
    Error::io("cannot hand a socket on", error)
}
