//! What the laboratory reads besides traces: a server's profile, a file of hit ratios, and what
//! replayed writes left on a disk.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::file;
use model::predict::HitCurve;
use replay::pattern;

/// A profile that is read is written and read back as the same, and its numbers are numbers.
fn profile(text: &str) {
    let Ok(contents) = file::parse(text) else { return };
    let profile = contents.profile;
    let again = file::render(&profile, "note").and_then(|text| file::parse(&text));
    let again = again.expect("what was written is read").profile;
    let names = |profile: &model::Profile| -> Vec<_> {
        profile.centres.iter().map(|c| (c.name.clone(), c.kind)).collect()
    };
    assert_eq!(names(&again), names(&profile));
    for block in [1, 4096, 1 << 30] {
        for switch in profile.switches(block).expect("a block size") {
            assert!((0.0..=1.0).contains(&switch.hit), "{}", switch.hit);
        }
        let Ok(network) = profile.network(block, 0.5, 0.001) else { continue };
        let Ok(solutions) = network.sweep(8) else { continue };
        for solution in solutions {
            assert!(solution.throughput >= 0.0 && solution.response >= 0.0, "{solution:?}");
        }
    }
}

fn curve(text: &str) {
    let Ok(curve) = HitCurve::parse(text) else { return };
    for size in [0, 1, 4096, 1 << 40, u64::MAX] {
        assert!((0.0..=1.0).contains(&curve.at(size)), "{}", curve.at(size));
    }
}

/// What is found on a disk is a write's or it is not; what a write put there is found.
fn grains(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<16>() else { return };
    let (offset, stamp) = head.split_at(8);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let (offset, stamp) = (number(offset) / 1024 * 512, number(stamp));
    let mut buffer = rest.to_vec();
    if let Some(found) = pattern::stamp(rest, offset) {
        pattern::fill(&mut buffer, offset, found);
        assert_eq!(buffer, rest);
    }
    pattern::fill(&mut buffer, offset, stamp);
    for (grain, at) in buffer.chunks_exact(pattern::GRAIN).zip((offset..).step_by(pattern::GRAIN)) {
        assert_eq!(pattern::stamp(grain, at), Some(stamp));
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((selector, rest)) = data.split_first() else { return };
    match (selector % 3, std::str::from_utf8(rest)) {
        (0, Ok(text)) => profile(text),
        (1, Ok(text)) => curve(text),
        (2, _) => grains(rest),
        _ => {}
    }
});
