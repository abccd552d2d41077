//! A picture of a disk: what is used, free, lent and refused, in a line of text or as SVG.

use block::{ByteSize, Span};
use std::fmt::Write;
use transient::{DiskReport, Scan};

/// What bytes of a disk are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Nowhere,
    Refused,
    Used,
    Free,
    Lent,
}

const CLASSES: [(Class, char, &str, &str); 5] = [
    (Class::Lent, '█', "#2a9d5b", "lent"),
    (Class::Free, '▒', "#a8dcc0", "free, not lent"),
    (Class::Used, '·', "#9aa0a6", "used"),
    (Class::Refused, 'x', "#d98c7a", "refused"),
    (Class::Nowhere, ' ', "#f1f3f4", "in no partition"),
];

/// A disk cut into cells of equal size, each with the class that most of its bytes have; what is
/// lent shows even where it is little.
pub(crate) struct Map<'a> {
    disk: &'a DiskReport,
    pieces: Vec<(Span, Class)>,
}

impl<'a> Map<'a> {
    /// The maps of all disks that could be opened; `lent` is what [`Scan::choose`] chose.
    pub(crate) fn of(scan: &'a Scan, lent: &[Vec<Span>]) -> Vec<Self> {
        let mut lent = lent.iter();
        let mut maps = Vec::new();
        for disk in &scan.disks {
            let mut pieces = Vec::new();
            for part in &disk.parts {
                let Ok(accepted) = &part.verdict else {
                    pieces.push((part.span, Class::Refused));
                    continue;
                };
                pieces.push((part.span, Class::Used));
                // The reader may have seen the partition as a disk of its own.
                let shift = part.span.offset() - accepted.claim.base;
                let moved = |span: &Span| Span::between(span.offset() + shift, span.end() + shift);
                pieces.extend(accepted.usable.iter().map(|span| (moved(span), Class::Free)));
                let chosen = lent.next().map(Vec::as_slice).unwrap_or_default();
                pieces.extend(chosen.iter().map(|span| (moved(span), Class::Lent)));
            }
            if disk.size > 0 {
                maps.push(Self { disk, pieces });
            }
        }
        maps
    }

    fn cells(&self, count: usize) -> Vec<Class> {
        // Later pieces lie on top of earlier ones; bytes are counted by class and cell, and what
        // lies on top takes its bytes from what is below: used >= free >= lent.
        let mut bytes = vec![[0u64; CLASSES.len()]; count];
        let size = u128::from(self.disk.size);
        let edge = |cell: usize| (size * cell as u128 / count as u128) as u64;
        for (span, class) in &self.pieces {
            let first = (u128::from(span.offset()) * count as u128 / size) as usize;
            for (cell, counts) in bytes.iter_mut().enumerate().skip(first) {
                let bounds = Span::between(edge(cell), edge(cell + 1));
                match span.intersect(bounds) {
                    Some(part) => counts[*class as usize] += part.len(),
                    None if bounds.offset() >= span.end() => break,
                    None => {}
                }
            }
        }
        let classify = |(cell, bytes): (usize, &[u64; CLASSES.len()])| {
            let of = |class: Class| bytes[class as usize];
            let (lent, free) = (of(Class::Lent), of(Class::Free));
            let shares = [
                (lent.saturating_mul(2), Class::Lent),
                (free.saturating_sub(lent), Class::Free),
                (of(Class::Used).saturating_sub(free), Class::Used),
                (of(Class::Refused), Class::Refused),
                (0, Class::Nowhere),
            ];
            let covered = of(Class::Used) + of(Class::Refused);
            let nowhere = (edge(cell + 1) - edge(cell)).saturating_sub(covered);
            let largest = shares.into_iter().max_by_key(|(share, class)| (*share, *class as usize));
            match largest {
                Some((share, class)) if share >= nowhere && share > 0 => class,
                _ => Class::Nowhere,
            }
        };
        bytes.iter().enumerate().map(classify).collect()
    }

    /// One line of `width` characters.
    pub(crate) fn line(&self, width: usize) -> String {
        let symbol = |class: Class| {
            CLASSES
                .iter()
                .find(|(known, ..)| *known == class)
                .map_or(' ', |(_, symbol, ..)| *symbol)
        };
        self.cells(width).into_iter().map(symbol).collect()
    }
}

/// What the characters of [`Map::line`] mean.
pub(crate) fn legend() -> String {
    let words = CLASSES.iter().map(|(_, symbol, _, name)| format!("{symbol} {name}"));
    words.collect::<Vec<_>>().join("   ")
}

/// All maps as one SVG picture.
pub(crate) fn svg(maps: &[Map<'_>]) -> String {
    const WIDTH: usize = 1000;
    const BAR: usize = 28;
    const ROW: usize = 60;
    let height = maps.len() * ROW + 40;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n",
        WIDTH + 20
    );
    let colour = |class: Class| {
        CLASSES.iter().find(|(known, ..)| *known == class).map_or("", |(_, _, colour, _)| *colour)
    };
    for (row, map) in maps.iter().enumerate() {
        let top = row * ROW + 20;
        let name = report::escape(&map.disk.path.display().to_string());
        let _ =
            writeln!(text, "<text x=\"10\" y=\"{top}\">{name}, {}</text>", ByteSize(map.disk.size));
        let cells = map.cells(WIDTH);
        let mut start = 0;
        for run in cells.chunk_by(|a, b| a == b) {
            let _ = writeln!(
                text,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{BAR}\" fill=\"{}\"/>",
                start + 10,
                top + 6,
                run.len(),
                colour(run[0])
            );
            start += run.len();
        }
    }
    let foot = maps.len() * ROW + 22;
    for (i, (_, _, colour, name)) in CLASSES.iter().enumerate() {
        let left = 10 + i * 160;
        let _ = writeln!(
            text,
            "<rect x=\"{left}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{foot}\">{name}</text>",
            foot - 11,
            left + 18
        );
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn disk(path: &str) -> DiskReport {
        DiskReport {
            path: PathBuf::from(path),
            size: 100 << 20,
            rotational: None,
            table: "mbr",
            refusal: None,
            parts: Vec::new(),
        }
    }

    fn span(start: u64, end: u64) -> Span {
        Span::between(start << 20, end << 20)
    }

    #[test]
    fn every_cell_shows_what_most_of_it_is_and_lent_ranges_always_win() {
        let disk = disk("d");
        let pieces = vec![
            (span(10, 80), Class::Used),
            (span(30, 50), Class::Free),
            (span(40, 50), Class::Lent),
            (span(64, 66), Class::Free),
            (span(80, 90), Class::Refused),
        ];
        let map = Map { disk: &disk, pieces };
        assert_eq!(map.line(10), " ··▒█···x ");
    }

    #[test]
    fn the_picture_has_a_bar_for_every_disk_and_no_markup_of_its_name() {
        let disk = disk("a<b>&\"");
        let maps = [Map { disk: &disk, pieces: vec![(span(0, 100), Class::Used)] }];
        let picture = svg(&maps);
        assert!(picture.contains("a&lt;b&gt;&amp;&quot;, 100"), "{picture}");
        assert_eq!(picture.matches("<rect").count(), 1 + CLASSES.len());
    }
}
