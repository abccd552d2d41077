// SPDX-License-Identifier: GPL-2.0
/* The table against every order there is, and against the paper's Table 1. In user space. */
#include "plan.h"
#include <stdio.h>
#include <stdlib.h>

static struct plan_work work;

static u64 sum_of(const u64 *at, const u8 *order, unsigned int count, u64 head)
{
	u64 now = 0, sum = 0;

	for (unsigned int i = 0; i < count; i++) {
		u64 next = at[order[i]];

		now += next > head ? next - head : head - next;
		sum += now;
		head = next;
	}
	return sum;
}

/* The least sum of all orders that begin with the first `done` of `order`. */
static u64 least(const u64 *at, u8 *order, unsigned int done, unsigned int count, u64 head)
{
	u64 best = ~0ULL;

	if (done == count)
		return sum_of(at, order, count, head);
	for (unsigned int i = done; i < count; i++) {
		u8 kept = order[done];
		u64 sum;

		order[done] = order[i];
		order[i] = kept;
		sum = least(at, order, done + 1, count, head);
		best = sum < best ? sum : best;
		order[i] = order[done];
		order[done] = kept;
	}
	return best;
}

static int rising(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static u64 state = 1;
static u64 draw(u64 below)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % below;
}

static void check(int good, const char *what, unsigned long instance)
{
	if (!good) {
		printf("plan_test: %s, instance %lu\n", what, instance);
		exit(1);
	}
}

int main(void)
{
	/* Table 1: from 100 to 20, 82, 120 and 200 the optimum is 120, 82, 20, 200. */
	static const u64 table1[] = { 20, 82, 120, 200 };
	static const u8 best[] = { 2, 1, 0, 3 };
	u8 order[PLAN_MOST], every[PLAN_MOST];
	u64 at[PLAN_MOST];

	plan_order(table1, 4, 100, &work, order);
	for (unsigned int i = 0; i < 4; i++)
		check(order[i] == best[i], "Table 1", 0);

	for (unsigned long instance = 1; instance <= 10000; instance++) {
		unsigned int count = 1 + draw(7);
		/* A few positions only, so that some are equal, and equal to the head. */
		u64 places = draw(2) ? 12 : 1 << 20, head = draw(places);

		for (unsigned int i = 0; i < count; i++) {
			at[i] = draw(places);
			every[i] = i;
		}
		qsort(at, count, sizeof(*at), rising);
		plan_order(at, count, head, &work, order);
		check(sum_of(at, order, count, head) == least(at, every, 0, count, head), "not the least", instance);
	}

	/* As long as plans get, wherever the head is: each request once. */
	for (unsigned long instance = 1; instance <= 1000; instance++) {
		unsigned char seen[PLAN_MOST] = { 0 };

		for (unsigned int i = 0; i < PLAN_MOST; i++)
			at[i] = draw(1ULL << 31);
		qsort(at, PLAN_MOST, sizeof(*at), rising);
		plan_order(at, PLAN_MOST, draw(1ULL << 31), &work, order);
		for (unsigned int i = 0; i < PLAN_MOST; i++)
			check(!seen[order[i]]++, "a request twice", instance);
	}
	printf("plan_test: 11,001 plans are the best there are, or whole\n");
	return 0;
}
