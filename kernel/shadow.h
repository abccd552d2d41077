/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The cache on board of a disk: segments that each hold one span and are replaced in order of age. The
 * throttled disk answers by it, and the scheduler foresees the same disk's hits by it.
 */
#ifndef SOJOURN_SHADOW_H
#define SOJOURN_SHADOW_H

#include <linux/minmax.h>
#include <linux/types.h>

#define SHADOW_MOST 1024

struct shadow_shape {
	/* How many spans are kept; 0: there is no cache. */
	unsigned int segments;
	/* The longest span in sectors: of a longer one the end stays. */
	unsigned int segment_sectors;
	/* Sectors read ahead behind each request. */
	unsigned int prefetch_sectors;
};

struct shadow {
	struct shadow_shape shape;
	unsigned int next;
	struct {
		sector_t start, end;
	} segment[SHADOW_MOST];
};

/* An empty cache. */
static inline void shadow_init(struct shadow *shadow, struct shadow_shape shape)
{
	unsigned int i;

	shape.segments = min_t(unsigned int, shape.segments, SHADOW_MOST);
	shadow->shape = shape;
	shadow->next = 0;
	for (i = 0; i < SHADOW_MOST; i++) {
		shadow->segment[i].start = 1;
		shadow->segment[i].end = 0;
	}
}

/* Whether one segment holds all of these sectors: a request across two of them is a miss. */
static inline bool shadow_holds(const struct shadow *shadow, sector_t start, sector_t end)
{
	unsigned int i;

	for (i = 0; i < shadow->shape.segments; i++)
		if (shadow->segment[i].start <= start && shadow->segment[i].end >= end)
			return true;
	return false;
}

/* A read leaves its span and what is read ahead. So does a hit: this keeps a sequential stream alive. */
static inline void shadow_read(struct shadow *shadow, sector_t start, sector_t end)
{
	const struct shadow_shape *shape = &shadow->shape;

	if (!shape->segments)
		return;
	end += shape->prefetch_sectors;
	if (end - start > shape->segment_sectors)
		start = end - shape->segment_sectors;
	shadow->segment[shadow->next].start = start;
	shadow->segment[shadow->next].end = end;
	shadow->next = (shadow->next + 1) % shape->segments;
}

/* What was written is not what the cache holds any more. */
static inline void shadow_write(struct shadow *shadow, sector_t start, sector_t end)
{
	unsigned int i;

	for (i = 0; i < shadow->shape.segments; i++) {
		if (shadow->segment[i].start < end && shadow->segment[i].end > start) {
			shadow->segment[i].start = 1;
			shadow->segment[i].end = 0;
		}
	}
}

#endif
