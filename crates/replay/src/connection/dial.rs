//! Connections are opened.

use crate::state::ReplayState;
use block::{Error, Result};
use nbd::{Address, Stream, Terms};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Pauses between attempts to connect to a server whose queue is full.
const PAUSE: Duration = Duration::from_millis(5);

/// Connects to `export` of the plan's server.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached in the time
/// that the plan gives, and its refusals.
pub(crate) async fn open(shared: &ReplayState, export: &str) -> Result<(Box<dyn Stream>, Terms)> {
    let uri = shared.plan.target.with_export(export);
    let attempt = async {
        let stream = loop {
            match dial(&uri.address).await {
                Ok(stream) => break stream,
                // A server that takes connections more slowly than they come.
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(e) => {
                    return Err(Error::unavailable(format!(
                        "cannot connect: {e}: check that the server runs"
                    ))
                    .with_source(e));
                }
            }
        };
        nbd::negotiate(stream, &uri, &shared.plan.options).await
    };
    match tokio::time::timeout(shared.plan.options.connect, attempt).await {
        Ok(result) => result.map_err(|e| e.context(&uri)),
        Err(_) => Err(Error::unavailable(format!(
            "{uri}: no answer in {:?}: check that the server runs and takes so many connections",
            shared.plan.options.connect
        ))),
    }
}

async fn dial(address: &Address) -> std::io::Result<Box<dyn Stream>> {
    Ok(match address {
        Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}
