// SPDX-License-Identifier: GPL-2.0
/*
 * throttled0: a block device that takes as long as a disk that is not there (arm.h), one request at a time. It
 * keeps no data: reads give zeroes, writes are forgotten.
 *
 * Under QEMU's -icount the guest's clock counts instructions and skips what is slept, so that a run is exact,
 * the same each time, and shorter than the time that it measures.
 *
 * debugfs: throttled/trace has a record for each request since `reset` was last written.
 */
#include <linux/blk-mq.h>
#include <linux/highmem.h>
#include <linux/hrtimer.h>
#include <linux/module.h>

#include "arm.h"
#include "record_log.h"

#define NAME "throttled"

static ulong sectors = 143374744;
module_param(sectors, ulong, 0444);
MODULE_PARM_DESC(sectors, "size in sectors of 512 bytes");
static uint base_us = 4250, full_seek_us = 5250, hit_us = 250, k1000 = 1000;
module_param(base_us, uint, 0444);
module_param(full_seek_us, uint, 0444);
module_param(hit_us, uint, 0444);
module_param(k1000, uint, 0444);
MODULE_PARM_DESC(k1000, "how much slower, in thousandths");
static uint segments = 64, segment_sectors = 221, prefetch_sectors = 64;
module_param(segments, uint, 0444);
module_param(segment_sectors, uint, 0444);
module_param(prefetch_sectors, uint, 0444);
static uint depth = 1;
module_param(depth, uint, 0444);
MODULE_PARM_DESC(depth, "requests that wait at the device, the one under way included");
static uint records = 200000;
module_param(records, uint, 0444);
MODULE_PARM_DESC(records, "the most requests that are recorded");

struct command {
	u64 issued;
};

static struct {
	struct blk_mq_tag_set tags;
	struct gendisk *disk;
	int major;

	/* Guards the rest. */
	spinlock_t lock;
	struct list_head queue;
	struct request *current_rq;
	bool is_hit;
	struct arm arm;
	struct record_log log;
	struct hrtimer timer;

	/* What the device can still take: blk-mq asks the scheduler only then, as of a SCSI disk. */
	atomic_t room;

	struct dentry *folder;
} device;

/* Begins with the next request, if none is under way. The lock is held. */
static void begin(void)
{
	struct request *rq = list_first_entry_or_null(&device.queue, struct request, queuelist);
	sector_t start;
	u64 time;

	if (device.current_rq || !rq)
		return;
	list_del_init(&rq->queuelist);
	device.current_rq = rq;
	start = blk_rq_pos(rq);
	time = arm_service(&device.arm, req_op(rq) == REQ_OP_READ, start, start + blk_rq_sectors(rq),
			   &device.is_hit);
	hrtimer_start(&device.timer, ns_to_ktime(time), HRTIMER_MODE_REL);
}

static void record(struct request *rq)
{
	struct command *command = blk_mq_rq_to_pdu(rq);

	record_log_add(&device.log, (struct record) {
		.arrived = rq->start_time_ns,
		.issued = command->issued,
		.done = ktime_get_ns(),
		.sector = blk_rq_pos(rq),
		.count = blk_rq_sectors(rq),
		.is_hit = device.is_hit,
		.is_write = op_is_write(req_op(rq)),
	});
}

static enum hrtimer_restart is_done(struct hrtimer *timer)
{
	struct request *rq;
	unsigned long flags;

	spin_lock_irqsave(&device.lock, flags);
	rq = device.current_rq;
	device.current_rq = NULL;
	record(rq);
	begin();
	spin_unlock_irqrestore(&device.lock, flags);
	blk_mq_complete_request(rq);
	return HRTIMER_NORESTART;
}

static void complete_rq(struct request *rq)
{
	struct request_queue *queue = rq->q;

	atomic_inc(&device.room);
	blk_mq_end_request(rq, BLK_STS_OK);
	blk_mq_run_hw_queues(queue, true);
}

static blk_status_t queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *data)
{
	struct request *rq = data->rq;
	struct command *command = blk_mq_rq_to_pdu(rq);
	struct req_iterator at;
	struct bio_vec vector;
	unsigned long flags;

	blk_mq_start_request(rq);
	command->issued = ktime_get_ns();
	if (req_op(rq) == REQ_OP_READ)
		rq_for_each_segment(vector, rq, at)
			memzero_bvec(&vector);
	spin_lock_irqsave(&device.lock, flags);
	list_add_tail(&rq->queuelist, &device.queue);
	begin();
	spin_unlock_irqrestore(&device.lock, flags);
	return BLK_STS_OK;
}

static int get_budget(struct request_queue *queue)
{
	return atomic_dec_if_positive(&device.room) >= 0 ? 0 : -1;
}

static void put_budget(struct request_queue *queue, int token)
{
	atomic_inc(&device.room);
}

static const struct blk_mq_ops queue_ops = {
	.queue_rq = queue_rq,
	.complete = complete_rq,
	.get_budget = get_budget,
	.put_budget = put_budget,
};

static const struct block_device_operations device_ops = {
	.owner = THIS_MODULE,
};

static int reset(const char *value, const struct kernel_param *parameter)
{
	unsigned long flags;

	if (!device.disk)
		return -ENODEV;
	spin_lock_irqsave(&device.lock, flags);
	record_log_empty(&device.log);
	arm_init(&device.arm, device.arm.shape, device.arm.cache.shape);
	spin_unlock_irqrestore(&device.lock, flags);
	return 0;
}
static const struct kernel_param_ops reset_ops = { .set = reset };
module_param_cb(reset, &reset_ops, NULL, 0200);
MODULE_PARM_DESC(reset, "anything: forget the records, the cache and where the arm is");

static int __init throttled_init(void)
{
	struct arm_shape shape = { sectors, base_us, full_seek_us, hit_us, k1000 };
	struct shadow_shape cache = { segments, segment_sectors, prefetch_sectors };
	int error;

	if (!sectors || !depth || !segment_sectors || !records || records > RECORDS_MOST || segments > SHADOW_MOST) {
		pr_err(NAME ": sectors, depth, segment_sectors and records are at least 1, records at most %d, segments at most %d\n",
		       RECORDS_MOST, SHADOW_MOST);
		return -EINVAL;
	}
	spin_lock_init(&device.lock);
	INIT_LIST_HEAD(&device.queue);
	atomic_set(&device.room, depth);
	arm_init(&device.arm, shape, cache);
	hrtimer_init(&device.timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	device.timer.function = is_done;
	error = record_log_init(&device.log, records);
	if (error)
		return error;

	device.major = error = register_blkdev(0, NAME);
	if (error < 0)
		goto no_major;
	device.tags.ops = &queue_ops;
	device.tags.nr_hw_queues = 1;
	device.tags.queue_depth = depth;
	device.tags.numa_node = NUMA_NO_NODE;
	device.tags.cmd_size = sizeof(struct command);
	device.tags.flags = BLK_MQ_F_SHOULD_MERGE;
	error = blk_mq_alloc_tag_set(&device.tags);
	if (error)
		goto no_tags;
	device.disk = blk_mq_alloc_disk(&device.tags, NULL);
	if (IS_ERR(device.disk)) {
		error = PTR_ERR(device.disk);
		goto no_disk;
	}
	device.disk->major = device.major;
	device.disk->minors = 1;
	device.disk->fops = &device_ops;
	strscpy(device.disk->disk_name, NAME "0", DISK_NAME_LEN);
	blk_queue_max_hw_sectors(device.disk->queue, 1024);
	set_capacity(device.disk, sectors);
	error = add_disk(device.disk);
	if (error)
		goto not_added;
	device.folder = debugfs_create_dir(NAME, NULL);
	debugfs_create_blob("trace", 0400, device.folder, &device.log.blob);
	return 0;

not_added:
	put_disk(device.disk);
no_disk:
	device.disk = NULL;
	blk_mq_free_tag_set(&device.tags);
no_tags:
	unregister_blkdev(device.major, NAME);
no_major:
	record_log_free(&device.log);
	return error;
}

static void __exit throttled_exit(void)
{
	debugfs_remove_recursive(device.folder);
	del_gendisk(device.disk);
	put_disk(device.disk);
	blk_mq_free_tag_set(&device.tags);
	unregister_blkdev(device.major, NAME);
	hrtimer_cancel(&device.timer);
	record_log_free(&device.log);
}

module_init(throttled_init);
module_exit(throttled_exit);

MODULE_DESCRIPTION("A block device as slow as a modelled disk");
MODULE_LICENSE("GPL");
