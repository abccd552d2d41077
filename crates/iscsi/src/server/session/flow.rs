//! What a session waits for, and what it does next.

use super::{FullFeatureSession, Phase, SessionEnd, SessionEvent, UNSENT};
use crate::codec::response::{self, Output};
use crate::server::busy_poll::BusyPolling;
use crate::server::input::PduBuffer;
use crate::server::registry::SessionOrder;
use block::{Error, Result};
use futures::stream::StreamExt;
use futures::{FutureExt, future};
use nbd::server::ConnectedSocket;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long an initiator is asked to take until it logs out, in seconds.
const LEAVE_SECONDS: u16 = 3;
/// The longest that a session waits until its client's limits are asked again: they may have changed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl FullFeatureSession<'_> {
    /// Serves the initiator until the session ends. Commands may be under way still.
    ///
    /// # Errors
    /// When the connection or the protocol is broken.
    pub(in crate::server) async fn run(
        &mut self,
        stream: &mut ConnectedSocket,
        input: &mut PduBuffer,
        mut stop: watch::Receiver<SessionOrder>,
        orders: Option<watch::Receiver<SessionOrder>>,
    ) -> Result<SessionEnd> {
        let broken = |e| Error::io("the connection", e);
        let nexus = match &self.phase {
            Phase::Normal { nexus, .. } => Some(Arc::clone(nexus)),
            Phase::Discovery => None,
        };
        let reset = || async {
            match &nexus {
                Some(nexus) => nexus.resets.notified().await,
                None => future::pending().await,
            }
        };
        // These are made once and not for every command.
        let mut orders = orders.unwrap_or_else(|| stop.clone());
        let mut ended = pin!(orders.wait_for(|order| *order == SessionOrder::End));
        let mut stopped = pin!(stop.wait_for(|order| *order != SessionOrder::Go));
        let mut reset_by_others = pin!(reset());
        let silence = self.inner.limits.discovery_silence;
        let mut patience = pin!(tokio::time::sleep(silence));
        let mut pause = pin!(tokio::time::sleep(Duration::ZERO));
        let mut leaving = false;
        let mut looking = BusyPolling::new(self.inner, stream.watch());
        loop {
            self.heed_resets();
            let all_taken = match self.take(input, &mut looking).await {
                Ok(all_taken) => all_taken,
                Err(error) => {
                    // The initiator is told, unless it takes nothing.
                    let _ = send(&mut self.output, stream).await;
                    return Err(error);
                }
            };
            let held_back = self.start();
            if let Some(wait) = held_back {
                pause.as_mut().reset(Instant::now() + wait.min(LONGEST_PAUSE));
            }
            send(&mut self.output, stream).await.map_err(broken)?;
            let freed = self.note_sent() && self.has_waiting();
            let unsent = self.output.unsent().len();
            if let (Some(end), 0) = (self.end, unsent) {
                // Who was asked to log out and does comes back by itself, to the disk as it left it.
                return Ok(if leaving { SessionEnd::Stopped } else { end });
            }
            looking.answered(unsent == 0 && self.is_idle());
            if looking.is_long() {
                tokio::task::yield_now().await;
            }
            if (freed || !all_taken && unsent <= UNSENT) && self.end.is_none() {
                // There is room again: what came waits for nothing else.
                tokio::task::yield_now().await;
                continue;
            }
            let reads = all_taken && self.end.is_none();
            let Self { output, futures, .. } = self;
            let moved = poll_fn(|cx| {
                let look = looking.begin();
                let moved = poll_move(output, stream, reads.then(|| input.room()), cx);
                looking.end(look, matches!(moved, Poll::Ready(Ok(SocketStep::Received(_)))));
                moved
            });
            tokio::select! {
                biased;
                () = &mut reset_by_others => reset_by_others.set(reset()),
                Some(done) = futures.next(), if !futures.is_empty() => self.all_done(done),
                ended = &mut ended => {
                    // An error says that the server has gone.
                    return Ok(if ended.is_ok() { SessionEnd::Reinstated } else { SessionEnd::Stopped });
                }
                _ = &mut stopped, if !leaving => {
                    let seconds = LEAVE_SECONDS;
                    let counts = self.counts();
                    self.output.put(response::please_log_out(seconds, counts), &[]);
                    patience.as_mut().reset(Instant::now() + Duration::from_secs(seconds.into()));
                    leaving = true;
                }
                () = &mut patience, if leaving || nexus.is_none() => {
                    return Ok(SessionEnd::Stopped);
                }
                () = &mut pause, if held_back.is_some() => {}
                moved = moved => match moved.map_err(broken)? {
                    SocketStep::Received(0) if leaving => return Ok(SessionEnd::Stopped),
                    SocketStep::Received(0) => return Ok(SessionEnd::Closed),
                    SocketStep::Received(count) => {
                        input.came(count);
                        if nexus.is_none() && !leaving {
                            patience.as_mut().reset(Instant::now() + silence);
                        }
                    }
                    SocketStep::Sent => {}
                },
            }
        }
    }

    /// Goes on behind what has ended, and all else that has.
    fn all_done(&mut self, first: SessionEvent) {
        self.done(first);
        while let Some(Some(done)) = self.futures.next().now_or_never() {
            self.done(done);
        }
    }

    /// Whether no command is under way.
    fn is_idle(&self) -> bool {
        self.futures.is_empty() && self.queue.is_empty() && self.collecting.is_empty()
    }
}

/// What a connection did.
enum SocketStep {
    Sent,
    Received(usize),
}

/// Sends what the socket takes now.
async fn send(output: &mut Output, stream: &mut ConnectedSocket) -> io::Result<()> {
    poll_fn(|cx| {
        while !output.unsent().is_empty() {
            match Pin::new(&mut *stream).poll_write(cx, output.unsent())? {
                Poll::Ready(count) => output.consume(count),
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Sends more of what is to be sent, or receives into `room`, if there is any.
fn poll_move(
    output: &mut Output,
    stream: &mut ConnectedSocket,
    room: Option<&mut [u8]>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<SocketStep>> {
    if !output.unsent().is_empty()
        && let Poll::Ready(count) = Pin::new(&mut *stream).poll_write(cx, output.unsent())?
    {
        output.consume(count);
        return Poll::Ready(Ok(SocketStep::Sent));
    }
    let Some(room) = room else { return Poll::Pending };
    let mut room = ReadBuf::new(room);
    ready!(Pin::new(stream).poll_read(cx, &mut room))?;
    Poll::Ready(Ok(SocketStep::Received(room.filled().len())))
}
