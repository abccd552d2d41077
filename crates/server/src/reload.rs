//! The configuration is read again: what changes while the server runs, and what needs a restart.

use super::gateway::GatewayPort;
use super::http::{HttpRules, Port};
use super::limits::{limits, of_initiators, of_virtqueues};
use super::listen::{self, ListenOptions};
use super::listeners::{Changes, Listeners};
use super::notify::notify;
use super::options::ServerOptions;
use super::running::RunningServer;
use super::security::Security;
use crate::api::Reloaded;
use block::{ErrorKind, Result};
use engine::config::listener::{ConfiguredListener, TlsMode};
use engine::config::{self, Config};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// The parts of a running server that a reload changes.
pub(crate) struct Changeable {
    pub(crate) config: Config,
    pub(crate) options: ServerOptions,
    pub(crate) security: Security,
    pub(crate) running: Arc<RunningServer>,
    pub(crate) listeners: Listeners,
    pub(crate) http: Option<Port>,
    pub(crate) gateway: Option<GatewayPort>,
    /// What answers HTTP.
    pub(crate) others: JoinSet<()>,
}

impl Changeable {
    /// Reads the configuration and the certificates again. Either of them that is wrong changes
    /// nothing.
    ///
    /// # Errors
    /// Any error from the files and from listening.
    pub(crate) async fn reload(&mut self) -> Result<Reloaded> {
        notify("RELOADING=1");
        // Also when the configuration is wrong: somebody was revoked.
        let certificates = self.security.reload_certificates();
        let applied = match Config::load(&self.options.config_path) {
            Ok(new) => self.apply(new).await,
            Err(e) => Err(e),
        };
        match &applied {
            Ok(_) => {
                let config = self.options.config_path.display();
                tracing::info!(%config, "configuration read again");
            }
            Err(e) => tracing::error!(error = e.message(), "the configuration stays as it was"),
        }
        notify("READY=1");
        applied.and_then(|reloaded| certificates.map(|()| reloaded))
    }

    async fn apply(&mut self, new: Config) -> Result<Reloaded> {
        // What can be refused is, before anything is changed.
        engine::check_cache(Some(new.cache.size.0), Some(&new.cache.policy))?;
        let asked = self.options.listen.under(&new);
        let home = self.running.home.dir().to_owned();
        let wanted = listen::wanted(&home, &new.serve.nbd, &asked, self.listeners.given())?;
        let mut modes = self.listeners.modes(&wanted, &asked);
        modes.extend(self.gateway.is_some().then_some(TlsMode::Required));
        let place = self.options.http.as_ref().or(new.serve.http.as_ref()).cloned();
        let https = place.as_ref().is_some_and(|place| place.is_encrypted());
        let fresh = self.security.read(&home, &new, &asked, &modes, https)?;
        let renewed = https && self.security.replaces(&fresh);
        let rules = HttpRules::of(&new.serve);
        let http = self.move_http(place, rules, &asked, renewed).await?;
        let socket = match &http {
            Some(Some(port)) => Some(port.listen()?),
            _ => None,
        };
        let changed = self.listeners.change(&wanted, &asked, &self.security, fresh).await;
        // Also when it failed: what was put back may have another port.
        self.tell_places();
        let Changes { mut opened, mut closed } = changed?;
        if let Some(gateway) = &self.running.gateway {
            gateway.set_credentials(self.security.credentials()?);
        }
        if let Some(port) = http {
            if let (Some(port), Some(socket)) = (&port, socket) {
                port.serve(socket, &self.running, &self.security, &mut self.others)?;
                opened.push(format!("http://{}", port.address()));
            }
            if let Some(before) = std::mem::replace(&mut self.http, port) {
                before.close();
                closed.push(format!("http://{}", before.address()));
            }
        }
        self.tell_places();
        for address in &opened {
            tracing::info!(address, "opened by a reload");
        }
        for address in &closed {
            tracing::info!(address, "closed by a reload; clients that are there stay");
        }
        if let Some(change) = self.options.change_log_level
            && let Err(e) = change(&new.log.level)
        {
            tracing::error!(error = e.message(), "the log level stays as it was");
        }
        let restart = self.needs_restart(&new);
        // Also when the file says what it said before: a command may have changed it since.
        let config::Cache { size, policy, .. } = new.cache;
        self.running.engine.change_cache(Some(size.0), Some(policy)).await?;
        (self.config.cache.size, self.config.cache.policy) = (size, policy);
        self.config.access = new.access;
        self.config.tls = new.tls;
        self.config.limits = new.limits;
        self.config.serve = config::Serve {
            lease_seconds: self.config.serve.lease_seconds,
            io: self.config.serve.io,
            loads: self.config.serve.loads,
            read_ahead: self.config.serve.read_ahead,
            store_seconds: self.config.serve.store_seconds,
            iscsi: self.config.serve.iscsi.clone(),
            gateway: self.config.serve.gateway.clone(),
            iscsi_chap: self.config.serve.iscsi_chap.clone(),
            announce: self.config.serve.announce,
            boot_lists: self.config.serve.boot_lists,
            boot_copies: self.config.serve.boot_copies,
            vhost_user: self.config.serve.vhost_user.clone(),
            store_disk: self.config.serve.store_disk.clone(),
            ..new.serve
        };
        self.running.engine.call_slow(Duration::from_millis(self.config.serve.slow_ms));
        self.running.response_ms.store(self.config.serve.response_ms, Ordering::Relaxed);
        self.running.nbd.set_limits(limits(&self.config));
        self.running.engine.disks.limit_private_bytes(self.config.limits.disk_space.0);
        Ok(Reloaded { restart, opened, closed })
    }

    /// Opens the HTTP port anew if it is to be another, or answers others or has other certificates now.
    /// `None`: it stays as it is.
    async fn move_http(
        &self,
        place: Option<ConfiguredListener>,
        rules: HttpRules,
        asked: &ListenOptions,
        renewed: bool,
    ) -> Result<Option<Option<Port>>> {
        let before = self.http.as_ref();
        let answers_so = before.is_none_or(|port| *port.rules() == rules);
        if !renewed && answers_so && before.map(Port::place) == place.as_ref() {
            return Ok(None);
        }
        let Some(place) = place else { return Ok(Some(None)) };
        let had = match before.filter(|port| port.place().address == place.address) {
            Some(port) => Some(port.share()?), // another mode at the same address
            None => None,
        };
        match Port::open(place.clone(), rules, asked.insecure, had).await {
            Err(e) if e.kind() == ErrorKind::Conflict && before.is_some() => {
                Err(e.context("move the HTTP port in two steps: first remove serve.http"))
            }
            port => port.map(|port| Some(Some(port))),
        }
    }

    /// Keys that changed in vain.
    fn needs_restart(&self, new: &Config) -> Vec<String> {
        let old = &self.config;
        let mut keys = Vec::new();
        for (key, changed) in [
            ("store", new.store != old.store),
            ("key_file", new.key_file != old.key_file),
            ("sources", new.sources != old.sources),
            ("cache.single_flight", new.cache.single_flight != old.cache.single_flight),
            ("pieces", new.pieces != old.pieces),
            ("trace", new.trace != old.trace),
            ("throttle", new.throttle != old.throttle),
            ("attach", new.attach != old.attach),
            ("serve.gateway", new.serve.gateway != old.serve.gateway),
            ("serve.iscsi", new.serve.iscsi != old.serve.iscsi),
            ("serve.iscsi_chap", new.serve.iscsi_chap != old.serve.iscsi_chap),
            ("serve.vhost_user", new.serve.vhost_user != old.serve.vhost_user),
            ("serve.announce", new.serve.announce != old.serve.announce),
            ("serve.store_seconds", new.serve.store_seconds != old.serve.store_seconds),
            ("serve.boot_lists", new.serve.boot_lists != old.serve.boot_lists),
            ("serve.boot_copies", new.serve.boot_copies != old.serve.boot_copies),
            ("serve.io", new.serve.io != old.serve.io),
            ("serve.store_disk", new.serve.store_disk != old.serve.store_disk),
            ("serve.loads", new.serve.loads != old.serve.loads),
            ("serve.read_ahead", new.serve.read_ahead != old.serve.read_ahead),
            ("serve.lease_seconds", new.serve.lease_seconds != old.serve.lease_seconds),
            ("log.format", new.log.format != old.log.format),
        ] {
            if changed {
                tracing::warn!(key, "changed in the configuration; restart to apply it");
                keys.push(key.to_owned());
            }
        }
        keys.extend(self.kept_by_fronts(new));
        keys
    }

    /// Keys of limits that changed for NBD, and that other front ends have as they were when the server began.
    fn kept_by_fronts(&self, new: &Config) -> Vec<String> {
        let nbd = limits(new);
        let mut keys = BTreeSet::new();
        if let Some(server) = &self.running.iscsi {
            let (had, wanted) = (server.limits(), of_initiators(&nbd));
            keys.extend([
                ("limits.connections", had.connections != wanted.connections),
                ("limits.client_connections", had.client_connections != wanted.client_connections),
                ("limits.handshake_seconds", had.login_deadline != wanted.login_deadline),
                ("serve.busy_poll_us", had.busy_poll != wanted.busy_poll),
                ("serve.stop_seconds", had.stop_deadline != wanted.stop_deadline),
            ]);
        }
        if let Some(server) = &self.running.vhost_user {
            let (had, wanted) = (server.limits(), of_virtqueues(&nbd));
            keys.extend([
                ("limits.connections", had.connections != wanted.connections),
                ("limits.total_in_flight", had.held_bytes != wanted.held_bytes),
                ("serve.busy_poll_us", had.busy_poll != wanted.busy_poll),
                ("serve.stop_seconds", had.stop_deadline != wanted.stop_deadline),
            ]);
        }
        let changed = keys.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key);
        changed
            .inspect(|key| {
                tracing::warn!(key, "changed for NBD; restart to apply it to iSCSI and vhost-user");
            })
            .map(str::to_owned)
            .collect()
    }

    /// Has the status tell where the server listens.
    pub(crate) fn tell_places(&self) {
        let mut places = self.running.places.lock();
        places.nbd = self.listeners.addresses();
        places.http = self.http.as_ref().map(Port::address);
        places.gateway = self.gateway.as_ref().map(GatewayPort::address);
    }
}
