/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The order in which a disk's arm visits waiting requests with the least sum of completion times
 * (Geist, Jones, Westall, "Predicting Disk Scheduling Performance with Virtual Machines", 2010, section 3).
 */
#ifndef SOJOURN_PLAN_H
#define SOJOURN_PLAN_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
typedef uint64_t u64;
typedef uint8_t u8;
#endif

/* The most requests of a plan. */
#define PLAN_MOST 128
/* States with `a` requests to the left and `b` to the right done: at most (64 + 1)^2, on two sides. */
#define PLAN_STATES ((PLAN_MOST / 2 + 1) * (PLAN_MOST / 2 + 1) * 2)

/* What making a plan needs; nothing of it lasts. */
struct plan_work {
	u64 cost[2][PLAN_MOST + 1][2];
	u8 step[PLAN_STATES];
};

/*
 * Writes the indices of `count` positions, which rise, into `order`, in the order in which they are to be
 * visited from `head`. The time between two of them is their distance and a constant, which changes no
 * order. O(count^2).
 */
void plan_order(const u64 *at, unsigned int count, u64 head, struct plan_work *work, u8 *order);

#endif
