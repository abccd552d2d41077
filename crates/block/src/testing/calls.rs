//! [`CallRecorder`], the memory of a double: what it was asked, and whom it keeps waiting.

use std::fmt::Debug;
use std::ops::Deref;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// How long [`CallRecorder::until`] waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls that have come and are not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Their number.
    pub calls: usize,
    /// The bytes that they are about.
    pub bytes: u64,
}

/// What a double was asked so far.
#[derive(Debug)]
pub struct CallLog<C> {
    /// Every call, in the order in which they came.
    pub asked: Vec<C>,
    /// How many wait until they are released.
    pub held: usize,
    /// What is under way.
    pub now: InFlight,
    /// The most that was under way at one time; the numbers may be of different times.
    pub most: InFlight,
}

impl<C> Default for CallLog<C> {
    fn default() -> Self {
        let (now, most) = (InFlight::default(), InFlight::default());
        Self { asked: Vec::new(), held: 0, now, most }
    }
}

impl<C> CallLog<C> {
    /// How many calls are such ones.
    pub fn count(&self, which: impl Fn(&C) -> bool) -> usize {
        self.asked.iter().filter(|call| which(call)).count()
    }
}

/// Notes the calls of a double, and holds those back that its script says.
#[derive(Debug)]
pub struct CallRecorder<C> {
    log: watch::Sender<CallLog<C>>,
    gate: Semaphore,
}

impl<C> Default for CallRecorder<C> {
    fn default() -> Self {
        Self { log: watch::Sender::default(), gate: Semaphore::new(0) }
    }
}

impl<C> CallRecorder<C> {
    /// What came so far. The log is locked until the answer is dropped.
    pub fn log(&self) -> impl Deref<Target = CallLog<C>> + '_ {
        self.log.borrow()
    }

    /// Lets this many calls pass of those that are held, or that will be.
    pub fn release(&self, calls: usize) {
        self.gate.add_permits(calls);
    }

    /// Notes a call about so many bytes; it is under way until the answer is dropped.
    pub fn enter(&self, call: C, bytes: u64) -> UnderWay<'_, C> {
        self.log.send_modify(|log| {
            log.asked.push(call);
            log.now.calls += 1;
            log.now.bytes += bytes;
            log.most.calls = log.most.calls.max(log.now.calls);
            log.most.bytes = log.most.bytes.max(log.now.bytes);
        });
        UnderWay { log: &self.log, bytes }
    }

    /// Waits until the call is released.
    pub async fn hold(&self) {
        let _held = Held::new(&self.log);
        if let Ok(permit) = self.gate.acquire().await {
            permit.forget();
        }
    }

    /// Returns once the log is as it should be.
    ///
    /// # Panics
    /// When it is not so within a minute.
    pub async fn until(&self, enough: impl FnMut(&CallLog<C>) -> bool)
    where
        C: Debug,
    {
        let mut told = self.log.subscribe();
        let came = tokio::time::timeout(PATIENCE, told.wait_for(enough)).await.is_ok();
        assert!(came, "not within {PATIENCE:?}: {:?}", *self.log.borrow());
    }
}

/// A call that is under way until this is dropped.
#[derive(Debug)]
pub struct UnderWay<'a, C> {
    log: &'a watch::Sender<CallLog<C>>,
    bytes: u64,
}

impl<C> Drop for UnderWay<'_, C> {
    fn drop(&mut self) {
        self.log.send_modify(|log| {
            log.now.calls -= 1;
            log.now.bytes -= self.bytes;
        });
    }
}

/// A call that is held until this is dropped.
struct Held<'a, C>(&'a watch::Sender<CallLog<C>>);

impl<'a, C> Held<'a, C> {
    fn new(log: &'a watch::Sender<CallLog<C>>) -> Self {
        log.send_modify(|log| log.held += 1);
        Self(log)
    }
}

impl<C> Drop for Held<'_, C> {
    fn drop(&mut self) {
        self.0.send_modify(|log| log.held -= 1);
    }
}
