//! A server without a home: the listeners of the command line, and nothing else.

use super::notify::notify;
use super::signals::{Signals, Switch};
use super::{inherit, limits, listen};
use crate::config::Config;
use block::{Error, Result};
use nbd::server::DEFAULT_BACKLOG;
use nbd::{Address, Exports, Listener, Server};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Serves `exports` until a signal stops it.
///
/// # Errors
/// When it cannot listen.
pub(crate) async fn run(
    exports: Arc<dyn Exports>,
    config: &Config,
    addresses: &[Address],
    insecure: bool,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let insecure = insecure || config.serve.insecure;
    let mut listeners = Vec::new();
    for socket in inherit::sockets()? {
        let listener = Listener::from_fd(socket)?;
        listen::check(listener.address(), insecure).await?;
        listeners.push(listener);
    }
    for address in addresses {
        listen::check(address, insecure).await?;
        listeners.push(Listener::bind(address, DEFAULT_BACKLOG).await?);
    }
    if listeners.is_empty() {
        return Err(Error::invalid("say where to serve the file: --nbd ADDR, --run or --single"));
    }
    let server = Server::new(exports, limits(config));
    let stop = Switch::new();
    let mut tasks = JoinSet::new();
    for listener in listeners {
        let (server, stop) = (server.clone(), stop.wait());
        tasks.spawn(async move { server.serve(listener, stop).await });
    }
    notify("READY=1");
    signals.stop().await;
    notify("STOPPING=1");
    stop.throw();
    let finish = async {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|e| Error::internal("a listener panicked").with_source(e))??;
        }
        Ok(ExitCode::SUCCESS)
    };
    tokio::select! {
        result = finish => result,
        () = signals.stop() => Err(Error::unavailable("stopped at once by a second signal")),
    }
}
