//! Exports that keep to the rules.

use crate::{ReadOnly, Refusals, Right, Rules};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use block::{Device, Error, Result};
use nbd::{ExportSummary, Exports, Layered, Peer, Purpose, Session};
use std::sync::Arc;

/// How much of a name that a client made up is logged, in characters.
const SHOWN: usize = 80;

/// Other exports, of which a client sees only what the rules allow it. What it may not use is
/// absent to it, whether it exists or not: it is not even looked up.
pub struct Guarded {
    inner: Arc<dyn Exports>,
    rules: Arc<ArcSwap<Rules>>,
    /// What the empty name means, when it means something.
    default: Option<String>,
    refusals: Refusals,
}

impl Guarded {
    /// `inner`, whose export of the empty name is `default`. The rules may be replaced at any time;
    /// sessions that are open stay as they are.
    pub fn new(
        inner: Arc<dyn Exports>,
        rules: Arc<ArcSwap<Rules>>,
        default: Option<String>,
    ) -> Self {
        Self { inner, rules, default, refusals: Refusals::default() }
    }
}

/// The name by which the rules judge a connection that `means` an export. Another process calls the
/// export of a connection that it passes by its canonical name, and not as the client asked for it.
fn judged(means: &str, peer: &Peer, purpose: Purpose) -> String {
    let asked = match purpose {
        Purpose::Resume => peer.asked(),
        Purpose::Info | Purpose::Look | Purpose::Use => None,
    };
    asked.unwrap_or_else(|| means.to_owned())
}

#[async_trait]
impl Exports for Guarded {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        let rules = self.rules.load_full();
        if !rules.speak_of(peer) {
            return Ok(Vec::new()); // a listing is work, and this client would see nothing of it
        }
        let mut list = self.inner.list(peer).await?;
        list.retain(|export| rules.right(peer, &export.name).is_some());
        Ok(list)
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let meant = match (name, &self.default) {
            ("", Some(default)) => default,
            (name, _) => name,
        };
        let judged = judged(meant, peer, purpose);
        let right = self.rules.load().right(peer, &judged);
        let Some(right) = right else {
            if self.refusals.note(peer) {
                let export: String = judged.chars().take(SHOWN).collect();
                tracing::warn!(%peer, export, "refused: no access rule allows it");
            }
            return Err(Error::not_found("no such export, or none that this client may use"));
        };
        let session = self.inner.open(meant, peer, purpose).await?;
        if purpose == Purpose::Use {
            peer.note_asked(meant);
        }
        if right == Right::Write || session.device().read_only() {
            return Ok(session);
        }
        let device: Arc<dyn Device> = Arc::new(ReadOnly::new(Arc::clone(session.device())));
        Ok(Box::new(Layered::new(session, device)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;
    use block::{ErrorKind, Memory};
    use nbd::{Session, SessionEnding};
    use std::sync::Mutex;
    use tracing::{Metadata, field, span};

    /// Three exports, and another name of the second one; the empty name is no business of theirs.
    struct Three;

    struct Open(Arc<dyn Device>, String);

    #[async_trait]
    impl Exports for Three {
        async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
            let one = |name: &&str| ExportSummary {
                name: (*name).to_owned(),
                description: String::new(),
            };
            Ok(["a", "b", "c"].iter().map(one).collect())
        }

        async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
            let canonical = match name {
                "newest" => "b",
                "a" | "b" | "c" => name,
                _ => return Err(Error::not_found(format!("no export {name}, only a, b and c"))),
            };
            Ok(Box::new(Open(Arc::new(Memory::new(4096)), canonical.to_owned())))
        }
    }

    #[async_trait]
    impl Session for Open {
        fn device(&self) -> &Arc<dyn Device> {
            &self.0
        }
        fn name(&self) -> &str {
            &self.1
        }
        async fn close(self: Box<Self>, _: SessionEnding) {}
    }

    fn alice() -> Peer {
        Peer::tcp("192.0.2.1:7".parse().unwrap()).certified("alice".into())
    }

    fn guarded(write: &str, read: &str, default: Option<&str>) -> Guarded {
        let rule = Rule {
            certificate: Some("alice".into()),
            write: vec![write.into()],
            read: vec![read.into()],
            ..Rule::default()
        };
        let rules = Rules::new(vec![rule], false).unwrap();
        let rules = Arc::new(ArcSwap::from_pointee(rules));
        Guarded::new(Arc::new(Three), rules, default.map(str::to_owned))
    }

    #[tokio::test]
    async fn only_what_may_be_used_is_listed() {
        let exports = guarded("a", "b", None);
        let names = |list: Vec<ExportSummary>| list.into_iter().map(|e| e.name).collect::<Vec<_>>();
        assert_eq!(names(exports.list(&alice()).await.unwrap()), ["a", "b"]);
        let nobody = Peer::tcp("192.0.2.1:7".parse().unwrap());
        assert!(exports.list(&nobody).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_may_not_be_used_looks_as_if_it_did_not_exist() {
        let exports = guarded("a", "b", None);
        let refusal = async |name: &str| {
            let error = exports.open(name, &alice(), Purpose::Info).await.err().unwrap();
            (error.kind(), error.message().to_owned())
        };
        assert_eq!(refusal("c").await.0, ErrorKind::NotFound);
        assert_eq!(refusal("c").await, refusal("d").await);
    }

    #[tokio::test]
    async fn who_may_only_read_gets_a_device_that_refuses_changes() {
        let exports = guarded("a", "b", None);
        let open = async |name| exports.open(name, &alice(), Purpose::Use).await.unwrap();
        assert!(!open("a").await.device().read_only());
        assert!(open("b").await.device().read_only());
    }

    #[tokio::test]
    async fn the_empty_name_is_judged_by_what_it_means() {
        let open =
            async |default| guarded("a", "b", Some(default)).open("", &alice(), Purpose::Use).await;
        assert_eq!(open("a").await.unwrap().name(), "a");
        assert_eq!(open("c").await.err().unwrap().kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn who_goes_on_may_do_what_it_might_by_the_name_that_it_asked_for() {
        let (before, after) = (guarded("a", "newest", None), guarded("a", "newest", None));
        let alice = alice();
        let session = before.open("newest", &alice, Purpose::Use).await.unwrap();
        let canonical = session.name().to_owned();
        assert_eq!(canonical, "b");
        let asked = alice.asked();
        let (transport, identity) = (alice.transport.clone(), alice.identity.clone());
        let passed = |asked| {
            Peer::known(transport.clone(), identity.clone(), alice.certificate.clone(), asked)
        };
        // To another process, and back to this one.
        for (exports, peer) in [(&after, &passed(asked)), (&before, &alice)] {
            let session = exports.open(&canonical, peer, Purpose::Resume).await.unwrap();
            assert!(session.device().read_only());
            // It says nothing of what is asked for from now on.
            let error = exports.open(&canonical, peer, Purpose::Use).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        for asked in [None, Some("c".to_owned())] {
            let error =
                after.open(&canonical, &passed(asked), Purpose::Resume).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
    }

    #[tokio::test]
    async fn the_empty_name_is_passed_on_as_what_it_meant() {
        let alice = alice();
        guarded("a", "b", Some("a")).open("", &alice, Purpose::Use).await.unwrap();
        assert_eq!(alice.asked().as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn a_client_of_whom_no_rule_speaks_has_nothing_looked_up() {
        /// Exports that nobody may list.
        struct Unlisted;

        #[async_trait]
        impl Exports for Unlisted {
            async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
                panic!("it was listed")
            }
            async fn open(&self, _: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
                panic!("it was opened")
            }
        }

        let exports = Guarded { inner: Arc::new(Unlisted), ..guarded("*", "b", None) };
        let nobody = Peer::tcp("192.0.2.1:7".parse().unwrap());
        assert!(exports.list(&nobody).await.unwrap().is_empty());
        assert!(exports.open("a", &nobody, Purpose::Info).await.is_err());
    }

    #[tokio::test]
    async fn a_client_that_is_refused_all_the_time_does_not_fill_the_log() {
        let lines = Lines::default();
        let logging = tracing::subscriber::set_default(lines.clone());
        let exports = guarded("a", "b", None);
        for _ in 0..1000 {
            exports.open("c", &alice(), Purpose::Info).await.err().unwrap();
        }
        let written = lines.take();
        assert!(written.len() < 20, "{}", written.len());
        assert!(written[0].contains("cert:alice@192.0.2.1"), "{}", written[0]);
        assert!(written[0].contains("export=\"c\""), "{}", written[0]);
        drop(exports);
        let rest = format!("left_out={}", 1000 - written.len());
        let last = lines.take();
        assert!(last[0].contains(&rest) && last[0].contains("alice"), "{last:?}");
        drop(logging);
    }

    /// A log in memory.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Lines {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl tracing::Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            struct Line(String);
            impl field::Visit for Line {
                fn record_debug(&mut self, field: &field::Field, value: &dyn std::fmt::Debug) {
                    self.0 += &format!("{field}={value:?} ");
                }
            }
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[tokio::test]
    async fn new_rules_hold_for_the_next_session() {
        let exports = guarded("a", "b", None);
        exports.open("a", &alice(), Purpose::Use).await.unwrap();
        exports.rules.store(Arc::new(Rules::new(Vec::new(), true).unwrap()));
        assert!(exports.open("a", &alice(), Purpose::Use).await.is_err());
    }
}
