//! Everything of a server that can fail, done before an earlier server lets go of what it has.

use super::estate::Estate;
use super::gateway::GatewayPort;
use super::http::{HttpRules, Port};
use super::listen::{self, BoundListener};
use super::options::ServerOptions;
use super::record::Recording;
use super::reserve::Reserve;
use super::security::Security;
use crate::control::Control;
use block::{Error, Result};
use engine::config::Config;
use engine::config::listener::TlsMode;
use engine::home::Home;

/// Descriptors that it takes to serve at a listener that is open, besides those that it has.
const DESCRIPTORS: usize = 2;

/// A server's places, open, and what stands before them. Nobody is served there yet, and when this
/// is dropped all is as it was; but for an empty recording.
pub(crate) struct PreparedServer {
    pub(crate) bound: Vec<BoundListener>,
    pub(crate) http: Option<Port>,
    pub(crate) gateway: Option<GatewayPort>,
    pub(crate) security: Security,
    pub(crate) control: Control,
    pub(crate) recording: Option<Recording>,
    /// For what is opened to serve at these.
    pub(crate) reserve: Reserve,
}

impl PreparedServer {
    /// Opens all places, with what an earlier server has of them. That one has them too, until it
    /// lets go.
    ///
    /// # Errors
    /// Any error from [`listen::bind`], [`Port::open`], [`GatewayPort::open`], [`Security::of`] and
    /// [`Recording::wanted`]; [`Invalid`](block::ErrorKind::Invalid) when there is nothing to listen on;
    /// [`Conflict`](block::ErrorKind::Conflict) when something else is where the control socket is to be.
    pub(crate) async fn new(
        home: &Home,
        config: &Config,
        options: &ServerOptions,
        estate: &mut Estate,
    ) -> Result<Self> {
        let asked = options.listen.under(config);
        let had = &mut estate.listeners;
        let bound = listen::bind(home.dir(), &config.serve.nbd, &asked, had).await?;
        if bound.is_empty() {
            return Err(Error::invalid("nothing to listen on; set serve.nbd or give --nbd"));
        }
        let http = match options.http.as_ref().or(config.serve.http.as_ref()) {
            Some(place) => {
                let had = estate.http.take_if(|(address, _)| *address == place.address);
                let had = had.map(|(_, socket)| socket);
                let rules = HttpRules::of(&config.serve);
                Some(Port::open(place.clone(), rules, asked.insecure, had).await?)
            }
            None => None,
        };
        let gateway = match options.gateway.as_ref().or(config.serve.gateway.as_ref()) {
            Some(asked) => {
                let had = estate.gateway.take_if(|(address, _)| address == asked);
                Some(GatewayPort::open(asked, had.map(|(_, socket)| socket)).await?)
            }
            None => None,
        };
        let mut modes: Vec<_> = bound.iter().map(|bound| bound.tls).collect();
        // Its clients show certificates, and no rule is no right.
        modes.extend(gateway.is_some().then_some(TlsMode::Required));
        let https = http.as_ref().is_some_and(Port::is_encrypted);
        let security = Security::of(home.dir(), config, &asked, &modes, https)?;
        let control = Control::bind(home)?;
        let reserve = Reserve::of((bound.len() + 2) * DESCRIPTORS)?;
        // Last: no file is begun for a server that does not start.
        let recording = Recording::wanted(options.trace.as_deref(), config, Some(home))?;
        Ok(Self { bound, http, gateway, security, control, recording, reserve })
    }
}
