// SPDX-License-Identifier: GPL-2.0
/*
 * The device-mapper target `throttled`: a device with all its data that takes as long as a modelled disk (arm.h).
 *
 *   throttled DEVICE OFFSET [COUNT NAME VALUE...]
 *
 * A request goes to DEVICE at once, and its completion is withheld until the model's arm, which serves one request
 * at a time in the order of arrival, would be done with it. Deadlines are absolute: each follows from the one
 * before, so what a timer is late by does not add up. DEVICE must be faster than the model; a completion that
 * comes later than its deadline is passed on at once and counted. Flushes and trims take no time.
 *
 * The names are those of `defaults`, below; COUNT is that of the words that follow it. `dmsetup message NAME 0 reset`
 * empties the cache, the counters and the records; debugfs has dm-throttled/MAJOR:MINOR/trace (record.h).
 */
#include <linux/device-mapper.h>
#include <linux/hrtimer.h>
#include <linux/module.h>

#include "arm.h"
#include "record_log.h"

#define DM_MSG_PREFIX "throttled"

/* What may be told, and its value where it is not: the paper's Cheetah 15K.4. */
enum { BASE, FULL_SEEK, HIT, SEGMENTS, SEGMENT_SECTORS, PREFETCH_SECTORS, K1000, RECORDS, SETTINGS };
static const struct {
	const char *name;
	unsigned int value, least, most;
} defaults[SETTINGS] = {
	[BASE] = { "base_us", 4250, 0, 1000000 },
	[FULL_SEEK] = { "full_seek_us", 5250, 0, 1000000 },
	[HIT] = { "hit_us", 250, 0, 1000000 },
	[SEGMENTS] = { "segments", 64, 0, SHADOW_MOST },
	[SEGMENT_SECTORS] = { "segment_sectors", 221, 1, 1 << 20 },
	[PREFETCH_SECTORS] = { "prefetch_sectors", 64, 0, 1 << 20 },
	/* How much slower, in thousandths. */
	[K1000] = { "k1000", 1000, 1, 1000000 },
	[RECORDS] = { "records", 200000, 1, RECORDS_MOST },
};

struct throttled {
	struct dm_target *target;
	struct dm_dev *device;
	sector_t offset;
	unsigned int settings[SETTINGS];
	struct dentry *folder;

	/* Guards the rest; taken in interrupts. */
	spinlock_t lock;
	struct arm arm;
	/* When the arm is done with all that has arrived. */
	u64 free;
	/* Completions that are withheld, by deadline. */
	struct list_head withheld;
	struct hrtimer timer;
	struct record_log log;
	u64 requests, hits, late, most_late;
};

/* A request on its way. */
struct request_state {
	struct list_head entry;
	struct throttled *throttled;
	struct bio *bio;
	bio_end_io_t *end_io;
	void *private;
	u64 deadline;
	struct record record;
};

/* Passes a completion on. */
static void pass_on(struct request_state *state)
{
	struct bio *bio = state->bio;

	bio->bi_end_io = state->end_io;
	bio->bi_private = state->private;
	bio_endio(bio);
}

/* Notes that a request is done now. The lock is held. */
static void note(struct throttled *throttled, struct request_state *state, u64 now)
{
	state->record.done = now;
	record_log_add(&throttled->log, state->record);
}

static void wake_at_first(struct throttled *throttled)
{
	struct request_state *first;

	first = list_first_entry_or_null(&throttled->withheld, struct request_state, entry);
	if (first)
		hrtimer_start(&throttled->timer, ns_to_ktime(first->deadline), HRTIMER_MODE_ABS_SOFT);
}

/* The device below is done with a request. */
static void is_done_below(struct bio *bio)
{
	struct request_state *state = bio->bi_private, *before;
	struct throttled *throttled = state->throttled;
	u64 now = ktime_get_ns();
	unsigned long flags;
	bool is_due;

	spin_lock_irqsave(&throttled->lock, flags);
	is_due = now >= state->deadline;
	if (is_due) {
		throttled->late++;
		throttled->most_late = max(throttled->most_late, now - state->deadline);
		note(throttled, state, now);
	} else {
		/* Nearly always the last. */
		list_for_each_entry_reverse(before, &throttled->withheld, entry)
			if (before->deadline <= state->deadline)
				break;
		list_add(&state->entry, &before->entry);
		if (throttled->withheld.next == &state->entry)
			wake_at_first(throttled);
	}
	spin_unlock_irqrestore(&throttled->lock, flags);
	if (is_due)
		pass_on(state);
}

static enum hrtimer_restart deadline(struct hrtimer *timer)
{
	struct throttled *throttled = container_of(timer, struct throttled, timer);
	struct request_state *state, *next;
	u64 now = ktime_get_ns();
	unsigned long flags;
	LIST_HEAD(due);

	spin_lock_irqsave(&throttled->lock, flags);
	list_for_each_entry_safe(state, next, &throttled->withheld, entry) {
		if (state->deadline > now)
			break;
		note(throttled, state, now);
		list_move_tail(&state->entry, &due);
	}
	wake_at_first(throttled);
	spin_unlock_irqrestore(&throttled->lock, flags);
	list_for_each_entry_safe(state, next, &due, entry)
		pass_on(state);
	return HRTIMER_NORESTART;
}

static int throttled_map(struct dm_target *target, struct bio *bio)
{
	struct throttled *throttled = target->private;
	struct request_state *state = dm_per_bio_data(bio, sizeof(*state));
	sector_t start = dm_target_offset(target, bio->bi_iter.bi_sector);
	bool is_read = bio_op(bio) == REQ_OP_READ, is_hit;
	u64 now = ktime_get_ns(), begins;
	unsigned long flags;

	bio_set_dev(bio, throttled->device->bdev);
	bio->bi_iter.bi_sector = throttled->offset + start;
	if (!bio_sectors(bio) || bio_op(bio) == REQ_OP_DISCARD)
		return DM_MAPIO_REMAPPED;
	*state = (struct request_state) {
		.throttled = throttled,
		.bio = bio,
		.end_io = bio->bi_end_io,
		.private = bio->bi_private,
		.record = {
			.arrived = now,
			.sector = start,
			.count = bio_sectors(bio),
			.is_write = !is_read,
		},
	};
	spin_lock_irqsave(&throttled->lock, flags);
	begins = max(now, throttled->free);
	throttled->free = begins + arm_service(&throttled->arm, is_read, start, start + bio_sectors(bio), &is_hit);
	throttled->requests++;
	throttled->hits += is_hit;
	state->deadline = throttled->free;
	state->record.issued = begins;
	state->record.is_hit = is_hit;
	spin_unlock_irqrestore(&throttled->lock, flags);
	bio->bi_end_io = is_done_below;
	bio->bi_private = state;
	return DM_MAPIO_REMAPPED;
}

/* As new: at the first sector, nothing cached, nothing counted. The lock is held, or nobody else is there yet. */
static void begin_anew(struct throttled *throttled)
{
	const unsigned int *is = throttled->settings;
	struct arm_shape shape = { throttled->target->len, is[BASE], is[FULL_SEEK], is[HIT], is[K1000] };
	struct shadow_shape cache = { is[SEGMENTS], is[SEGMENT_SECTORS], is[PREFETCH_SECTORS] };

	arm_init(&throttled->arm, shape, cache);
	record_log_empty(&throttled->log);
	throttled->requests = 0;
	throttled->hits = 0;
	throttled->late = 0;
	throttled->most_late = 0;
}

static int read_settings(struct throttled *throttled, struct dm_arg_set *arguments)
{
	static const struct dm_arg count = { 0, 2 * SETTINGS, "COUNT is that of the words NAME VALUE..." };
	struct dm_target *target = throttled->target;
	unsigned int words, value, i;
	int error;

	for (i = 0; i < SETTINGS; i++)
		throttled->settings[i] = defaults[i].value;
	if (!arguments->argc)
		return 0;
	error = dm_read_arg_group(&count, arguments, &words, &target->error);
	if (error)
		return error;
	if (words % 2 || words != arguments->argc) {
		target->error = "COUNT is that of the words NAME VALUE...";
		return -EINVAL;
	}
	while (words) {
		const char *name = dm_shift_arg(arguments), *text = dm_shift_arg(arguments);

		words -= 2;
		for (i = 0; i < SETTINGS && strcmp(name, defaults[i].name); i++)
			;
		if (i == SETTINGS) {
			target->error = "unknown setting; see the head of dm-throttled.c";
			return -EINVAL;
		}
		if (kstrtouint(text, 10, &value) || value < defaults[i].least || value > defaults[i].most) {
			target->error = "a setting is no number, or beyond its bounds";
			return -EINVAL;
		}
		throttled->settings[i] = value;
	}
	return 0;
}

static int throttled_ctr(struct dm_target *target, unsigned int count, char **words)
{
	struct dm_arg_set arguments = { count, words };
	struct throttled *throttled;
	unsigned long long offset;
	const char *path;
	int error;

	if (count < 2) {
		target->error = "give DEVICE OFFSET [COUNT NAME VALUE...]";
		return -EINVAL;
	}
	throttled = kvzalloc(sizeof(*throttled), GFP_KERNEL);
	if (!throttled) {
		target->error = "no memory";
		return -ENOMEM;
	}
	throttled->target = target;
	spin_lock_init(&throttled->lock);
	INIT_LIST_HEAD(&throttled->withheld);
	hrtimer_init(&throttled->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_SOFT);
	throttled->timer.function = deadline;
	path = dm_shift_arg(&arguments);
	error = kstrtoull(dm_shift_arg(&arguments), 10, &offset);
	throttled->offset = offset;
	if (error || throttled->offset != offset) {
		target->error = "OFFSET is a number of sectors";
		error = -EINVAL;
		goto no_arguments;
	}
	error = read_settings(throttled, &arguments);
	if (error)
		goto no_arguments;
	error = record_log_init(&throttled->log, throttled->settings[RECORDS]);
	if (error) {
		target->error = "no memory for so many records";
		goto no_arguments;
	}
	begin_anew(throttled);
	error = dm_get_device(target, path, dm_table_get_mode(target->table), &throttled->device);
	if (error) {
		target->error = "DEVICE cannot be opened";
		goto no_device;
	}
	target->private = throttled;
	target->num_flush_bios = 1;
	target->num_discard_bios = 1;
	target->num_write_zeroes_bios = 1;
	target->per_io_data_size = sizeof(struct request_state);
	return 0;

no_device:
	record_log_free(&throttled->log);
no_arguments:
	kvfree(throttled);
	return error;
}

static void throttled_dtr(struct dm_target *target)
{
	struct throttled *throttled = target->private;

	hrtimer_cancel(&throttled->timer);
	dm_put_device(target, throttled->device);
	record_log_free(&throttled->log);
	kvfree(throttled);
}

/* The folder of all targets in debugfs. */
static struct dentry *folders;

static void throttled_resume(struct dm_target *target)
{
	struct throttled *throttled = target->private;
	const char *name = dm_table_device_name(target->table);

	throttled->folder = debugfs_create_dir(name, folders);
	debugfs_create_blob("trace", 0400, throttled->folder, &throttled->log.blob);
}

/* No request is on its way. */
static void throttled_postsuspend(struct dm_target *target)
{
	struct throttled *throttled = target->private;

	debugfs_remove_recursive(throttled->folder);
	throttled->folder = NULL;
}

static int throttled_message(struct dm_target *target, unsigned int count, char **words, char *result,
			     unsigned int most)
{
	struct throttled *throttled = target->private;
	unsigned long flags;

	if (count != 1 || strcasecmp(words[0], "reset")) {
		DMERR("the only message is: reset");
		return -EINVAL;
	}
	spin_lock_irqsave(&throttled->lock, flags);
	begin_anew(throttled);
	spin_unlock_irqrestore(&throttled->lock, flags);
	return 0;
}

static void throttled_status(struct dm_target *target, status_type_t type, unsigned int status_flags, char *result,
			     unsigned int maxlen)
{
	struct throttled *throttled = target->private;
	u64 requests, hits, late, most_late;
	unsigned long flags;
	unsigned int sz = 0;
	int i;

	switch (type) {
	case STATUSTYPE_INFO:
		spin_lock_irqsave(&throttled->lock, flags);
		requests = throttled->requests;
		hits = throttled->hits;
		late = throttled->late;
		most_late = throttled->most_late;
		spin_unlock_irqrestore(&throttled->lock, flags);
		DMEMIT("requests %llu hits %llu late %llu most_late_ns %llu", requests, hits, late, most_late);
		break;
	case STATUSTYPE_TABLE:
		DMEMIT("%s %llu %d", throttled->device->name, (unsigned long long)throttled->offset, 2 * SETTINGS);
		for (i = 0; i < SETTINGS; i++)
			DMEMIT(" %s %u", defaults[i].name, throttled->settings[i]);
		break;
	case STATUSTYPE_IMA:
		*result = '\0';
		break;
	}
}

static int throttled_iterate_devices(struct dm_target *target, iterate_devices_callout_fn function, void *data)
{
	struct throttled *throttled = target->private;

	return function(target, throttled->device, throttled->offset, target->len, data);
}

static struct target_type throttled_target = {
	.name = "throttled",
	.version = { 1, 0, 0 },
	.module = THIS_MODULE,
	.ctr = throttled_ctr,
	.dtr = throttled_dtr,
	.map = throttled_map,
	.resume = throttled_resume,
	.postsuspend = throttled_postsuspend,
	.message = throttled_message,
	.status = throttled_status,
	.iterate_devices = throttled_iterate_devices,
};

static int __init throttled_init(void)
{
	int error;

	folders = debugfs_create_dir("dm-throttled", NULL);
	error = dm_register_target(&throttled_target);
	if (error)
		debugfs_remove_recursive(folders);
	return error;
}

static void __exit throttled_exit(void)
{
	dm_unregister_target(&throttled_target);
	debugfs_remove_recursive(folders);
}

module_init(throttled_init);
module_exit(throttled_exit);

MODULE_DESCRIPTION("A device-mapper target that makes a device as slow as a modelled disk");
MODULE_LICENSE("GPL");
