//! Looks at exports, for programs of this home: NBD on the control socket, read-only and beside whoever uses the
//! export.
//!
//! A machine that is switched on has its kernel read out of its own disk, which to this server may still be in use by
//! the system that ended with its power. Who looks is no client: it waits for nobody, keeps nobody out, and what it
//! may see is guarded by the control socket, which is its owner's alone.

use crate::signals::Switch;
use access::ReadOnly;
use async_trait::async_trait;
use block::{Device, Result};
use nbd::{
    ExportSummary, Exports, Layered, Peer, Purpose, Server, ServerLimits, Session, Transport,
};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// Who looks now.
pub(crate) struct Looks {
    server: Server,
    tasks: Mutex<JoinSet<()>>,
    /// Ends those.
    stop: Mutex<Switch>,
}

impl Looks {
    /// Looks at `exports`.
    pub(crate) fn new(exports: Arc<dyn Exports>, limits: ServerLimits) -> Self {
        let server = Server::new(Arc::new(Beside(exports)), limits);
        Self { server, tasks: Mutex::default(), stop: Mutex::new(Switch::new()) }
    }

    /// Serves who looks by the stream that is to come, in a task, until that ends, or all are [ended](Self::end).
    pub(crate) fn begin<S>(&self, stream: impl Future<Output = Option<S>> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (server, stop) = (self.server.clone(), self.stop.lock().clone());
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let stream = tokio::select! {
                stream = stream => stream,
                () = stop.wait() => None,
            };
            // Who went away before it was answered looks at nothing.
            let Some(stream) = stream else { return };
            // What talks to the control socket may do all, as what started the server.
            let peer = Peer::known(Transport::Stdio, "control".to_owned(), None, None);
            if let Err(error) = server.serve_one(stream, peer, stop.wait()).await {
                tracing::debug!(%error, "a look ended");
            }
        });
    }

    /// Ends all: what they look at is to be closed, or another process's.
    pub(crate) async fn end(&self) {
        let mut tasks = {
            let mut tasks = self.tasks.lock();
            std::mem::replace(&mut *self.stop.lock(), Switch::new()).throw();
            std::mem::take(&mut *tasks)
        };
        while tasks.join_next().await.is_some() {}
    }
}

/// Exports that are looked at.
struct Beside(Arc<dyn Exports>);

#[async_trait]
impl Exports for Beside {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        self.0.list(peer).await
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let purpose = match purpose {
            Purpose::Info => Purpose::Info,
            Purpose::Look | Purpose::Use | Purpose::Resume => Purpose::Look,
        };
        let session = self.0.open(name, peer, purpose).await?;
        let device: Arc<dyn Device> = Arc::new(ReadOnly::new(Arc::clone(session.device())));
        Ok(Box::new(Layered::new(session, device)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Durability, Memory, Span};
    use nbd::{ClientOptions, Remote, SessionEnding, Uri};
    use tokio::io::DuplexStream;

    /// One export, that is only to be looked at.
    struct One(Arc<Memory>);

    struct Open(Arc<dyn Device>);

    #[async_trait]
    impl Exports for One {
        async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
            Ok(Vec::new())
        }
        async fn open(&self, _: &str, _: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
            assert!(matches!(purpose, Purpose::Info | Purpose::Look), "{purpose:?}");
            Ok(Box::new(Open(Arc::clone(&self.0) as _)))
        }
    }

    #[async_trait]
    impl Session for Open {
        fn device(&self) -> &Arc<dyn Device> {
            &self.0
        }
        fn name(&self) -> &str {
            "one"
        }
        async fn close(self: Box<Self>, _: SessionEnding) {}
    }

    async fn look(looks: &Looks) -> Remote {
        let (ours, theirs): (DuplexStream, _) = tokio::io::duplex(1 << 16);
        looks.begin(async { Some(theirs) });
        let uri: Uri = "nbd+unix:///one?socket=control".parse().unwrap();
        Remote::over(Box::new(ours), &uri, ClientOptions::default()).await.unwrap()
    }

    fn looks_at(memory: &Arc<Memory>) -> Looks {
        Looks::new(Arc::new(One(Arc::clone(memory))), ServerLimits::default())
    }

    #[tokio::test]
    async fn who_looks_reads_what_is_there_now_changes_nothing_and_is_no_client() {
        let memory = Arc::new(Memory::new(1 << 20));
        let looks = looks_at(&memory);
        let remote = look(&looks).await;
        let span = Span::whole(4096);
        for byte in [1, 2] {
            memory.write(span, &[byte; 4096], Durability::Buffered).await.unwrap();
            let mut seen = [0; 4096];
            remote.read(span, &mut seen).await.unwrap();
            assert_eq!(seen, [byte; 4096]);
        }
        assert!(remote.read_only());
        remote.write(span, &[3; 4096], Durability::Durable).await.unwrap_err();
        remote.close().await;
    }

    #[tokio::test]
    async fn those_who_look_are_ended_for_a_successor_and_others_may_look_after_that() {
        let looks = looks_at(&Arc::new(Memory::new(1 << 20)));
        looks.end().await;
        let (one, other) = (look(&looks).await, look(&looks).await);
        // One that was not answered yet.
        looks.begin(std::future::pending::<Option<DuplexStream>>());
        looks.end().await;
        for ended in [one, other] {
            ended.read(Span::whole(4096), &mut [0; 4096]).await.unwrap_err();
        }
        look(&looks).await.read(Span::whole(4096), &mut [0; 4096]).await.unwrap();
    }
}
