//! Where the server listens, and what it asks of clients there: without encryption and certificates,
//! only this machine is served.

use super::inherit;
use block::{Error, Result};
use engine::config::Config;
use engine::config::listener::{ConfiguredListener, TlsMode};
use nbd::server::DEFAULT_BACKLOG;
use nbd::{Address, Listener};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What the command line asks for.
#[derive(Debug, Clone, Default)]
pub struct ListenOptions {
    /// Instead of the listeners of the configuration.
    pub nbd: Vec<Address>,
    /// The mode of all listeners that have none of their own.
    pub tls: Option<TlsMode>,
    /// For clients by TCP, where `tls` says nothing.
    pub tcp_tls: TlsMode,
    /// The directory of the certificates.
    pub tls_dir: Option<PathBuf>,
    /// Allow what others reach.
    pub insecure: bool,
    /// iSCSI listeners, instead of the configured ones.
    pub iscsi: Vec<String>,
    /// The secrets of iSCSI clients.
    pub iscsi_chap: Option<PathBuf>,
}

impl ListenOptions {
    /// The same, with what the configuration says where the command line says nothing.
    pub(crate) fn under(&self, config: &Config) -> Self {
        Self {
            tcp_tls: config.serve.tls,
            insecure: self.insecure || config.serve.insecure,
            ..self.clone()
        }
    }

    /// What is asked of clients where the listener has no mode of its own. On a unix socket the system
    /// says who connects, so it is encrypted only if the command line says so.
    pub(crate) fn mode(&self, by_tcp: bool) -> TlsMode {
        self.tls.unwrap_or(if by_tcp { self.tcp_tls } else { TlsMode::Off })
    }
}

/// A place to listen at.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WantedListener {
    /// The address as the user wrote it.
    pub(crate) asked: String,
    pub(crate) address: Address,
    pub(crate) tls: TlsMode,
}

/// A socket, and what is asked of its clients.
#[derive(Debug)]
pub(crate) struct BoundListener {
    /// What the user wrote for it; `None` for one of the service manager.
    pub(crate) asked: Option<String>,
    pub(crate) listener: Listener,
    pub(crate) tls: TlsMode,
}

/// A socket of the server that this one follows.
#[derive(Debug)]
pub(crate) struct InheritedListener {
    /// What the user wrote for it; `None` for a socket of the service manager.
    pub(crate) asked: Option<String>,
    pub(crate) listener: Listener,
}

/// Opens the listeners: the service manager's and the command line's; without any, the configured ones,
/// whose sockets' paths are relative to the home. Listeners that an earlier server `had` are taken out of
/// there and gone on with, as far as they are wanted, however they were spelled.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) for an address that other machines reach without TLS;
/// [`Conflict`](block::ErrorKind::Conflict) for one that is in use, and any other error from binding.
pub(crate) async fn bind(
    home: &Path,
    configured: &[ConfiguredListener],
    asked: &ListenOptions,
    had: &mut Vec<InheritedListener>,
) -> Result<Vec<BoundListener>> {
    let mut bound = inherited(asked).await?;
    for InheritedListener { listener, .. } in had.extract_if(.., |had| had.asked.is_none()) {
        bound.push(secure(listener, asked).await?);
    }
    for WantedListener { asked: text, address, tls } in
        wanted(home, configured, asked, !bound.is_empty())?
    {
        check(&address, tls, asked.insecure).await?;
        let so_called = had.iter().position(|had| had.asked.as_deref() == Some(&text));
        let there = || had.iter().position(|had| *had.listener.address() == address);
        let listener = match so_called.or_else(there) {
            Some(at) => had.swap_remove(at).listener,
            None => Listener::bind(&address, DEFAULT_BACKLOG).await?,
        };
        bound.push(BoundListener { asked: Some(text), listener, tls });
    }
    let is_tcp = |bound: &BoundListener| matches!(bound.listener.address(), Address::Tcp(..));
    let of_no_use = asked.tls.is_none() && asked.tcp_tls != TlsMode::Off;
    if of_no_use && !bound.iter().any(|bound| is_tcp(bound) || bound.tls != TlsMode::Off) {
        tracing::warn!(
            "serve.tls is for TCP, and the server listens at unix sockets alone: nothing is encrypted; \
             give a socket of serve.nbd its own tls, or say --tls"
        );
    }
    Ok(bound)
}

/// Where to listen besides the sockets that were `given`: at the addresses of the command line; else,
/// when nothing was given, at the configured ones.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for an address of the configuration that is none, and for
/// one that is named twice.
pub(crate) fn wanted(
    home: &Path,
    configured: &[ConfiguredListener],
    asked: &ListenOptions,
    given: bool,
) -> Result<Vec<WantedListener>> {
    let mut wanted: Vec<WantedListener> = Vec::new();
    let mut add = |text: String, address: Address, own| {
        if wanted.iter().any(|other| other.asked == text) {
            return Err(Error::invalid(format!("{text} is to be listened at twice; name it once")));
        }
        let tls = mode(&address, own, asked);
        wanted.push(WantedListener { asked: text, address, tls });
        Ok(())
    };
    for address in &asked.nbd {
        add(address.to_string(), address.clone(), None)?;
    }
    if asked.nbd.is_empty() && !given {
        for place in configured {
            let address = match place.address.strip_prefix("unix:") {
                Some(path) => Address::unix(home.join(path)),
                None => place.address.parse(),
            };
            let address = address.map_err(|e| e.context("serve.nbd"))?;
            add(place.address.clone(), address, place.tls)?;
        }
    }
    Ok(wanted)
}

/// The sockets that the service manager passed.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) for an address that other machines reach without TLS;
/// [`Invalid`](block::ErrorKind::Invalid) for what is no socket that listens.
pub(crate) async fn inherited(asked: &ListenOptions) -> Result<Vec<BoundListener>> {
    let mut bound = Vec::new();
    for socket in inherit::sockets()? {
        bound.push(secure(Listener::from_fd(socket)?, asked).await?);
    }
    Ok(bound)
}

async fn secure(listener: Listener, asked: &ListenOptions) -> Result<BoundListener> {
    let tls = mode(listener.address(), None, asked);
    check(listener.address(), tls, asked.insecure).await?;
    Ok(BoundListener { asked: None, listener, tls })
}

/// What a listener asks of its clients: by its `own` mode, else as [`ListenOptions::mode`].
pub(crate) fn mode(address: &Address, own: Option<TlsMode>, asked: &ListenOptions) -> TlsMode {
    own.unwrap_or_else(|| asked.mode(matches!(address, Address::Tcp(..))))
}

/// Fails for an address that other machines reach and where not every client must encrypt, unless
/// the user insists.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) naming the address and the remedy.
pub(crate) async fn check(address: &Address, tls: TlsMode, insecure: bool) -> Result<()> {
    let Address::Tcp(host, port) = address else { return Ok(()) };
    if tls == TlsMode::Required {
        return Ok(());
    }
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), *port))
        .await
        .map_err(|e| {
            Error::not_found(format!(
                "cannot listen at {address}: {e}; use an address of this machine"
            ))
        })?
        .collect();
    let local = !found.is_empty() && found.iter().all(|address| address.ip().is_loopback());
    let remedy = "require TLS (--tls required, docs/security.md), listen on 127.0.0.1 or a unix \
                  socket, or insist with --insecure";
    allow(&address.to_string(), local, insecure, remedy)
}

/// The same for an HTTP address.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) for an address that other machines reach without TLS, naming it and the remedy.
pub(crate) fn check_http(address: SocketAddr, tls: TlsMode, insecure: bool) -> Result<()> {
    if tls == TlsMode::Required {
        return Ok(());
    }
    let remedy = "ask for client certificates (--http-tls required, docs/security.md), listen on \
                  127.0.0.1, or insist with --insecure";
    allow(&address.to_string(), address.ip().is_loopback(), insecure, remedy)
}

/// The same for an address of iSCSI, where clients may be asked for a `secret`.
///
/// # Errors
/// Any error from [`bind`]; [`Invalid`](block::ErrorKind::Invalid) for what is no address.
pub(crate) async fn check_iscsi(address: &str, secret: bool, insecure: bool) -> Result<()> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|e| {
            Error::invalid(format!(
                "cannot listen for iSCSI at {address}: {e}; write HOST:PORT, such as 127.0.0.1:3260"
            ))
        })?
        .collect();
    if secret {
        return Ok(());
    }
    let local = !found.is_empty() && found.iter().all(|address| address.ip().is_loopback());
    let remedy = "ask for secrets (--iscsi-chap FILE, docs/iscsi.md), listen on 127.0.0.1, or insist \
                  with --insecure";
    allow(address, local, insecure, remedy)
}

fn allow(address: &str, local: bool, insecure: bool, remedy: &str) -> Result<()> {
    if local {
        return Ok(());
    }
    if insecure {
        tracing::warn!(
            address,
            "INSECURE: other machines reach this address without authentication"
        );
        return Ok(());
    }
    Err(Error::denied(format!(
        "{address} can be reached from other machines, without authentication; {remedy}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[tokio::test]
    async fn only_this_machine_is_served_without_tls() {
        for local in ["unix:/tmp/x", "127.0.0.1:1", "[::1]:1", "127.9.9.9:1", "localhost:1"] {
            check(&local.parse().unwrap(), TlsMode::Off, false).await.unwrap();
        }
        for wide in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            for open in [TlsMode::Off, TlsMode::Optional] {
                let error = check(&wide.parse().unwrap(), open, false).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Denied);
                assert!(error.message().contains("--insecure"), "{error}");
                check(&wide.parse().unwrap(), open, true).await.unwrap();
            }
            check(&wide.parse().unwrap(), TlsMode::Required, false).await.unwrap();
        }
    }

    #[test]
    fn the_command_lines_mode_is_for_all_and_the_configurations_for_tcp() {
        let (tcp, unix) = ("127.0.0.1:1".parse().unwrap(), "unix:/tmp/x".parse().unwrap());
        let both = |own, asked: &ListenOptions| (mode(&tcp, own, asked), mode(&unix, own, asked));
        use TlsMode::{Off, Optional, Required};
        let mut config = Config::default();
        config.serve.tls = Required;
        assert_eq!(both(None, &ListenOptions::default()), (Off, Off));
        assert_eq!(both(None, &ListenOptions::default().under(&config)), (Required, Off));
        for said in [Off, Optional, Required] {
            let asked =
                ListenOptions { tls: Some(said), ..ListenOptions::default() }.under(&config);
            assert_eq!(both(None, &asked), (said, said));
            assert_eq!(both(Some(Optional), &asked), (Optional, Optional));
        }
    }
}
