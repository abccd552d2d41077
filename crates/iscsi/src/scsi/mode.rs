//! Mode pages (SPC-4, 7.5): a write cache that is on, and commands that may be reordered. Nothing can be
//! changed.

use super::Sense;

const CACHING: [u8; 20] = {
    let mut page = [0; 20];
    (page[0], page[1], page[2]) = (0x08, 18, 0x04); // the write cache is enabled
    page
};

const CONTROL: [u8; 12] = {
    let mut page = [0; 12];
    (page[0], page[1], page[3]) = (0x0a, 10, 0x10); // commands are reordered without restriction
    (page[8], page[9]) = (0xff, 0xff); // busy for any time
    page
};

const PAGES: [&[u8]; 2] = [&CACHING, &CONTROL];

/// What MODE SENSE asks for.
#[derive(Debug, Clone, Copy)]
pub struct ModeSense {
    /// In ten bytes.
    pub long: bool,
    /// No block descriptor is wanted.
    pub no_descriptor: bool,
    /// 0 current, 1 changeable, 2 default, 3 saved values.
    pub control: u8,
    /// The page; 3F for all.
    pub page: u8,
    /// The subpage; FF for all.
    pub subpage: u8,
}

/// The unit as mode data tells of it.
#[derive(Debug, Clone, Copy)]
pub struct UnitModes {
    /// Writes are refused.
    pub read_only: bool,
    /// How many blocks there are.
    pub blocks: u64,
    /// Their size in bytes.
    pub block: u32,
}

/// What MODE SENSE answers.
///
/// # Errors
/// Sense data for a page that there is not.
pub fn sense(question: ModeSense, state: UnitModes) -> Result<Vec<u8>, Sense> {
    if question.control == 3 {
        return Err(Sense::NOT_SAVED);
    }
    if !matches!(question.subpage, 0 | 0xff) {
        return Err(Sense::field(3));
    }
    let mut pages = Vec::new();
    for page in PAGES.iter().filter(|page| matches!(question.page, p if p == 0x3f || p == page[0]))
    {
        let start = pages.len();
        pages.extend_from_slice(page);
        if question.control == 1 {
            pages[start + 2..].fill(0);
        }
    }
    if pages.is_empty() {
        return Err(Sense::field(2));
    }
    // Forced unit access is known.
    let device = 0x10 | if state.read_only { 0x80 } else { 0 };
    let mut descriptor = [0; 8];
    descriptor[..4].copy_from_slice(&u32::try_from(state.blocks).unwrap_or(u32::MAX).to_be_bytes());
    descriptor[5..].copy_from_slice(&state.block.to_be_bytes()[1..]);
    let descriptor: &[u8] = if question.no_descriptor { &[] } else { &descriptor };
    let length = descriptor.len() + pages.len();
    let mut data = if question.long {
        let [high, low] = u16::try_from(length + 6).unwrap_or(0).to_be_bytes();
        vec![high, low, 0, device, 0, 0, 0, descriptor.len() as u8]
    } else {
        vec![u8::try_from(length + 3).unwrap_or(0), 0, device, descriptor.len() as u8]
    };
    data.extend_from_slice(descriptor);
    data.extend_from_slice(&pages);
    Ok(data)
}

/// Takes MODE SELECT's parameters, when they change nothing.
///
/// # Errors
/// Sense data that points to what cannot be changed.
pub fn select(long: bool, save: bool, data: &[u8]) -> Result<(), Sense> {
    if save {
        return Err(Sense::field(1));
    }
    if data.is_empty() {
        return Ok(());
    }
    let header = if long { 8 } else { 4 };
    if data.len() < header {
        return Err(Sense::PARAMETER_LENGTH);
    }
    let descriptors = usize::from(data[header - 1]);
    if !matches!(descriptors, 0 | 8) {
        return Err(Sense::parameter(header as u16 - 1));
    }
    let mut at = header + descriptors;
    if at > data.len() {
        return Err(Sense::PARAMETER_LENGTH);
    }
    while at < data.len() {
        let place =
            |offset: usize| Sense::parameter(u16::try_from(at + offset).unwrap_or(u16::MAX));
        let Some(page) = PAGES.iter().find(|page| page[0] == data[at] & 0x7f) else {
            return Err(place(0));
        };
        let Some(given) = data.get(at..at + page.len()) else {
            return Err(Sense::PARAMETER_LENGTH);
        };
        if let Some(differs) = (1..page.len()).find(|i| given[*i] != page[*i]) {
            return Err(place(differs));
        }
        at += page.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATE: UnitModes = UnitModes { read_only: false, blocks: 100, block: 512 };

    fn ask(page: u8, control: u8) -> Result<Vec<u8>, Sense> {
        let question = ModeSense { long: false, no_descriptor: true, control, page, subpage: 0 };
        sense(question, STATE)
    }

    #[test]
    fn the_write_cache_is_on_and_cannot_be_changed() {
        assert_eq!(ask(0x08, 0).unwrap()[4 + 2], 0x04);
        assert!(ask(0x3f, 1).unwrap()[6..24].iter().all(|byte| *byte == 0));
        assert_eq!(ask(0x08, 3), Err(Sense::NOT_SAVED));
        assert_eq!(ask(0x01, 0), Err(Sense::field(2)));
    }

    #[test]
    fn only_what_changes_nothing_may_be_selected() {
        for long in [false, true] {
            let question =
                ModeSense { long, no_descriptor: false, control: 0, page: 0x3f, subpage: 0 };
            let mut pages = sense(question, STATE).unwrap();
            assert_eq!(select(long, false, &pages), Ok(()));
            assert!(select(long, true, &pages).is_err());
            let at = if long { 16 } else { 12 } + 2;
            pages[at] ^= 4;
            assert_eq!(select(long, false, &pages), Err(Sense::parameter(at as u16)));
            assert_eq!(select(long, false, &pages[..at]), Err(Sense::PARAMETER_LENGTH));
        }
    }

    proptest! {
        #[test]
        fn no_parameters_are_too_strange(data in prop::collection::vec(any::<u8>(), 0..64), long in any::<bool>()) {
            let _ = select(long, false, &data);
        }
    }
}
