//! How a script is replayed.

use crate::script::{ClientScript, Script};
use block::{Error, Result};
use nbd::{ClientOptions, Uri};
use std::collections::HashMap;
use std::time::Duration;

/// The most emulated clients.
pub const MOST_CLIENTS: u32 = 100_000;

/// The most requests under way.
const MOST_UNDER_WAY: u64 = 1 << 20;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Sends as soon as the client may: as fast as possible.
    Fast,
    /// At the trace's times, divided by this speed.
    Times(f64),
}

/// How a script is replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayPlan {
    /// The exports. In the export's name `{client}` is the number of the emulated client from 1
    /// on, `{name}` its client's name in the trace, `{disk}` its disk's.
    pub target: Uri,
    /// How connections are made.
    pub options: ClientOptions,
    /// How many clients are emulated; the n-th does what the (n mod clients of the trace)-th did.
    pub clients: u32,
    /// How many connections carry them; `None`: one for each client. Every export has at least
    /// one.
    pub connections: Option<u32>,
    /// When requests are sent.
    pub pace: Pace,
    /// Requests that a client may have under way. With 1, its next request waits for its last.
    pub depth: u32,
    /// When nothing is answered for so long though requests wait, the replay fails.
    pub patience: Duration,
    /// Each client starts so much later than the one before.
    pub stagger: Duration,
    /// Answers before this time are not counted.
    pub warm_up: Duration,
    /// Nothing is sent after this time, warming up included.
    pub until: Option<Duration>,
    /// Clients begin again when they have done everything; needs `until`.
    pub repeat: bool,
    /// Requests beyond the end of an export are moved into it, instead of refused.
    pub wrap: bool,
    /// Requests that change the disk may be sent.
    pub allow_writes: bool,
    /// Reads of what was written are checked; each client needs an export of its own.
    pub verify: bool,
    /// The report tells clients apart.
    pub by_client: bool,
    /// The report tells stretches of time of this length apart, or so many times that length that there
    /// are 4,096 at most.
    pub interval: Option<Duration>,
}

impl ReplayPlan {
    /// Plans a replay as fast as possible, one request at a time, each client of the trace once.
    pub fn new(target: Uri, script: &Script) -> Self {
        Self {
            target,
            options: ClientOptions::default(),
            clients: u32::try_from(script.clients()).unwrap_or(MOST_CLIENTS),
            connections: None,
            pace: Pace::Fast,
            depth: 1,
            patience: Duration::from_secs(60),
            stagger: Duration::ZERO,
            warm_up: Duration::ZERO,
            until: None,
            repeat: false,
            wrap: false,
            allow_writes: false,
            verify: false,
            by_client: false,
            interval: None,
        }
    }

    /// The clients of each connection.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) or [`Denied`](block::ErrorKind::Denied) for plans
    /// that cannot be carried out.
    pub(crate) fn connections(&self, script: &Script) -> Result<Vec<Carried>> {
        self.check(script)?;
        let mut exports: Vec<(String, Vec<u32>)> = Vec::new();
        let mut index: HashMap<String, usize> = HashMap::new();
        for client in 0..self.clients {
            let export = self.export(client, &script.parts[self.part(client, script)]);
            let at = *index.entry(export.clone()).or_insert(exports.len());
            if at == exports.len() {
                exports.push((export, Vec::new()));
            }
            exports[at].1.push(client);
        }
        if self.verify && exports.iter().any(|(_, clients)| clients.len() > 1) {
            return Err(Error::invalid(
                "several clients share an export, so that what it must hold is not known: leave \
                 out --verify, or give each an export of its own by {client} in its name",
            ));
        }
        let mut all = Vec::new();
        for (export, clients) in exports {
            let share = match self.connections {
                None => clients.len(),
                Some(most) => {
                    let share = u64::from(most) * clients.len() as u64 / u64::from(self.clients);
                    (share.max(1) as usize).min(clients.len())
                }
            };
            for first in 0..share {
                let clients = clients.iter().copied().skip(first).step_by(share).collect();
                all.push(Carried { export: export.clone(), clients });
            }
        }
        Ok(all)
    }

    /// Which part of the script a client plays.
    pub(crate) fn part(&self, client: u32, script: &Script) -> usize {
        client as usize % script.parts.len()
    }

    /// When a client begins, in nanoseconds since the start; what is beyond 584 years never comes.
    pub(crate) fn begin(&self, client: u32) -> u64 {
        u64::try_from(u128::from(client).saturating_mul(self.stagger.as_nanos()))
            .unwrap_or(u64::MAX)
    }

    /// Seconds until the last request is due at this speed, in a plan that is carried out once: that of the
    /// client that begins last, or of one that has more to do. None is sent after the plan's end.
    pub(crate) fn planned(&self, script: &Script, speed: f64) -> f64 {
        // Each part is played last by one of the last clients.
        let first =
            self.clients.saturating_sub(u32::try_from(script.parts.len()).unwrap_or(u32::MAX));
        let due = |client: u32| {
            let part = &script.parts[self.part(client, script)];
            self.begin(client) as f64 / 1e9 + part.last() as f64 / 1e9 / speed
        };
        let all = (first..self.clients).map(due).fold(0.0, f64::max);
        match self.until {
            Some(until) if self.repeat => until.as_secs_f64(),
            Some(until) => until.as_secs_f64().min(all),
            None => all,
        }
    }

    fn export(&self, client: u32, part: &ClientScript) -> String {
        let number = (client + 1).to_string();
        let name = self.target.export.replace("{client}", &number);
        name.replace("{name}", &part.client).replace("{disk}", &part.disk)
    }

    fn check(&self, script: &Script) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid(message));
        if !(1..=MOST_CLIENTS).contains(&self.clients) {
            return invalid(format!("{} clients: give 1 to {MOST_CLIENTS}", self.clients));
        }
        if self.connections == Some(0) {
            return invalid("no connections: give 1 or more".to_owned());
        }
        if !(1..=4096).contains(&self.depth) {
            return invalid(format!("a depth of {}: give 1 to 4096", self.depth));
        }
        if u64::from(self.clients) * u64::from(self.depth) > MOST_UNDER_WAY {
            return invalid(format!(
                "{} clients with {} requests each: at most {MOST_UNDER_WAY} in all",
                self.clients, self.depth
            ));
        }
        if let Pace::Times(speed) = self.pace {
            if !(1e-6..=1e6).contains(&speed) {
                return invalid(format!("a speed of {speed:?}: give 0.000001 to 1000000"));
            }
            if !script.times {
                return invalid("the trace has no times: replay it as fast as possible".to_owned());
            }
        }
        if self.interval == Some(Duration::ZERO) {
            return invalid("intervals of no length: give 1s or so".to_owned());
        }
        if self.patience.is_zero() {
            return invalid("no time to answer: wait for a second or more".to_owned());
        }
        if self.repeat && self.until.is_none() {
            return invalid("repeating without an end: say for how long".to_owned());
        }
        if self.until.is_some_and(|until| until <= self.warm_up) {
            return invalid(
                "nothing is left to measure: warm up for less, or run longer".to_owned(),
            );
        }
        if script.changes() && !self.allow_writes {
            return Err(Error::denied(
                "the trace writes, which would overwrite what the exports hold: allow it by \
                 --allow-writes, or leave writes out by --reads-only",
            ));
        }
        Ok(())
    }
}

/// What one connection carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) export: String,
    /// Numbers of emulated clients, from 0.
    pub(crate) clients: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::ScriptSelection;
    use trace::{Header, Memory, Op, Request};

    fn script(clients: u32, op: Op) -> Script {
        let one = |client| Request { client, length: 512, op, ..Request::default() };
        let requests = (0..clients).map(one).collect();
        let header = Header { clients: vec!["ann".into()], ..Header::default() };
        Script::load(&mut Memory::new(header, requests), ScriptSelection::default()).unwrap()
    }

    fn plan(export: &str, script: &Script) -> ReplayPlan {
        ReplayPlan::new(Uri::new("localhost:1".parse().unwrap(), export), script)
    }

    #[test]
    fn every_client_is_carried_once_on_its_export() {
        let script = script(3, Op::Read);
        let mut plan = plan("x", &script);
        plan.clients = 10;
        for (connections, count) in [(None, 10), (Some(1), 1), (Some(4), 4), (Some(99), 10)] {
            plan.connections = connections;
            let all = plan.connections(&script).unwrap();
            assert_eq!(all.len(), count);
            let mut clients: Vec<u32> = all.into_iter().flat_map(|one| one.clients).collect();
            clients.sort_unstable();
            assert_eq!(clients, (0..10).collect::<Vec<_>>());
        }
        plan.target.export = "d-{client}-{name}-{disk}".to_owned();
        plan.connections = Some(1);
        let all = plan.connections(&script).unwrap();
        assert_eq!(all.len(), 10);
        assert_eq!(all[0].export, "d-1-ann-0");
        assert_eq!(all[4].export, "d-5-1-0");
    }

    #[test]
    fn a_stagger_beyond_the_clock_does_not_begin_early() {
        let script = script(1, Op::Read);
        let mut plan = plan("x", &script);
        plan.stagger = Duration::from_millis(2);
        assert_eq!((plan.begin(0), plan.begin(3)), (0, 6_000_000));
        plan.stagger = Duration::from_secs(1 << 20);
        assert_eq!(plan.begin(99_999), u64::MAX);
    }

    #[test]
    fn a_plan_ends_with_the_client_that_begins_last() {
        let mut script = script(2, Op::Read);
        for (part, seconds) in script.parts.iter_mut().zip([10, 1]) {
            part.steps.iter_mut().for_each(|step| step.time = seconds * 1_000_000_000);
        }
        let mut plan = plan("x", &script);
        plan.clients = 4; // of 10 s, 1 s, 10 s and 1 s
        assert_eq!((plan.planned(&script, 1.0), plan.planned(&script, 2.0)), (10.0, 5.0));
        plan.stagger = Duration::from_secs(20);
        assert_eq!(plan.planned(&script, 1.0), 61.0);
        plan.stagger = Duration::from_secs(5);
        assert_eq!(plan.planned(&script, 1.0), 20.0);
        plan.until = Some(Duration::from_secs(15));
        assert_eq!(plan.planned(&script, 1.0), 15.0);
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused() {
        let reads = script(1, Op::Read);
        let good = plan("x", &reads);
        good.connections(&reads).unwrap();
        let bad = |change: &dyn Fn(&mut ReplayPlan)| {
            let mut plan = good.clone();
            change(&mut plan);
            plan.connections(&reads).unwrap_err()
        };
        bad(&|p| p.clients = 0);
        bad(&|p| p.depth = 0);
        bad(&|p| (p.clients, p.depth) = (100_000, 4096));
        bad(&|p| p.connections = Some(0));
        bad(&|p| p.pace = Pace::Times(0.0));
        bad(&|p| p.pace = Pace::Times(f64::NAN));
        bad(&|p| p.patience = Duration::ZERO);
        bad(&|p| p.repeat = true);
        bad(&|p| p.until = Some(Duration::ZERO));
        let error = bad(&|p| (p.verify, p.clients) = (true, 2));
        assert!(error.message().contains("{client}"));
        let writes = script(1, Op::Trim);
        let error = plan("x", &writes).connections(&writes).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Denied);
    }
}
