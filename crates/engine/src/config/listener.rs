//! A place to listen at, as the configuration has it.

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::fmt;

/// Whether a listener's connections are encrypted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// They are not.
    #[default]
    Off,
    /// If the client wants it.
    Optional,
    /// Always: a client that does not encrypt gets nothing.
    Required,
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Optional => "optional",
            Self::Required => "required",
        })
    }
}

/// Who may look over HTTP without a token. Nobody may change anything without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HttpAccess {
    /// Whoever reaches the port.
    #[default]
    Open,
    /// Nobody.
    Tokens,
}

impl fmt::Display for HttpAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Tokens => "tokens",
        })
    }
}

/// A listener of the configuration: an address, or a table of `address` and `tls`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfiguredListener {
    /// The address as the user wrote it.
    pub address: String,
    /// `None`: as all TCP listeners; a unix socket is not encrypted.
    pub tls: Option<TlsMode>,
}

impl ConfiguredListener {
    /// Whether its connections may or must be encrypted, by what it says itself.
    pub fn is_encrypted(&self) -> bool {
        self.tls.unwrap_or_default() != TlsMode::Off
    }
}

impl From<&str> for ConfiguredListener {
    fn from(address: &str) -> Self {
        Self { address: address.to_owned(), tls: None }
    }
}

impl<'de> Deserialize<'de> for ConfiguredListener {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct ListenerTable {
            address: String,
            tls: Option<TlsMode>,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = ConfiguredListener;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or a table such as {address = \"0.0.0.0:10809\", tls = \"required\"}")
            }
            fn visit_str<E>(self, address: &str) -> Result<ConfiguredListener, E> {
                Ok(ConfiguredListener::from(address))
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ConfiguredListener, M::Error> {
                let ListenerTable { address, tls } =
                    ListenerTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ConfiguredListener { address, tls })
            }
        }
        deserializer.deserialize_any(Either)
    }
}
