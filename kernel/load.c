// SPDX-License-Identifier: GPL-2.0
/*
 * load DEVICE PROCESSES REQUESTS SEED: a closed load of reads, after SURGE (Barford and Crovella, 1998) with the
 * numbers of Geist, Jones, Westall (2010), section 4: each process chooses a few files, Pareto(2.43, 1), by Zipf
 * of a million, and reads them page by page with O_DIRECT, thinking Pareto(1.5, 2 ms) after each page. Where a
 * file lies and how long it is follows from its number: no file system, and nothing to lay out before.
 *
 * Prints mean, variance and percentiles of the response in ms, and the throughput, of all but the first tenth.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <linux/fs.h>

#define FILES 1000000
#define PAGE 4096

static const char *device;
static uint64_t pages;
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

/* The first page of a file and its length in pages: 93 % lognormal, the rest Pareto up to 100 MB. */
static uint64_t place(uint64_t file, uint64_t *length)
{
	uint64_t state = mixed(file + 1);
	double bytes, normal;

	if (uniform(&state) < 0.93) {
		normal = sqrt(-2 * log(uniform(&state))) * cos(2 * M_PI * uniform(&state));
		bytes = fmin(exp(9.357 + 1.318 * normal), 133000);
	} else {
		bytes = fmin(pareto(&state, 1.1, 133000), 100e6);
	}
	*length = (uint64_t)(bytes / PAGE) + 1;
	return uniform(&state) * (pages - *length);
}

static void *process(void *number)
{
	uint64_t state = mixed((uint64_t)(uintptr_t)number), length, at;
	int file = open(device, O_RDONLY | O_DIRECT);
	void *page;

	if (file < 0 || posix_memalign(&page, PAGE, PAGE)) {
		perror(device);
		exit(1);
	}
	prctl(PR_SET_TIMERSLACK, 1);
	pthread_barrier_wait(&start);
	for (;;) {
		for (int files = lround(pareto(&state, 2.43, 1)); files > 0; files--) {
			/* Zipf: the number's logarithm is uniform. */
			at = place(pow(FILES, uniform(&state)), &length);
			for (uint64_t i = 0; i < length; i++) {
				double began = now(), think;
				struct timespec time;
				long n;

				if (pread(file, page, PAGE, (off_t)(at + i) * PAGE) != PAGE) {
					perror(device);
					exit(1);
				}
				n = __atomic_fetch_add(&counted, 1, __ATOMIC_RELAXED);
				if (n >= wanted)
					return NULL;
				ended[n] = now();
				response[n] = ended[n] - began;
				think = pareto(&state, 1.5, 2);
				time.tv_sec = think / 1e3;
				time.tv_nsec = fmod(think, 1e3) * 1e6;
				nanosleep(&time, NULL);
			}
		}
	}
}

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int count, char **arguments)
{
	double mean = 0, variance = 0, first, last = 0;
	long processes, seed, warm, n;
	pthread_t *threads;
	uint64_t bytes;
	int file;

	if (count != 5) {
		fprintf(stderr, "load DEVICE PROCESSES REQUESTS SEED\n");
		return 2;
	}
	device = arguments[1];
	processes = atol(arguments[2]);
	wanted = atol(arguments[3]);
	seed = atol(arguments[4]);
	file = open(device, O_RDONLY);
	if (file < 0 || ioctl(file, BLKGETSIZE64, &bytes) || processes < 1 || wanted < 100) {
		fprintf(stderr, "load: %s is no block device, or fewer than 1 process or 100 requests\n", device);
		return 1;
	}
	pages = bytes / PAGE;
	response = calloc(wanted, sizeof(*response));
	ended = calloc(wanted, sizeof(*ended));
	threads = calloc(processes, sizeof(*threads));
	pthread_barrier_init(&start, NULL, processes);
	for (long i = 0; i < processes; i++)
		pthread_create(&threads[i], NULL, process, (void *)(uintptr_t)(seed * 1000 + i));
	for (long i = 0; i < processes; i++)
		pthread_join(threads[i], NULL);

	warm = wanted / 10;
	n = wanted - warm;
	first = ended[warm];
	for (long i = warm; i < wanted; i++) {
		mean += response[i] / n;
		last = fmax(last, ended[i]);
	}
	for (long i = warm; i < wanted; i++)
		variance += (response[i] - mean) * (response[i] - mean) / n;
	qsort(response + warm, n, sizeof(*response), rising);
	printf("response %.2f variance %.0f p50 %.2f p99 %.2f sectors/ms %.2f\n", mean, variance,
	       response[warm + n / 2], response[warm + n * 99 / 100], 8 * n / (last - first));
	return 0;
}
