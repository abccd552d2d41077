//! The order in which people expect names.

use std::cmp::Ordering;

/// Compares names as people count: `vm2` comes before `vm10`, whatever stands before and after the number.
/// Names that differ in leading zeroes only (`vm2`, `vm02`) are ordered by their bytes.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (number(&mut left), number(&mut right));
            m.len().cmp(&n.len()).then_with(|| m.cmp(n))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            x.cmp(y)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Takes the digits that the text begins with, and gives them without leading zeroes.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    let zeroes = digits.iter().take_while(|byte| **byte == b'0').count();
    &digits[zeroes..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let sorted = [
            "", "alice", "vm", "vm0", "vm1", "vm02", "vm2", "vm2a", "vm10", "vm10-3", "vm10-20",
            "vn1",
        ];
        let mut names = sorted;
        names.reverse();
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, sorted);
    }

    proptest! {
        #[test]
        fn it_is_a_total_order_and_only_equal_names_are_equal(names in proptest::array::uniform3("[a0-2é]{0,6}")) {
            let [a, b, c] = &names;
            prop_assert_eq!(natural(a, b), natural(b, a).reverse());
            prop_assert_eq!(natural(a, b).is_eq(), a == b);
            if natural(a, b).is_le() && natural(b, c).is_le() {
                prop_assert!(natural(a, c).is_le());
            }
        }
    }
}
