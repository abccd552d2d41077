//! Task management (RFC 7143, 11.5): aborts and resets.

use super::{FullFeatureSession, Phase, SessionEvent, WINDOW, is_first};
use crate::codec::request::{CommandPdu, Manage};
use crate::codec::response;
use crate::server::tasks::{Arrival, Task};
use futures::FutureExt;
use std::sync::Arc;

/// Requests that wait for what they abort, at most: they come beside the window of commands.
const MOST_WAITING: usize = 64;
/// The response to one more: function rejected.
const REJECTED: u8 = 255;

/// Tasks that an abort waits for, by their numbers.
pub(super) struct Aborting {
    tag: u32,
    waits: Vec<u64>,
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
        if self.aborting.len() + self.resetting >= MOST_WAITING {
            return self.managed(tag, REJECTED);
        }
        match manage.function {
            1 => {
                let wanted = manage.referenced;
                let found = self.collecting.contains_key(&wanted)
                    || self.running.contains_key(&wanted)
                    || self.queue.iter().any(|task| task.wire.tag == wanted);
                let waits = self.abort(|wire, _| wire.tag == wanted);
                self.wait_for(tag, waits, if found { 0 } else { 1 });
            }
            2 => {
                let waits = self.abort(|wire, _| is_first(&wire.lun));
                self.wait_for(tag, waits, 0);
            }
            4..=7 => {
                let over = match manage.function {
                    4 => nexus.unit.clear_task_set(&nexus),
                    _ => nexus.unit.reset(&nexus),
                };
                self.heed_resets();
                self.resetting += 1;
                self.futures.push(over.map(move |()| SessionEvent::Reset(tag)).boxed());
            }
            8 => self.managed(tag, 4),
            _ => self.managed(tag, 5),
        }
    }

    fn wait_for(&mut self, tag: u32, waits: Vec<u64>, response: u8) {
        if waits.is_empty() {
            self.managed(tag, response)
        } else {
            self.aborting.push(Aborting { tag, waits })
        }
    }

    /// A command that was aborted is over: those who wait for that may be answered.
    pub(super) fn note_aborted(&mut self, number: u64) {
        let mut ready = Vec::new();
        self.aborting.retain_mut(|aborting| {
            aborting.waits.retain(|wait| *wait != number);
            if aborting.waits.is_empty() {
                ready.push(aborting.tag);
            }
            !aborting.waits.is_empty()
        });
        ready.into_iter().for_each(|tag| self.managed(tag, 0));
    }

    /// Drops what came before the last reset of the unit. What of it is under way changes nothing any more when the
    /// reset is confirmed, and is not waited for: the initiator may use its tags again. So it may their places of the
    /// window, unless more than a window of such commands are under way.
    pub(super) fn heed_resets(&mut self) {
        let Phase::Normal { nexus, .. } = &self.phase else { return };
        let epoch = nexus.epoch();
        if epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        let _ = self.abort(|_, came| came.epoch != epoch);
        let abandoned: Vec<_> = self.running.extract_if(|_, running| running.aborted).collect();
        for (_, mut running) in abandoned {
            if running.placed && self.abandoned.len() < WINDOW as usize {
                self.free_place(&running.wire);
                running.placed = false;
            }
            self.ordered.remove(&running.came.number);
            self.abandoned.insert(running.came.number, running);
        }
    }

    /// Aborts tasks; the numbers of those that are under way and have to be waited for.
    fn abort(&mut self, which: impl Fn(&CommandPdu, Arrival) -> bool) -> Vec<u64> {
        let collected = self.collecting.extract_if(|_, task| which(&task.wire, task.came));
        let mut dropped: Vec<Task> = collected.map(|(_, task)| task).collect();
        let queue = std::mem::take(&mut self.queue);
        for task in queue {
            if which(&task.wire, task.came) {
                dropped.push(task)
            } else {
                self.queue.push_back(task)
            }
        }
        for task in dropped {
            self.release(&task);
        }
        let mut waits = Vec::new();
        for running in self.running.values_mut() {
            if which(&running.wire, running.came) {
                running.aborted = true;
                waits.push(running.came.number);
            }
        }
        self.ask();
        waits
    }
}
