//! The NBD listeners of a running server: opened, closed and moved while clients go on.

use super::listen::{self, BoundListener, InheritedListener, ListenOptions, WantedListener};
use super::reserve::Reserve;
use super::returning::Returning;
use super::security::{Security, UnappliedSecurity};
use block::{Error, ErrorKind, Result};
use engine::config::listener::TlsMode;
use nbd::server::{DEFAULT_BACKLOG, PassedConnection, Passing, Phase};
use nbd::{Listener, Server};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};

#[cfg(test)]
mod tests;

/// How often, and after which pauses, an address is tried that a closing listener has.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Descriptors that it takes at the most to open a listener: the directory of its socket, who may
/// listen there, the socket, and the handle that accepts.
const DESCRIPTORS: usize = 4;

/// All NBD listeners of a server, with the clients that came by them.
pub(crate) struct Listeners {
    server: Server,
    open: Vec<OpenListener>,
    /// New clients are taken nowhere any more.
    closed: bool,
    tasks: JoinSet<Result<()>>,
    /// What each task listens to; also those whose listener is closed and who still have clients.
    phases: HashMap<Id, watch::Sender<Phase>>,
    passing: Passing,
    passed: mpsc::UnboundedReceiver<PassedConnection>,
    returning: Arc<Returning>,
    /// Whether clients that were passed have their disks again.
    attached: watch::Receiver<bool>,
    /// What carries encrypted connections that were passed.
    carriers: JoinSet<()>,
}

/// A listener with all that it takes to open it.
struct Ready {
    bound: BoundListener,
    /// The handle that accepts, with its TLS.
    served: Listener,
}

impl Ready {
    /// # Errors
    /// When there are too many open files, and any error from `secure`.
    fn new(
        bound: BoundListener,
        secure: impl Fn(Listener, TlsMode) -> Result<Listener>,
    ) -> Result<Self> {
        let served = secure(bound.listener.share()?, bound.tls)?;
        Ok(Self { bound, served })
    }
}

/// A listener that accepts clients.
struct OpenListener {
    asked: Option<String>,
    tls: TlsMode,
    /// Another handle: for a new mode, and for a successor.
    listener: Listener,
    phase: watch::Sender<Phase>,
}

/// Whether a listener is still wanted; one that the service manager gave always is.
fn stays(open: &OpenListener, wanted: &[WantedListener]) -> bool {
    open.asked.as_ref().is_none_or(|text| wanted.iter().any(|w| w.asked == *text))
}

/// What a reload changed, in addresses as they are bound.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) opened: Vec<String>,
    pub(crate) closed: Vec<String>,
}

impl Listeners {
    /// Serves on `bound`, and goes on with the clients that an earlier server passed, which are
    /// [expected](Returning::expect) already.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn start(
        server: &Server,
        bound: Vec<BoundListener>,
        security: &Security,
        returning: &Arc<Returning>,
        passed: Vec<PassedConnection>,
    ) -> Result<Self> {
        let (passing, from_passing) = mpsc::unbounded_channel();
        let mut listeners = Self {
            server: server.clone(),
            open: Vec::new(),
            closed: false,
            tasks: JoinSet::new(),
            phases: HashMap::new(),
            passing,
            passed: from_passing,
            returning: Arc::clone(returning),
            attached: watch::channel(true).1,
            carriers: JoinSet::new(),
        };
        let ready = |bound| Ready::new(bound, |listener, tls| security.secure(listener, tls));
        let ready = bound.into_iter().map(ready).collect::<Result<Vec<_>>>()?;
        listeners.go_on(passed);
        ready.into_iter().for_each(|ready| listeners.open(ready));
        Ok(listeners)
    }

    /// Goes on with clients that were passed.
    fn go_on(&mut self, passed: Vec<PassedConnection>) {
        if passed.is_empty() {
            return;
        }
        let (attached, wait) = watch::channel(false);
        self.attached = wait;
        let (phase, phases) = watch::channel(Phase::Serving);
        self.returning.begin();
        let returning = Arc::clone(&self.returning);
        let attached = move || {
            returning.all_came();
            attached.send_replace(true);
        };
        let passing = Some(self.passing.clone());
        let task = self.tasks.spawn(self.server.serve_passed(passed, phases, passing, attached));
        self.phases.insert(task.id(), phase);
    }

    /// Waits until every client that was passed has its disk again, or is closed.
    pub(crate) fn attached(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut attached = self.attached.clone();
        async move {
            let _ = attached.wait_for(|attached| *attached).await;
        }
    }

    fn open(&mut self, ready: Ready) {
        let Ready { bound: BoundListener { asked, listener, tls }, served } = ready;
        let (phase, phases) = watch::channel(Phase::Serving);
        let (server, passing) = (self.server.clone(), self.passing.clone());
        let task = self
            .tasks
            .spawn(async move { server.serve_phases(served, phases, Some(passing)).await });
        self.phases.insert(task.id(), phase.clone());
        self.open.push(OpenListener { asked, tls, listener, phase });
    }

    /// Where clients are accepted.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.open.iter().map(|open| open.listener.address().to_string()).collect()
    }

    /// Whether sockets were given by the service manager: then the configured ones are not
    /// opened.
    pub(crate) fn given(&self) -> bool {
        self.open.iter().any(|open| open.asked.is_none())
    }

    /// The modes that [`change`](Self::change) would come to.
    pub(crate) fn modes(&self, wanted: &[WantedListener], asked: &ListenOptions) -> Vec<TlsMode> {
        let given = self.open.iter().filter(|open| open.asked.is_none());
        let given = given.map(|open| listen::mode(open.listener.address(), None, asked));
        given.chain(wanted.iter().map(|wanted| wanted.tls)).collect()
    }

    /// Listens at `wanted`, besides the sockets that were given, and nowhere else; nowhere at all
    /// after [`close`](Self::close). Clients that are there stay. When it fails nothing has changed.
    ///
    /// # Errors
    /// Any error from [`listen::bind`].
    pub(crate) async fn change(
        &mut self,
        wanted: &[WantedListener],
        asked: &ListenOptions,
        security: &Security,
        fresh: UnappliedSecurity,
    ) -> Result<Changes> {
        if self.closed {
            security.take(fresh);
            return Ok(Changes::default());
        }
        self.check(wanted, asked).await?;
        let renewed = security.replaces(&fresh);
        let ready = |bound| Ready::new(bound, |listener, tls| fresh.secure(listener, tls));
        let anew = self.anew(wanted, asked, renewed, ready)?;
        let (mut bound, in_the_way) = self.bind_missing(wanted, ready).await?;
        // Should it come to that, those that were closed can be opened again.
        let mut reserve = Reserve::of(match in_the_way.is_empty() {
            true => 0,
            false => self.open.iter().filter(|open| !stays(open, wanted)).count() * DESCRIPTORS,
        })?;
        let closed = self.close_unwanted(wanted);
        // A port of all addresses is free when that of one is not used any more.
        for wanted in in_the_way {
            match patiently(wanted).await.and_then(|listener| ready(wanted.bound(listener))) {
                Ok(one) => bound.push(one),
                Err(e) => {
                    drop((bound, anew));
                    self.open_again(&closed, &mut reserve, security).await;
                    return Err(e);
                }
            }
        }
        // From here on nothing can fail.
        security.take(fresh);
        self.replace(anew);
        let opened = bound.iter().map(|ready| ready.bound.listener.address().to_string()).collect();
        bound.into_iter().for_each(|ready| self.open(ready));
        let closed = closed.iter().map(|closed| closed.address.to_string()).collect();
        Ok(Changes { opened, closed })
    }

    /// Fails where other machines would reach what must not be reached.
    async fn check(&self, wanted: &[WantedListener], asked: &ListenOptions) -> Result<()> {
        for open in self.open.iter().filter(|open| open.asked.is_none()) {
            let address = open.listener.address();
            listen::check(address, listen::mode(address, None, asked), asked.insecure).await?;
        }
        for WantedListener { address, tls, .. } in wanted {
            listen::check(address, *tls, asked.insecure).await?;
        }
        Ok(())
    }

    /// The open listeners that stay, in their order: those that ask something else of clients from now
    /// on, ready to be opened in their own place, and `None` for the others. With `renewed`
    /// certificates, all that are encrypted.
    fn anew(
        &self,
        wanted: &[WantedListener],
        asked: &ListenOptions,
        renewed: bool,
        ready: impl Fn(BoundListener) -> Result<Ready>,
    ) -> Result<Vec<Option<Ready>>> {
        let mut anew = Vec::new();
        for open in &self.open {
            let named = wanted.iter().find(|w| open.asked.as_ref() == Some(&w.asked));
            let tls = match (&open.asked, named) {
                (None, _) => listen::mode(open.listener.address(), None, asked),
                (Some(_), Some(wanted)) => wanted.tls,
                (Some(_), None) => continue, // it is closed
            };
            anew.push(if tls != open.tls || (renewed && tls != TlsMode::Off) {
                let listener = open.listener.share()?;
                Some(ready(BoundListener { asked: open.asked.clone(), listener, tls })?)
            } else {
                None
            });
        }
        Ok(anew)
    }

    /// Binds what is wanted and not open. Gives what is bound, and what has to wait until a listener that
    /// is to be closed is out of its way.
    async fn bind_missing<'a>(
        &self,
        wanted: &'a [WantedListener],
        ready: impl Fn(BoundListener) -> Result<Ready>,
    ) -> Result<(Vec<Ready>, Vec<&'a WantedListener>)> {
        let is_open = |text: &str| self.open.iter().any(|open| open.asked.as_deref() == Some(text));
        let none_leaves = self.open.iter().all(|open| stays(open, wanted));
        let (mut bound, mut in_the_way) = (Vec::new(), Vec::new());
        for wanted in wanted.iter().filter(|wanted| !is_open(&wanted.asked)) {
            match Listener::bind(&wanted.address, DEFAULT_BACKLOG).await {
                Ok(listener) => bound.push(ready(wanted.bound(listener))?),
                Err(e) if e.kind() == ErrorKind::Conflict && !none_leaves => {
                    in_the_way.push(wanted);
                }
                Err(e) => return Err(e),
            }
        }
        Ok((bound, in_the_way))
    }

    /// Closes the listeners that are not wanted any more; gives what it takes to open them again.
    fn close_unwanted(&mut self, wanted: &[WantedListener]) -> Vec<WantedListener> {
        let (staying, leaving): (Vec<OpenListener>, Vec<OpenListener>) =
            self.open.drain(..).partition(|open| stays(open, wanted));
        self.open = staying;
        let close = |OpenListener { asked, tls, listener, phase }: OpenListener| {
            phase.send_replace(Phase::Closed);
            let address = listener.address().clone();
            WantedListener { asked: asked.unwrap_or_default(), address, tls }
        };
        leaving.into_iter().map(close).collect()
    }

    /// Undoes [`close_unwanted`](Self::close_unwanted), with the descriptors that were kept for that.
    async fn open_again(
        &mut self,
        closed: &[WantedListener],
        reserve: &mut Reserve,
        security: &Security,
    ) {
        for back in closed {
            reserve.release(DESCRIPTORS);
            let again = patiently(back).await.map(|listener| back.bound(listener));
            let as_before = |listener, tls| security.secure(listener, tls);
            match again.and_then(|again| Ready::new(again, as_before)) {
                Ok(again) => self.open(again),
                Err(e) => tracing::error!(error = e.message(), "a listener is lost"),
            }
        }
    }

    /// Puts listeners that ask something else of clients in the place of those that do not.
    fn replace(&mut self, anew: Vec<Option<Ready>>) {
        for (open, anew) in std::mem::take(&mut self.open).into_iter().zip(anew) {
            let Some(anew) = anew else {
                self.open.push(open);
                continue;
            };
            let (address, tls) = (open.listener.address().to_string(), anew.bound.tls);
            self.open(anew);
            open.phase.send_replace(Phase::Closed);
            tracing::info!(address, %tls, "what is asked of new clients has changed");
        }
    }

    /// Takes no new clients; [`ended`](Self::ended) is `None` when the last one has left.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.open.clear();
        self.tell(Phase::Closed);
    }

    /// Ends everything, for as long as the limits allow.
    pub(crate) fn stop(&mut self) {
        self.open.clear();
        self.tell(Phase::Stopping);
    }

    fn tell(&self, phase: Phase) {
        for told in self.phases.values() {
            told.send_if_modified(|now| {
                let later = *now < phase;
                *now = (*now).max(phase);
                later
            });
        }
    }

    /// The next task that ended: of a listener that was closed, when its last client had left; of one that was
    /// [interrupted](Self::interrupt), when clients whose disks do not answer were cut off, which the log says; or by a
    /// fault. `None` when there is none left.
    pub(crate) async fn ended(&mut self) -> Option<Result<()>> {
        let (id, result) = match self.tasks.join_next_with_id().await? {
            Ok((id, result)) => (id, result),
            Err(e) => {
                self.phases.remove(&e.id());
                return Some(Err(Error::internal("a listener panicked").with_source(e)));
            }
        };
        let phase = self.phases.remove(&id);
        let was_stopped = phase.is_some_and(|phase| *phase.borrow() == Phase::Stopping);
        match result {
            Err(e) if was_stopped => {
                tracing::error!(error = e.message(), "a listener that was stopped has ended");
                Some(Ok(()))
            }
            result => Some(result),
        }
    }

    /// Waits until no client is left; those that were passed are another's.
    pub(crate) async fn all_ended(&mut self) {
        while let Some(ended) = self.ended().await {
            if let Err(e) = ended {
                tracing::error!(error = e.message(), "a listener failed");
            }
        }
    }

    /// Waits until all that carries encrypted connections has ended.
    pub(crate) async fn all_carried(&mut self) {
        while self.carriers.join_next().await.is_some() {}
    }

    /// Takes every client at a moment when nothing is in flight, to be gone on with by another
    /// server or by [`resume`](Self::resume). Those whose disk has not answered after `patience` are
    /// stopped. What is encrypted is carried from here on, whoever goes on with it.
    pub(crate) async fn interrupt(&mut self, patience: Duration) -> Vec<PassedConnection> {
        let (passing, from_passing) = mpsc::unbounded_channel();
        self.passing = passing;
        let mut passed = std::mem::replace(&mut self.passed, from_passing);
        self.tell(Phase::Passing);
        let mut all = Vec::new();
        while self.carriers.try_join_next().is_some() {}
        let collect = async {
            while let Some(mut one) = passed.recv().await {
                if let Some(carrier) = one.carrier.take() {
                    self.carriers.spawn(carrier);
                }
                all.push(one);
            }
        };
        if tokio::time::timeout(patience, collect).await.is_err() {
            tracing::warn!("some disks do not answer; their clients must connect again");
            self.tell(Phase::Stopping);
        }
        all
    }

    /// Undoes [`interrupt`](Self::interrupt). `shared` are the listeners that a successor was to have:
    /// so nothing is opened here that could fail for want of descriptors.
    pub(crate) fn resume(
        &mut self,
        passed: Vec<PassedConnection>,
        shared: Vec<InheritedListener>,
        security: &Security,
    ) {
        self.returning.expect(&passed);
        self.go_on(passed);
        for (open, InheritedListener { listener: served, .. }) in
            std::mem::take(&mut self.open).into_iter().zip(shared)
        {
            let OpenListener { asked, tls, listener, .. } = open;
            listener.keep_file();
            match security.secure(served, tls) {
                Ok(served) => {
                    self.open(Ready { bound: BoundListener { asked, listener, tls }, served })
                }
                Err(e) => tracing::error!(error = e.message(), "a listener is lost"),
            }
        }
    }

    /// The listeners for a successor, which share the sockets of these.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn share(&self) -> Result<Vec<InheritedListener>> {
        let share = |open: &OpenListener| {
            Ok(InheritedListener { asked: open.asked.clone(), listener: open.listener.share()? })
        };
        self.open.iter().map(share).collect()
    }
}

impl WantedListener {
    fn bound(&self, listener: Listener) -> BoundListener {
        BoundListener { asked: Some(self.asked.clone()), listener, tls: self.tls }
    }
}

/// Binds at an address that another listener of ours is just leaving.
async fn patiently(wanted: &WantedListener) -> Result<Listener> {
    let mut attempts = ATTEMPTS;
    loop {
        match Listener::bind(&wanted.address, DEFAULT_BACKLOG).await {
            Err(e) if e.kind() == ErrorKind::Conflict && attempts > 0 => {
                attempts -= 1;
                tokio::time::sleep(PAUSE).await;
            }
            bound => return bound,
        }
    }
}
