//! What has to hold whatever happened.

use crate::lies;
use crate::life::{Home, Life, Wrong};
use crate::model::{self, Content, There};
use block::{Device, Error, Span};
use cache::{Cache, Config, PolicyKind};
use disk::Image;
use std::sync::Arc;
use store::{RefKind, verify};

impl Life {
    /// A process without faults finds all that is known to be there.
    pub(crate) async fn check(&mut self) -> Result<(), Wrong> {
        self.tell(|| "check".into());
        let fs = lies::start(&self.machine, self.manners);
        self.faulty = self.machine.has_ended();
        let mut home = match self.home(&fs).await {
            Ok(home) => home,
            Err(e) => return self.may_fail("opening the store", &e),
        };
        for (name, (there, content)) in self.model.images.clone() {
            self.check_ref(&home, RefKind::Image, &name, there, &content).await?;
        }
        let disks: Vec<_> = self.model.disks.clone().into_iter().collect();
        for (name, known) in disks {
            for (snapshot, (there, content)) in &known.snapshots {
                let name = format!("{name}@{snapshot}");
                self.check_ref(&home, RefKind::Snapshot, &name, *there, content).await?;
            }
            match (known.there, known.server) {
                (There::No, server) => {
                    let server = server.unwrap_or_default();
                    if home.0[server].disks.open(&name).await.is_ok() {
                        return Err(format!("{name} came back"));
                    }
                }
                _ => self.open(&mut home, &name).await?,
            }
        }
        let report = verify::store(home.store(), &verify::VerifyOptions::default(), &()).await;
        match report {
            Ok(report) if report.is_clean() => {}
            Ok(report) => return Err(format!("verify: {:?}", report.faults)),
            Err(e) => return self.may_fail("verify", &e),
        }
        self.machine.kill();
        Ok(())
    }

    async fn check_ref(
        &mut self,
        home: &Home,
        kind: RefKind,
        name: &str,
        there: There,
        content: &Content,
    ) -> Result<(), Wrong> {
        let found = match home.store().refs().get(kind, name).await {
            Ok(found) => found,
            Err(e) => return self.may_fail(&format!("{kind} {name}"), &e),
        };
        let id = match (&found, there) {
            (None, There::Yes) => return Err(format!("{kind} {name} is gone")),
            (Some(_), There::No) => return Err(format!("{kind} {name} came back")),
            (None, _) => return Ok(()),
            (Some(found), _) => found.body.manifest,
        };
        let read = async {
            let id = id.ok_or_else(|| Error::corrupt("no manifest"))?;
            let manifest = home.store().manifest(&id).await?;
            let cache = Config { capacity: 1 << 20, policy: PolicyKind::Lru, seed: 1 };
            let image = Image::new(home.store().clone(), manifest, Arc::new(Cache::new(cache)));
            let mut bytes = vec![0; image.size() as usize];
            image.read(Span::whole(image.size()), &mut bytes).await?;
            Ok::<_, Error>(bytes)
        };
        match read.await {
            Ok(bytes) if bytes == model::to_bytes(content) => Ok(()),
            Ok(_) => Err(format!("{kind} {name} has other bytes")),
            Err(e) => self.may_fail(&format!("{kind} {name}"), &e),
        }
    }
}
