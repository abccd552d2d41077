//! A server without a home: the listeners of the command line, and nothing else.

use super::limits::limits;
use super::listen;
use super::notify::notify;
use super::security::Security;
use super::signals::{Signals, Switch};
use block::{Error, Result};
use engine::config::Config;
use nbd::server::spare_while_idle;
use nbd::{Exports, Server};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Serves `exports`, of which `name` is the default one, until a signal stops it. Certificates are
/// looked for in `home`, unless the command line says where they are.
///
/// # Errors
/// When it cannot listen.
pub(crate) async fn run(
    exports: Arc<dyn Exports>,
    name: Option<String>,
    home: &Path,
    config: &Config,
    asked: &listen::ListenOptions,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let bound = listen::bind(home, &[], asked, &mut Vec::new()).await?;
    if bound.is_empty() {
        return Err(Error::invalid("say where to serve the file: --nbd ADDR, --run or --single"));
    }
    let (security, listeners) = Security::new(home, config, asked, bound)?;
    let server = Server::new(security.guard(exports, name), limits(config));
    let stop = Switch::new();
    let mut tasks = JoinSet::new();
    for listener in listeners {
        let (server, stop) = (server.clone(), stop.wait());
        tasks.spawn(async move { server.serve(listener, stop).await });
    }
    let mut beside = JoinSet::new(); // ends with this
    beside.spawn(spare_while_idle(server.processors(), stop.wait()));
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
