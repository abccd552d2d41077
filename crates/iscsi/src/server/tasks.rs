//! Commands whose data is on its way: unsolicited data, requests to transfer, and what comes where it
//! should not. Pure.

use crate::codec::NO_TAG;
use crate::codec::request::{CommandPdu, DataOut};
use crate::login::Parameters;
use crate::scsi::identity::TRANSFER;
use crate::scsi::{Command, Sense};

/// Which of the commands of its session it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// How many came before; a tag may be that of another one later, and this is not.
    pub(super) number: u64,
    /// What the [epoch](crate::scsi::Nexus::epoch) was then.
    pub(super) epoch: u64,
}

/// A command and what came with it.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) came: Arrival,
    /// The PDU as it came.
    pub(super) wire: CommandPdu,
    /// What it is.
    pub(super) command: Result<Command, Sense>,
    /// The data that it needs, as far as it came.
    pub(super) data: Vec<u8>,
    /// How much of what comes is kept, in bytes.
    pub(super) want: u32,
    /// How much came, in bytes.
    received: u32,
    /// Data comes that was not asked for.
    unsolicited: bool,
    next_data_sn: u32,
    transfer: Option<Transfer>,
    transfers: u32,
    failed: Option<Sense>,
    /// What it holds of the data that all tasks may ask for, in bytes.
    pub(super) holds: usize,
    /// What it holds of the room of its session, in bytes.
    pub(super) kept: u64,
    /// There is no room for its data: none of it is kept.
    is_refused: bool,
}

/// A request to transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) tag: u32,
    /// Its number within the task.
    pub(super) number: u32,
    pub(super) offset: u32,
    pub(super) end: u32,
}

/// What a task does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskStep {
    /// It waits for data that is on its way.
    Wait,
    /// It has to ask for more.
    Ask,
    /// All is there.
    Ready,
}

impl Task {
    /// A command with its immediate data.
    pub(super) fn new(
        came: Arrival,
        wire: CommandPdu,
        command: Result<Command, Sense>,
        block: u32,
        immediate: &[u8],
        agreed: &Parameters,
    ) -> Self {
        let needs = command.as_ref().map_or(0, |command| command.data_out(block));
        let expected = if wire.writes { wire.expected } else { 0 };
        let mut want = u32::try_from(needs).unwrap_or(u32::MAX).min(expected);
        let mut command = command;
        if command.is_ok_and(|command| command.needs_all_data()) && needs != u64::from(expected) {
            (command, want) = (Err(Sense::INVALID_FIELD), 0);
        }
        if needs > u64::from(TRANSFER) {
            want = 0; // it is refused by its size
        }
        let unsolicited = wire.writes && !wire.last;
        let mut task = Self {
            came,
            wire,
            command,
            data: Vec::new(),
            want,
            received: 0,
            unsolicited,
            next_data_sn: 0,
            transfer: None,
            transfers: 0,
            failed: None,
            holds: 0,
            kept: 0,
            is_refused: false,
        };
        let length = u32::try_from(immediate.len()).unwrap_or(u32::MAX);
        if length > 0 && !(wire.writes && agreed.immediate_data)
            || unsolicited && agreed.initial_r2t
        {
            task.failed = Some(Sense::UNEXPECTED_DATA);
        } else if length > expected.min(agreed.first_burst) {
            task.failed = Some(Sense::TOO_MUCH_DATA);
        } else {
            task.keep(immediate);
        }
        task
    }

    fn keep(&mut self, data: &[u8]) {
        let kept = (self.want.saturating_sub(self.received) as usize).min(data.len());
        self.data.extend_from_slice(&data[..kept]);
        self.received = self.received.saturating_add(u32::try_from(data.len()).unwrap_or(u32::MAX));
    }

    /// How much of its data comes without being asked for, with `immediate` bytes in the command, in bytes.
    pub(super) fn comes_first(&self, immediate: usize, agreed: &Parameters) -> u64 {
        let most = if self.unsolicited { u64::from(agreed.first_burst) } else { immediate as u64 };
        most.min(self.want.into())
    }

    /// Keeps none of its data, for which there is no room.
    pub(super) fn refuse(&mut self) {
        (self.data, self.want, self.is_refused) = (Vec::new(), 0, true);
    }

    /// Whether there was no room for its data.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// What it does next; a task that failed is ready when no data is on its way.
    pub(super) fn next(&self) -> TaskStep {
        if self.unsolicited || self.transfer.is_some() {
            return TaskStep::Wait;
        }
        if self.failed.is_some() || self.received >= self.want {
            TaskStep::Ready
        } else {
            TaskStep::Ask
        }
    }

    /// Whether it has asked for nothing yet.
    pub(super) fn asks_first(&self) -> bool {
        self.transfers == 0
    }

    /// Asks for more.
    pub(super) fn ask(&mut self, tag: u32, agreed: &Parameters) -> Transfer {
        let offset = self.received;
        let end = self.want.min(offset.saturating_add(agreed.max_burst));
        let transfer = Transfer { tag, number: self.transfers, offset, end };
        self.transfers += 1;
        self.next_data_sn = 0;
        self.transfer = Some(transfer);
        transfer
    }

    /// Takes data.
    pub(super) fn receive(&mut self, header: &DataOut, data: &[u8], agreed: &Parameters) {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let end = header.offset.checked_add(length);
        let allowed = match self.transfer {
            Some(transfer) if transfer.tag == header.transfer => Some(transfer.end),
            None if self.unsolicited && header.transfer == NO_TAG => {
                Some(self.wire.expected.min(agreed.first_burst))
            }
            _ => None,
        };
        let fault = match allowed {
            None => Some(Sense::UNEXPECTED_DATA),
            Some(_) if header.data_sn != self.next_data_sn => Some(Sense::DATA_OFFSET),
            Some(_) if header.offset != self.received => Some(Sense::DATA_OFFSET),
            Some(most) if end.is_none_or(|end| end > most) => Some(Sense::TOO_MUCH_DATA),
            Some(most) if header.last && self.transfer.is_some() && end != Some(most) => {
                Some(Sense::TOO_LITTLE_DATA)
            }
            Some(_) => None,
        };
        match fault {
            Some(sense) => self.failed = self.failed.or(Some(sense)),
            None if self.failed.is_none() => self.keep(data),
            None => {}
        }
        self.next_data_sn = self.next_data_sn.wrapping_add(1);
        if header.last {
            (self.unsolicited, self.transfer) = (false, None);
        }
    }

    /// What is carried out.
    pub(super) fn command(&self) -> Result<Command, Sense> {
        match self.failed {
            Some(sense) => Err(sense),
            None => self.command,
        }
    }

    /// Whether its data was at fault: such a task is answered before anything else of it is looked at.
    pub(super) fn failed(&self) -> Option<Sense> {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agreed(initial_r2t: bool) -> Parameters {
        Parameters { initial_r2t, first_burst: 1024, max_burst: 2048, ..Parameters::default() }
    }

    fn write(blocks: u8, expected: u32, last: bool) -> CommandPdu {
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (0x2a, blocks);
        CommandPdu {
            immediate: false,
            last,
            reads: false,
            writes: true,
            attribute: 1,
            lun: [0; 8],
            tag: 1,
            expected,
            cmd_sn: 1,
            cdb,
        }
    }

    fn task(wire: CommandPdu, immediate: &[u8], agreed: &Parameters) -> Task {
        let came = Arrival { number: 1, epoch: 0 };
        Task::new(came, wire, Command::decode(&wire.cdb), 512, immediate, agreed)
    }

    fn piece(transfer: u32, data_sn: u32, offset: u32, last: bool) -> DataOut {
        DataOut { last, tag: 1, transfer, data_sn, offset }
    }

    #[test]
    fn data_comes_with_the_command_then_unasked_then_as_it_is_asked_for() {
        let agreed = agreed(false);
        let mut task = task(write(8, 4096, false), &[1; 512], &agreed);
        assert_eq!(task.next(), TaskStep::Wait);
        task.receive(&piece(NO_TAG, 0, 512, true), &[2; 512], &agreed);
        assert_eq!(task.next(), TaskStep::Ask);
        let transfer = task.ask(7, &agreed);
        assert_eq!(transfer, Transfer { tag: 7, number: 0, offset: 1024, end: 3072 });
        task.receive(&piece(7, 0, 1024, false), &[3; 1024], &agreed);
        task.receive(&piece(7, 1, 2048, true), &[4; 1024], &agreed);
        assert_eq!(task.next(), TaskStep::Ask);
        assert_eq!(task.ask(8, &agreed), Transfer { tag: 8, number: 1, offset: 3072, end: 4096 });
        task.receive(&piece(8, 0, 3072, true), &[5; 1024], &agreed);
        assert_eq!((task.next(), task.data.len()), (TaskStep::Ready, 4096));
        assert!(task.command().is_ok());
    }

    #[test]
    fn more_than_the_command_needs_is_not_kept() {
        let agreed = agreed(false);
        let task = task(write(1, 1024, true), &[1; 1024], &agreed);
        assert_eq!((task.next(), task.data.len()), (TaskStep::Ready, 512));
    }

    #[test]
    fn data_at_the_wrong_place_fails_the_command_when_the_last_of_it_came() {
        for (wrong, sense) in [
            (piece(7, 1, 0, true), Sense::DATA_OFFSET),
            (piece(7, 0, 512, true), Sense::DATA_OFFSET),
            (piece(7, 0, u32::MAX, true), Sense::DATA_OFFSET),
            (piece(8, 0, 0, true), Sense::UNEXPECTED_DATA),
            (piece(NO_TAG, 0, 0, true), Sense::UNEXPECTED_DATA),
            (piece(7, 0, 0, true), Sense::TOO_LITTLE_DATA),
        ] {
            let agreed = agreed(true);
            let mut task = task(write(2, 1024, true), &[], &agreed);
            task.ask(7, &agreed);
            task.receive(&wrong, &[1; 512], &agreed);
            assert_eq!((task.next(), task.failed()), (TaskStep::Ready, Some(sense)), "{wrong:?}");
            assert!(task.data.is_empty());
        }
    }

    #[test]
    fn no_more_than_was_asked_for_is_kept() {
        let agreed = agreed(true);
        let mut task = task(write(2, 1024, true), &[], &agreed);
        task.ask(7, &agreed);
        task.receive(&piece(7, 0, 0, true), &[1; 1025], &agreed);
        assert_eq!((task.failed(), task.data.len()), (Some(Sense::TOO_MUCH_DATA), 0));
    }

    #[test]
    fn what_was_not_agreed_on_fails() {
        let unsolicited = task(write(2, 1024, false), &[], &agreed(true));
        assert_eq!(unsolicited.failed(), Some(Sense::UNEXPECTED_DATA));
        let parameters = Parameters { immediate_data: false, ..agreed(true) };
        let immediate = task(write(2, 1024, true), &[0; 512], &parameters);
        assert_eq!(immediate.failed(), Some(Sense::UNEXPECTED_DATA));
        let long = task(write(8, 4096, true), &[0; 1025], &agreed(true));
        assert_eq!(long.failed(), Some(Sense::TOO_MUCH_DATA));
    }

    #[test]
    fn a_command_that_is_too_large_is_not_asked_for() {
        let mut wire = write(0, u32::MAX, true);
        wire.cdb = [0xff; 16];
        (wire.cdb[0], wire.cdb[1], wire.cdb[11]) = (0xaa, 0, 0);
        let task = task(wire, &[], &agreed(true));
        assert_eq!((task.next(), task.want), (TaskStep::Ready, 0));
    }

    proptest! {
        #[test]
        fn never_more_than_the_command_needs_is_held(
            blocks in 0u8..8,
            expected in 0u32..8192,
            last in any::<bool>(),
            immediate in 0usize..2048,
            pieces in prop::collection::vec((0u32..3, 0u32..3, 0u32..5000, any::<bool>(), 0usize..3000), 0..12),
        ) {
            let agreed = agreed(false);
            let mut task = task(write(blocks, expected, last), &vec![1; immediate], &agreed);
            for (transfer, data_sn, offset, last, length) in pieces {
                if task.next() == TaskStep::Ask {
                    task.ask(1, &agreed);
                }
                let transfer = if transfer == 0 { NO_TAG } else { transfer };
                task.receive(&piece(transfer, data_sn, offset, last), &vec![2; length], &agreed);
            }
            prop_assert!(task.data.len() <= usize::from(blocks) * 512);
            prop_assert!(task.data.len() <= expected as usize);
            if task.next() == TaskStep::Ready && task.failed().is_none() {
                prop_assert_eq!(task.data.len(), task.want as usize);
            }
        }
    }
}
