// SPDX-License-Identifier: GPL-2.0
/* The choice in integers against the same in floating point, as the simulator makes it. In user space. */
#include "satf.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static u64 state = 1;
static double draw(void)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 11) / 9007199254740992.0;
}

/* Mean less least; of misses alone, or of all. */
static double saving(const struct satf_candidate *all, unsigned int count, bool misses)
{
	double sum = 0, least = INFINITY;
	unsigned int n = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (misses && all[i].is_hit)
			continue;
		sum += all[i].access;
		least = fmin(least, all[i].access);
		n++;
	}
	return n ? sum / n - least : 0;
}

/* By how much the request `chosen` is worse than the best, in ns. */
static double worse(const struct satf_candidate *all, unsigned int count, double age, double power, unsigned int chosen)
{
	double credit = age * (0.85 * saving(all, count, false) + 0.15 * saving(all, count, true));
	double mean = 0, least = INFINITY, ours = 0;

	for (unsigned int i = 0; i < count; i++)
		mean += (double)all[i].wait / count;
	for (unsigned int i = 0; i < count; i++) {
		double key = all[i].access - credit * pow(all[i].wait / fmax(mean, 1), power);

		least = fmin(least, key);
		if (i == chosen)
			ours = key;
	}
	return ours - least;
}

int main(void)
{
	struct satf_candidate all[SATF_MOST];
	double worst = 0;

	for (unsigned long instance = 0; instance < 100000; instance++) {
		unsigned int count = 1 + draw() * (instance % 50 ? 50 : SATF_MOST);
		unsigned int age = draw() * 2000, power = draw() * (instance % 20 ? 1500 : 8000);

		for (unsigned int i = 0; i < count; i++) {
			all[i].is_hit = draw() < 0.2;
			all[i].access = all[i].is_hit ? 250000 : 250000 + draw() * 10e6;
			/* From nothing to minutes, or all much alike. */
			all[i].wait = draw() < 0.02 ? 0 : instance % 2 ? exp(draw() * 25) : exp(15 + draw() * 3);
		}
		unsigned int chosen = satf_choose(all, count, age, power);
		double by = worse(all, count, age / 1e3, power / 1e3, chosen);

		/* A tenth of a per cent of a long wait's credit, which tables of 16 steps give. */
		if (chosen >= count || by > 20e3 + 0.01 * 10e6 * pow(100, power / 1e3)) {
			fprintf(stderr, "satf: instance %lu: %u of %u is worse by %.0f ns\n", instance, chosen, count, by);
			return 1;
		}
		if (power <= 500)
			worst = fmax(worst, by);
	}
	if (worst > 100e3) {
		fprintf(stderr, "satf: a choice is worse than the best by %.0f ns\n", worst);
		return 1;
	}
	printf("satf: 100,000 choices, with powers up to 0.5 at most %.1f us worse than in floating point\n", worst / 1e3);
	return 0;
}
