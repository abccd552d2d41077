/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The records of a throttled device, kept for debugfs. Its user holds a lock of its own.
 */
#ifndef SOJOURN_RECORD_LOG_H
#define SOJOURN_RECORD_LOG_H

#include <linux/debugfs.h>
#include <linux/vmalloc.h>

#include "record.h"

/* The most that may be asked for: half a GiB. */
#define RECORDS_MOST 10000000

struct record_log {
	struct record *all;
	u32 count, most;
	/* What debugfs shows. */
	struct debugfs_blob_wrapper blob;
};

static inline int record_log_init(struct record_log *log, u32 most)
{
	log->all = vzalloc(array_size(most, sizeof(*log->all)));
	if (!log->all)
		return -ENOMEM;
	log->most = most;
	log->count = 0;
	log->blob.data = log->all;
	log->blob.size = 0;
	return 0;
}

static inline void record_log_free(struct record_log *log)
{
	vfree(log->all);
}

static inline void record_log_empty(struct record_log *log)
{
	log->count = 0;
	log->blob.size = 0;
}

/* Adds a record; when there is no room for it, it is dropped. */
static inline void record_log_add(struct record_log *log, struct record record)
{
	if (log->count == log->most)
		return;
	log->all[log->count++] = record;
	log->blob.size = log->count * sizeof(record);
}

#endif
