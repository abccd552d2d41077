use super::lab::{answered_whole, must_be_the_stores};
use super::must_be_right;
use crate::commands::model::lookups::Lookups;

#[test]
fn a_model_that_its_check_contradicts_is_refused() {
    must_be_right(0.49, false).unwrap();
    must_be_right(0.74, true).unwrap();
    for wrong in [0.74, f64::INFINITY, f64::NAN] {
        let error = must_be_right(wrong, false).unwrap_err();
        assert!(error.message().contains("--force"), "{error}");
    }
}

#[test]
fn misses_that_the_piece_cache_answers_are_refused() {
    let looked = |pieces| Lookups { pid: 1, hits: 0, misses: 0, pieces, piece_bytes: 0 };
    let share = |pieces| looked(pieces).share_of_pieces(&looked(Some((10, 10))));
    assert_eq!((share(Some((40, 20))), share(Some((10, 10))), share(None)), (0.75, 0.0, 0.0));
    let error = must_be_the_stores(0.75, false).unwrap_err();
    assert!(error.message().contains("75 %") && error.message().contains("pieces.size = 0"));
    must_be_the_stores(0.75, true).unwrap();
    must_be_the_stores(0.01, false).unwrap();
}

#[test]
fn a_request_for_several_chunks_misses_when_one_of_them_does() {
    assert_eq!(answered_whole(50.0, 100.0, 100.0), 0.5);
    assert_eq!(answered_whole(50.0, 100.0, 50.0), 0.25);
    // Private blocks and holes are looked up by nobody.
    assert_eq!(answered_whole(50.0, 100.0, 400.0), 0.5);
    assert_eq!(answered_whole(0.0, 0.0, 9.0), 1.0);
}
