//! The bytes that a request sends. They are taken as they are wanted, so that memory is bounded, and must come
//! at a certain pace, so that nobody keeps a turn by sending hardly anything.

use axum::body::Bytes;
use block::Error;
use futures::StreamExt;
use futures::future::BoxFuture;
use hyper::body::{Body, Frame};
use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// How long is waited in all for each [`PIECE`].
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that must come in that time: 2 KiB/s.
const PIECE: usize = 64 << 10;
/// How often it is looked whether its sender may still send it.
const ASK: Duration = Duration::from_secs(5);
/// How long what is still sent is taken after the body was refused.
const LINGER: Duration = Duration::from_secs(5);

/// The body of a request as a stream of bytes.
pub(super) struct Upload<B> {
    body: Pin<Box<B>>,
    /// What came and was not taken yet.
    rest: Bytes,
    /// Bytes that came, and how many of them in this piece.
    came: u64,
    of_piece: usize,
    /// How long is still waited for this piece.
    left: Duration,
    /// Since when there is waiting, and for how long at the most.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Done when the server ends.
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Says whether its sender may still send it.
    permission: Permission,
    /// What it says now, and when it was asked last.
    asking: Option<BoxFuture<'static, Result<(), Error>>>,
    asked: Instant,
    fault: Option<UploadFault>,
    ended: bool,
}

/// Says whether the sender of a body may still send it.
pub(super) type Permission = Box<dyn Fn() -> BoxFuture<'static, Result<(), Error>> + Send>;

/// Why a body was not taken to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UploadFault {
    /// What is wrong with it.
    Body(String),
    /// Its sender may not send it any more.
    Denied(String),
    /// The server ends.
    Ending,
}

impl From<UploadFault> for Error {
    fn from(fault: UploadFault) -> Self {
        match fault {
            UploadFault::Body(why) => Self::invalid(why),
            UploadFault::Denied(why) => Self::denied(why),
            UploadFault::Ending => Self::unavailable(
                "the server is stopping: send it again, the server has nothing of it",
            ),
        }
    }
}

impl<B> Upload<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// The bytes of a body, which are taken until `ending` is done, and for as long as there is `permission`: that is
    /// asked for now and then, and at the end. Nothing is taken yet.
    pub(super) fn new(
        body: B,
        ending: impl Future<Output = ()> + Send + 'static,
        permission: Permission,
    ) -> Self {
        Self {
            body: Box::pin(body),
            rest: Bytes::new(),
            came: 0,
            of_piece: 0,
            left: PATIENCE,
            waiting: None,
            ending: Box::pin(ending),
            permission,
            asking: None,
            asked: Instant::now(),
            fault: None,
            ended: false,
        }
    }

    /// What was wrong with it, if it could not be taken to its end.
    pub(super) fn fault(&self) -> Option<UploadFault> {
        self.fault.clone()
    }

    /// Takes what still comes and forgets it, for a moment.
    pub(super) async fn drain(self) {
        let frames = futures::stream::unfold(self.body, async |mut body| {
            let frame = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await?;
            frame.is_ok().then_some(((), body))
        });
        let _ = timeout(LINGER, frames.for_each(async |()| {})).await;
    }

    /// Waits for the next bytes; for none at the end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, UploadFault>> {
        loop {
            if let Some(asking) = &mut self.asking {
                let answer = ready!(asking.as_mut().poll(cx));
                (self.asking, self.asked) = (None, Instant::now());
                if let Err(e) = answer {
                    return Poll::Ready(Err(UploadFault::Denied(e.message().to_owned())));
                }
                if self.ended {
                    return Poll::Ready(Ok(Bytes::new()));
                }
            }
            if self.ended || self.asked.elapsed() >= ASK {
                self.asking = Some((self.permission)());
                continue;
            }
            if self.ending.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(UploadFault::Ending));
            }
            let Poll::Ready(frame) = self.body.as_mut().poll_frame(cx) else {
                let left = self.left;
                let (_, end) = self.waiting.get_or_insert_with(|| {
                    let now = Instant::now();
                    (now, Box::pin(sleep_until(now + left)))
                });
                ready!(end.as_mut().poll(cx));
                return Poll::Ready(Err(UploadFault::Body(format!(
                    "the body came too slowly: less than {PIECE} bytes in {} seconds, after {} bytes",
                    PATIENCE.as_secs(),
                    self.came
                ))));
            };
            if let Some((since, _)) = self.waiting.take() {
                self.left = self.left.saturating_sub(since.elapsed());
            }
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => self.ended = true,
                Some(Err(e)) => {
                    let e: Box<dyn StdError + Send + Sync> = e.into();
                    let why = format!("the body broke off after {} bytes: {e}", self.came);
                    return Poll::Ready(Err(UploadFault::Body(why)));
                }
                // Trailers say nothing here.
                Some(Ok(Err(_))) => {}
                Some(Ok(Ok(bytes))) => {
                    self.count(bytes.len());
                    if !bytes.is_empty() {
                        return Poll::Ready(Ok(bytes));
                    }
                }
            }
        }
    }

    fn count(&mut self, bytes: usize) {
        self.came += bytes as u64;
        self.of_piece += bytes;
        if self.of_piece >= PIECE {
            self.of_piece = 0;
            self.left = PATIENCE;
        }
    }
}

impl<B> AsyncRead for Upload<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(fault) = &self.fault {
            return Poll::Ready(Err(io::Error::other(Error::from(fault.clone()))));
        }
        if self.rest.is_empty() {
            match ready!(self.poll_bytes(cx)) {
                Ok(bytes) => self.rest = bytes,
                Err(fault) => {
                    self.fault = Some(fault.clone());
                    return Poll::Ready(Err(io::Error::other(Error::from(fault))));
                }
            }
        }
        let taken = self.rest.len().min(buf.remaining());
        buf.put_slice(&self.rest.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body as AxumBody;
    use std::convert::Infallible;
    use tokio::io::AsyncReadExt;

    /// A body of so many pieces of these bytes, each so long after the one before, that then breaks off or ends.
    fn body(pieces: usize, bytes: usize, pause: Duration, breaks: bool) -> Upload<AxumBody> {
        let stream = futures::stream::unfold(0, move |at| async move {
            if at < pieces {
                tokio::time::sleep(pause).await;
                return Some((Ok(vec![at as u8; bytes]), at + 1));
            }
            (breaks && at == pieces).then(|| (Err(io::Error::other("cut")), at + 1))
        });
        Upload::new(AxumBody::from_stream(stream), std::future::pending(), always())
    }

    fn always() -> Permission {
        Box::new(|| Box::pin(async { Ok(()) }))
    }

    fn why(upload: &Upload<AxumBody>) -> String {
        Error::from(upload.fault().unwrap()).to_string()
    }

    async fn read(upload: &mut Upload<AxumBody>) -> (Vec<u8>, io::Result<usize>) {
        let mut bytes = Vec::new();
        let read = upload.read_to_end(&mut bytes).await;
        (bytes, read)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_to_its_end_however_it_is_cut() {
        let mut upload = body(5, 1000, Duration::ZERO, false);
        let (bytes, read) = read(&mut upload).await;
        assert_eq!(read.unwrap(), 5000);
        assert!(bytes.chunks(1000).enumerate().all(|(at, part)| part == vec![at as u8; 1000]));
        assert_eq!(upload.fault(), None);
        let empty = futures::stream::empty::<Result<Vec<u8>, Infallible>>();
        let mut upload =
            Upload::new(AxumBody::from_stream(empty), std::future::pending(), always());
        assert_eq!(upload.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_breaks_off_never_ends_well() {
        let mut upload = body(2, 1000, Duration::ZERO, true);
        let (bytes, read) = read(&mut upload).await;
        assert_eq!(bytes.len(), 2000);
        read.unwrap_err();
        assert!(why(&upload).contains("broke off after 2000 bytes"));
        upload.read(&mut [0; 8]).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up_and_a_slow_one_is_not() {
        let began = Instant::now();
        let mut trickle = body(1000, 100, Duration::from_secs(1), false);
        read(&mut trickle).await.1.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs());
        assert!(why(&trickle).contains("too slowly"));
        let mut slow = body(20, PIECE, PATIENCE - Duration::from_secs(1), false);
        assert_eq!(read(&mut slow).await.1.unwrap(), 20 * PIECE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_still_comes_is_given_up_when_the_server_ends() {
        let stream = futures::stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>(vec![0; PIECE]), ()))
        });
        let began = Instant::now();
        let ending = tokio::time::sleep(Duration::from_secs(100));
        let mut upload = Upload::new(AxumBody::from_stream(stream), ending, always());
        read(&mut upload).await.1.unwrap_err();
        assert_eq!(upload.fault(), Some(UploadFault::Ending));
        assert_eq!(began.elapsed().as_secs(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_loses_its_right_meanwhile_is_refused_also_at_the_very_end() {
        for pieces in [1, 100] {
            let ends = Instant::now() + Duration::from_millis(500);
            let permission: Permission = Box::new(move || {
                let holds = Instant::now() < ends;
                let answer = if holds { Ok(()) } else { Err(Error::denied("revoked")) };
                Box::pin(std::future::ready(answer))
            });
            let stream = futures::stream::unfold(0, move |at| async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                (at < pieces).then(|| (Ok::<_, Infallible>(vec![0; PIECE]), at + 1))
            });
            let body = AxumBody::from_stream(stream);
            let began = Instant::now();
            let mut upload = Upload::new(body, std::future::pending(), permission);
            read(&mut upload).await.1.unwrap_err();
            assert_eq!(upload.fault(), Some(UploadFault::Denied("revoked".into())));
            assert!(began.elapsed() <= ASK + Duration::from_secs(1), "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_its_time_is_not_held_against_the_client() {
        let mut upload = body(4, 1000, Duration::from_secs(1), false);
        let mut piece = [0; 1000];
        for _ in 0..4 {
            upload.read_exact(&mut piece).await.unwrap();
            tokio::time::sleep(PATIENCE * 2).await;
        }
        assert_eq!(upload.read(&mut piece).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_of_a_body_is_taken_for_a_moment_only() {
        let began = Instant::now();
        body(3, 10, Duration::from_secs(1), false).drain().await;
        assert_eq!(began.elapsed().as_secs(), 3);
        body(1000, 10, Duration::from_secs(1), false).drain().await;
        assert_eq!(began.elapsed().as_secs(), 3 + LINGER.as_secs());
    }
}
