/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Hit-first aged SATF: the shortest access first, by which a foreseen hit nearly always goes first, less a credit for
 * the time that a request has waited. The simulator's `hit-satf` (crates/schedule/src/scheduler/hit_satf.rs) is the
 * same in floating point, and says why the credit is what it is.
 */
#ifndef SOJOURN_SATF_H
#define SOJOURN_SATF_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint64_t u64;
typedef int64_t s64;
#endif

/* The most requests that are compared: the oldest. */
#define SATF_MOST 256

/* One of so many decisions is for requests that have waited too long, the oldest first: a credit bounds no wait. */
#define SATF_LATE_SHARE 4

/* A waiting request, with times in ns. */
struct satf_candidate {
	u64 access, wait;
	bool is_hit;
};

/*
 * The index of the request that goes next. The credit of one that has waited as long as the mean of all is `age`
 * thousandths of what a good choice saves now; it grows with the wait to the power of `power` thousandths, at most
 * 8000. `count` is 1 to SATF_MOST, accesses and waits are below 2^54 ns. O(count).
 */
unsigned int satf_choose(const struct satf_candidate *all, unsigned int count, unsigned int age, unsigned int power);

#endif
