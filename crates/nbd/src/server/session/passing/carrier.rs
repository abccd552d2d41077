//! Carrying the bytes of an encrypted connection between its client and the process that serves it.
//!
//! A client that takes nothing of its answers is dropped as it would be by a server: or else it would
//! keep this process, which has nothing else to do, for ever.

use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the client of a carried connection may stay after the server has ended it.
const PARTING: Duration = Duration::from_secs(30);
/// Deadlines for which a client may take nothing: as many as one that is in nobody's way.
const PATIENCE: u32 = 10;
/// Bytes that are carried at a time.
const PART: usize = 64 << 10;

/// Copies in both directions, until both have ended or one fails, for a while after the server has, or
/// until the client has taken nothing for ten times `stall`. What is encrypted and not sent yet goes
/// first.
pub(super) async fn carry(
    client: impl AsyncRead + AsyncWrite,
    mut server: UnixStream,
    stall: Duration,
) -> io::Result<()> {
    let (mut from_client, to_client) = tokio::io::split(client);
    let (from_server, mut to_server) = server.split();
    let requests = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let replies = answer(from_server, to_client, stall * PATIENCE);
    let (mut requests, mut replies) = (std::pin::pin!(requests), std::pin::pin!(replies));
    tokio::select! {
        ended = &mut requests => {
            ended?;
            replies.await
        }
        ended = &mut replies => {
            ended?;
            // Nobody takes requests any more: the client may see that its answers have ended.
            timeout(PARTING, requests).await.unwrap_or(Ok(()))
        }
    }
}

/// Copies what the server answers, as long as the client takes a part of it within `patience`: what an
/// encrypted connection has gathered, 64 KiB at most.
async fn answer(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    patience: Duration,
) -> io::Result<()> {
    in_time(patience, to.flush()).await?;
    let mut part = vec![0; PART];
    loop {
        let filled = from.read(&mut part).await?;
        if filled == 0 {
            return in_time(patience, to.shutdown()).await;
        }
        let mut rest = &part[..filled];
        while !rest.is_empty() {
            match in_time(patience, to.write(rest)).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => rest = &rest[sent..],
            }
        }
        in_time(patience, to.flush()).await?;
    }
}

async fn in_time<T>(
    patience: Duration,
    step: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the client takes no replies");
    timeout(patience, step).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    const STALL: Duration = Duration::from_secs(30);
    /// What a client's connection takes in without its client.
    const ROOM: usize = 4096;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_ends_what_carries_it() {
        let (_client, ours) = tokio::io::duplex(ROOM);
        let (theirs, mut server) = UnixStream::pair().unwrap();
        let began = Instant::now();
        let carried = carry(ours, theirs, STALL);
        let (ended, ()) = tokio::join!(carried, async {
            server.write_all(&[7; 2 * ROOM]).await.unwrap();
            drop(server); // nor does the end of the server help
        });
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), (STALL * PATIENCE).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_its_answers_slowly_stays_and_so_does_one_that_is_owed_none() {
        let (mut client, ours) = tokio::io::duplex(ROOM);
        let (theirs, mut server) = UnixStream::pair().unwrap();
        let work = async {
            tokio::time::sleep(STALL * PATIENCE * 3).await;
            client.write_all(b"a request").await.unwrap();
            let mut request = [0; 9];
            server.read_exact(&mut request).await.unwrap();
            server.write_all(&[7; 8 * ROOM]).await.unwrap();
            let mut taken = vec![0; ROOM];
            for _ in 0..8 {
                tokio::time::sleep(STALL * (PATIENCE - 1)).await;
                client.read_exact(&mut taken).await.unwrap();
            }
            assert_eq!(taken, [7; ROOM]);
            drop((client, server));
        };
        let (ended, ()) = tokio::join!(carry(ours, theirs, STALL), work);
        ended.unwrap();
    }
}
