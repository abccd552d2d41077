//! Exports that behave like modelled disks: `--throttle`, and `[[throttle]]` in the configuration.

use async_trait::async_trait;
use block::{ByteSize, Device, Error, Result};
use engine::config::throttle::ThrottleRule;
use engine::disk_profile;
use nbd::{ExportSummary, Exports, Layered, Peer, Purpose, Session};
use parking_lot::Mutex;
use schedule::model::spread::Spread;
use schedule::model::ssd::{Affine, Ssd};
use schedule::{Profile, request::from_ms};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use throttle::{Faults, Precise, Stall, Throttle, ThrottleCounters, ThrottleSetup};

/// The profile of a rule without one: requests take no time.
fn instant() -> Profile {
    let none = Affine { base_us: 0.0, kib_us: 0.0 };
    let spread = Spread::Fixed(1.0);
    let ssd = Ssd { servers: 1024, read: none, write: none, spread, write_buffer: None };
    Profile {
        name: "none".to_owned(),
        about: String::new(),
        source: String::new(),
        size: "1T".to_owned(),
        cache: None,
        linear: None,
        bins: None,
        mechanical: None,
        ssd: Some(ssd),
        network: None,
    }
}

fn range(text: &str) -> Result<Range<u64>> {
    let bad = || Error::invalid(format!("bad: {text:?} is no range; write FROM-TO, as 1M-2M"));
    let (from, to) = text.split_once('-').ok_or_else(bad)?;
    let bytes = |text: &str| text.trim().parse::<ByteSize>().map(|size| size.0).map_err(|_| bad());
    Ok(bytes(from)?..bytes(to)?)
}

fn faults(rule: &ThrottleRule) -> Result<Faults> {
    let bad = rule.bad.iter().map(|text| range(text)).collect::<Result<_>>()?;
    if let Some(stall) = rule.stall.filter(|s| !(0.0..=86_400_000.0).contains(&s.ms)) {
        let text = format!("stall.ms is {}; give 0 to 86400000, a day", stall.ms);
        return Err(Error::invalid(text));
    }
    let stall = rule.stall.map(|s| Stall { part: s.part, time: from_ms(s.ms) });
    let faults = Faults { fail: rule.fail, bad, stall };
    faults.check()?;
    Ok(faults)
}

/// One throttled export, as the status tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ThrottleView {
    /// The export.
    pub export: String,
    /// The profile it behaves like.
    pub profile: String,
    /// Everything takes so many times as long.
    pub times: f64,
    /// What its modelled disk did.
    #[serde(flatten)]
    pub counters: ThrottleCounters,
}

/// Checks a rule as a server does when it starts.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when it, or its profile, makes no sense; any error from a profile's
/// file.
pub fn check(rule: &ThrottleRule) -> Result<()> {
    profile(rule).map(drop)
}

/// The profile of a rule that was checked.
fn profile(rule: &ThrottleRule) -> Result<Profile> {
    let profile = match &rule.profile {
        Some(name) => disk_profile::load(name)?,
        None => instant(),
    };
    Throttles::of(vec![(rule.clone(), profile.clone())]).make(0)?;
    Ok(profile)
}

/// The rules, and the modelled disks of the exports that were opened.
pub(crate) struct Throttles {
    rules: Vec<(ThrottleRule, Profile)>,
    clock: Arc<Precise>,
    disks: Mutex<BTreeMap<String, (usize, Arc<Throttle>)>>,
}

impl Throttles {
    /// Checks the rules of the configuration and the one of the command line, which comes last. The
    /// first rule for an export counts. `None` without rules.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when a rule or a profile makes no sense; any error from a
    /// profile's file.
    pub(crate) fn new(
        rules: &[ThrottleRule],
        asked: Option<&ThrottleRule>,
    ) -> Result<Option<Arc<Self>>> {
        let mut checked = Vec::new();
        for rule in rules.iter().chain(asked) {
            // What is wrong with a rule is told now, not to the first client.
            let profile = profile(rule).map_err(|e| e.context("throttle"))?;
            checked.push((rule.clone(), profile));
        }
        Ok((!checked.is_empty()).then(|| Arc::new(Self::of(checked))))
    }

    fn of(rules: Vec<(ThrottleRule, Profile)>) -> Self {
        Self { rules, clock: Arc::new(Precise::new()), disks: Mutex::default() }
    }

    fn make(&self, index: usize) -> Result<Throttle> {
        let (rule, profile) = &self.rules[index];
        let (model, faults) = (profile.model()?, faults(rule)?);
        let setup = ThrottleSetup { model, times: rule.times, faults, seed: 1 };
        Throttle::new(Arc::clone(&self.clock) as _, setup)
    }

    /// The disk of an export, if a rule is for it. Its clients share it, and later ones find it as the
    /// last one left it.
    fn disk(&self, export: &str) -> Result<Option<Arc<Throttle>>> {
        let rule = self.rules.iter().position(|(rule, _)| rule.is_for(export));
        let Some(index) = rule else { return Ok(None) };
        let mut disks = self.disks.lock();
        if let Some((_, disk)) = disks.get(export) {
            return Ok(Some(Arc::clone(disk)));
        }
        let disk = Arc::new(self.make(index)?);
        disks.insert(export.to_owned(), (index, Arc::clone(&disk)));
        Ok(Some(disk))
    }

    /// The same exports, throttled.
    pub(crate) fn exports(self: &Arc<Self>, inner: Arc<dyn Exports>) -> Arc<dyn Exports> {
        Arc::new(ThrottledExports { inner, throttles: Arc::clone(self) })
    }

    /// The counters of each disk.
    pub(crate) fn view(&self) -> Vec<ThrottleView> {
        let view = |(export, (index, disk)): (&String, &(usize, Arc<Throttle>))| ThrottleView {
            export: export.clone(),
            profile: self.rules[*index].1.name.clone(),
            times: self.rules[*index].0.times,
            counters: disk.counters(),
        };
        self.disks.lock().iter().map(view).collect()
    }
}

/// Exports with or without throttles.
pub(crate) fn throttled(
    throttles: Option<&Arc<Throttles>>,
    exports: Arc<dyn Exports>,
) -> Arc<dyn Exports> {
    match throttles {
        Some(throttles) => throttles.exports(exports),
        None => exports,
    }
}

struct ThrottledExports {
    inner: Arc<dyn Exports>,
    throttles: Arc<Throttles>,
}

#[async_trait]
impl Exports for ThrottledExports {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        self.inner.list(peer).await
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let session = self.inner.open(name, peer, purpose).await?;
        if matches!(purpose, Purpose::Info | Purpose::Look) {
            return Ok(session);
        }
        let Some(disk) = self.throttles.disk(session.name())? else { return Ok(session) };
        let device: Arc<dyn Device> = Arc::new(disk.over(Arc::clone(session.device())));
        Ok(Box::new(Layered::new(session, device)))
    }
}
