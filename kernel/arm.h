/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A disk with one arm, as the paper models it: a hit of its on-board cache takes `hit_us`; any other request
 * takes `base_us`, and of `full_seek_us` the part that its distance is of the disk.
 */
#ifndef SOJOURN_ARM_H
#define SOJOURN_ARM_H

#include <linux/math64.h>
#include <linux/time64.h>

#include "shadow.h"

struct arm_shape {
	/* Size of the disk. */
	sector_t sectors;
	unsigned int base_us, full_seek_us, hit_us;
	/* How much slower everything is, in thousandths. */
	unsigned int k1000;
};

struct arm {
	struct arm_shape shape;
	sector_t head;
	struct shadow cache;
};

/* At the first sector, with an empty cache. */
static inline void arm_init(struct arm *arm, struct arm_shape shape, struct shadow_shape cache)
{
	arm->shape = shape;
	arm->head = 0;
	shadow_init(&arm->cache, cache);
}

/* How long the next request takes, in ns; moves the arm. Tells whether the cache answers it. */
static inline u64 arm_service(struct arm *arm, bool is_read, sector_t start, sector_t end, bool *is_hit)
{
	const struct arm_shape *shape = &arm->shape;
	u64 way, time;

	*is_hit = is_read && shadow_holds(&arm->cache, start, end);
	if (*is_hit) {
		time = shape->hit_us * (u64)NSEC_PER_USEC;
	} else {
		way = start > arm->head ? start - arm->head : arm->head - start;
		time = shape->base_us * (u64)NSEC_PER_USEC +
		       mul_u64_u64_div_u64(shape->full_seek_us * (u64)NSEC_PER_USEC, way, shape->sectors);
		arm->head = end;
	}
	if (is_read)
		shadow_read(&arm->cache, start, end);
	else
		shadow_write(&arm->cache, start, end);
	return mul_u64_u64_div_u64(time, shape->k1000, 1000);
}

#endif
