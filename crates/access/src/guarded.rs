//! Exports that keep to the rules.

use crate::{ReadOnly, Right, Rules};
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
}

impl Guarded {
    /// `inner`, whose export of the empty name is `default`. The rules may be replaced at any time;
    /// sessions that are open stay as they are.
    pub fn new(
        inner: Arc<dyn Exports>,
        rules: Arc<ArcSwap<Rules>>,
        default: Option<String>,
    ) -> Self {
        Self { inner, rules, default }
    }
}

#[async_trait]
impl Exports for Guarded {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        let rules = self.rules.load_full();
        let mut list = self.inner.list(peer).await?;
        list.retain(|export| rules.right(peer, &export.name).is_some());
        Ok(list)
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let meant = match (name, &self.default) {
            ("", Some(default)) => default,
            (name, _) => name,
        };
        let right = self.rules.load().right(peer, meant);
        let Some(right) = right else {
            let export: String = meant.chars().take(SHOWN).collect();
            tracing::warn!(%peer, export, "refused: no access rule allows it");
            return Err(Error::not_found("no such export, or none that this client may use"));
        };
        let session = self.inner.open(meant, peer, purpose).await?;
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
    use nbd::{Ending, Session};

    /// Three exports; the empty name is no business of theirs.
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
            if !["a", "b", "c"].contains(&name) {
                return Err(Error::not_found(format!("no export {name}, only a, b and c")));
            }
            Ok(Box::new(Open(Arc::new(Memory::new(4096)), name.to_owned())))
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
        async fn close(self: Box<Self>, _: Ending) {}
    }

    fn alice() -> Peer {
        Peer::tcp("192.0.2.1:7".parse().unwrap()).certified("alice".into())
    }

    fn guarded(write: &str, read: &str, default: Option<&str>) -> Guarded {
        let rule = Rule {
            certificate: Some("alice".into()),
            uid: None,
            write: vec![write.into()],
            read: vec![read.into()],
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
    async fn new_rules_hold_for_the_next_session() {
        let exports = guarded("a", "b", None);
        exports.open("a", &alice(), Purpose::Use).await.unwrap();
        exports.rules.store(Arc::new(Rules::new(Vec::new(), true).unwrap()));
        assert!(exports.open("a", &alice(), Purpose::Use).await.is_err());
    }
}
