//! page-CDC: content-defined chunking that cuts only between pages of 4 KiB.
//!
//! A rebuilt image has most of its files at other places; cut points that follow the content find
//! them again. Cutting only between pages keeps every 4 KiB read inside one chunk.
//!
//! # The algorithm, `page-cdc-32-96-256-tails`
//!
//! The image is a sequence of pages of 4096 bytes; the last one is padded with zeroes. A page has a
//! tail when its last 16 bytes are zero: in a file system it is the last of a file, most of the
//! time, and what lies between two files is where rebuilt images differ. From the start, for each
//! page in turn:
//!
//! 1. A page of zeroes is a hole. It ends the chunk before it, if there is one, and belongs to none.
//! 2. Any other page joins the chunk. The chunk ends behind this page
//!    * when it has 64 pages (256 KiB), or
//!    * when the page is the last one of a segment (its number + 1 is a multiple of 65536) or of
//!      the image, or
//!    * when it has at least 8 pages (32 KiB), and the page has a tail or its hash is at most
//!      `u64::MAX / 17`, rounded down (17 makes the mean of what has no tails 96 KiB, less what
//!      the upper bound cuts: 7 + 17 pages), or
//!    * when it has at least 2 pages, the page has a tail, and the page before it has none.
//!
//! So a cut depends only on the bytes since the cut before, and two images that differ in one
//! place are cut alike again soon behind it.
//!
//! The hash of a page reads it as 512 little-endian 64-bit words. Four lanes start at the constants
//! `LANES`. Word `i` goes to lane `l = i mod 4`: `l = rotate_left((l xor word) * M, 29)`, the
//! product modulo 2^64. At the end `h = l0 + rotate_left(l1, 16) + rotate_left(l2, 32) +
//! rotate_left(l3, 48)` modulo 2^64, then the finaliser of SplitMix64 (Steele, Lea, Flood: Fast
//! splittable pseudorandom number generators, OOPSLA 2014). Nobody relies on the hash but for where
//! the cuts fall; ids are BLAKE3.

/// Bytes of a page: cuts fall only at multiples of this.
pub const PAGE: usize = block::BLOCK as usize;
/// The fewest pages of a chunk that ends by a page's hash.
pub const MIN_PAGES: u32 = 8;
/// The fewest pages of a chunk that ends with a file.
pub const MIN_TAIL_PAGES: u32 = 2;
/// The most pages of a chunk.
pub const MAX_PAGES: u32 = 64;
/// The most bytes of a chunk.
pub const MAX_CHUNK: u32 = MAX_PAGES * PAGE as u32;
/// Pages of a segment; no chunk crosses a multiple of this.
pub const SEGMENT_PAGES: u64 = 65536;
/// Bytes of a segment: 256 MiB.
pub const SEGMENT: u64 = SEGMENT_PAGES * PAGE as u64;

/// The mean pages of chunks without tails, but for the upper bound.
pub const MEAN_PAGES: u32 = 24;
/// How many zeroes at a page's end make a tail.
const TAIL: usize = 16;
const THRESHOLD: u64 = u64::MAX / (MEAN_PAGES - MIN_PAGES + 1) as u64;
const M: u64 = 0x9e37_79b9_7f4a_7c15;
const LANES: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// What a page does to the chunk before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCut {
    /// The page is a hole: the chunk before it, if any, ends.
    Hole,
    /// The page joins the chunk, which goes on.
    Join,
    /// The page joins the chunk, which ends behind it.
    Cut,
}

/// The state of the chunking.
#[derive(Debug, Clone, Default)]
pub struct Cutter {
    /// Pages of the current chunk.
    pages: u32,
    /// Whether its last page has a tail.
    tail: bool,
}

impl Cutter {
    /// Takes page number `page` of the image, whose bytes are `bytes` ([`PAGE`] of them).
    pub fn page(&mut self, page: u64, bytes: &[u8]) -> PageCut {
        if is_zero(bytes) {
            self.end();
            return PageCut::Hole;
        }
        self.pages += 1;
        let tail = bytes.last_chunk() == Some(&[0; TAIL]);
        let cut = self.pages >= MAX_PAGES
            || (page + 1).is_multiple_of(SEGMENT_PAGES)
            || (self.pages >= MIN_TAIL_PAGES && tail && !self.tail)
            || (self.pages >= MIN_PAGES && (tail || page_hash(bytes) <= THRESHOLD));
        if cut {
            self.end();
            return PageCut::Cut;
        }
        self.tail = tail;
        PageCut::Join
    }

    /// Ends the current chunk: a hole or the end of the image follows.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether the next page starts a chunk.
    pub fn between_chunks(&self) -> bool {
        self.pages == 0
    }
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Most pages show in their first words that they are not; the rest goes at memory speed.
    let (words, rest) = bytes.as_chunks::<64>();
    rest.iter().all(|b| *b == 0)
        && words.iter().all(|w| w.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The hash of a page that decides about cuts.
fn page_hash(page: &[u8]) -> u64 {
    let mut lanes = LANES;
    let (words, _) = page.as_chunks::<8>();
    for group in words.chunks_exact(4) {
        for (lane, word) in lanes.iter_mut().zip(group) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(M).rotate_left(29);
        }
    }
    let [a, b, c, d] = lanes;
    let mut h = a
        .wrapping_add(b.rotate_left(16))
        .wrapping_add(c.rotate_left(32))
        .wrapping_add(d.rotate_left(48));
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::conformance::Sequence;

    /// Random pages, as the worked example of docs/format.md has them.
    pub(crate) fn pages(seed: u64, count: usize) -> Vec<u8> {
        let mut random = Sequence::new(seed);
        (0..count * PAGE / 8).flat_map(|_| random.number().to_le_bytes()).collect()
    }

    fn cuts(image: &[u8]) -> Vec<usize> {
        let mut cutter = Cutter::default();
        let mut ends = Vec::new();
        for (i, page) in image.chunks_exact(PAGE).enumerate() {
            if cutter.page(i as u64, page) == PageCut::Cut {
                ends.push(i + 1);
            }
        }
        ends
    }

    #[test]
    fn chunks_without_tails_are_32_to_256_kib_and_88_kib_in_the_mean() {
        let ends = cuts(&pages(1, 16384));
        let mut last = 0;
        for end in &ends {
            assert!((MIN_PAGES as usize..=MAX_PAGES as usize).contains(&(end - last)));
            last = *end;
        }
        let mean = last as f64 / ends.len() as f64;
        assert!((21.0..23.5).contains(&mean), "{mean}");
    }

    #[test]
    fn cuts_follow_the_content_when_it_moves() {
        let image = pages(2, 2000);
        let mut moved = pages(3, 37);
        moved.extend_from_slice(&image);
        let before = cuts(&image);
        let after = cuts(&moved);
        let same = before.iter().filter(|end| after.contains(&(*end + 37))).count();
        assert!(same + 10 > before.len(), "{same} of {}", before.len());
    }

    #[test]
    fn a_chunk_ends_with_a_file() {
        let ends = |tails: &[usize]| {
            let mut image = pages(4, 12);
            for page in tails {
                image[(page + 1) * PAGE - TAIL..(page + 1) * PAGE].fill(0);
            }
            cuts(&image)
        };
        let plain = ends(&[]);
        assert_eq!(plain, ends(&[0]), "one page is too little");
        assert_eq!(ends(&[3])[0], 4);
        assert_eq!(
            ends(&[0, 1, 2, 4])[0],
            5,
            "only the first of a row of tails ends a small chunk"
        );
        // Where every page has a tail (a table, memory), chunks do not become tiny.
        assert_eq!(ends(&(0..12).collect::<Vec<_>>()), [8]);
    }

    #[test]
    fn the_cuts_of_the_worked_example_do_not_change() {
        assert_eq!(page_hash(&pages(1, 1)), 0x166d_5c4b_1a58_06a8);
        let mut image = pages(1, 128);
        assert_eq!(cuts(&image), [38, 74, 102]);
        for page in [3, 4, 50, 75] {
            image[page * PAGE - TAIL..page * PAGE].fill(0);
        }
        assert_eq!(cuts(&image), [3, 38, 50, 74, 102]);
    }

    #[test]
    fn zero_pages_are_holes_and_end_a_chunk() {
        let mut cutter = Cutter::default();
        let data = [1; PAGE];
        assert_eq!(cutter.page(0, &data), PageCut::Join);
        assert_eq!(cutter.page(1, &[0; PAGE]), PageCut::Hole);
        assert!(cutter.between_chunks());
        let mut last = [0; PAGE];
        last[PAGE - 1] = 1;
        assert!(!is_zero(&last) && is_zero(&[0; 100]) && !is_zero(&[0, 0, 1]));
    }

    #[test]
    fn no_chunk_crosses_a_segment() {
        let mut cutter = Cutter::default();
        assert_eq!(cutter.page(SEGMENT_PAGES - 1, &[1; PAGE]), PageCut::Cut);
    }
}
