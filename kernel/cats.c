// SPDX-License-Identifier: GPL-2.0
/*
 * CATS, the cache-aware table scheduler, as an I/O scheduler of blk-mq (Geist, Jones, Westall, "Predicting
 * Disk Scheduling Performance with Virtual Machines", 2010, section 3). For disks with one arm.
 *
 * Its rules, in order:
 *
 * 1. The oldest read that the shadow of the disk's cache foresees to be a hit goes at once.
 * 2. The bus driver: for `hold` after a completion no seek begins, in case a near request arrives.
 * 3. While the oldest read has waited longer than `read_delay`: C-LOOK.
 * 4. The static-optimal table (plan.c).
 *
 * With `rule` = satf it is hit-first aged SATF instead (satf.h).
 *
 * Writes go in C-LOOK order while no read waits. The paper has no guard against reads that never end; here a
 * write that has waited `write_delay` starts a batch of 16.
 *
 * Completions take no lock: they run in softirqs, and everything else may then take the lock without
 * disabling interrupts. Who refuses to dispatch while `depth` requests are at the disk leaves a word
 * (`refused`) for the next completion, whichever hardware queue it comes by.
 */
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/rbtree.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <trace/events/block.h>

/* Private to block/ since 5.16; scripts take them from the source of the same kernel. */
#include "blk.h"
#include "elevator.h"
#include "blk-mq-sched.h"

#include "plan.h"
#include "satf.h"
#include "shadow.h"

#define WRITE_BATCH 16

enum rule { TABLE, CLOOK, SATF };
static const char *const rules[] = { "table", "clook", "satf" };

/* Times in microseconds, but for the delays, which are in milliseconds. */
struct cats_settings {
	unsigned int rule;
	unsigned int depth;
	unsigned int hits;
	unsigned int hold;
	unsigned int read_delay;
	unsigned int write_delay;
	/* For satf, in thousandths. */
	unsigned int age;
	unsigned int power;
	/* How long the best accesses may go before others, in ms. */
	unsigned int late;
	/* The model of the disk, for satf: a hit takes `hit`, any other access `base` and a part of `full_seek`. */
	unsigned int hit;
	unsigned int base;
	unsigned int full_seek;
	/* Where these are told, the wait for the rotation is foreseen, and is no part of `base`. */
	unsigned int revolution;
	unsigned int track_sectors;
};

/* The paper's Cheetah 15K.4. */
static const struct cats_settings cheetah = {
	.rule = TABLE, .depth = 1, .hits = 1, .read_delay = 100, .write_delay = 500, .age = 720,
	.power = 400, .late = 500, .hit = 250, .base = 4250, .full_seek = 5250,
};
static const struct shadow_shape cheetah_cache = {
	.segments = 64, .segment_sectors = 221, .prefetch_sectors = 64,
};

struct cats_counters {
	u64 dispatched, hits, late, planned, plans, plan_ns, held, writes, longest;
};

struct cats {
	struct request_queue *queue;
	spinlock_t lock;
	struct cats_settings settings;
	struct cats_counters counters;

	/* What goes first, whatever the rules say. */
	struct list_head front;
	/* By direction: in order of arrival, and by position. */
	struct list_head fifo[2];
	struct rb_root sorted[2];
	unsigned int waiting[2];
	unsigned int batch;
	/* satf: decisions since one for a late read, up to SATF_LATE_SHARE. */
	unsigned int since_late;

	/* Where the arm is after what was dispatched. */
	sector_t head;
	struct shadow shadow;

	/* The plan, from `step` on; NULL for what went otherwise. A request knows its step (priv[1]). */
	struct request *plan[PLAN_MOST];
	unsigned int step, steps;
	bool stale;
	u64 at[PLAN_MOST];
	u8 order[PLAN_MOST];
	struct request *by_place[PLAN_MOST];
	struct plan_work work;
	struct request *compared[SATF_MOST];
	struct satf_candidate candidates[SATF_MOST];

	atomic_t in_flight;
	atomic_t refused;
	atomic64_t last_done;
	struct hrtimer timer;
};

/* A request's private fields: whether it was dispatched from here, and its step in the plan and 1. */
static bool was_dispatched(struct request *rq)
{
	return rq->elv.priv[0];
}

static void set_step(struct request *rq, unsigned int step)
{
	rq->elv.priv[1] = (void *)(unsigned long)step;
}

static sector_t end_of(struct request *rq)
{
	return blk_rq_pos(rq) + blk_rq_sectors(rq);
}

static struct request *oldest(struct cats *cats, int direction)
{
	return list_first_entry_or_null(&cats->fifo[direction], struct request, queuelist);
}

/* How long a request has waited, in ns. */
static u64 waited(struct request *rq, u64 now)
{
	return now > rq->start_time_ns ? now - rq->start_time_ns : 0;
}

/* Takes a request out of everything but the queue's own lists. */
static void cats_remove(struct cats *cats, struct request *rq)
{
	int direction = rq_data_dir(rq);
	unsigned long step = (unsigned long)rq->elv.priv[1];

	list_del_init(&rq->queuelist);
	elv_rqhash_del(cats->queue, rq);
	if (cats->queue->last_merge == rq)
		cats->queue->last_merge = NULL;
	/* One that is merged while it is being inserted is in nothing else. */
	if (RB_EMPTY_NODE(&rq->rb_node))
		return;
	elv_rb_del(&cats->sorted[direction], rq);
	cats->waiting[direction]--;
	if (step) {
		cats->plan[step - 1] = NULL;
		set_step(rq, 0);
	}
}

static void forget_plan(struct cats *cats)
{
	unsigned int i;

	for (i = cats->step; i < cats->steps; i++)
		if (cats->plan[i])
			set_step(cats->plan[i], 0);
	cats->step = cats->steps = 0;
	cats->stale = true;
}

/* Arrivals */

static void cats_insert(struct cats *cats, struct request *rq, bool at_head, struct list_head *merged)
{
	struct request_queue *queue = cats->queue;
	int direction = rq_data_dir(rq);

	if (blk_mq_sched_try_insert_merge(queue, rq, merged))
		return;
	trace_block_rq_insert(rq);
	if (at_head) {
		list_add(&rq->queuelist, &cats->front);
		return;
	}
	elv_rb_add(&cats->sorted[direction], rq);
	if (rq_mergeable(rq)) {
		elv_rqhash_add(queue, rq);
		if (!queue->last_merge)
			queue->last_merge = rq;
	}
	list_add_tail(&rq->queuelist, &cats->fifo[direction]);
	cats->waiting[direction]++;
	if (direction == READ)
		cats->stale = true;
}

static void cats_insert_requests(struct blk_mq_hw_ctx *hctx, struct list_head *list, bool at_head)
{
	struct cats *cats = hctx->queue->elevator->elevator_data;
	LIST_HEAD(merged);

	spin_lock(&cats->lock);
	while (!list_empty(list)) {
		struct request *rq = list_first_entry(list, struct request, queuelist);

		list_del_init(&rq->queuelist);
		cats_insert(cats, rq, at_head, &merged);
	}
	spin_unlock(&cats->lock);
	blk_mq_free_requests(&merged);
}

static bool cats_bio_merge(struct request_queue *queue, struct bio *bio, unsigned int segments)
{
	struct cats *cats = queue->elevator->elevator_data;
	struct request *free = NULL;
	bool merged;

	spin_lock(&cats->lock);
	merged = blk_mq_sched_try_merge(queue, bio, segments, &free);
	spin_unlock(&cats->lock);
	if (free)
		blk_mq_free_request(free);
	return merged;
}

static int cats_request_merge(struct request_queue *queue, struct request **rq, struct bio *bio)
{
	struct cats *cats = queue->elevator->elevator_data;
	struct request *found = elv_rb_find(&cats->sorted[bio_data_dir(bio)], bio_end_sector(bio));

	if (!found || !elv_bio_merge_ok(found, bio))
		return ELEVATOR_NO_MERGE;
	*rq = found;
	return blk_discard_mergable(found) ? ELEVATOR_DISCARD_MERGE : ELEVATOR_FRONT_MERGE;
}

/* A request begins earlier than it did. */
static void cats_request_merged(struct request_queue *queue, struct request *rq, enum elv_merge type)
{
	struct cats *cats = queue->elevator->elevator_data;

	if (type != ELEVATOR_FRONT_MERGE)
		return;
	elv_rb_del(&cats->sorted[rq_data_dir(rq)], rq);
	elv_rb_add(&cats->sorted[rq_data_dir(rq)], rq);
	cats->stale = true;
}

/* `next` is part of `rq` from now on, which is as old as the older of them. */
static void cats_requests_merged(struct request_queue *queue, struct request *rq, struct request *next)
{
	struct cats *cats = queue->elevator->elevator_data;

	if (!list_empty(&rq->queuelist) && !list_empty(&next->queuelist) &&
	    next->start_time_ns < rq->start_time_ns)
		list_move(&rq->queuelist, &next->queuelist);
	cats_remove(cats, next);
}

/* Decisions */

static struct request *next_clook(struct cats *cats, int direction)
{
	struct rb_node *node = cats->sorted[direction].rb_node;
	struct request *best = NULL;

	while (node) {
		struct request *rq = rb_entry_rq(node);

		if (blk_rq_pos(rq) >= cats->head) {
			best = rq;
			node = node->rb_left;
		} else {
			node = node->rb_right;
		}
	}
	return best ? best : rb_entry_rq(rb_first(&cats->sorted[direction]));
}

static void make_plan(struct cats *cats)
{
	struct rb_node *node;
	unsigned int count = 0, i;
	u64 began = ktime_get_ns();

	forget_plan(cats);
	for (node = rb_first(&cats->sorted[READ]); node; node = rb_next(node)) {
		cats->by_place[count] = rb_entry_rq(node);
		cats->at[count++] = blk_rq_pos(rb_entry_rq(node));
	}
	plan_order(cats->at, count, cats->head, &cats->work, cats->order);
	for (i = 0; i < count; i++) {
		cats->plan[i] = cats->by_place[cats->order[i]];
		set_step(cats->plan[i], i + 1);
	}
	cats->steps = count;
	cats->stale = false;
	cats->counters.plans++;
	cats->counters.plan_ns += ktime_get_ns() - began;
	cats->counters.longest = max_t(u64, cats->counters.longest, count);
}

static struct request *next_planned(struct cats *cats)
{
	struct request *rq = NULL;

	/* More than that are more than a table is worth. */
	if (cats->waiting[READ] > PLAN_MOST)
		return next_clook(cats, READ);
	while (!rq) {
		if (cats->stale || cats->step == cats->steps)
			make_plan(cats);
		rq = cats->plan[cats->step++];
	}
	cats->counters.planned++;
	return rq;
}

/* What the model says of a read that is a miss, in ns. */
static u64 access_time(struct cats *cats, struct request *rq, u64 now)
{
	const struct cats_settings *settings = &cats->settings;
	sector_t from = cats->head, to = blk_rq_pos(rq);
	u64 way = to > from ? to - from : from - to;
	u64 capacity = max_t(u64, get_capacity(cats->queue->disk), 1);
	u64 seek = settings->base * 1000ULL + mul_u64_u64_div_u64(settings->full_seek * 1000ULL, way, capacity);
	u64 turn = settings->revolution * 1000ULL, track = settings->track_sectors, last, under, wanted;
	u32 rest;

	if (!turn || !track)
		return seek;
	/* The head was over the end of what was read last when that was done. */
	last = atomic64_read(&cats->last_done);
	div_u64_rem(from, track, &rest);
	under = div_u64(rest * turn, track) + (now > last ? now - last : 0) + seek;
	div64_u64_rem(under, turn, &under);
	div_u64_rem(to, track, &rest);
	wanted = div_u64(rest * turn, track);
	return seek + (wanted >= under ? wanted - under : wanted + turn - under);
}

static struct request *next_satf(struct cats *cats, u64 now)
{
	const struct cats_settings *settings = &cats->settings;
	unsigned int count = 0, chosen;
	struct request *rq = oldest(cats, READ);

	if (cats->since_late < SATF_LATE_SHARE)
		cats->since_late++;
	if (cats->since_late == SATF_LATE_SHARE && waited(rq, now) > settings->late * 1000000ULL) {
		cats->since_late = 0;
		cats->counters.late++;
		return rq;
	}
	list_for_each_entry(rq, &cats->fifo[READ], queuelist) {
		bool is_hit = settings->hits && shadow_holds(&cats->shadow, blk_rq_pos(rq), end_of(rq));

		cats->compared[count] = rq;
		cats->candidates[count++] = (struct satf_candidate) {
			.access = is_hit ? settings->hit * 1000ULL : access_time(cats, rq, now),
			.wait = waited(rq, now),
			.is_hit = is_hit,
		};
		if (count == SATF_MOST)
			break;
	}
	chosen = satf_choose(cats->candidates, count, settings->age, settings->power);
	cats->counters.hits += cats->candidates[chosen].is_hit;
	return cats->compared[chosen];
}

static struct request *next_hit(struct cats *cats)
{
	struct request *rq;

	list_for_each_entry(rq, &cats->fifo[READ], queuelist)
		if (shadow_holds(&cats->shadow, blk_rq_pos(rq), end_of(rq)))
			return rq;
	return NULL;
}

/* The next read; NULL when it is to wait a while. */
static struct request *next_read(struct cats *cats, u64 now)
{
	const struct cats_settings *settings = &cats->settings;
	struct request *rq;
	u64 until;

	if (settings->rule == SATF)
		return next_satf(cats, now);
	rq = settings->hits ? next_hit(cats) : NULL;
	if (rq) {
		cats->counters.hits++;
		return rq;
	}
	until = atomic64_read(&cats->last_done) + settings->hold * 1000ULL;
	if (settings->hold && now < until) {
		cats->counters.held++;
		hrtimer_start(&cats->timer, ns_to_ktime(until - now), HRTIMER_MODE_REL);
		return NULL;
	}
	if (waited(oldest(cats, READ), now) > settings->read_delay * 1000000ULL) {
		cats->counters.late++;
		/* It is not the plan's way that the arm takes. */
		cats->stale = true;
		return next_clook(cats, READ);
	}
	return settings->rule == TABLE ? next_planned(cats) : next_clook(cats, READ);
}

/* Whether writes are to go now. */
static bool writes_go(struct cats *cats, u64 now)
{
	if (!cats->waiting[WRITE]) {
		cats->batch = 0;
		return false;
	}
	if (!cats->waiting[READ])
		return true;
	if (!cats->batch && waited(oldest(cats, WRITE), now) > cats->settings.write_delay * 1000000ULL)
		cats->batch = WRITE_BATCH;
	if (!cats->batch)
		return false;
	cats->batch--;
	return true;
}

static struct request *cats_next(struct cats *cats)
{
	struct request *rq = list_first_entry_or_null(&cats->front, struct request, queuelist);
	u64 now = ktime_get_ns();

	if (rq) {
		list_del_init(&rq->queuelist);
		return rq;
	}
	if (atomic_read(&cats->in_flight) >= cats->settings.depth) {
		atomic_set(&cats->refused, 1);
		/* Either this sees the completion, or the completion sees the word. */
		smp_mb__after_atomic();
		if (atomic_read(&cats->in_flight) >= cats->settings.depth)
			return NULL;
	}
	if (writes_go(cats, now)) {
		rq = next_clook(cats, WRITE);
		cats->counters.writes++;
	} else if (cats->waiting[READ]) {
		rq = next_read(cats, now);
	}
	if (!rq)
		return NULL;
	cats_remove(cats, rq);
	cats->counters.dispatched++;
	if (rq_data_dir(rq) == READ) {
		/* A hit does not move the arm. */
		if (!shadow_holds(&cats->shadow, blk_rq_pos(rq), end_of(rq)))
			cats->head = end_of(rq);
		shadow_read(&cats->shadow, blk_rq_pos(rq), end_of(rq));
	} else {
		shadow_write(&cats->shadow, blk_rq_pos(rq), end_of(rq));
		cats->head = end_of(rq);
		cats->stale = true;
	}
	return rq;
}

static struct request *cats_dispatch_request(struct blk_mq_hw_ctx *hctx)
{
	struct cats *cats = hctx->queue->elevator->elevator_data;
	struct request *rq;

	spin_lock(&cats->lock);
	rq = cats_next(cats);
	if (rq) {
		rq->elv.priv[0] = rq;
		atomic_inc(&cats->in_flight);
	}
	spin_unlock(&cats->lock);
	return rq;
}

static bool cats_has_work(struct blk_mq_hw_ctx *hctx)
{
	struct cats *cats = hctx->queue->elevator->elevator_data;

	return !list_empty_careful(&cats->front) || !list_empty_careful(&cats->fifo[READ]) ||
	       !list_empty_careful(&cats->fifo[WRITE]);
}

static enum hrtimer_restart cats_hold_ends(struct hrtimer *timer)
{
	struct cats *cats = container_of(timer, struct cats, timer);

	blk_mq_run_hw_queues(cats->queue, true);
	return HRTIMER_NORESTART;
}

/* Ends */

static void cats_prepare_request(struct request *rq)
{
	rq->elv.priv[0] = NULL;
	rq->elv.priv[1] = NULL;
}

/* A request is done, or comes back. Flushes and passed-through commands never came by here. */
static void cats_finish_request(struct request *rq)
{
	struct cats *cats = rq->q->elevator->elevator_data;

	if (!was_dispatched(rq))
		return;
	rq->elv.priv[0] = NULL;
	atomic64_set(&cats->last_done, ktime_get_ns());
	/* A full barrier: see cats_next. */
	atomic_dec_return(&cats->in_flight);
	if (atomic_xchg(&cats->refused, 0))
		blk_mq_run_hw_queues(cats->queue, true);
}

static int cats_init_sched(struct request_queue *queue, struct elevator_type *type)
{
	struct elevator_queue *elevator;
	struct cats *cats;
	int i;

	if (blk_queue_is_zoned(queue)) {
		pr_err("cats: does not order the writes of zoned disks; use mq-deadline\n");
		return -EINVAL;
	}
	elevator = elevator_alloc(queue, type);
	if (!elevator)
		return -ENOMEM;
	cats = kvzalloc_node(sizeof(*cats), GFP_KERNEL, queue->node);
	if (!cats) {
		kobject_put(&elevator->kobj);
		return -ENOMEM;
	}
	cats->queue = queue;
	spin_lock_init(&cats->lock);
	INIT_LIST_HEAD(&cats->front);
	for (i = 0; i < 2; i++) {
		INIT_LIST_HEAD(&cats->fifo[i]);
		cats->sorted[i] = RB_ROOT;
	}
	cats->settings = cheetah;
	shadow_init(&cats->shadow, cheetah_cache);
	hrtimer_init(&cats->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	cats->timer.function = cats_hold_ends;
	elevator->elevator_data = cats;
	/* One order for all hardware queues. */
	blk_queue_flag_set(QUEUE_FLAG_SQ_SCHED, queue);
	queue->elevator = elevator;
	return 0;
}

static void cats_exit_sched(struct elevator_queue *elevator)
{
	struct cats *cats = elevator->elevator_data;

	hrtimer_cancel(&cats->timer);
	WARN_ON_ONCE(!list_empty(&cats->front));
	WARN_ON_ONCE(cats->waiting[READ] || cats->waiting[WRITE]);
	kvfree(cats);
}

/* Settings and counters, in /sys/block/DISK/queue/iosched */

#define NUMBER(name, field, least, most, changed)							\
static ssize_t name##_show(struct elevator_queue *elevator, char *page)				\
{												\
	struct cats *cats = elevator->elevator_data;						\
												\
	return sysfs_emit(page, "%u\n", cats->field);						\
}												\
static ssize_t name##_store(struct elevator_queue *elevator, const char *page, size_t count)	\
{												\
	struct cats *cats = elevator->elevator_data;						\
	unsigned int value;									\
	int error = kstrtouint(page, 10, &value);						\
												\
	if (error)										\
		return error;									\
	if (value < (least) || value > (most))							\
		return -ERANGE;									\
	spin_lock(&cats->lock);									\
	cats->field = value;									\
	changed;										\
	spin_unlock(&cats->lock);								\
	return count;										\
}

#define SECOND 1000000
#define EMPTY shadow_init(&cats->shadow, cats->shadow.shape)

NUMBER(depth, settings.depth, 1, 1024, )
NUMBER(hits, settings.hits, 0, 1, )
NUMBER(hold, settings.hold, 0, SECOND, )
NUMBER(read_delay, settings.read_delay, 0, UINT_MAX, )
NUMBER(write_delay, settings.write_delay, 0, UINT_MAX, )
NUMBER(age, settings.age, 0, 1000000, )
NUMBER(power, settings.power, 0, 8000, )
NUMBER(late, settings.late, 0, UINT_MAX, )
NUMBER(hit, settings.hit, 0, SECOND, )
NUMBER(base, settings.base, 0, SECOND, )
NUMBER(full_seek, settings.full_seek, 0, SECOND, )
NUMBER(revolution, settings.revolution, 0, SECOND, )
NUMBER(track_sectors, settings.track_sectors, 0, 1 << 20, )
NUMBER(segments, shadow.shape.segments, 0, SHADOW_MOST, EMPTY)
NUMBER(segment_sectors, shadow.shape.segment_sectors, 1, 1 << 20, EMPTY)
NUMBER(prefetch_sectors, shadow.shape.prefetch_sectors, 0, 1 << 20, EMPTY)

static ssize_t rule_show(struct elevator_queue *elevator, char *page)
{
	struct cats *cats = elevator->elevator_data;

	return sysfs_emit(page, "%s\n", rules[cats->settings.rule]);
}

static ssize_t rule_store(struct elevator_queue *elevator, const char *page, size_t count)
{
	struct cats *cats = elevator->elevator_data;
	int rule = __sysfs_match_string(rules, ARRAY_SIZE(rules), page);

	if (rule < 0)
		return rule;
	spin_lock(&cats->lock);
	cats->settings.rule = rule;
	forget_plan(cats);
	spin_unlock(&cats->lock);
	return count;
}

static ssize_t counters_show(struct elevator_queue *elevator, char *page)
{
	struct cats *cats = elevator->elevator_data;
	struct cats_counters now;

	spin_lock(&cats->lock);
	now = cats->counters;
	spin_unlock(&cats->lock);
	return sysfs_emit(page,
			  "dispatched %llu\nwrites %llu\nhits %llu\nlate %llu\nplanned %llu\nplans %llu\nplan_ns %llu\nlongest_plan %llu\nheld %llu\n",
			  now.dispatched, now.writes, now.hits, now.late, now.planned, now.plans, now.plan_ns,
			  now.longest, now.held);
}

#define READ_WRITE(name) __ATTR(name, 0644, name##_show, name##_store)

static struct elv_fs_entry cats_attributes[] = {
	READ_WRITE(rule), READ_WRITE(depth), READ_WRITE(hits), READ_WRITE(hold), READ_WRITE(read_delay),
	READ_WRITE(write_delay), READ_WRITE(age), READ_WRITE(power), READ_WRITE(late), READ_WRITE(hit), READ_WRITE(base),
	READ_WRITE(full_seek), READ_WRITE(revolution), READ_WRITE(track_sectors), READ_WRITE(segments),
	READ_WRITE(segment_sectors), READ_WRITE(prefetch_sectors),
	__ATTR(counters, 0444, counters_show, NULL),
	__ATTR_NULL,
};

static struct elevator_type cats_type = {
	.ops = {
		.init_sched = cats_init_sched,
		.exit_sched = cats_exit_sched,
		.bio_merge = cats_bio_merge,
		.request_merge = cats_request_merge,
		.request_merged = cats_request_merged,
		.requests_merged = cats_requests_merged,
		.former_request = elv_rb_former_request,
		.next_request = elv_rb_latter_request,
		.insert_requests = cats_insert_requests,
		.dispatch_request = cats_dispatch_request,
		.has_work = cats_has_work,
		.prepare_request = cats_prepare_request,
		.finish_request = cats_finish_request,
		.requeue_request = cats_finish_request,
	},
	.elevator_attrs = cats_attributes,
	.elevator_name = "cats",
	.elevator_owner = THIS_MODULE,
};
MODULE_ALIAS("cats-iosched");

static int __init cats_module_init(void)
{
	return elv_register(&cats_type);
}

static void __exit cats_module_exit(void)
{
	elv_unregister(&cats_type);
}

module_init(cats_module_init);
module_exit(cats_module_exit);

MODULE_DESCRIPTION("CATS, the cache-aware table I/O scheduler, and hit-first aged SATF");
MODULE_LICENSE("GPL");
