//! `sojourn disk map`: where the bytes of a disk are, as a picture of characters.

use crate::output::Table;
use block::ByteSize;
use disk::BlockPlace;
use engine::api::{DiskRequest, MapView};

/// Characters in a line.
const LINE: usize = 64;

/// Arguments of `sojourn disk map`.
#[derive(Debug, clap::Args)]
pub(crate) struct MapArgs {
    /// The disk's name
    name: String,
    /// The most cells, 1 to 4096; each has as many bytes as the others
    #[arg(long, value_name = "N", default_value_t = 1024)]
    cells: usize,
}

impl MapArgs {
    /// What is asked for.
    pub(super) fn request(&self) -> DiskRequest {
        DiskRequest::Map { name: self.name.clone(), cells: self.cells }
    }
}

/// The places by their characters, and what they are.
const LEGEND: [(BlockPlace, char, &str); BlockPlace::ALL.len()] = [
    (BlockPlace::Private, '#', "private: written by its client, and only here"),
    (BlockPlace::Waiting, '^', "waiting: private, and on their way to the store"),
    (BlockPlace::Cached, '+', "cached: of the image, in memory"),
    (BlockPlace::Kept, '=', "kept: of the image, on this machine"),
    (BlockPlace::Stored, '-', "stored: of the image, in the store"),
    (BlockPlace::Unread, '?', "unread: of the image, whose map nobody has read here yet"),
    (BlockPlace::Zero, '.', "zero: nothing but zeroes"),
];

/// The picture, below what its characters mean and how much there is of each.
pub(super) fn text(map: &MapView) -> String {
    let mut table = Table::new(&["", ">BYTES", "WHERE"]);
    for (place, letter, what) in LEGEND {
        let bytes = *map.total.at(place);
        if bytes > 0 {
            table.row([letter.to_string(), ByteSize(bytes).to_string(), what.to_owned()]);
        }
    }
    let mut text = table.render();
    let cell = ByteSize(map.cell_bytes);
    text.push_str(&format!("\n{} of {}, each character {cell}:\n", map.disk, ByteSize(map.size)));
    for (number, letter) in letters(map).into_iter().enumerate() {
        if number > 0 && number % LINE == 0 {
            text.push('\n');
        }
        text.push(letter);
    }
    text.push('\n');
    text
}

/// The character of each cell: of what only this disk has, however little; else of what there is most of.
fn letters(map: &MapView) -> Vec<char> {
    let count = map.cells.zero.len();
    let letter = |cell: usize| {
        let bytes = |place| map.cells.at(place).get(cell).copied().unwrap_or_default();
        let own = LEGEND.iter().filter(|(place, ..)| is_own(*place));
        let own =
            own.filter(|(place, ..)| bytes(*place) > 0).max_by_key(|(place, ..)| bytes(*place));
        let most = LEGEND.iter().max_by_key(|(place, ..)| bytes(*place));
        own.or(most).map_or('?', |(_, letter, _)| *letter)
    };
    (0..count).map(letter).collect()
}

/// Whether only this disk has what is at a place.
fn is_own(place: BlockPlace) -> bool {
    matches!(place, BlockPlace::Private | BlockPlace::Waiting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::api::BytesByPlace;
    use std::time::Duration;

    #[test]
    fn a_cell_shows_what_only_the_disk_has_or_else_what_there_is_most_of() {
        let mut cells = BytesByPlace::of(|_| vec![0; 66]);
        let mut total = BytesByPlace::of(|_| 0);
        cells.zero = vec![8192; 66];
        (cells.zero[0], cells.private[0]) = (4096, 4096);
        (cells.zero[1], cells.cached[1], cells.stored[1]) = (1000, 3096, 4096);
        (cells.zero[65], cells.waiting[65], cells.private[65]) = (0, 8000, 192);
        (total.zero, total.private, total.waiting) = (60, 4288, 8000);
        let disk = "alice".to_owned();
        let (size, cell_bytes, work) = (66 << 13, 1 << 13, Duration::ZERO);
        let text = text(&MapView { disk, size, cell_bytes, total, cells, work });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("#  4.2 KiB  private"), "{text}");
        let picture = &lines[lines.len() - 2..];
        assert_eq!(picture, ["#-".to_owned() + &".".repeat(62), ".^".to_owned()]);
        assert!(!text.contains("cached"), "there is none in sum: {text}");
    }
}
