//! What the checks look at: what takes time, or a server's answer, is asked for once.

use crate::commands::config::{self, Examined};
use crate::interrupt;
use block::{Error, Result};
use engine::api::{DiskReply, DiskRequest, ElsewhereView};
use engine::{Config, Home, StoreUse};
use objects::is_remote;
use server::client::ControlClient;
use server::status::StatusView;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use store::sessions::{self, PinInfo};
use tokio::time::{Instant, sleep_until, timeout};
use vm::Accelerator;

/// What does not answer in this time is taken for hanging.
const PATIENCE: Duration = Duration::from_secs(10);

/// A machine with a home, or without one.
pub(super) struct Patient {
    pub(super) home: Home,
    /// Whether somebody ran `sojourn init` there.
    pub(super) has_home: bool,
    /// The configuration's text, and what is wrong with it; none without a home.
    pub(super) examined: Option<Result<Examined>>,
    /// The configuration as far as it can be read; else the defaults.
    pub(super) config: Config,
    /// What the server says of itself; `None` when none answers.
    pub(super) server: Result<Option<StatusView>>,
    /// The disks of the store that are not here; none when no server answers, which knows them.
    pub(super) elsewhere: Option<Result<Vec<ElsewhereView>>>,
    /// The store, looked at; none without a home or a configuration.
    pub(super) store: Option<Result<StoreLook>>,
    /// QEMU's version, if it is installed.
    pub(super) qemu: Option<(u32, u32)>,
    /// What guests run on; none without QEMU.
    pub(super) accelerators: Option<Result<Vec<Accelerator>>>,
}

/// What was seen of the store.
pub(super) struct StoreLook {
    /// From nothing until its settings were read.
    pub(super) opened: Duration,
    /// Listing who writes to it, the second request on the same way.
    pub(super) asked: Duration,
    /// Who writes to it, or did until it died.
    pub(super) sessions: Vec<PinInfo>,
}

impl Patient {
    /// Looks at everything that is asked over a socket, a network, or of a program.
    pub(super) async fn look(home: &Home) -> Self {
        let has_home = home.must_exist().is_ok();
        let examined =
            has_home.then(|| config::read(&home.config()).map(|text| config::examine(&text)));
        let read = match &examined {
            Some(Ok(examined)) => examined.config.clone(),
            _ => None,
        };
        let store = match &read {
            Some(config) => {
                let typing = Typing::default();
                Some(typing.within(look_at_store(home, config, &typing)).await)
            }
            None => None,
        };
        let server = within(ask(home)).await;
        let elsewhere = match &server {
            Ok(Some(_)) => Some(within(ask_for_disks(home)).await),
            _ => None,
        };
        let qemu = vm::machine::default_qemu();
        let version = version(qemu).await;
        let accelerators = match version {
            Some(_) => Some(accelerators(qemu).await),
            None => None,
        };
        let config = read.unwrap_or_default();
        let home = home.clone();
        Self {
            home,
            has_home,
            examined,
            config,
            server,
            elsewhere,
            store,
            qemu: version,
            accelerators,
        }
    }

    /// The directory of the store; none of one over a network.
    pub(super) fn store_directory(&self) -> Option<PathBuf> {
        let place = self.home.store_url(&self.config.store);
        let local = !is_remote(&place);
        local.then(|| PathBuf::from(place.strip_prefix("file://").unwrap_or(&place)))
    }

    /// The process of the server, when it answers.
    pub(super) fn server_pid(&self) -> Option<u32> {
        self.server.as_ref().ok()?.as_ref().map(|status| status.pid)
    }
}

/// The same, but for what takes too long.
async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    Typing::default().within(work).await
}

/// How long a person typed a passphrase, which is nobody else's slowness.
#[derive(Default)]
struct Typing(Cell<Duration>);

impl Typing {
    /// Asks for a secret.
    fn ask<T>(&self, question: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let answer = question();
        self.0.set(self.0.get() + begin.elapsed());
        answer
    }

    /// Fails when work takes too long, what was typed meanwhile not counted.
    async fn within<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let begin = Instant::now();
        let mut work = pin!(work);
        loop {
            let end = begin + PATIENCE + self.0.get();
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep_until(end) => {}
            }
            if Instant::now() >= begin + PATIENCE + self.0.get() {
                let why = format!("no answer in {} s", PATIENCE.as_secs());
                return Err(Error::unavailable(why));
            }
        }
    }
}

async fn ask(home: &Home) -> Result<Option<StatusView>> {
    match ControlClient::connect(home).await? {
        Some(client) => client.status().await.map(Some),
        None => Ok(None),
    }
}

async fn ask_for_disks(home: &Home) -> Result<Vec<ElsewhereView>> {
    let Some(client) = ControlClient::connect(home).await? else { return Ok(Vec::new()) };
    match client.disk(&DiskRequest::Elsewhere).await? {
        DiskReply::Elsewhere(disks) => Ok(disks),
        _ => Err(Error::internal("the server answers something else")),
    }
}

async fn look_at_store(home: &Home, config: &Config, typing: &Typing) -> Result<StoreLook> {
    let begin = Instant::now();
    let secret = async || typing.ask(|| engine::key::given(home, config));
    let (store, _) = engine::open_store_with(home, config, StoreUse::Inspection, secret).await?;
    interrupt::remember(&store);
    let opened = begin.elapsed().saturating_sub(typing.0.get());
    let begin = Instant::now();
    let sessions = sessions::list(&store).await?;
    Ok(StoreLook { opened, asked: begin.elapsed(), sessions })
}

/// What QEMU says of its version.
async fn version(qemu: &Path) -> Option<(u32, u32)> {
    let mut command = tokio::process::Command::new(qemu);
    command.arg("--version").stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await.ok()?.ok()?;
    read_version(&String::from_utf8_lossy(&output.stdout))
}

/// The numbers behind the word `version`.
fn read_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

async fn accelerators(qemu: &Path) -> Result<Vec<Accelerator>> {
    let scratch = tempfile::tempdir().map_err(|e| Error::io("a temporary directory", e))?;
    Accelerator::working(qemu, scratch.path()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use tokio::time::{advance, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_passphrase_may_take_as_long_as_it_does_and_the_store_may_not() {
        let slow = Duration::from_secs(60);
        for (after, is_quick) in [(Duration::from_secs(9), true), (Duration::from_secs(11), false)]
        {
            let typing = Typing::default();
            let work = async {
                advance(slow).await;
                typing.0.set(slow);
                sleep(after).await;
                Ok(())
            };
            let done = typing.within(work).await;
            assert_eq!(done.is_ok(), is_quick, "{after:?}: {done:?}");
        }
        let hangs = within(std::future::pending::<Result<()>>()).await;
        assert_eq!(hangs.unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn versions_are_found_in_what_qemu_says() {
        let debian = "QEMU emulator version 7.2.17 (Debian 1:7.2+dfsg-7+deb12u13)\nCopyright";
        assert_eq!(read_version(debian), Some((7, 2)));
        assert_eq!(read_version("QEMU emulator version 10.0\n"), Some((10, 0)));
        assert_eq!(read_version("something else"), None);
    }
}
