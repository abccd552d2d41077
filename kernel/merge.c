// SPDX-License-Identifier: GPL-2.0
/*
 * merge DEVICE: has requests merged while they are being inserted, and looks whether every block got what was
 * written to it.
 *
 * Three blocks that are handed over at once, the middle one last, become two requests of the plug: the first block,
 * and the other two. The second is merged into the first when the scheduler gets it, and is in none of its lists.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK 4096
#define BLOCKS 3
#define ROUNDS 200

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* What a block holds in a round. */
static unsigned char filler(int round, int block)
{
	return 1 + (round * BLOCKS + block) % 255;
}

/* Reads or writes the blocks of a round at once, in this order. */
static void at_once(aio_context_t context, int fd, int round, int opcode, const int *order, unsigned char *room)
{
	struct iocb requests[BLOCKS], *list[BLOCKS];
	struct io_event events[BLOCKS];
	int i;

	for (i = 0; i < BLOCKS; i++) {
		int block = order[i];

		memset(&requests[i], 0, sizeof(requests[i]));
		requests[i].aio_fildes = fd;
		requests[i].aio_lio_opcode = opcode;
		requests[i].aio_buf = (uintptr_t)(room + block * BLOCK);
		requests[i].aio_nbytes = BLOCK;
		requests[i].aio_offset = ((long long)round * (BLOCKS + 5) + block) * BLOCK;
		list[i] = &requests[i];
	}
	if (syscall(SYS_io_submit, context, BLOCKS, list) != BLOCKS)
		fail("io_submit");
	if (syscall(SYS_io_getevents, context, BLOCKS, BLOCKS, events, NULL) != BLOCKS)
		fail("io_getevents");
	for (i = 0; i < BLOCKS; i++)
		if (events[i].res != BLOCK)
			fail("a request");
}

int main(int argc, char **argv)
{
	static const int orders[][BLOCKS] = { { 0, 2, 1 }, { 2, 0, 1 }, { 1, 0, 2 }, { 1, 2, 0 } };
	aio_context_t context = 0;
	unsigned char *room;
	int fd, round, block;

	fd = argc == 2 ? open(argv[1], O_RDWR | O_DIRECT) : -1;
	if (fd < 0 || posix_memalign((void **)&room, BLOCK, BLOCKS * BLOCK) || syscall(SYS_io_setup, 16, &context))
		fail("merge DEVICE");
	for (round = 0; round < ROUNDS; round++) {
		const int *order = orders[round % 4];

		for (block = 0; block < BLOCKS; block++)
			memset(room + block * BLOCK, filler(round, block), BLOCK);
		at_once(context, fd, round, IOCB_CMD_PWRITE, order, room);
		memset(room, 0, BLOCKS * BLOCK);
		at_once(context, fd, round, IOCB_CMD_PREAD, order, room);
		for (block = 0; block < BLOCKS * BLOCK; block++) {
			if (room[block] == filler(round, block / BLOCK))
				continue;
			fprintf(stderr, "merge: round %d reads something else at %d\n", round, block);
			return 1;
		}
	}
	return 0;
}
