//! Who reaches the server, and whether they encrypt and say who they are.

use super::finding::Finding;
use super::patient::Patient;
use engine::Config;
use engine::config::listener::TlsMode;
use std::net::IpAddr;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    let mut findings = of_config(&patient.config);
    if findings.is_empty() {
        findings.push(Finding::ok("nobody reaches the server unencrypted"));
    }
    findings
}

fn of_config(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let serve = &config.serve;
    let nbd = serve.nbd.iter().filter(|place| !place.address.starts_with("unix:"));
    let nbd = nbd.map(|place| (place.address.as_str(), place.tls.unwrap_or(serve.tls), "NBD"));
    let http = serve
        .http
        .iter()
        .map(|place| (place.address.as_str(), place.tls.unwrap_or_default(), "the dashboard"));
    let iscsi = serve.iscsi.iter().map(|address| (address.as_str(), TlsMode::Off, "iSCSI"));
    let mut certified = serve.gateway.is_some();
    for (address, tls, what) in nbd.chain(http).chain(iscsi) {
        certified |= tls == TlsMode::Required;
        let secret = what == "iSCSI" && serve.iscsi_chap.is_some();
        match (tls, is_reached(address)) {
            (TlsMode::Required, _) => {}
            (_, true) => findings.push(Finding::danger(
                format!("{what} at {address} is open to other machines, and nobody has to encrypt"),
                "whoever is on the way reads and changes what passes, disks included",
                "tls = \"required\" there (docs/security.md), or an address of this machine alone",
            )),
            (_, false) if what == "NBD" && config.access.is_empty() => findings.push(Finding::advice(
                format!("{what} at {address} is open to every user of this machine"),
                "a loopback address asks nobody who they are: every local process has every disk",
                "a unix socket, whose clients the system names, or tls = \"required\"",
            )),
            (_, false) if what == "iSCSI" && !secret => findings.push(Finding::advice(
                format!("{what} at {address} is open to every user of this machine"),
                "a loopback address asks nobody who they are: every local process has every disk",
                "serve.iscsi_chap, which asks for a secret (docs/iscsi.md)",
            )),
            _ => {}
        }
    }
    if certified && config.access.is_empty() {
        findings.push(Finding::trouble(
            "TLS is required, and there is no access rule",
            "then nobody may use anything: every client is refused",
            "access = [{ certificate = \"alice\", write = [\"alice\"] }] in sojourn.toml (docs/security.md)",
        ));
    }
    findings
}

/// Whether other machines reach an address `HOST:PORT`. A name other than the machine's own is taken for one that they
/// do.
fn is_reached(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => !address.is_loopback(),
        Err(_) => host != "localhost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Level;

    fn levels(text: &str) -> Vec<Level> {
        of_config(&Config::parse(text).unwrap()).iter().map(|found| found.level).collect()
    }

    #[test]
    fn open_doors_are_told() {
        assert_eq!(levels(""), []);
        assert_eq!(levels("serve.nbd = [\"0.0.0.0:1\"]\nserve.insecure = true"), [Level::Danger]);
        assert_eq!(
            levels("serve.nbd = [\"[::1]:1\", \"127.0.0.1:2\"]"),
            [Level::Advice, Level::Advice]
        );
        assert_eq!(
            levels("serve.nbd = [\"0.0.0.0:1\"]\nserve.tls = \"required\""),
            [Level::Trouble]
        );
        let ruled =
            "access = [{ certificate = \"*\", write = [\"{name}\"] }]\nserve.tls = \"required\"\n";
        assert_eq!(levels(&format!("{ruled}serve.nbd = [\"0.0.0.0:1\"]")), []);
        assert_eq!(levels("serve.http = \"192.0.2.1:80\""), [Level::Danger]);
        assert_eq!(levels("serve.iscsi = [\"127.0.0.1:3260\"]\nserve.iscsi_chap = \"chap\""), []);
    }
}
