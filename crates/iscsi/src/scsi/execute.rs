//! Commands: who may give them, and those that are answered from what is known.

use super::cdb::Command;
use super::identity::Identity;
use super::mode::{self, ModeSense, UnitModes};
use super::reservations::{Access, Refused};
use super::unit::Nexus;
use super::{CommandOutcome, Sense, opcodes};
use block::{Extent, ExtentKind, Span};

/// Extents of one GET LBA STATUS at the most.
const MOST_EXTENTS: usize = 1024;

impl Nexus {
    /// Carries out a command, which came at this [epoch](Self::epoch), with the data that came with it.
    pub async fn execute(
        &self,
        command: Result<Command, Sense>,
        data: &[u8],
        epoch: u64,
    ) -> CommandOutcome {
        // What is aborted takes no condition that its initiator is to be told of.
        if self.epoch() != epoch {
            return CommandOutcome::Aborted;
        }
        if !matches!(
            command,
            Ok(Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. })
        ) && let Some(sense) = self.attention()
        {
            if self.epoch() != epoch {
                self.put_back(sense);
                return CommandOutcome::Aborted;
            }
            return sense.into();
        }
        let command = match command {
            Ok(command) => command,
            Err(sense) => return sense.into(),
        };
        if self.unit.is_reserved() && !self.may(&command) {
            return CommandOutcome::Conflict;
        }
        if command.reserves() && self.device.read_only() {
            // Who may only read keeps nobody else from reading, nor leaves anything that is kept.
            return Sense::WRITE_PROTECTED.into();
        }
        match command {
            Command::TestUnitReady | Command::PreventRemoval => CommandOutcome::Good(Vec::new()),
            Command::StartStop { .. } => CommandOutcome::Good(Vec::new()),
            Command::RequestSense { descriptors, room } => {
                let sense = self.attention().unwrap_or(Sense::NONE);
                CommandOutcome::Good(sense_data(&sense, descriptors, room))
            }
            Command::Inquiry { page: None, room } => cut(Ok(Identity::standard()), room),
            Command::Inquiry { page: Some(page), room } => {
                let preferred = self.device.limits().preferred;
                cut(self.unit.identity.page(page, self.block, preferred), room)
            }
            Command::ModeSense { long, no_descriptor, control, page, subpage, room } => {
                let question = ModeSense { long, no_descriptor, control, page, subpage };
                let state = UnitModes {
                    read_only: self.device.read_only(),
                    blocks: self.blocks(),
                    block: self.block,
                };
                cut(mode::sense(question, state), room)
            }
            Command::ModeSelect { long, save, .. } => {
                mode::select(long, save, data).map(|()| Vec::new()).into()
            }
            Command::ReadCapacity10 => CommandOutcome::Good(self.capacity10()),
            Command::ReadCapacity16 { room } => cut(Ok(self.capacity16()), room),
            Command::ReportLuns { select, room } => report_luns(select, room).into(),
            Command::ReportOpcodes { timeouts, options, opcode, action, room } => {
                cut(opcodes::report(timeouts, options, opcode, action), room)
            }
            Command::GetLbaStatus { first, room } => cut(self.lba_status(first).await, room),
            Command::Reserve { third_party, extent } | Command::Release { third_party, extent }
                if third_party || extent =>
            {
                Sense::field(1).into()
            }
            Command::Reserve { .. } => {
                // A reset ends what was reserved before it, and its epoch is there first.
                let may = || self.epoch() == epoch;
                granted(self.unit.reserve(|all| may() && all.reserve(&self.port)).await)
            }
            Command::Release { .. } => {
                granted(self.unit.reserve(|all| all.release(&self.port)).await)
            }
            Command::PersistentIn { action, room } => {
                cut(self.unit.reservations(|all| all.report(action)), room)
            }
            Command::PersistentOut { action, scope, kind, .. } => {
                let changed =
                    self.unit.change_reservations(&self.port, action, (scope, kind), data);
                match changed.await {
                    Ok(notices) => {
                        let aborts = (action == 5).then(|| self.unit.abort_preempted(&notices));
                        self.unit.tell(notices);
                        if let Some(over) = aborts {
                            over.await;
                        }
                        CommandOutcome::Good(Vec::new())
                    }
                    Err(Refused::Conflict) => CommandOutcome::Conflict,
                    Err(Refused::Sense(sense)) => sense.into(),
                }
            }
            _ => self.transfer(command, data, epoch).await,
        }
    }

    /// What a command to a unit that is not there is answered.
    pub fn absent(command: Result<Command, Sense>) -> CommandOutcome {
        match command {
            Ok(Command::Inquiry { page: None, room }) => {
                let mut data = Identity::standard();
                data[0] = 0x7f;
                data.truncate(room as usize);
                CommandOutcome::Good(data)
            }
            Ok(Command::RequestSense { descriptors, room }) => {
                CommandOutcome::Good(sense_data(&Sense::NO_UNIT, descriptors, room))
            }
            Ok(Command::ReportLuns { select, room }) => report_luns(select, room).into(),
            _ => CommandOutcome::Failed(Sense::NO_UNIT),
        }
    }

    /// Whether the reservations allow it.
    pub(super) fn may(&self, command: &Command) -> bool {
        let access = match command {
            Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. } => {
                Access::Free
            }
            // These look at the reservations themselves.
            Command::Reserve { .. } | Command::Release { .. } | Command::PersistentOut { .. } => {
                Access::Free
            }
            Command::TestUnitReady
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::ReportOpcodes { .. }
            | Command::PersistentIn { .. }
            | Command::StartStop { .. }
            | Command::PreventRemoval => {
                return !self.unit.reservations(|all| all.is_simply_reserved(&self.port));
            }
            Command::Read { .. }
            | Command::Verify { .. }
            | Command::Prefetch { .. }
            | Command::GetLbaStatus { .. }
            | Command::ModeSense { .. } => Access::Read,
            _ => Access::Write,
        };
        self.unit.reservations(|all| all.allow(&self.port, access))
    }

    fn capacity10(&self) -> Vec<u8> {
        let last = self.blocks().saturating_sub(1);
        let mut data = u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        data.extend_from_slice(&self.block.to_be_bytes());
        data
    }

    fn capacity16(&self) -> Vec<u8> {
        let mut data = vec![0; 32];
        data[..8].copy_from_slice(&self.blocks().saturating_sub(1).to_be_bytes());
        data[8..12].copy_from_slice(&self.block.to_be_bytes());
        // So many of our blocks are one of those that the device likes, as a power of two.
        data[13] = (self.device.limits().preferred / self.block).max(1).ilog2().min(15) as u8;
        data[14] = 0xc0; // thin, and what is unmapped reads as zeroes
        data
    }

    async fn lba_status(&self, first: u64) -> Result<Vec<u8>, Sense> {
        if first >= self.blocks() {
            return Err(Sense::OUT_OF_RANGE);
        }
        let block = u64::from(self.block);
        let end = self.blocks() * block;
        let span = Span::between(first * block, end);
        let extents = self.device.extents(span, MOST_EXTENTS).await;
        let extents = extents.map_err(|error| Sense::of(&error, true))?;
        let mut data = vec![0; 8];
        for (from, to, hole) in runs(&extents, span, block) {
            let mut from = from / block;
            while from < to / block {
                let count = u32::try_from(to / block - from).unwrap_or(u32::MAX);
                data.extend_from_slice(&from.to_be_bytes());
                data.extend_from_slice(&count.to_be_bytes());
                data.extend_from_slice(&[u8::from(hole), 0, 0, 0]);
                from += u64::from(count);
            }
        }
        let length = u32::try_from(data.len() - 4).unwrap_or(u32::MAX);
        data[..4].copy_from_slice(&length.to_be_bytes());
        Ok(data)
    }
}

/// Runs of whole blocks without and with room: a block that has room in part has it.
fn runs(extents: &[Extent], span: Span, block: u64) -> Vec<(u64, u64, bool)> {
    let mut runs: Vec<(u64, u64, bool)> = Vec::new();
    let mut push = |from: u64, to: u64, hole: bool| match runs.last_mut() {
        _ if from >= to => {}
        Some(last) if last.2 == hole => last.1 = to,
        _ => runs.push((from, to, hole)),
    };
    let mut at = span.offset();
    for extent in extents.iter().filter(|extent| extent.kind == ExtentKind::Hole) {
        if let Some(whole) = extent.span.align_inward(block).filter(|whole| whole.offset() >= at) {
            push(at, whole.offset(), false);
            push(whole.offset(), whole.end(), true);
            at = whole.end();
        }
    }
    let known = extents.last().map_or(span.end(), |last| last.span.end() / block * block);
    // There is something to say of the first block in any case.
    push(at, known.max(span.offset() + block).min(span.end()), false);
    runs
}

fn granted(granted: bool) -> CommandOutcome {
    if granted { CommandOutcome::Good(Vec::new()) } else { CommandOutcome::Conflict }
}

/// What an initiator has room for.
fn cut(data: Result<Vec<u8>, Sense>, room: u32) -> CommandOutcome {
    data.map(|mut data| {
        data.truncate(room as usize);
        data
    })
    .into()
}

/// Sense data as REQUEST SENSE returns it.
fn sense_data(sense: &Sense, descriptors: bool, room: u32) -> Vec<u8> {
    let mut data = if descriptors { sense.descriptors() } else { sense.fixed().to_vec() };
    data.truncate(room as usize);
    data
}

/// The logical units of a target: the one at 0.
fn report_luns(select: u8, room: u32) -> Result<Vec<u8>, Sense> {
    let count = match select {
        0 | 2 => 1,
        1 => 0, // well-known units
        _ => return Err(Sense::field(2)),
    };
    if room < 16 {
        return Err(Sense::field(6));
    }
    let mut data = vec![0; 8 + 8 * count];
    data[3] = 8 * count as u8;
    data.truncate(room as usize);
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_a_hole_in_part_has_room() {
        let extent = |from, to, kind| Extent { span: Span::between(from, to), kind };
        let extents = [
            extent(0, 700, ExtentKind::Data),
            extent(700, 2048, ExtentKind::Hole),
            extent(2048, 2560, ExtentKind::Zero),
            extent(2560, 2700, ExtentKind::Hole),
        ];
        let found = runs(&extents, Span::between(0, 1 << 20), 512);
        assert_eq!(found, [(0, 1024, false), (1024, 2048, true), (2048, 2560, false)]);
        assert_eq!(runs(&extents[..1], Span::between(0, 1 << 20), 512), [(0, 512, false)]);
    }
}
