//! The static-optimal order of requests on a line: the table of Geist and Ross ("Disk scheduling
//! revisited: can O(N^2) algorithms compete?", 1997), by dynamic programming.
//!
//! It minimises the sum of completion times, and so the mean response, when a service costs a
//! constant and a term linear in the distance. The constant adds the same to every order.
//!
//! Some optimal order serves each request the first time the head passes it: then no path gets
//! longer, and every completion in between has one request less that waits. So what was served is
//! always an interval around the head, and a state is how many were served on the left, how many on
//! the right, and on which end the head stands. A move costs its distance for each request not yet
//! served. States with the same number served depend only on those with one more, so the table is
//! filled diagonal by diagonal, each of them without branches.

/// Fills the table and reads the order out of it; keeps its memory between plans.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// Costs to go by diagonal (how many were served), then by how many of them on the left; the
    /// head on the left end in one table, on the right in the other.
    left: Vec<f64>,
    right: Vec<f64>,
    /// Distances from the head of the requests on the left, nearest first, behind the head itself.
    lefts: Vec<f64>,
    /// Distances of the right side, like `lefts`, farthest first: a diagonal runs through both forwards.
    rights: Vec<f64>,
}

/// The order of a plan, one move at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// To the nearest request on the left that was not served.
    Left,
    /// To the nearest one on the right.
    Right,
}

impl Planner {
    /// The moves that serve all of `positions` (ascending) from `head` with the least sum of
    /// completion times; what is at the head counts as right of it. Returns that sum for a service
    /// that costs its distance. O(N^2) in time and memory.
    pub fn plan(&mut self, head: u64, positions: &[u64], moves: &mut Vec<Move>) -> f64 {
        let split = positions.partition_point(|p| *p < head);
        let (nl, nr) = (split, positions.len() - split);
        self.lay_out(head, positions, split);
        let width = nl + 2;
        let cells = (nl + nr + 1) * width;
        if self.left.len() < cells {
            self.left.resize(cells, 0.0);
            self.right.resize(cells, 0.0);
        }
        let total = nl + nr;
        for side in [&mut self.left, &mut self.right] {
            side[total * width..(total + 1) * width].fill(f64::INFINITY);
            side[total * width + nl] = 0.0;
        }
        for served in (0..total).rev() {
            self.fill(served, nl, nr, width);
        }
        self.read(nl, nr, width, moves)
    }

    fn lay_out(&mut self, head: u64, positions: &[u64], split: usize) {
        self.lefts.clear();
        self.lefts.push(0.0);
        self.lefts.extend(positions[..split].iter().rev().map(|p| -((head - p) as f64)));
        // One more, which is never gone to: its cost to go is infinite.
        self.lefts.push(-((head - positions.first().map_or(head, |p| *p.min(&head))) as f64));
        self.rights.clear();
        let far = positions.last().map_or(head, |p| *p.max(&head));
        self.rights.push((far - head) as f64);
        self.rights.extend(positions[split..].iter().rev().map(|p| (p - head) as f64));
        self.rights.push(0.0);
    }

    /// One diagonal from the next one: `a` served on the left, `served - a` on the right.
    fn fill(&mut self, served: usize, nl: usize, nr: usize, width: usize) {
        let (first, last) = (served.saturating_sub(nr), nl.min(served));
        let waiting = (nl + nr - served) as f64;
        let count = last - first + 1;
        // rights[nr + 1 - b] is the b-th on the right; b = served - a.
        let reversed = nr + 1 - (served - first);
        let here_left = &self.lefts[first..first + count];
        let next_left = &self.lefts[first + 1..first + 1 + count];
        let here_right = &self.rights[reversed..reversed + count];
        let next_right = &self.rights[reversed - 1..reversed - 1 + count];
        let (rows, next) = self.left.split_at_mut((served + 1) * width);
        let (rows_right, next_of_right) = self.right.split_at_mut((served + 1) * width);
        let go_left = &next[first + 1..first + 1 + count];
        let go_right = &next_of_right[first..first + count];
        let row = &mut rows[served * width..];
        row.fill(f64::INFINITY);
        let row_right = &mut rows_right[served * width..];
        row_right.fill(f64::INFINITY);
        let out_left = &mut row[first..first + count];
        let out_right = &mut row_right[first..first + count];
        for i in 0..count {
            let far = waiting * (next_right[i] - here_left[i]) + go_right[i];
            let near = waiting * (here_left[i] - next_left[i]) + go_left[i];
            out_left[i] = near.min(far);
            let far = waiting * (here_right[i] - next_left[i]) + go_left[i];
            let near = waiting * (next_right[i] - here_right[i]) + go_right[i];
            out_right[i] = near.min(far);
        }
    }

    /// Follows the least cost from the start.
    fn read(&self, nl: usize, nr: usize, width: usize, moves: &mut Vec<Move>) -> f64 {
        moves.clear();
        let (mut a, mut b) = (0, 0);
        let mut here = 0.0;
        while a + b < nl + nr {
            let waiting = (nl + nr - a - b) as f64;
            let next = (a + b + 1) * width;
            let to_left = match a < nl {
                true => waiting * (here - self.lefts[a + 1]) + self.left[next + a + 1],
                false => f64::INFINITY,
            };
            let to_right = match b < nr {
                true => waiting * (self.rights[nr - b] - here) + self.right[next + a],
                false => f64::INFINITY,
            };
            if to_left <= to_right {
                a += 1;
                here = self.lefts[a];
                moves.push(Move::Left);
            } else {
                b += 1;
                here = self.rights[nr + 1 - b];
                moves.push(Move::Right);
            }
        }
        self.left[0]
    }

    /// The indices of `positions` (ascending) in the order of [`plan`](Self::plan).
    pub fn order(&mut self, head: u64, positions: &[u64]) -> Vec<usize> {
        let mut moves = Vec::with_capacity(positions.len());
        self.plan(head, positions, &mut moves);
        let mut right = positions.partition_point(|p| *p < head);
        let mut left = right;
        let step = |m: Move| match m {
            Move::Left => {
                left -= 1;
                left
            }
            Move::Right => {
                right += 1;
                right - 1
            }
        };
        moves.into_iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Mean service and mean response of an order, when a service costs constant + slope * distance.
    fn means(head: u64, order: &[u64], constant: f64, slope: f64) -> (f64, f64) {
        let (mut at, mut now, mut sum) = (head, 0.0, 0.0);
        for position in order {
            now += constant + slope * at.abs_diff(*position) as f64;
            at = *position;
            sum += now;
        }
        (now / order.len() as f64, sum / order.len() as f64)
    }

    fn planned(head: u64, positions: &[u64]) -> Vec<u64> {
        Planner::default().order(head, positions).into_iter().map(|i| positions[i]).collect()
    }

    /// The least mean response of all orders.
    fn brute_force(head: u64, positions: &[u64], constant: f64, slope: f64) -> f64 {
        fn go(
            head: u64,
            left: &mut Vec<u64>,
            now: f64,
            sum: f64,
            cost: &dyn Fn(u64) -> f64,
        ) -> f64 {
            if left.is_empty() {
                return sum;
            }
            let mut best = f64::INFINITY;
            for i in 0..left.len() {
                let position = left.swap_remove(i);
                let then = now + cost(head.abs_diff(position));
                if sum + then < best {
                    best = best.min(go(position, left, then, sum + then, cost));
                }
                left.push(position);
                let last = left.len() - 1;
                left.swap(i, last);
            }
            best
        }
        let cost = |distance: u64| constant + slope * distance as f64;
        go(head, &mut positions.to_vec(), 0.0, 0.0, &cost) / positions.len() as f64
    }

    #[test]
    fn the_seeds_table_1_to_the_digit() {
        let positions = [20, 82, 120, 200];
        assert_eq!(means(100, &[82, 120, 200, 20], 0.0, 1.0), (79.0, 131.5));
        assert_eq!(planned(100, &positions), [120, 82, 20, 200]);
        assert_eq!(means(100, &planned(100, &positions), 0.0, 1.0), (75.0, 124.5));
        let mut moves = Vec::new();
        assert_eq!(Planner::default().plan(100, &positions, &mut moves), 4.0 * 124.5);
    }

    #[test]
    fn equals_brute_force_on_ten_thousand_random_instances() {
        let mut random = Random::new(1);
        let mut planner = Planner::default();
        for trial in 0..10_000 {
            // Few positions give many that are equal, to each other and to the head.
            let range = [12, 60, 1 << 40][trial % 3];
            let count = random.below(8) + 1;
            let mut positions: Vec<u64> = (0..count).map(|_| random.below(range)).collect();
            positions.sort_unstable();
            let head = random.below(range);
            let (constant, slope) =
                if trial % 2 == 0 { (0.0, 1.0) } else { (4.25, 5.25 / range as f64) };
            let order = planner.order(head, &positions);
            let mut seen = order.clone();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..positions.len()), "each request once");
            let order: Vec<u64> = order.into_iter().map(|i| positions[i]).collect();
            let response = means(head, &order, constant, slope).1;
            let best = brute_force(head, &positions, constant, slope);
            assert!(response <= best * (1.0 + 1e-12), "{head} {positions:?}: {response} {best}");
        }
    }

    #[test]
    fn nothing_to_do_is_no_plan() {
        let mut moves = vec![Move::Left];
        assert_eq!(Planner::default().plan(5, &[], &mut moves), 0.0);
        assert!(moves.is_empty());
    }
}
