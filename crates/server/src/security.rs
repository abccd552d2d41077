//! What stands between clients and exports: TLS and access rules.

use super::listen::{BoundListener, ListenOptions};
use access::{Guarded, Rules, ServerCredentials};
use arc_swap::ArcSwap;
use block::{Error, ErrorKind, Result};
use engine::config::Config;
use engine::config::listener::TlsMode;
use nbd::{Exports, Listener, Tls};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The security of a server.
pub(crate) struct Security {
    rules: Arc<ArcSwap<Rules>>,
    /// Whether nobody may do anything without a rule. Once so, always so.
    strict: AtomicBool,
    /// When a listener offers TLS.
    credentials: Mutex<Option<Arc<ServerCredentials>>>,
}

/// Rules and certificates that were read and do not hold yet.
pub(crate) struct UnappliedSecurity {
    rules: Rules,
    strict: bool,
    credentials: Option<Arc<ServerCredentials>>,
}

impl UnappliedSecurity {
    /// The listener, with the TLS that this gives.
    ///
    /// # Errors
    /// Any error from [`Security::secure`].
    pub(crate) fn secure(&self, listener: Listener, tls: TlsMode) -> Result<Listener> {
        secured(self.credentials.clone(), listener, tls)
    }
}

fn secured(
    credentials: Option<Arc<ServerCredentials>>,
    listener: Listener,
    mode: TlsMode,
) -> Result<Listener> {
    Ok(match tls(credentials, mode)? {
        Some(tls) => listener.with_tls(tls),
        None => listener,
    })
}

fn tls(credentials: Option<Arc<ServerCredentials>>, mode: TlsMode) -> Result<Option<Tls>> {
    if mode == TlsMode::Off {
        return Ok(None);
    }
    let Some(credentials) = credentials else { return Err(no_credentials()) };
    Ok(Some(Tls { required: mode == TlsMode::Required, credentials }))
}

fn no_credentials() -> Error {
    Error::internal("TLS is wanted, and no certificates were read")
}

impl Security {
    /// That of a server with these listeners. Also gives the listeners with their TLS.
    ///
    /// # Errors
    /// When a rule is wrong, or a listener needs certificates that cannot be read.
    pub(crate) fn new(
        home: &Path,
        config: &Config,
        asked: &ListenOptions,
        bound: Vec<BoundListener>,
    ) -> Result<(Self, Vec<Listener>)> {
        let modes: Vec<_> = bound.iter().map(|bound| bound.tls).collect();
        let security = Self::of(home, config, asked, &modes, false)?;
        let secured = |BoundListener { listener, tls, .. }| security.secure(listener, tls);
        let listeners = bound.into_iter().map(secured).collect::<Result<_>>()?;
        Ok((security, listeners))
    }

    /// That of a server whose listeners have these modes; `https` when HTTP is encrypted.
    ///
    /// # Errors
    /// When a rule is wrong, or a listener needs certificates that cannot be read.
    pub(crate) fn of(
        home: &Path,
        config: &Config,
        asked: &ListenOptions,
        modes: &[TlsMode],
        https: bool,
    ) -> Result<Self> {
        let rules = Arc::<ArcSwap<Rules>>::default();
        let security =
            Self { rules, strict: AtomicBool::new(false), credentials: Mutex::default() };
        let fresh = security.read(home, config, asked, modes, https)?;
        if fresh.rules.is_empty() && fresh.strict {
            tracing::warn!(
                "there are no access rules, and TLS is required: no client may use anything; \
                 see docs/security.md"
            );
        }
        security.take(fresh);
        Ok(security)
    }

    /// Reads what a server needs whose listeners have these modes; nothing changes yet.
    ///
    /// # Errors
    /// When a rule is wrong, or a listener needs certificates that cannot be read.
    pub(crate) fn read(
        &self,
        home: &Path,
        config: &Config,
        asked: &ListenOptions,
        modes: &[TlsMode],
        https: bool,
    ) -> Result<UnappliedSecurity> {
        // Where there were rules, none is no open door.
        let had = !self.rules.load().is_empty();
        let strict = self.strict.load(SeqCst) || had || modes.contains(&TlsMode::Required);
        let rules = Rules::new(config.access.clone(), strict)?;
        let configured = || home.join(&config.tls.dir);
        let dir = asked.tls_dir.clone().unwrap_or_else(configured);
        let present = self.credentials.lock().clone();
        let credentials = match present {
            present if !https && modes.iter().all(|mode| *mode == TlsMode::Off) => present,
            Some(present) if present.dir() == dir => Some(present),
            _ => Some(Arc::new(ServerCredentials::load(&dir).map_err(with_remedy)?)),
        };
        Ok(UnappliedSecurity { rules, strict, credentials })
    }

    /// Takes what was read, for the next clients. Whether listeners have to be
    /// [secured](Self::secure) anew.
    pub(crate) fn take(&self, fresh: UnappliedSecurity) -> bool {
        let renewed = self.replaces(&fresh);
        self.strict.store(fresh.strict, SeqCst);
        self.rules.store(Arc::new(fresh.rules));
        *self.credentials.lock() = fresh.credentials;
        renewed
    }

    /// Whether what was read has other certificates than those in use.
    pub(crate) fn replaces(&self, fresh: &UnappliedSecurity) -> bool {
        match (&*self.credentials.lock(), &fresh.credentials) {
            (Some(before), Some(now)) => !Arc::ptr_eq(before, now),
            (before, now) => before.is_some() != now.is_some(),
        }
    }

    /// The listener, with its TLS.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when no certificates were read for it.
    pub(crate) fn secure(&self, listener: Listener, tls: TlsMode) -> Result<Listener> {
        secured(self.credentials.lock().clone(), listener, tls)
    }

    /// The TLS of a client that comes by no listener.
    ///
    /// # Errors
    /// Any error from [`secure`](Self::secure).
    pub(crate) fn tls(&self, mode: TlsMode) -> Result<Option<Tls>> {
        tls(self.credentials.lock().clone(), mode)
    }

    /// The rules as they are at any time.
    pub(crate) fn rules(&self) -> Arc<ArcSwap<Rules>> {
        Arc::clone(&self.rules)
    }

    /// The certificates.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal) when none were read.
    pub(crate) fn credentials(&self) -> Result<Arc<ServerCredentials>> {
        let present = self.credentials.lock().clone();
        present.ok_or_else(no_credentials)
    }

    /// `exports`, kept to the rules; `default` is what the empty name means.
    pub(crate) fn guard(
        &self,
        exports: Arc<dyn Exports>,
        default: Option<String>,
    ) -> Arc<dyn Exports> {
        Arc::new(Guarded::new(exports, Arc::clone(&self.rules), default))
    }

    /// Takes renewed certificates and what was revoked, for the next clients. What cannot be read
    /// stays as it was.
    ///
    /// # Errors
    /// Any error from the files; they are in the log, too.
    pub(crate) fn reload_certificates(&self) -> Result<()> {
        let Some(credentials) = self.credentials.lock().clone() else { return Ok(()) };
        match credentials.reload() {
            Ok(()) => {
                tracing::info!(dir = %credentials.dir().display(), "certificates read again");
                Ok(())
            }
            Err(e) => {
                let e = e.context("the certificates stay as they were");
                tracing::error!(error = e.message(), "the certificates cannot be read again");
                Err(e)
            }
        }
    }
}

/// What to do where there are no certificates yet.
fn with_remedy(error: Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        let what = format!(
            "TLS: {}; make certificates with `sojourn cert ca` and `sojourn cert server NAME`",
            error.message()
        );
        return Error::not_found(what).with_source(error);
    }
    error.context("TLS")
}

#[cfg(test)]
mod tests {
    use super::*;
    use access::Authority;

    #[test]
    fn a_reload_tells_that_certificates_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        Authority::create(dir.path(), "test", 10, 1_700_000_000).unwrap();
        let authority = Authority::open(dir.path(), 1_700_000_000).unwrap();
        authority.server(&["localhost".to_owned()], 10).unwrap();
        let credentials = Arc::new(ServerCredentials::load(dir.path()).unwrap());
        let rules = Arc::default();
        let security =
            Security { rules, strict: true.into(), credentials: Some(credentials).into() };
        security.reload_certificates().unwrap();
        std::fs::write(dir.path().join("ca-crl.pem"), "nonsense").unwrap();
        let error = security.reload_certificates().unwrap_err();
        assert!(error.message().contains("ca-crl.pem"), "{error}");
    }
}
