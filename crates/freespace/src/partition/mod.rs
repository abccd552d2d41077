//! Partition tables: GPT and MBR with its extended partitions, each checked until it contradicts
//! itself nowhere. Used for image files; a running kernel has read the tables of its own disks.

mod gpt;
mod mbr;

use crate::refusal::refuse;
use crate::{Refusal, Source, Window};
use block::Span;

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1.
    pub number: u32,
    /// Its bytes on the disk.
    pub span: Span,
    /// What its table says it is for: a GUID, or a byte such as `0x83`.
    pub purpose: String,
    /// Its name, where tables have names.
    pub name: Option<String>,
}

/// How a disk is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionTable {
    /// A GUID partition table.
    Gpt(Vec<Partition>),
    /// A master boot record.
    Mbr(Vec<Partition>),
    /// No partition table: the whole disk is one thing, or nothing.
    None,
}

impl PartitionTable {
    /// Its name.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Gpt(_) => "gpt",
            Self::Mbr(_) => "mbr",
            Self::None => "none",
        }
    }

    /// Its partitions, in the order of their numbers.
    pub fn partitions(&self) -> &[Partition] {
        match self {
            Self::Gpt(list) | Self::Mbr(list) => list,
            Self::None => &[],
        }
    }

    /// Reads the table of a disk or of an image of one.
    ///
    /// # Errors
    /// [`Code::PartitionTable`](crate::Code::PartitionTable) when there is one and it is damaged
    /// or contradicts itself; read errors.
    pub fn read(source: &dyn Source) -> Result<Self, Refusal> {
        Self::within(&Window::whole(source))
    }

    /// Reads the table of a disk that lies in a partition, such as the disk of a virtual machine.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn within(window: &Window<'_>) -> Result<Self, Refusal> {
        if window.size() < 512 {
            return Ok(Self::None);
        }
        let first = window.bytes(0, 512)?;
        let mbr = mbr::primary(&first, window);
        let protective = mbr.as_ref().is_some_and(|entries| entries.iter().any(|e| e.kind == 0xEE));
        if let Some(list) = gpt::read(window, protective)? {
            if mbr.is_some_and(|entries| entries.iter().any(|entry| entry.kind != 0xEE)) {
                refuse!(PartitionTable, "it has a GPT and an MBR with other partitions beside it");
            }
            return Ok(Self::Gpt(list));
        }
        if protective {
            refuse!(
                PartitionTable,
                "its MBR says that there is a GPT, and there is none that is whole"
            );
        }
        match mbr {
            Some(entries) => mbr::read(window, &entries).map(Self::Mbr),
            None => Ok(Self::None),
        }
    }
}

/// Refuses partitions that lie on each other.
fn disjoint(list: &[Partition]) -> Result<(), Refusal> {
    let mut sorted: Vec<&Partition> = list.iter().collect();
    sorted.sort_unstable_by_key(|partition| partition.span);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].span.end() > pair[1].span.offset()) {
        refuse!(PartitionTable, "partitions {} and {} overlap", pair[0].number, pair[1].number);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
