//! Commands that move blocks.

use super::cdb::{BlockRange, Command, Compare};
use super::identity::{RANGES, SAME, TRANSFER};
use super::unit::Nexus;
use super::{CommandOutcome, Sense};
use crate::codec::{u16_at, u32_at, u64_at};
use block::{Attempt, Durability, Error, Span, ZeroMode};

/// How much is verified, or written of one pattern, at a time, in bytes.
const PIECE: u64 = 1 << 20;

/// Room may be given back.
const PUNCH: ZeroMode = ZeroMode { may_punch: true, only_if_fast: false };

const fn durability(forced: bool) -> Durability {
    if forced { Durability::Durable } else { Durability::Buffered }
}

fn reading(error: Error) -> Sense {
    Sense::of(&error, true)
}

fn writing(error: Error) -> Sense {
    Sense::of(&error, false)
}

impl Nexus {
    /// Where blocks lie.
    ///
    /// # Errors
    /// Sense data for blocks beyond the end.
    fn span(&self, blocks: BlockRange) -> Result<Span, Sense> {
        let end = blocks.first.checked_add(blocks.count.into());
        if end.is_none_or(|end| end > self.blocks()) {
            return Err(Sense::OUT_OF_RANGE);
        }
        let block = u64::from(self.block);
        Ok(Span::between(blocks.first * block, (blocks.first + u64::from(blocks.count)) * block))
    }

    /// The same for a transfer of no more than is allowed.
    fn transfer_span(&self, blocks: BlockRange) -> Result<Span, Sense> {
        let span = self.span(blocks)?;
        if span.len() > TRANSFER.into() { Err(Sense::INVALID_FIELD) } else { Ok(span) }
    }

    /// Where a read lies that may be answered at once with [`try_read`](Self::try_read).
    pub fn plain_read(&self, command: &Command) -> Option<Span> {
        let Command::Read { blocks } = command else { return None };
        self.is_plain().then(|| self.transfer_span(*blocks).ok()).flatten()
    }

    /// Reads what lies within a [plain read](Self::plain_read), if that needs no waiting.
    pub fn try_read(&self, span: Span, buffer: &mut [u8]) -> bool {
        matches!(self.device.try_read(span, buffer), Ok(Attempt::Done))
    }

    /// Carries out a write with all its data, if that needs no waiting.
    pub fn try_write(&self, command: &Command, data: &[u8]) -> Option<Span> {
        let Command::Write { blocks, forced: false } = command else { return None };
        // The share comes first: who reserves or resets the unit waits for it, and is waited for.
        let _shared = self.unit.changes.try_read().ok()?;
        if !self.is_plain() || self.device.read_only() {
            return None;
        }
        let span =
            self.transfer_span(*blocks).ok().filter(|span| span.len() == data.len() as u64)?;
        matches!(self.device.try_write(span, data), Ok(Attempt::Done)).then_some(span)
    }

    /// Carries out a command that moves blocks, and came at this epoch.
    pub(super) async fn transfer(
        &self,
        command: Command,
        data: &[u8],
        epoch: u64,
    ) -> CommandOutcome {
        if !command.changes() {
            return self.carry_out(command, data).await.into();
        }
        if self.device.read_only() {
            return Sense::WRITE_PROTECTED.into();
        }
        if matches!(command, Command::CompareAndWrite { .. } | Command::OrWrite { .. }) {
            let _alone = self.unit.changes.write().await;
            self.change(command, data, epoch).await
        } else {
            let _shared = self.unit.changes.read().await;
            self.change(command, data, epoch).await
        }
    }

    /// Carries out a command that changes blocks and has its share of the changes, unless the unit was reset or taken
    /// away while it waited for that: whoever did so was told that nothing changes any more.
    async fn change(&self, command: Command, data: &[u8], epoch: u64) -> CommandOutcome {
        if self.epoch() != epoch {
            return CommandOutcome::Aborted;
        }
        if self.unit.is_reserved() && !self.may(&command) {
            return CommandOutcome::Conflict;
        }
        self.carry_out(command, data).await.into()
    }

    async fn carry_out(&self, command: Command, data: &[u8]) -> Result<Vec<u8>, Sense> {
        let nothing = Ok(Vec::new());
        match command {
            Command::Read { blocks } => {
                let span = self.transfer_span(blocks)?;
                let mut buffer = vec![0; span.len() as usize];
                if !span.is_empty() {
                    self.device.read(span, &mut buffer).await.map_err(reading)?;
                }
                return Ok(buffer);
            }
            Command::Write { blocks, forced } => {
                let span = self.transfer_span(blocks)?;
                self.write(span, data, forced).await?;
            }
            Command::WriteAndVerify { blocks, compare } => {
                let span = self.transfer_span(blocks)?;
                // What is verified is what survives.
                let written = self.write(span, data, true).await?;
                match compare {
                    Compare::Nothing => self.read_through(written).await?,
                    _ => self.compare(written, data, false).await?,
                }
            }
            Command::Verify { blocks, compare } => self.verify(blocks, compare, data).await?,
            Command::Prefetch { blocks } => {
                let span =
                    if blocks.count == 0 { self.rest(blocks.first)? } else { self.span(blocks)? };
                self.device.prefetch(span).await.map_err(reading)?;
            }
            Command::SynchronizeCache { blocks } => {
                self.span(blocks)?;
                self.device.flush().await.map_err(writing)?;
            }
            Command::Unmap { anchor, .. } => self.unmap(anchor, data).await?,
            Command::WriteSame { blocks, unmap, anchor, no_data } => {
                if anchor {
                    return Err(Sense::field(1));
                }
                let span = self.span(blocks)?;
                if span.is_empty() || span.len() > SAME {
                    return Err(Sense::INVALID_FIELD);
                }
                self.write_same(span, unmap, (!no_data).then_some(data)).await?;
            }
            Command::CompareAndWrite { blocks, forced } => {
                if blocks.count > super::identity::COMPARED.into() {
                    return Err(Sense::field(13));
                }
                let span = self.transfer_span(blocks)?;
                let half = span.len() as usize;
                let (Some(expected), Some(new)) = (data.get(..half), data.get(half..2 * half))
                else {
                    return Err(Sense::TOO_LITTLE_DATA);
                };
                self.compare(span, expected, false).await?;
                self.write(span, new, forced).await?;
            }
            Command::OrWrite { blocks, forced } => {
                let span = self.transfer_span(blocks)?;
                if data.len() as u64 != span.len() {
                    return Err(Sense::TOO_LITTLE_DATA);
                }
                let mut buffer = vec![0; data.len()];
                if !span.is_empty() {
                    self.device.read(span, &mut buffer).await.map_err(reading)?;
                }
                buffer.iter_mut().zip(data).for_each(|(byte, more)| *byte |= more);
                self.write(span, &buffer, forced).await?;
            }
            _ => return Err(Sense::INVALID_OPCODE),
        }
        nothing
    }

    /// From a block to the end.
    fn rest(&self, first: u64) -> Result<Span, Sense> {
        if first > self.blocks() {
            return Err(Sense::OUT_OF_RANGE);
        }
        let block = u64::from(self.block);
        Ok(Span::between(first * block, self.blocks() * block))
    }

    /// Writes those whole blocks of `span` that data came for; where they are.
    async fn write(&self, span: Span, data: &[u8], forced: bool) -> Result<Span, Sense> {
        let whole = data.len() as u64 / u64::from(self.block) * u64::from(self.block);
        let span = Span::between(span.offset(), span.end().min(span.offset() + whole));
        if !span.is_empty() {
            let data = &data[..span.len() as usize];
            self.device.write(span, data, durability(forced)).await.map_err(writing)?;
        }
        Ok(span)
    }

    async fn verify(&self, blocks: BlockRange, compare: Compare, data: &[u8]) -> Result<(), Sense> {
        let span = self.span(blocks)?;
        match compare {
            Compare::Nothing => {
                if span.len() > SAME {
                    return Err(Sense::INVALID_FIELD);
                }
                self.read_through(span).await
            }
            Compare::All => {
                self.transfer_span(blocks)?;
                let came = span
                    .len()
                    .min(data.len() as u64 / u64::from(self.block) * u64::from(self.block));
                self.compare(Span::between(span.offset(), span.offset() + came), data, false).await
            }
            Compare::One => {
                if span.len() > SAME {
                    return Err(Sense::INVALID_FIELD);
                }
                self.compare(span, data, true).await
            }
        }
    }

    /// Reads blocks for nothing but to see that they can be read.
    async fn read_through(&self, span: Span) -> Result<(), Sense> {
        let mut buffer = vec![0; span.len().min(PIECE) as usize];
        for piece in span.pieces(PIECE) {
            let part = &mut buffer[..piece.len() as usize];
            self.device.read(piece, part).await.map_err(reading)?;
        }
        Ok(())
    }

    /// Compares what is there with `data`, or each block with the same one.
    async fn compare(&self, span: Span, data: &[u8], one: bool) -> Result<(), Sense> {
        let block = self.block as usize;
        if data.len() < if one { block.min(span.len() as usize) } else { span.len() as usize } {
            return Err(Sense::TOO_LITTLE_DATA);
        }
        let mut buffer = vec![0; span.len().min(PIECE) as usize];
        for piece in span.pieces(PIECE) {
            let part = &mut buffer[..piece.len() as usize];
            self.device.read(piece, part).await.map_err(reading)?;
            let at = (piece.offset() - span.offset()) as usize;
            let differs = if one {
                let expected = data[..block].iter().cycle();
                part.iter().zip(expected).position(|(is, expected)| is != expected)
            } else {
                let expected = &data[at..at + part.len()];
                if part == expected {
                    None
                } else {
                    part.iter().zip(expected).position(|(is, expected)| is != expected)
                }
            };
            if let Some(differs) = differs {
                let offset = if one { differs % block } else { at + differs };
                return Err(Sense::miscompare(u32::try_from(offset).unwrap_or(u32::MAX)));
            }
        }
        Ok(())
    }

    async fn unmap(&self, anchor: bool, data: &[u8]) -> Result<(), Sense> {
        if anchor {
            return Err(Sense::field(1));
        }
        if data.is_empty() {
            return Ok(());
        }
        if data.len() < 8 {
            return Err(Sense::PARAMETER_LENGTH);
        }
        let listed = usize::from(u16_at(data, 2));
        let ranges = &data[8..];
        if listed % 16 != 0 || listed > ranges.len() {
            return Err(Sense::parameter(2));
        }
        if listed / 16 > RANGES as usize {
            return Err(Sense::parameter(2));
        }
        let spans: Vec<Span> = ranges[..listed]
            .chunks_exact(16)
            .map(|range| self.span(BlockRange { first: u64_at(range, 0), count: u32_at(range, 8) }))
            .collect::<Result<_, _>>()?;
        for span in spans.into_iter().filter(|span| !span.is_empty()) {
            // Not `discard`: what is unmapped reads as zeroes (LBPRZ).
            self.device.zero(span, PUNCH, Durability::Buffered).await.map_err(writing)?;
        }
        Ok(())
    }

    async fn write_same(&self, span: Span, unmap: bool, data: Option<&[u8]>) -> Result<(), Sense> {
        let block = self.block as usize;
        let pattern = match data {
            Some(data) => data.get(..block).ok_or(Sense::TOO_LITTLE_DATA)?,
            None => &[],
        };
        if pattern.iter().all(|byte| *byte == 0) {
            let mode = ZeroMode { may_punch: unmap, ..PUNCH };
            return self.device.zero(span, mode, Durability::Buffered).await.map_err(writing);
        }
        let piece = PIECE / u64::from(self.block) * u64::from(self.block);
        let buffer = pattern.repeat((span.len().min(piece) / u64::from(self.block)) as usize);
        let mut at = span.offset();
        while at < span.end() {
            let to = span.end().min(at + piece);
            let data = &buffer[..(to - at) as usize];
            let part = Span::between(at, to);
            self.device.write(part, data, Durability::Buffered).await.map_err(writing)?;
            at = to;
        }
        Ok(())
    }
}
