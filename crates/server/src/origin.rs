//! Where a request comes from, as its handler and the audit log know it. Each listener makes it of its own
//! connections.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Where a request comes from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    peer: OriginPeer,
    /// The name in the certificate that it showed.
    certificate: Option<String>,
    /// Its place among the clients, where places are few.
    place: Option<HeldPlace>,
}

#[derive(Debug, Clone)]
enum OriginPeer {
    Tcp(SocketAddr),
    /// A process of this machine: its user, and its number if the system tells it.
    Unix(Option<(u32, Option<i32>)>),
}

/// A place that a client loses when it is silent for too long.
pub(crate) trait ClientPlace: Send + Sync {
    /// Something that the client asked for is being carried out: it is not silent.
    fn begin_work(&self);
    /// That has ended.
    fn end_work(&self);
    /// The client has asked for something.
    fn begin_request(&self);
    /// It has been answered, or will not be.
    fn end_request(&self);
}

/// A client's place, held from outside of its connection.
#[derive(Clone)]
struct HeldPlace(Arc<dyn ClientPlace>);

impl fmt::Debug for HeldPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldPlace")
    }
}

/// Keeps a client's place, however long its answer takes, until this is dropped.
pub(crate) struct KeptPlace(HeldPlace);

impl Drop for KeptPlace {
    fn drop(&mut self) {
        self.0.0.end_work();
    }
}

/// What a client has asked for and has not got in full, until this is dropped.
pub(crate) struct OpenRequest(HeldPlace);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.end_request();
    }
}

impl Origin {
    /// A client by TCP.
    pub(crate) fn tcp(address: SocketAddr) -> Self {
        Self { peer: OriginPeer::Tcp(address), certificate: None, place: None }
    }

    /// A process of this machine, of this user and with this number, as far as the system tells.
    pub(crate) fn unix(process: Option<(u32, Option<i32>)>) -> Self {
        Self { peer: OriginPeer::Unix(process), certificate: None, place: None }
    }

    /// The address that it comes from; `None` for a process of this machine.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match &self.peer {
            OriginPeer::Tcp(address) => Some(address.ip().to_canonical()),
            OriginPeer::Unix(_) => None,
        }
    }

    /// The same, with the name in the certificate that it showed.
    pub(crate) fn certified(self, certificate: Option<String>) -> Self {
        Self { certificate, ..self }
    }

    /// The same, on this place.
    pub(crate) fn on(self, place: Arc<dyn ClientPlace>) -> Self {
        Self { place: Some(HeldPlace(place)), ..self }
    }

    /// Keeps its place, if it has one, until what is returned is dropped. Who calls this sees to it that few
    /// clients do so at a time.
    pub(crate) fn keep_place(&self) -> Option<KeptPlace> {
        let place = self.place.clone()?;
        place.0.begin_work();
        Some(KeptPlace(place))
    }

    /// Notes on its place, if it has one, that it asks for something, until what is returned is dropped.
    pub(crate) fn open_request(&self) -> Option<OpenRequest> {
        let place = self.place.clone()?;
        place.0.begin_request();
        Some(OpenRequest(place))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.peer {
            OriginPeer::Tcp(address) => write!(f, "{address}")?,
            OriginPeer::Unix(Some((uid, Some(pid)))) => write!(f, "uid {uid}, process {pid}")?,
            OriginPeer::Unix(Some((uid, None))) => write!(f, "uid {uid}")?,
            OriginPeer::Unix(None) => f.write_str("this machine")?,
        }
        match &self.certificate {
            Some(name) => write!(f, ", certificate {name}"),
            None => Ok(()),
        }
    }
}
