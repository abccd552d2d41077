//! What stands between clients and exports: TLS and access rules.

use super::listen::{Asked, Bound};
use crate::config::Config;
use crate::place::TlsMode;
use access::{Guarded, Rules, ServerCredentials};
use arc_swap::ArcSwap;
use block::Result;
use nbd::{Credentials, Exports, Listener, Tls};
use std::path::Path;
use std::sync::Arc;

/// The security of a server.
pub(crate) struct Security {
    rules: Arc<ArcSwap<Rules>>,
    /// Whether nobody may do anything without a rule.
    strict: bool,
    /// When a listener offers TLS.
    credentials: Option<Arc<ServerCredentials>>,
}

impl Security {
    /// That of a server with these listeners. Also gives the listeners with their TLS.
    ///
    /// # Errors
    /// When a rule is wrong, or a listener needs certificates that cannot be read.
    pub(crate) fn new(
        home: &Path,
        config: &Config,
        asked: &Asked,
        bound: Vec<Bound>,
    ) -> Result<(Self, Vec<Listener>)> {
        let strict = bound.iter().any(|bound| bound.tls == TlsMode::Required);
        let rules = Rules::new(config.access.clone(), strict)?;
        if rules.is_empty() && strict {
            tracing::warn!(
                "there are no access rules, and TLS is required: no client may use anything; \
                 see docs/security.md"
            );
        }
        let credentials = match bound.iter().any(|bound| bound.tls != TlsMode::Off) {
            true => {
                let configured = || home.join(&config.tls.dir);
                let dir = asked.tls_dir.clone().unwrap_or_else(configured);
                Some(Arc::new(ServerCredentials::load(&dir).map_err(|e| e.context("TLS"))?))
            }
            false => None,
        };
        let secured = |Bound { listener, tls }| match (&credentials, tls) {
            (Some(credentials), TlsMode::Optional | TlsMode::Required) => {
                let credentials = Arc::clone(credentials) as Arc<dyn Credentials>;
                listener.with_tls(Tls { required: tls == TlsMode::Required, credentials })
            }
            _ => listener,
        };
        let listeners = bound.into_iter().map(secured).collect();
        let rules = Arc::new(ArcSwap::from_pointee(rules));
        Ok((Self { rules, strict, credentials }, listeners))
    }

    /// `exports`, kept to the rules; `default` is what the empty name means.
    pub(crate) fn guard(
        &self,
        exports: Arc<dyn Exports>,
        default: Option<String>,
    ) -> Arc<dyn Exports> {
        Arc::new(Guarded::new(exports, Arc::clone(&self.rules), default))
    }

    /// Takes new rules, for the next clients. Where there were rules, none is no open door.
    pub(crate) fn change_rules(&self, config: &Config) {
        let strict = self.strict || !self.rules.load().is_open();
        match Rules::new(config.access.clone(), strict) {
            Ok(rules) => self.rules.store(Arc::new(rules)),
            Err(e) => tracing::error!(error = e.message(), "the access rules stay as they were"),
        }
    }

    /// Takes renewed certificates and what was revoked, for the next clients. What cannot be read
    /// stays as it was.
    ///
    /// # Errors
    /// Those of the files; they are in the log, too.
    pub(crate) fn reload_certificates(&self) -> Result<()> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
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
        let security = Security { rules, strict: true, credentials: Some(credentials) };
        security.reload_certificates().unwrap();
        std::fs::write(dir.path().join("ca-crl.pem"), "nonsense").unwrap();
        let error = security.reload_certificates().unwrap_err();
        assert!(error.message().contains("ca-crl.pem"), "{error}");
    }
}
