//! What a configuration says that can be read, and that no server would begin with.

use super::layout;
use super::mistakes::Mistake;
use engine::Config;
use engine::config::listener::{ConfiguredListener, TlsMode};
use nbd::Address;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// What is refused, as far as the text alone tells: names are not looked up, and no file is read but disks' profiles.
pub(super) fn find(config: &Config, text: &str) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut refuse = |key: &str, why: String| {
        mistakes.push(Mistake { line: layout::line_of(text, key), text: format!("{key}: {why}") });
    };
    if let Err(error) = engine::check_cache(Some(config.cache.size.0), Some(&config.cache.policy)) {
        refuse("cache.size", error.message().to_owned());
    }
    if config.store.contains("://")
        && let Err(error) = engine::places::check(&config.store)
    {
        refuse("store", error.message().to_owned());
    }
    if config.serve.nbd.is_empty() {
        let why = "nothing to listen at; name an address, or leave the key out (a socket of the service \
                   manager takes the place of what is named)";
        refuse("serve.nbd", why.to_owned());
    }
    let mut seen = HashSet::new();
    for place in &config.serve.nbd {
        if !seen.insert(&place.address) {
            refuse("serve.nbd", format!("{} is there twice; name it once", place.address));
        }
        let parsed = match place.address.strip_prefix("unix:") {
            Some(path) => Address::unix(path),
            None => place.address.parse(),
        };
        match parsed {
            Err(error) => refuse("serve.nbd", error.message().to_owned()),
            Ok(Address::Tcp(host, _)) => {
                let tls = place.tls.unwrap_or(config.serve.tls);
                if reached(&host) && tls != TlsMode::Required && !config.serve.insecure {
                    refuse("serve.nbd", exposed(&place.address));
                }
            }
            Ok(_) => {}
        }
    }
    let mut seen = HashSet::new();
    for address in &config.serve.iscsi {
        if !seen.insert(address) {
            refuse("serve.iscsi", format!("{address} is there twice; name it once"));
        }
        match address.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
            None => {
                refuse("serve.iscsi", format!("{address} is not HOST:PORT, such as 127.0.0.1:3260"))
            }
            Some((host, _))
                if reached(host) && config.serve.iscsi_chap.is_none() && !config.serve.insecure =>
            {
                let why = format!(
                    "other machines reach {address}, and nobody is asked for a secret; set \
                     serve.iscsi_chap, or listen on 127.0.0.1"
                );
                refuse("serve.iscsi", why);
            }
            Some(_) => {}
        }
    }
    if let Some(ConfiguredListener { address, tls }) = &config.serve.http
        && let Ok(at) = address.parse::<SocketAddr>()
        && !at.ip().is_loopback()
        && tls.unwrap_or_default() != TlsMode::Required
        && !config.serve.insecure
    {
        refuse("serve.http", exposed(address));
    }
    for (index, rule) in config.throttle.iter().enumerate() {
        if let Err(error) = server::throttle::check(rule) {
            refuse("throttle", format!("entry {}: {}", index + 1, error.message()));
        }
    }
    mistakes
}

/// Whether other machines reach a host that is written as an address; names are taken for this machine's own.
pub(super) fn reached(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().is_ok_and(|address| !address.is_loopback())
}

fn exposed(address: &str) -> String {
    format!(
        "other machines reach {address}, and nobody has to encrypt; set tls = \"required\" \
         (docs/security.md), listen on 127.0.0.1, or insist with serve.insecure"
    )
}
