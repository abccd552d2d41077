//! The certificates of the server and its clients: whether they hold, and for how long.

use super::finding::Finding;
use super::patient::Patient;
use engine::world;
use std::path::{Path, PathBuf};
use x509_parser::pem::Pem;

/// The longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// The most clients that are looked at.
const MOST: usize = 10_000;
const DAY: i64 = 86_400;
/// Days before the end of a certificate at which something should be done, and must be.
const SOON: i64 = 60;
const NOW: i64 = 14;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    if !patient.has_home {
        return Vec::new();
    }
    let dir = patient.home.resolve(Path::new(&patient.config.tls.dir));
    let now = i64::try_from(world::system().clock.now()).unwrap_or(i64::MAX);
    let mut findings = missing(patient, &dir);
    let mut looked_at = 0;
    for (path, renew) in certificates(&dir) {
        looked_at += 1;
        match ends(&path) {
            Ok((begins, ends)) => findings.extend(judged(&path, begins, ends, now, &renew)),
            Err(why) => findings.push(Finding::trouble(
                format!("{} is no certificate: {why}", path.display()),
                "whoever is to show it, or to trust it, is refused",
                renew,
            )),
        }
    }
    if findings.is_empty() && looked_at > 0 {
        findings
            .push(Finding::ok(format!("{looked_at} certificates hold for {SOON} days and more")));
    }
    findings
}

/// What is needed by the configuration and not there.
fn missing(patient: &Patient, dir: &Path) -> Vec<Finding> {
    use engine::config::listener::TlsMode;
    let serve = &patient.config.serve;
    let tcp = serve.nbd.iter().any(|place| !place.address.starts_with("unix:"));
    let places = serve.nbd.iter().chain(&serve.http).any(|place| place.is_encrypted());
    let wanted = serve.gateway.is_some() || places || (tcp && serve.tls != TlsMode::Off);
    let files = ["ca-cert.pem", "server-cert.pem", "server-key.pem"];
    let gone: Vec<&str> = files.into_iter().filter(|name| !dir.join(name).exists()).collect();
    if !wanted || gone.is_empty() {
        return Vec::new();
    }
    vec![Finding::trouble(
        format!("{} has no {}", dir.display(), gone.join(", ")),
        "the configuration asks for TLS, and a server does not start without them",
        "sojourn cert ca, then sojourn cert server NAME with the names by which clients reach it",
    )]
}

/// The certificates below a directory, and how each is renewed.
fn certificates(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut all = vec![
        (
            dir.join("ca-cert.pem"),
            "make a new authority: its clients need new certificates (docs/security.md)".to_owned(),
        ),
        (
            dir.join("server-cert.pem"),
            "sojourn cert server NAME..., then sojourn reload".to_owned(),
        ),
    ];
    let clients = std::fs::read_dir(dir.join("clients")).into_iter().flatten().flatten().take(MOST);
    for client in clients {
        let name = client.file_name().to_string_lossy().into_owned();
        let renew = format!("sojourn cert client {name}, and take its directory to the client");
        all.push((client.path().join("client-cert.pem"), renew));
    }
    all.retain(|(path, _)| path.exists());
    all
}

/// When the first certificate of a file begins and ends to hold, in Unix seconds.
fn ends(path: &Path) -> Result<(i64, i64), String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    file.take(LONGEST).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    let pem = Pem::iter_from_buffer(&bytes).next().ok_or("there is none in it")?;
    let pem = pem.map_err(|e| e.to_string())?;
    let certificate = pem.parse_x509().map_err(|e| e.to_string())?;
    let validity = certificate.validity();
    Ok((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

fn judged(path: &Path, begins: i64, ends: i64, now: i64, renew: &str) -> Option<Finding> {
    let path = path.display();
    let days = (ends - now).div_euclid(DAY);
    if begins > now {
        return Some(Finding::trouble(
            format!("{path} does not hold yet"),
            "it was made on a machine whose clock was ahead of this one's, or this clock is behind",
            "set the clock of this machine (timedatectl)",
        ));
    }
    let refused = "whoever has to trust it refuses the connection from then on";
    match days {
        ..0 => Some(Finding::trouble(
            format!("{path} has ended {} days ago", -days),
            "nobody trusts it any more",
            renew,
        )),
        0..NOW => Some(Finding::trouble(format!("{path} ends in {days} days"), refused, renew)),
        NOW..SOON => Some(Finding::advice(format!("{path} ends in {days} days"), refused, renew)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Level;

    #[test]
    fn a_certificate_is_judged_by_its_last_day() {
        let level = |begins, ends| {
            judged(Path::new("x"), begins * DAY, ends * DAY, 100 * DAY, "renew")
                .map(|found| found.level)
        };
        assert_eq!(level(0, 99), Some(Level::Trouble));
        assert_eq!(level(0, 113), Some(Level::Trouble));
        assert_eq!(level(0, 114), Some(Level::Advice));
        assert_eq!(level(0, 160), None);
        assert_eq!(level(101, 900), Some(Level::Trouble));
    }
}
