//! Task management (RFC 7143, 11.5): aborts and resets.

use super::{FullFeatureSession, Phase, SessionEvent, is_first};
use crate::codec::request::Manage;
use crate::codec::response;
use crate::server::tasks::Task;
use futures::FutureExt;
use std::sync::Arc;

/// Tasks that an abort waits for.
pub(super) struct Aborting {
    pub(super) tag: u32,
    pub(super) waits: Vec<u32>,
}

impl FullFeatureSession<'_> {
    pub(super) fn managed(&mut self, tag: u32, response: u8) {
        let counts = self.counts();
        self.output.put(response::manage(tag, response, counts), &[]);
    }

    pub(super) fn manage(&mut self, manage: &Manage) {
        if !self.is_next(manage.immediate, manage.cmd_sn) {
            return;
        }
        let Phase::Normal { nexus, .. } = &self.phase else { return };
        let nexus = Arc::clone(nexus);
        let (tag, of_unit) = (manage.tag, manage.function <= 5);
        if of_unit && !is_first(&manage.lun) {
            return self.managed(tag, 2);
        }
        match manage.function {
            1 => {
                let wanted = manage.referenced;
                let found = self.collecting.contains_key(&wanted)
                    || self.running.contains_key(&wanted)
                    || self.queue.iter().any(|task| task.wire.tag == wanted);
                let waits = self.abort(|tag, _| tag == wanted);
                self.wait_for(tag, waits, if found { 0 } else { 1 });
            }
            2 | 4 => {
                let waits = self.abort(|_, lun| is_first(lun));
                self.wait_for(tag, waits, 0);
            }
            5..=7 => {
                // Its own commands hold the reset up as others' do.
                let _ = self.abort(|_, _| true);
                let reset = async move {
                    nexus.unit.reset(&nexus).await;
                    SessionEvent::Reset(tag)
                };
                self.futures.push(reset.boxed());
            }
            8 => self.managed(tag, 4),
            _ => self.managed(tag, 5),
        }
    }

    fn wait_for(&mut self, tag: u32, waits: Vec<u32>, response: u8) {
        if waits.is_empty() {
            self.managed(tag, response)
        } else {
            self.aborting.push(Aborting { tag, waits })
        }
    }

    /// Aborts tasks by their tag and unit; those that are under way and have to be waited for.
    pub(super) fn abort(&mut self, which: impl Fn(u32, &[u8; 8]) -> bool) -> Vec<u32> {
        let collected = self.collecting.extract_if(|tag, task| which(*tag, &task.wire.lun));
        let mut dropped: Vec<Task> = collected.map(|(_, task)| task).collect();
        let queue = std::mem::take(&mut self.queue);
        for task in queue {
            if which(task.wire.tag, &task.wire.lun) {
                dropped.push(task)
            } else {
                self.queue.push_back(task)
            }
        }
        for task in dropped {
            self.release(&task.wire, task.holds);
        }
        let mut waits = Vec::new();
        for (tag, running) in &mut self.running {
            if which(*tag, &running.wire.lun) {
                running.aborted = true;
                waits.push(*tag);
            }
        }
        self.ask();
        waits
    }
}
