// SPDX-License-Identifier: GPL-2.0
/*
 * load DEVICE LAYOUT PROCESSES REQUESTS SEED [RECORDS]: a closed load of reads, after SURGE (Barford and
 * Crovella, 1998) as Geist, Jones, Westall (2010), section 5, have it: each process chooses a number of files,
 * Pareto(2.43, 1), each by Zipf's law, and reads it page by page with O_DIRECT, thinking Pareto(1.5, 2 ms)
 * after each page. Directory entries and inodes are read once and are in memory from then on.
 *
 * It is the load of the simulator (crates/schedule/src/load/surge.rs), request by request: the same random
 * numbers from the same seed, and the files where LAYOUT says, which the simulator wrote (`Layout::write_to`).
 *
 * Prints mean, variance and percentiles of the response in ms, the throughput, and, when RECORDS names the
 * records of `throttled`, the mean service (from dispatch to done); of all but the first tenth.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <linux/fs.h>
#include <linux/types.h>

#include "record.h"

#define PAGE 4096
/* Inodes, and directory entries, in a page. */
#define INODES 16
#define ENTRIES 64

/* Where every file is: see Layout::write_to. */
static struct {
	uint32_t files, per_directory, directories, extents;
	/* The first extent of each file, and one more at the end. */
	const uint32_t *first;
	/* The file of each rank of popularity. */
	const uint32_t *rank;
	/* The first page of each directory. */
	const uint32_t *directory;
	/* First page and number of pages. */
	const uint32_t (*extent)[2];
} layout;

static const char *device;
/* A bit for each page of metadata that is in memory. */
static uint8_t *known;
static long wanted, counted;
static double *response, *ended;
static pthread_barrier_t start;

static uint64_t mixed(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	return z ^ (z >> 31);
}

/* Between 0 and 1, neither of them. */
static double uniform(uint64_t *state)
{
	*state += 0x9E3779B97F4A7C15ULL;
	return ((mixed(*state) >> 11) + 0.5) / 9007199254740992.0;
}

static double pareto(uint64_t *state, double shape, double least)
{
	return least / pow(uniform(state), 1 / shape);
}

/* In ms. */
static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

/* Reads the layout; ends the program when it is none. */
static void read_layout(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint32_t head[4], *words;
	size_t count;

	if (!file || fread(head, sizeof(*head), 4, file) != 4) {
		fprintf(stderr, "load: %s cannot be read, or is no layout\n", path);
		exit(1);
	}
	layout.files = head[0];
	layout.per_directory = head[1];
	layout.directories = head[2];
	layout.extents = head[3];
	count = 2 * (size_t)layout.files + 1 + layout.directories + 2 * (size_t)layout.extents;
	words = malloc(count * sizeof(*words));
	if (!words || !layout.files || !layout.per_directory || fread(words, sizeof(*words), count, file) != count) {
		fprintf(stderr, "load: %s is cut short, or is no layout\n", path);
		exit(1);
	}
	fclose(file);
	layout.first = words;
	layout.rank = layout.first + layout.files + 1;
	layout.directory = layout.rank + layout.files;
	layout.extent = (const uint32_t (*)[2])(layout.directory + layout.directories);
}

/* What a process has, and what it measures by. */
struct process {
	pthread_t thread;
	uint64_t random;
	/* When it begins, in ms. */
	double begins;
	int file;
	void *page;
};

static void think(double ms)
{
	struct timespec time = { .tv_sec = ms / 1e3, .tv_nsec = fmod(ms, 1e3) * 1e6 };

	nanosleep(&time, NULL);
}

/* Reads a page; whether the load goes on. */
static bool read_page(struct process *process, uint64_t at)
{
	double began = now();
	long n;

	if (pread(process->file, process->page, PAGE, (off_t)at * PAGE) != PAGE) {
		perror(device);
		exit(1);
	}
	n = __atomic_fetch_add(&counted, 1, __ATOMIC_RELAXED);
	if (n >= wanted)
		return false;
	ended[n] = now();
	response[n] = ended[n] - began;
	return true;
}

/* Whether a page of metadata has to be read; it counts as known from then on. */
static bool is_new(uint64_t page)
{
	return !(__atomic_fetch_or(&known[page / 8], 1 << page % 8, __ATOMIC_RELAXED) & 1 << page % 8);
}

/* Opens a file: reads its directory entry and its inode where they are new. */
static bool open_file(struct process *process, uint32_t file)
{
	uint32_t inside = file % layout.per_directory;
	uint64_t start = layout.directory[file / layout.per_directory];
	uint64_t inode = start + inside / INODES;
	uint64_t entry = start + layout.per_directory / INODES + 1 + inside / ENTRIES;
	bool new_inode = is_new(inode), new_entry = is_new(entry);

	return (!new_entry || read_page(process, entry)) && (!new_inode || read_page(process, inode));
}

/* Reads a file, thinking after each page. */
static bool read_file(struct process *process, uint32_t file)
{
	if (!open_file(process, file))
		return false;
	for (uint32_t piece = layout.first[file]; piece < layout.first[file + 1]; piece++) {
		for (uint32_t i = 0; i < layout.extent[piece][1]; i++) {
			if (!read_page(process, (uint64_t)layout.extent[piece][0] + i))
				return false;
			think(pareto(&process->random, 1.5, 2));
		}
	}
	return true;
}

static void *run(void *argument)
{
	struct process *process = argument;
	double ranks = log(layout.files + 1.0);

	prctl(PR_SET_TIMERSLACK, 1);
	pthread_barrier_wait(&start);
	think(process->begins);
	for (;;) {
		for (long files = fmax(1, round(pareto(&process->random, 2.43, 1))); files > 0; files--) {
			/* F(x) = ln(x+1) / ln(N+2): the seed's continuous form of Zipf's law. */
			uint64_t rank = exp(uniform(&process->random) * ranks) - 1;

			if (!read_file(process, layout.rank[rank < layout.files ? rank : layout.files - 1]))
				return NULL;
		}
	}
}

/* The mean time from dispatch to done, in ms, of all but the first tenth of the records of `throttled`. */
static double service(const char *path)
{
	struct record record;
	FILE *file = fopen(path, "rb");
	long count = 0, n = 0;
	double sum = 0;

	if (!file) {
		perror(path);
		exit(1);
	}
	while (fread(&record, sizeof(record), 1, file) == 1)
		count++;
	rewind(file);
	for (long i = 0; i < count && fread(&record, sizeof(record), 1, file) == 1; i++) {
		if (i < count / 10)
			continue;
		sum += (record.done - record.issued) / 1e6;
		n++;
	}
	fclose(file);
	return n ? sum / n : 0;
}

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int count, char **arguments)
{
	double mean = 0, variance = 0, first, last = 0;
	long processes, warm, n;
	struct process *all;
	uint64_t bytes, random;
	int file;

	if (count != 6 && count != 7) {
		fprintf(stderr, "load DEVICE LAYOUT PROCESSES REQUESTS SEED [RECORDS]\n");
		return 2;
	}
	device = arguments[1];
	read_layout(arguments[2]);
	processes = atol(arguments[3]);
	wanted = atol(arguments[4]);
	random = atol(arguments[5]);
	file = open(device, O_RDONLY | O_DIRECT);
	if (file < 0 || ioctl(file, BLKGETSIZE64, &bytes) || processes < 1 || wanted < 100) {
		fprintf(stderr, "load: %s is no block device, or fewer than 1 process or 100 requests\n", device);
		return 1;
	}
	known = calloc(1, bytes / PAGE / 8 + 1);
	response = calloc(wanted, sizeof(*response));
	ended = calloc(wanted, sizeof(*ended));
	all = calloc(processes, sizeof(*all));
	pthread_barrier_init(&start, NULL, processes);
	for (struct process *process = all; process < all + processes; process++) {
		process->begins = uniform(&random) * 50;
		random += 0x9E3779B97F4A7C15ULL;
		process->random = mixed(random);
		process->file = file;
		if (posix_memalign(&process->page, PAGE, PAGE) ||
		    pthread_create(&process->thread, NULL, run, process)) {
			fprintf(stderr, "load: no memory for %ld processes\n", processes);
			return 1;
		}
	}
	for (struct process *process = all; process < all + processes; process++)
		pthread_join(process->thread, NULL);

	warm = wanted / 10;
	n = wanted - warm;
	first = ended[warm - 1];
	for (long i = warm; i < wanted; i++) {
		mean += response[i] / n;
		last = fmax(last, ended[i]);
	}
	for (long i = warm; i < wanted; i++)
		variance += (response[i] - mean) * (response[i] - mean) / n;
	qsort(response + warm, n, sizeof(*response), rising);
	printf("response %.2f variance %.0f p50 %.2f p99 %.2f sectors/ms %.2f service %.3f\n", mean, variance,
	       response[warm + n / 2], response[warm + n * 99 / 100], 8 * n / (last - first),
	       count == 7 ? service(arguments[6]) : 0);
	return 0;
}
