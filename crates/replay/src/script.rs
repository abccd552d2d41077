//! What the emulated clients do: a trace in memory, client by client, in a compact form.

use block::{Error, Result};
use std::collections::HashMap;
use trace::{Flags, Op, Request, Source};

/// The most requests that are loaded unless more are allowed: 480 MB.
pub const MOST_REQUESTS: u64 = 20_000_000;
/// The most clients of a trace.
const MOST_CLIENTS: usize = 1 << 20;

/// One request of a client: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScriptStep {
    /// Nanoseconds since the trace's start.
    pub(crate) time: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) op: Op,
    pub(crate) durable: bool,
}

/// What one client of the trace does to one disk.
#[derive(Clone, Debug)]
pub(crate) struct ClientScript {
    /// The client's name in the trace, or its number.
    pub(crate) client: String,
    /// The disk's name in the trace, or its number.
    pub(crate) disk: String,
    pub(crate) steps: Vec<ScriptStep>,
    /// Where its furthest request ends, in bytes.
    pub(crate) end: u64,
    /// Its longest read or write, in bytes.
    pub(crate) longest: u32,
    /// Whether any request changes the disk.
    pub(crate) changes: bool,
}

impl ClientScript {
    /// When its last request is due, in nanoseconds since the trace's start.
    pub(crate) fn last(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.time)
    }
}

/// What is taken of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptSelection {
    /// Only so many requests from the start.
    pub first: Option<u64>,
    /// Leave out everything that is not a read.
    pub reads_only: bool,
    /// The most requests that may be loaded.
    pub most: u64,
}

impl Default for ScriptSelection {
    fn default() -> Self {
        Self { first: None, reads_only: false, most: MOST_REQUESTS }
    }
}

/// What the emulated clients do. A client of the trace that used several disks counts as several.
#[derive(Clone, Debug)]
pub struct Script {
    pub(crate) parts: Vec<ClientScript>,
    /// Whether the trace's times are real.
    pub(crate) times: bool,
    /// The time of the last request, in nanoseconds.
    pub(crate) duration: u64,
    /// Requests left out because they were not reads, or had no range.
    skipped: u64,
}

impl Script {
    /// Loads a trace.
    ///
    /// # Errors
    /// Any error from the trace; [`Invalid`](block::ErrorKind::Invalid) when it holds no request or too
    /// many to load.
    pub fn load(source: &mut dyn Source, selection: ScriptSelection) -> Result<Self> {
        let mut index: HashMap<(u32, u32), usize> = HashMap::new();
        let mut script =
            Self { parts: Vec::new(), times: source.header().times, duration: 0, skipped: 0 };
        let (mut batch, mut seen, mut loaded) = (Vec::new(), 0u64, 0u64);
        let first = selection.first.unwrap_or(u64::MAX);
        while seen < first && source.read(&mut batch)? {
            let room = usize::try_from(first - seen).unwrap_or(usize::MAX);
            batch.truncate(room);
            seen += batch.len() as u64;
            for request in &batch {
                if !wanted(request, selection.reads_only) {
                    script.skipped += 1;
                    continue;
                }
                loaded += 1;
                if loaded > selection.most {
                    return Err(Error::invalid(format!(
                        "the trace holds more than {} requests, which would not fit in memory: \
                         take a part with `sojourn trace cut` or --first N",
                        selection.most
                    )));
                }
                let count = script.parts.len();
                let at = *index.entry((request.client, request.disk)).or_insert(count);
                if at == count {
                    if count == MOST_CLIENTS {
                        return Err(Error::invalid(format!(
                            "the trace has more than {MOST_CLIENTS} clients and disks: take some \
                             of them with `sojourn trace cut`"
                        )));
                    }
                    script.parts.push(ClientScript {
                        client: request.client.to_string(),
                        disk: request.disk.to_string(),
                        steps: Vec::new(),
                        end: 0,
                        longest: 0,
                        changes: false,
                    });
                }
                script.duration = script.duration.max(request.time);
                script.parts[at].add(request);
            }
        }
        if loaded == 0 {
            return Err(Error::invalid("the trace holds no request that could be replayed"));
        }
        let header = source.header();
        script.times = header.times;
        for ((client, disk), at) in &index {
            let name = header.clients.get(*client as usize).filter(|name| !name.is_empty());
            if let Some(name) = name {
                script.parts[*at].client.clone_from(name);
            }
            let name = header.disks.get(*disk as usize).map(|disk| &disk.name);
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                script.parts[*at].disk.clone_from(name);
            }
        }
        Ok(script)
    }

    /// Random reads of `block` bytes, aligned to them, in `span` of a disk: so many by each of
    /// `clients`. The same `seed` gives the same reads.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when `span` has no room for a block, and for nothing
    /// to do.
    pub fn random_reads(
        clients: u32,
        reads: u32,
        block: u32,
        span: block::Span,
        seed: u64,
    ) -> Result<Self> {
        let blocks = span.len() / u64::from(block.max(1));
        let total = u64::from(clients) * u64::from(reads);
        if blocks == 0 || block == 0 || total == 0 || total > MOST_REQUESTS {
            return Err(Error::invalid(format!(
                "{total} random reads of {block} bytes in {} bytes: give room for one block, and \
                 1 to {MOST_REQUESTS} reads",
                span.len()
            )));
        }
        let parts = (0..clients).map(|client| {
            // splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
            // OOPSLA 2014).
            let mut state = seed ^ (u64::from(client) << 32);
            let mut next = || {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            };
            let mut step = || ScriptStep {
                time: 0,
                offset: span.offset() + next() % blocks * u64::from(block),
                length: block,
                op: Op::Read,
                durable: false,
            };
            ClientScript {
                client: client.to_string(),
                disk: "0".to_owned(),
                steps: (0..reads).map(|_| step()).collect(),
                end: span.end(),
                longest: block,
                changes: false,
            }
        });
        Ok(Self { parts: parts.collect(), times: false, duration: 0, skipped: 0 })
    }

    /// One client's reads of `block` bytes, `stride` bytes from each other from the beginning of a disk of `size`
    /// bytes, `most` of them at the most: no byte is read twice.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when there is no room for one, or they would overlap.
    pub fn spread_reads(block: u32, stride: u64, size: u64, most: u64) -> Result<Self> {
        let room = size.saturating_sub(block.into()) / stride.max(1) + 1;
        let count = room.min(most).min(MOST_REQUESTS);
        if block == 0 || u64::from(block) > size.min(stride) || count == 0 {
            return Err(Error::invalid(format!(
                "reads of {block} bytes, {stride} bytes apart, in {size} bytes: give room for one, and no overlap"
            )));
        }
        let step = |at: u64| ScriptStep {
            time: 0,
            offset: at * stride,
            length: block,
            op: Op::Read,
            durable: false,
        };
        let part = ClientScript {
            client: "0".to_owned(),
            disk: "0".to_owned(),
            steps: (0..count).map(step).collect(),
            end: size,
            longest: block,
            changes: false,
        };
        Ok(Self { parts: vec![part], times: false, duration: 0, skipped: 0 })
    }

    /// Clients of the trace; one that used several disks counts as several.
    pub fn clients(&self) -> usize {
        self.parts.len()
    }

    /// Requests that are replayed.
    pub fn requests(&self) -> u64 {
        self.parts.iter().map(|part| part.steps.len() as u64).sum()
    }

    /// Requests of the trace that are not replayed: changes that were not wanted, and empty ones.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Whether anything in it changes a disk.
    pub fn changes(&self) -> bool {
        self.parts.iter().any(|part| part.changes)
    }
}

fn wanted(request: &Request, reads_only: bool) -> bool {
    match request.op {
        Op::Read => request.length > 0,
        Op::Flush => !reads_only,
        _ => !reads_only && request.length > 0,
    }
}

impl ClientScript {
    fn add(&mut self, request: &Request) {
        let flush = request.op == Op::Flush;
        let (offset, length) = if flush { (0, 0) } else { (request.offset, request.length) };
        self.end = self.end.max(offset.saturating_add(u64::from(length)));
        if matches!(request.op, Op::Read | Op::Write) {
            self.longest = self.longest.max(length);
        }
        self.changes |= !matches!(request.op, Op::Read | Op::Flush);
        self.steps.push(ScriptStep {
            time: request.time,
            offset,
            length,
            op: request.op,
            durable: request.flags.has(Flags::FUA),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{Header, Memory};

    fn request(client: u32, disk: u32, op: Op, offset: u64, length: u32) -> Request {
        Request { client, disk, op, offset, length, ..Request::default() }
    }

    fn load(requests: Vec<Request>, selection: ScriptSelection) -> Result<Script> {
        let header = Header { clients: vec!["a".into()], ..Header::default() };
        Script::load(&mut Memory::new(header, requests), selection)
    }

    #[test]
    fn a_step_is_small() {
        assert_eq!(size_of::<ScriptStep>(), 24);
    }

    #[test]
    fn every_pair_of_client_and_disk_is_a_client_of_its_own() {
        let requests = vec![
            request(0, 0, Op::Read, 4096, 512),
            request(1, 0, Op::Write, 0, 4096),
            request(0, 1, Op::Flush, 9, 9),
            request(0, 0, Op::Read, 0, 0),
            request(0, 0, Op::Trim, 1 << 40, 1 << 30),
        ];
        let script = load(requests.clone(), ScriptSelection::default()).unwrap();
        assert_eq!((script.clients(), script.requests(), script.skipped()), (3, 4, 1));
        let part = &script.parts[0];
        assert_eq!((part.client.as_str(), part.disk.as_str()), ("a", "0"));
        assert_eq!((part.end, part.longest, part.changes), ((1 << 40) + (1 << 30), 512, true));
        assert_eq!(script.parts[1].client, "1");
        let reads =
            load(requests, ScriptSelection { reads_only: true, ..ScriptSelection::default() })
                .unwrap();
        assert_eq!((reads.requests(), reads.changes()), (1, false));
    }

    #[test]
    fn random_reads_stay_in_their_span_and_repeat_with_their_seed() {
        let span = block::Span::between(8192, 8192 + 65536 + 100);
        let script = Script::random_reads(3, 1000, 4096, span, 7).unwrap();
        assert_eq!((script.clients(), script.requests(), script.changes()), (3, 3000, false));
        let offsets = |script: &Script, part: usize| -> Vec<u64> {
            script.parts[part].steps.iter().map(|step| step.offset).collect()
        };
        for part in 0..3 {
            let mut seen = offsets(&script, part);
            assert!(
                seen.iter().all(|at| at % 4096 == 0 && (span.offset()..span.end()).contains(at))
            );
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 16, "every block is read");
        }
        assert_ne!(offsets(&script, 0), offsets(&script, 1));
        let again = Script::random_reads(3, 1000, 4096, span, 7).unwrap();
        assert_eq!(offsets(&script, 2), offsets(&again, 2));
        assert!(Script::random_reads(1, 1, 65536 * 2, span, 7).is_err());
        assert!(Script::random_reads(0, 1, 4096, span, 7).is_err());
    }

    #[test]
    fn a_trace_that_is_empty_or_too_long_is_refused_and_a_part_is_taken() {
        let many = vec![request(0, 0, Op::Read, 0, 512); 5000];
        assert!(load(vec![], ScriptSelection::default()).is_err());
        let error =
            load(many.clone(), ScriptSelection { most: 4999, ..ScriptSelection::default() });
        assert!(error.unwrap_err().message().contains("--first"));
        let part = ScriptSelection { first: Some(4500), most: 4999, ..ScriptSelection::default() };
        assert_eq!(load(many, part).unwrap().requests(), 4500);
    }
}
