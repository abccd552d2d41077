//! A machine that runs, and what its keeper does for it when it is asked.

use super::super::disks::DiskServer;
use super::super::requests::KeeperInput;
use super::super::wire::{self, KeeperReply, KeeperRequest, RunningView, StoredView};
use super::{Farewell, Keeper, KeeperStep, release, upload};
use ::vm::RunningMachine;
use ::vm::machine::TRIES_AGAIN;
use ::vm::packing::{KeptReport, ParcelReport, SuspendedHere};
use block::{Error, Result};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

/// How long QEMU has to say what its machine does: shorter than who asks waits.
const SAYS: Duration = Duration::from_secs(1);
/// How long a guest has to power off when it is asked to.
const GOODBYE: Duration = Duration::from_secs(90);

/// What came of making a parcel.
enum Packing {
    Parcel(ParcelReport),
    Kept(KeptReport),
    Failed(Error),
    /// It was given up: the machine is to end. Who asked for that may wait.
    Ended(Option<UnixStream>),
}

/// What came of waiting until a guest has powered off.
enum PoweringOff {
    /// It has, or it is to be ended as if the power failed; who asked for that waits.
    Ended(Option<UnixStream>),
    /// The keeper is to end.
    ToEnd,
    Failed(Error),
}

/// A machine that runs.
pub(super) struct KeptMachine {
    pub(super) machine: RunningMachine,
    /// The parcel that it came from, or that was made of it last.
    pub(super) parcel: Option<String>,
}

impl KeptMachine {
    /// Serves commands until the machine ends.
    pub(super) async fn keep(
        mut self,
        keeper: &mut Keeper<'_>,
        asked: Option<UnixStream>,
    ) -> Result<KeeperStep> {
        keeper.requests.listen()?;
        // Whatever was said of an earlier suspension: it is not what is kept next.
        let folder = keeper.folder;
        for cleared in [folder.note_not_sent(None), folder.note_unreleased(None)] {
            if let Err(error) = cleared {
                tracing::warn!(%error, "what was noted of an earlier suspension stays there");
            }
        }
        if let Some(stream) = asked {
            wire::answer(stream, self.status(None).await.map(KeeperReply::Status)).await;
        }
        let mut looks = interval(TRIES_AGAIN);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let tries_again = self.machine.try_again_without_room(&mut looks);
            let asked = tokio::select! {
                how = self.machine.ended() => {
                    tracing::warn!(how, "the machine has ended");
                    KeeperInput::ToEnd
                }
                asked = keeper.requests.next() => asked,
                never = tries_again => match never {},
            };
            match asked {
                KeeperInput::ToEnd => {
                    self.machine.give_up(keeper.server).await;
                    return Ok(KeeperStep::End(Vec::new()));
                }
                KeeperInput::Nothing => {}
                KeeperInput::Command(stream, request) => {
                    if let Some(step) = self.serve(keeper, stream, request).await {
                        return Ok(step);
                    }
                }
            }
        }
    }

    /// Serves one command; `Some` when the machine does not run any more.
    async fn serve(
        &mut self,
        keeper: &mut Keeper<'_>,
        stream: UnixStream,
        request: Result<KeeperRequest>,
    ) -> Option<KeeperStep> {
        let reply = match request {
            Err(e) => Err(e),
            Ok(KeeperRequest::Status) => self.status(None).await.map(KeeperReply::Status),
            Ok(KeeperRequest::Resume { .. }) => Err(Error::conflict(format!(
                "machine {:?} runs already; see 'sojourn vm show {}'",
                self.machine.spec().name,
                self.machine.spec().name
            ))),
            Ok(KeeperRequest::StopSending) => Err(Error::conflict(format!(
                "machine {:?} runs, and nothing of it is being sent",
                self.machine.spec().name
            ))),
            Ok(KeeperRequest::Checkpoint) => match self.pack(keeper, true).await {
                Packing::Parcel(report) => {
                    self.parcel = Some(report.parcel.name());
                    Ok(KeeperReply::Stored(StoredView::new(&report, false)))
                }
                Packing::Ended(by) => {
                    return Some(self.end_early(keeper.server, stream, by).await);
                }
                Packing::Failed(e) => Err(e),
                Packing::Kept(_) => Err(Error::internal("a checkpoint was kept")),
            },
            Ok(KeeperRequest::Suspend { wait }) => match self.pack(keeper, false).await {
                Packing::Kept(kept) => {
                    // All is safe: nobody waits for QEMU's end.
                    let waiting = upload::kept(keeper, stream, &kept, wait).await;
                    self.machine.park().await;
                    return Some(KeeperStep::Upload(waiting));
                }
                Packing::Parcel(report) => {
                    let reply = Ok(KeeperReply::Stored(self.part(keeper, &report).await));
                    return Some(KeeperStep::End(vec![Farewell { stream, reply }]));
                }
                Packing::Ended(by) => {
                    return Some(self.end_early(keeper.server, stream, by).await);
                }
                Packing::Failed(e) => Err(e),
            },
            Ok(KeeperRequest::Stop { force }) => {
                let off = match force {
                    true => PoweringOff::Ended(None),
                    false => self.power_off(keeper).await,
                };
                match off {
                    PoweringOff::Ended(by) => {
                        self.machine.end().await;
                        let stopped = |stream| Farewell { stream, reply: Ok(KeeperReply::Stopped) };
                        let streams = by.into_iter().chain([stream]);
                        return Some(KeeperStep::End(streams.map(stopped).collect()));
                    }
                    PoweringOff::ToEnd => {
                        self.machine.give_up(keeper.server).await;
                        let reply = Ok(KeeperReply::Stopped);
                        return Some(KeeperStep::End(vec![Farewell { stream, reply }]));
                    }
                    PoweringOff::Failed(e) => Err(e),
                }
            }
        };
        wire::answer(stream, reply).await;
        None
    }

    /// Makes a parcel, or keeps what becomes one. Meanwhile others are told so, and the machine can be ended: a
    /// disk that is full, or a store that is away, may keep a parcel waiting for ever.
    async fn pack(&self, keeper: &mut Keeper<'_>, run_on: bool) -> Packing {
        let (machine, server) = (&self.machine, keeper.server);
        let packing = async {
            if run_on {
                return machine
                    .checkpoint(server, &())
                    .await
                    .map_or_else(Packing::Failed, Packing::Parcel);
            }
            match machine.suspend_here(server).await {
                Ok(SuspendedHere::Kept(kept)) => Packing::Kept(*kept),
                Ok(SuspendedHere::DiskCannotWait(why)) => {
                    tracing::info!(why = why.message(), "the suspension goes to the store at once");
                    match machine.freeze_and_store(server, &()).await {
                        Ok(report) => Packing::Parcel(report),
                        Err(e) => Packing::Failed(e.context(format!(
                            "it cannot be kept here ({}), nor go to the store at once",
                            why.message()
                        ))),
                    }
                }
                Err(e) => Packing::Failed(e),
            }
        };
        let mut packing = std::pin::pin!(packing);
        loop {
            let asked = tokio::select! {
                done = &mut packing => return done,
                asked = keeper.requests.next() => asked,
            };
            let (stream, request) = match asked {
                KeeperInput::ToEnd => return Packing::Ended(None),
                KeeperInput::Nothing => continue,
                KeeperInput::Command(stream, request) => (stream, request),
            };
            let (name, doing) =
                (&machine.spec().name, if run_on { "storing" } else { "suspending" });
            let reply = match request {
                Err(e) => Err(e),
                Ok(KeeperRequest::Status) => {
                    self.status(Some(doing)).await.map(KeeperReply::Status)
                }
                Ok(KeeperRequest::Stop { force: true }) => return Packing::Ended(Some(stream)),
                Ok(_) => Err(Error::conflict(format!(
                    "a parcel of machine {name:?} is being made; wait for it, or end the machine with 'sojourn vm \
                     stop --force {name}'"
                ))),
            };
            wire::answer(stream, reply).await;
        }
    }

    /// Ends a machine of which a parcel was being made.
    async fn end_early(
        &mut self,
        server: &DiskServer,
        stream: UnixStream,
        by: Option<UnixStream>,
    ) -> KeeperStep {
        match by {
            Some(_) => self.machine.end().await,
            None => self.machine.give_up(server).await,
        }
        let why = "the machine was ended while a parcel of it was made; there is none";
        wire::answer(stream, Err(Error::conflict(why))).await;
        let stopped = |stream| Farewell { stream, reply: Ok(KeeperReply::Stopped) };
        KeeperStep::End(by.map(stopped).into_iter().collect())
    }

    /// Ends a machine whose parcel is made, and releases its disk.
    async fn part(&mut self, keeper: &Keeper<'_>, report: &ParcelReport) -> StoredView {
        if let Err(error) = keeper.folder.note_unreleased(Some(&report.parcel.name())) {
            tracing::warn!(%error, "a keeper that is killed now leaves the disk unreleased");
        }
        self.machine.end().await;
        let released = release::release_disk(keeper, &self.machine.spec().disk).await;
        StoredView::new(report, released)
    }

    /// Has the guest power off. Meanwhile others are told so, and the machine can be ended.
    async fn power_off(&mut self, keeper: &mut Keeper<'_>) -> PoweringOff {
        let until = Instant::now() + GOODBYE;
        {
            let mut asking = std::pin::pin!(timeout_at(until, self.machine.power_off()));
            loop {
                let asked = tokio::select! {
                    heard = &mut asking => match heard {
                        Ok(Err(e)) => return PoweringOff::Failed(e),
                        // Too late, which is said below, or it was heard.
                        _ => break,
                    },
                    asked = keeper.requests.next() => asked,
                };
                if let Some(off) = self.while_powering_off(asked).await {
                    return off;
                }
            }
        }
        loop {
            let asked = tokio::select! {
                ended = timeout_at(until, self.machine.ended()) => return match ended {
                    Ok(_) => PoweringOff::Ended(None),
                    Err(_) => PoweringOff::Failed(Error::unavailable(format!(
                        "the guest does not power off within {} s; 'sojourn vm stop --force' ends it as if the power \
                         failed",
                        GOODBYE.as_secs()
                    ))),
                },
                asked = keeper.requests.next() => asked,
            };
            if let Some(off) = self.while_powering_off(asked).await {
                return off;
            }
        }
    }

    /// Serves a command while the guest powers off; `Some` when it is waited for no more.
    async fn while_powering_off(&self, asked: KeeperInput) -> Option<PoweringOff> {
        let (stream, request) = match asked {
            KeeperInput::ToEnd => return Some(PoweringOff::ToEnd),
            KeeperInput::Nothing => return None,
            KeeperInput::Command(stream, request) => (stream, request),
        };
        let name = &self.machine.spec().name;
        let reply = match request {
            Err(e) => Err(e),
            Ok(KeeperRequest::Status) => {
                self.status(Some("stopping")).await.map(KeeperReply::Status)
            }
            Ok(KeeperRequest::Stop { force: true }) => {
                return Some(PoweringOff::Ended(Some(stream)));
            }
            Ok(_) => Err(Error::conflict(format!(
                "machine {name:?} is to power off; wait for it, or end it with 'sojourn vm stop --force {name}'"
            ))),
        };
        wire::answer(stream, reply).await;
        None
    }

    /// What is said of the machine; `doing` is what keeps it from anything else now.
    async fn status(&self, doing: Option<&str>) -> Result<RunningView> {
        let (spec, parts) = (self.machine.spec(), self.machine.parts());
        Ok(RunningView {
            name: spec.name.clone(),
            state: match doing {
                Some(doing) => doing.to_owned(),
                None => {
                    let machine = &self.machine;
                    state_soon(machine.status(), || machine.waits_for_memory()).await?
                }
            },
            parcel: self.parcel.clone(),
            accelerator: spec.accelerator.to_string(),
            keeper: std::process::id(),
            qemu: self.machine.qemu_id(),
            console: parts.console().display().to_string(),
            screen: spec.screen.then(|| parts.screen().display().to_string()),
            memory_on_demand: self.machine.fetches_as_touched(),
            memory_here: self.machine.has_memory_here().await,
            memory_written: self.machine.ram().written(),
            clock: self.machine.guest_clock(),
            started_seconds: 0.0,
        })
    }
}

/// The state of a machine as QEMU says it, or why it does not say it soon: whoever asks waits for that, and the keeper
/// hears nothing else meanwhile.
///
/// # Errors
/// QEMU's own.
async fn state_soon(
    says: impl Future<Output = Result<String>>,
    waits: impl FnOnce() -> bool,
) -> Result<String> {
    match timeout(SAYS, says).await {
        Ok(state) => state,
        Err(_) => Ok(if waits() { "waiting for memory" } else { "silent" }.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_the_state_of_a_machine_that_waits_for_memory_is_told_so_before_long() {
        let began = Instant::now();
        assert_eq!(state_soon(pending(), || true).await.unwrap(), "waiting for memory");
        assert_eq!(state_soon(pending(), || false).await.unwrap(), "silent");
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "who lists machines waits for two seconds"
        );
        let running = ready(Ok("running".to_owned()));
        assert_eq!(state_soon(running, || true).await.unwrap(), "running");
    }
}
