//! The store: whether it is there, how quick it is, and who left something unfinished in it.

use super::finding::Finding;
use super::patient::{Patient, StoreLook};
use block::ErrorKind;
use std::time::Duration;

/// A store that takes longer for one small request is slow, and for a guest much too slow.
const SLOW: Duration = Duration::from_millis(250);
const TOO_SLOW: Duration = Duration::from_secs(2);
/// A session shows itself every hour; one that was silent for so many seconds has died.
const DIED: u64 = 7200;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    let place = || patient.home.store_url(&patient.config.store);
    match &patient.store {
        None => Vec::new(),
        Some(Ok(look)) => judged(&place(), look),
        Some(Err(error)) => {
            let remedy = match error.kind() {
                ErrorKind::NotFound => {
                    "mount or restore it; `sojourn init --store` in another home makes a new one"
                }
                ErrorKind::Denied => {
                    "the key or the credentials that it was made with (docs/encryption.md, docs/stores.md)"
                }
                ErrorKind::Corrupt => "sojourn verify, then sojourn repair --from a copy",
                _ => "look at the network, the credentials and the other end (docs/stores.md)",
            };
            let why = "what is not cached cannot be read, and nothing can be published";
            vec![Finding::trouble(
                format!("the store cannot be opened: {}", error.message()),
                why,
                remedy,
            )]
        }
    }
}

fn judged(place: &str, look: &StoreLook) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ms = look.asked.as_millis();
    let what = format!("the store {place} took {ms} ms for one small request");
    if look.asked >= TOO_SLOW {
        let why = "a guest that misses the cache waits for longer than that";
        findings.push(Finding::trouble(
            what,
            why,
            "a nearer copy as a source (docs/media.md), or another network",
        ));
    } else if look.asked >= SLOW {
        let why = "boots and first reads are slow where nothing nearby has the data";
        findings.push(Finding::advice(
            what,
            why,
            "a copy or a key nearby as a source (docs/media.md)",
        ));
    }
    let dead: Vec<_> = look.sessions.iter().filter(|pin| pin.silent > DIED).collect();
    if let Some(first) = dead.first() {
        let what = first.what.as_deref().unwrap_or("damaged");
        findings.push(Finding::advice(
            format!(
                "{} sessions in the store have died, the first {} minutes ago: {what}",
                dead.len(),
                first.silent / 60
            ),
            "what they had begun is kept from being collected for a day",
            format!("sojourn store sessions break {}", first.id),
        ));
    }
    let damaged = look.sessions.iter().filter(|pin| pin.what.is_none()).count();
    if damaged > 0 {
        findings.push(Finding::trouble(
            format!("{damaged} pins in the store are damaged"),
            "a collection deletes nothing while it cannot read them",
            "sojourn verify; sojourn store sessions list, and break, when nobody is at work",
        ));
    }
    if findings.is_empty() {
        let opened = look.opened.as_millis();
        findings.push(Finding::ok(format!(
            "the store {place} opened in {opened} ms and answers in {ms} ms"
        )));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Level;
    use store::sessions::PinInfo;

    fn levels(asked: u64, sessions: Vec<PinInfo>) -> Vec<Level> {
        let asked = Duration::from_millis(asked);
        let look = StoreLook { opened: asked, asked, sessions };
        judged("here", &look).iter().map(|found| found.level).collect()
    }

    #[test]
    fn slow_stores_and_what_died_in_them_are_told() {
        assert_eq!(levels(3, Vec::new()), [Level::Ok]);
        assert_eq!(levels(300, Vec::new()), [Level::Advice]);
        assert_eq!(levels(3000, Vec::new()), [Level::Trouble]);
        let pin = |what: Option<&str>, silent| PinInfo {
            id: "0".repeat(32).parse().unwrap(),
            what: what.map(str::to_owned),
            age: silent,
            silent,
        };
        assert_eq!(levels(3, vec![pin(Some("import of a"), 60)]), [Level::Ok]);
        assert_eq!(levels(3, vec![pin(Some("import of a"), 9000)]), [Level::Advice]);
        assert_eq!(levels(3, vec![pin(None, 60)]), [Level::Trouble]);
    }
}
