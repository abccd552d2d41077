//! What a disk may hold when its power is cut at a point of its record.
//!
//! Everything before the last flush is there. Of what was written since, each sector holds what was there
//! at the flush, or one of the writes since. (A disk's cache keeps the newest of several writes to a
//! sector. So a subset of the writes, torn into sectors, applied in their order, gives every state there
//! can be; other orders give no further one.)

use crate::dice::Dice;
use crate::file_system::FileSystem;
use crate::recorder::{Event, zero};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The states of a disk at points that only go forward.
pub(crate) struct Cuts {
    events: Vec<Event>,
    /// The disk with all events up to `durable`.
    base: File,
    path: PathBuf,
    durable: usize,
    file_system: FileSystem,
}

impl Cuts {
    /// Begins with the file `base`, the disk as it was before the record, with this file system.
    pub(crate) fn new(base: &Path, events: Vec<Event>, file_system: FileSystem) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(base).expect("the disk");
        Self { events, base: file, path: base.into(), durable: 0, file_system }
    }

    /// Writes to the file `image` what the disk may hold when its power is cut after `position` events,
    /// not less than in the last call. `dice` say which; from the event `whole` on everything is there. Gives
    /// what was chosen.
    pub(crate) fn image_at(
        &mut self,
        position: usize,
        dice: &mut Dice,
        whole: usize,
        image: &Path,
    ) -> String {
        let window = &self.events[self.durable..position];
        if let Some(flush) = window.iter().rposition(|event| matches!(event, Event::Flush)) {
            window[..flush].iter().for_each(|event| apply(&self.base, event));
            self.durable += flush + 1;
        }
        copy_sparse(&self.path, image);
        let image = OpenOptions::new().write(true).open(image).expect("the image");
        let window = &self.events[self.durable..position];
        // Nearly nothing, nearly all, and what is between: each of them has found other faults.
        let kept_of_16 = [0, 1, 4, 8, 12, 15, 16][dice.below(7) as usize];
        let torn_of_16 = [0, 0, 2, 8][dice.below(4) as usize];
        let (mut kept, mut torn) = (0, 0);
        for (index, event) in window.iter().enumerate() {
            if self.durable + index >= whole {
                apply(&image, event);
            } else if dice.below(16) < torn_of_16 {
                torn += 1;
                apply_torn(&image, event, self.file_system, dice);
            } else if dice.below(16) < kept_of_16 {
                kept += 1;
                apply(&image, event);
            }
        }
        format!("of {} unflushed writes {kept} are whole and {torn} torn", window.len())
    }

    /// Which unflushed write is missed by a state that is wrong: the newest one without which, the choice of the
    /// `dice` before it and everything behind it being there, it stays wrong. `is_wrong` checks a state.
    pub(crate) fn missed(
        &mut self,
        position: usize,
        dice: impl Fn() -> Dice,
        image: &Path,
        is_wrong: impl Fn() -> bool,
    ) -> String {
        let is_wrong_from = |states: &mut Self, whole: usize| {
            states.image_at(position, &mut dice(), whole, image);
            is_wrong()
        };
        if is_wrong_from(self, 0) {
            return "it is wrong with everything that was written, too".into();
        }
        if !is_wrong_from(self, position) {
            return "it is right when it is checked again".into();
        }
        let (mut right, mut wrong) = (self.durable, position);
        while wrong - right > 1 {
            let middle = right.midpoint(wrong);
            match is_wrong_from(self, middle) {
                true => wrong = middle,
                false => right = middle,
            }
        }
        let what = match &self.events[right] {
            Event::Write { offset, data } => format!("write of {} bytes at {offset}", data.len()),
            Event::Zeroes { offset, length } => format!("hole of {length} bytes at {offset}"),
            Event::Flush => "flush".into(),
        };
        format!("it misses the {what}, {} events before the cut", position - right)
    }
}

fn apply(file: &File, event: &Event) {
    match event {
        Event::Write { offset, data } => file.write_all_at(data, *offset).expect("write"),
        Event::Zeroes { offset, length } => zero(file, *offset, *length).expect("hole"),
        Event::Flush => {}
    }
}

fn apply_torn(file: &File, event: &Event, file_system: FileSystem, dice: &mut Dice) {
    match event {
        Event::Write { offset, data } => {
            let size = file_system.written_whole(*offset);
            for (index, sector) in data.chunks(size).enumerate() {
                if dice.below(2) == 0 {
                    file.write_all_at(sector, offset + (index * size) as u64).expect("write");
                }
            }
        }
        Event::Zeroes { offset, length } => {
            // Some of it, in one piece: holes may be as large as the disk.
            let size = file_system.written_whole(*offset) as u64;
            let from = dice.below(length / size + 1) * size;
            let length = dice.below((length - from) / size + 1) * size;
            if length > 0 {
                zero(file, offset + from, length).expect("hole");
            }
        }
        Event::Flush => {}
    }
}

/// Copies what is no hole.
pub(crate) fn copy_sparse(from: &Path, to: &Path) {
    use rustix::fs::{SeekFrom, seek};
    let source = File::open(from).expect("the disk");
    let size = source.metadata().expect("its size").len();
    // A new file: the one of the last point may still be in use, by a loop device that is going.
    let _ = std::fs::remove_file(to);
    let target = File::create(to).expect("the image");
    target.set_len(size).expect("its size");
    let mut at = 0;
    while let Ok(data) = seek(&source, SeekFrom::Data(at)) {
        let end = seek(&source, SeekFrom::Hole(data)).expect("the end of the data");
        let mut part = vec![0; (1 << 20).min((end - data) as usize)];
        let mut from = data;
        while from < end {
            let length = part.len().min((end - from) as usize);
            source.read_exact_at(&mut part[..length], from).expect("data");
            target.write_all_at(&part[..length], from).expect("data");
            from += length as u64;
        }
        at = end;
    }
}
