// SPDX-License-Identifier: GPL-2.0
/*
 * The static-optimal table. What is done is always an interval around the head: a request that the arm
 * passes is done when it passes first, which makes no path longer and every later wait one request shorter.
 * So a state is the number of requests done to the left and to the right, and the side that the arm is on;
 * a step costs its distance for each request that still waits.
 */
#include "plan.h"

enum { LEFT, RIGHT };

static u64 apart(u64 a, u64 b)
{
	return a > b ? a - b : b - a;
}

void plan_order(const u64 *at, unsigned int count, u64 head, struct plan_work *work, u8 *order)
{
	unsigned int left = 0, right, states, a, b, side, n = 0;

	while (left < count && at[left] < head)
		left++;
	right = count - left;
	states = (right + 1) * 2;

	/* From the end, where nothing waits, to the beginning; two rows of costs are needed. */
	for (a = left + 1; a-- > 0;) {
		u64 (*row)[2] = work->cost[a & 1], (*next)[2] = work->cost[(a + 1) & 1];

		for (b = right + 1; b-- > 0;) {
			u64 waiting = count - a - b;

			for (side = LEFT; side <= RIGHT; side++) {
				u64 here = head, best = ~0ULL, cost;
				u8 step = LEFT;

				if (side == LEFT && a)
					here = at[left - a];
				else if (side == RIGHT && b)
					here = at[left + b - 1];
				if (a < left) {
					best = waiting * apart(here, at[left - a - 1]) + next[b][LEFT];
				}
				if (b < right) {
					cost = waiting * apart(at[left + b], here) + row[b + 1][RIGHT];
					if (cost < best) {
						best = cost;
						step = RIGHT;
					}
				}
				row[b][side] = waiting ? best : 0;
				work->step[a * states + b * 2 + side] = step;
			}
		}
	}

	for (a = b = 0, side = LEFT; n < count; n++) {
		side = work->step[a * states + b * 2 + side];
		order[n] = side == LEFT ? left - ++a : left + b++;
	}
}
