//! An image that is sent to a server.

use super::{PATH, RemoteServer, encoded, unmade};
use block::{Error, Result};
use bytes::Bytes;
use engine::api::ImportView;
use futures::Stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::ext::on_informational;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use hyper::{Method, StatusCode};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

/// Pieces that wait to be sent.
const WAITING: usize = 2;
/// How long a server has to ask for the body. One that does not know how gets it then.
const INVITATION: Duration = Duration::from_secs(10);

/// An image that is sent.
#[derive(Debug, Clone, Copy)]
pub struct ImageUpload<'a> {
    /// The version to make: `name` or `name:tag`.
    pub name: &'a str,
    /// Where it came from, as the version is to tell.
    pub source: &'a str,
    /// Its size in bytes, if it is known.
    pub size: Option<u64>,
}

/// What a sender says: some bytes, or that these were all.
type Said = Option<Bytes>;

impl RemoteServer {
    /// Sends an image, which becomes a version: `next` gives its bytes from the first to the last, none at the end.
    /// It is asked for some only once the server wants them.
    ///
    /// # Errors
    /// Those of `next`, and then there is no such version; [`Denied`](block::ErrorKind::Denied) when the token does
    /// not allow it; [`Conflict`](block::ErrorKind::Conflict) when the version exists;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached or goes away; else that of
    /// the server.
    pub async fn import_image(
        &self,
        upload: ImageUpload<'_>,
        mut next: impl AsyncFnMut() -> Result<Bytes>,
    ) -> Result<ImportView> {
        let ImageUpload { name, source, size } = upload;
        let source = encoded(source);
        let path = format!("{PATH}/images/{}/import?format=raw&source={source}", encoded(name));
        let mut request = self.head(Method::POST, &path)?;
        request =
            request.header(CONTENT_TYPE, "application/octet-stream").header(EXPECT, "100-continue");
        if let Some(size) = size {
            request = request.header(CONTENT_LENGTH, size);
        }
        let (send, receive) = mpsc::channel::<Said>(WAITING);
        let mut request = request.body(StreamBody::new(frames(receive))).map_err(unmade)?;
        let invited = Arc::new(Notify::new());
        let told = Arc::clone(&invited);
        on_informational(&mut request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                told.notify_one();
            }
        });
        let give = async {
            let _ = timeout(INVITATION, invited.notified()).await;
            loop {
                let bytes = next().await?;
                let said = (!bytes.is_empty()).then_some(bytes);
                let last = said.is_none();
                if send.send(said).await.is_err() || last {
                    return Ok::<_, Error>(());
                }
            }
        };
        let mut answer = std::pin::pin!(self.send(request));
        let (status, body) = tokio::select! {
            biased;
            answer = &mut answer => answer?,
            given = give => {
                given?;
                answer.await?
            }
        };
        self.answered(status, &body)
    }
}

/// The frames of a body. It ends well only when the sender says so: the server is not to take a part for the
/// whole when this process ends, or its source fails.
fn frames(receive: mpsc::Receiver<Said>) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    futures::stream::unfold(Some(receive), async |receive| {
        let mut receive = receive?;
        match receive.recv().await {
            Some(Some(bytes)) => Some((Ok(Frame::data(bytes)), Some(receive))),
            Some(None) => None,
            None => Some((Err(io::Error::other("the image broke off")), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;

    #[tokio::test]
    async fn a_body_ends_well_only_when_its_sender_says_so() {
        for ends in [true, false] {
            let (send, receive) = mpsc::channel(WAITING);
            send.send(Some(Bytes::from_static(b"x"))).await.unwrap();
            if ends {
                send.send(None).await.unwrap();
            }
            drop(send);
            let frames: Vec<io::Result<Frame<Bytes>>> = frames(receive).collect().await;
            assert_eq!(frames.iter().all(io::Result::is_ok), ends, "{frames:?}");
        }
    }
}
