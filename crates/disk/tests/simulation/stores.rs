//! What is done to the store.

use crate::life::{HOUR, Home, Life, Wrong};
use crate::model::{self, Content, There};
use block::{Error, Memory};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::testing::NOW;
use store::{RefBody, RefKind, gc, import, repair};

/// Sectors of an image: not whole blocks.
const SECTORS: usize = 8 * 24 + 3;

impl Life {
    pub(crate) async fn import(&mut self, home: &Home) -> Result<(), Wrong> {
        // Of few pieces, so that images share chunks with what is there, or was.
        let piece = |life: &mut Self| life.below(12);
        let mut content = Vec::new();
        while content.len() < SECTORS {
            let tag = piece(self);
            content.extend(std::iter::repeat_n(tag, 24));
        }
        content.truncate(SECTORS);
        let content: Content = Arc::new(content);
        let name = format!("image:{}", self.fresh());
        self.tell(|| format!("import {name}"));
        self.model.images.insert(name.clone(), (There::Unknown, Arc::clone(&content)));
        let device = Memory::from(model::to_bytes(&content));
        let made = async {
            let session = home.store().session("import").await?;
            let made = async {
                let done = import::from_device(&session, &device, &()).await?;
                let body = RefBody {
                    manifest: Some(done.manifest),
                    size: done.size,
                    created: NOW,
                    labels: BTreeMap::new(),
                };
                session.publish(RefKind::Image, &name, body).await
            };
            let made = made.await;
            session.close(made).await
        };
        match made.await {
            Ok(_) => self.model.images.insert(name, (There::Yes, content)),
            Err(e) => return self.may_fail("import", &e),
        };
        Ok(())
    }

    pub(crate) async fn remove_image(&mut self, home: &Home) -> Result<(), Wrong> {
        let Some((name, _)) = self.any_image() else { return Ok(()) };
        self.tell(|| format!("remove {name}"));
        let refs = home.store().refs();
        let removed = async {
            let found = refs.get(RefKind::Image, &name).await?;
            let found = found.ok_or_else(|| Error::not_found("gone"))?;
            refs.remove(RefKind::Image, &name, found.sequence).await
        };
        let removed = removed.await;
        let there = if removed.is_ok() { There::No } else { There::Unknown };
        self.model.images.get_mut(&name).unwrap().0 = there;
        removed.or_else(|e| self.may_fail("image remove", &e))
    }

    pub(crate) async fn collect(&mut self, home: &Home) -> Result<(), Wrong> {
        let grace = Duration::from_secs(self.below(2) * HOUR);
        self.tell(|| format!("collect, grace {grace:?}"));
        let options = gc::GcOptions { grace, rewrite_below: 0.7, ..gc::GcOptions::default() };
        match gc::collect(home.store(), &options, &()).await {
            Ok(_) => Ok(()),
            Err(e) => self.may_fail("gc", &e),
        }
    }

    /// Nothing was damaged: a repair finds nothing that it cannot heal.
    pub(crate) async fn repair(&mut self, home: &Home) -> Result<(), Wrong> {
        self.tell(|| "repair".into());
        match repair::store(home.store(), &[], false, &()).await {
            Ok(report) if report.left.is_empty() && report.lost_chunks == 0 => Ok(()),
            Ok(report) => Err(format!("repair: {report:?}")),
            Err(e) => self.may_fail("repair", &e),
        }
    }
}
