/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the throttled devices say of each request in debugfs. Times in ns of CLOCK_MONOTONIC.
 */
#ifndef SOJOURN_RECORD_H
#define SOJOURN_RECORD_H

#include <linux/types.h>

struct record {
	/* When it came to the device's queue, was dispatched, and was done. */
	__u64 arrived, issued, done;
	/* Where it begins, and how long it is, in sectors of 512 bytes. */
	__u64 sector;
	__u32 count;
	__u8 is_hit, is_write, padding[2];
};

#endif
