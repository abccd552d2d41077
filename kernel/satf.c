// SPDX-License-Identifier: GPL-2.0
/* In integers, as a kernel has no floating point: fractions and logarithms are in units of 1 / 65536. */
#include "satf.h"

#ifdef __KERNEL__
#include <linux/bitops.h>
#include <linux/limits.h>
#include <linux/math64.h>
#else
#define S64_MAX INT64_MAX
static u64 mul_u64_u64_div_u64(u64 a, u64 b, u64 c)
{
	return (unsigned __int128)a * b / c;
}
static u64 div_u64(u64 a, u64 b)
{
	return a / b;
}
static int fls64(u64 x)
{
	return x ? 64 - __builtin_clzll(x) : 0;
}
#endif

#define ONE 65536

/* How far accesses of foreseen hits count in what a good choice saves, in hundredths. */
#define HITS_COUNT 85

/* The least and the most exponent of a power of two that is told from nothing, and from a great deal. */
#define EXPONENT_MOST (20 * ONE)

/* log2(1 + i / 16) and 2^(i / 16). */
static const unsigned int logarithms[] = {
	0, 5732, 11136, 16248, 21098, 25711, 30109, 34312, 38336, 42196, 45904, 49472, 52911, 56229, 59434, 62534, 65536,
};
static const unsigned int powers[] = {
	65536, 68438, 71468, 74632, 77936, 81386, 84990, 88752, 92682, 96785, 101070, 105545, 110218, 115098, 120194, 125515,
	131072,
};

/* Between two values of a table; `at` is a fraction of its whole. */
static s64 between(const unsigned int *table, unsigned int at)
{
	unsigned int i = at / (ONE / 16), rest = at % (ONE / 16);

	return table[i] + (s64)(table[i + 1] - table[i]) * rest / (ONE / 16);
}

/* The logarithm of a number above 0, to the base 2. */
static s64 logarithm(u64 x)
{
	int whole = fls64(x) - 1;
	unsigned int fraction = (x << (63 - whole)) >> 47 & (ONE - 1);

	return (s64)whole * ONE + between(logarithms, fraction);
}

/* (part / whole) to the power of `power` thousandths; `whole` is not 0. */
static u64 to_power(u64 part, u64 whole, unsigned int power)
{
	s64 exponent;
	u64 value;

	if (!power)
		return ONE;
	if (!part)
		return 0;
	exponent = (logarithm(part) - logarithm(whole)) * power / 1000;
	if (exponent < -EXPONENT_MOST)
		return 0;
	if (exponent > EXPONENT_MOST)
		exponent = EXPONENT_MOST;
	/* Above 0, for what follows to round down. */
	exponent += EXPONENT_MOST;
	value = between(powers, exponent % ONE);
	return (value << exponent / ONE) >> EXPONENT_MOST / ONE;
}

/* How much longer the mean access of those that wait is than the shortest, in ns; of misses alone, or of all. */
static u64 saving(const struct satf_candidate *all, unsigned int count, bool misses)
{
	u64 sum = 0, least = ~0ULL;
	unsigned int n = 0, i;

	for (i = 0; i < count; i++) {
		if (misses && all[i].is_hit)
			continue;
		sum += all[i].access;
		least = all[i].access < least ? all[i].access : least;
		n++;
	}
	return n ? div_u64(sum, n) - least : 0;
}

unsigned int satf_choose(const struct satf_candidate *all, unsigned int count, unsigned int age, unsigned int power)
{
	u64 save = div_u64(HITS_COUNT * saving(all, count, false) + (100 - HITS_COUNT) * saving(all, count, true), 100);
	u64 credit = mul_u64_u64_div_u64(save, age, 1000), waited = 0;
	unsigned int i, best = 0;
	s64 least = S64_MAX;

	for (i = 0; i < count; i++)
		waited += all[i].wait;
	waited = div_u64(waited, count);
	waited = waited ? waited : 1;
	for (i = 0; i < count; i++) {
		s64 key = all[i].access - mul_u64_u64_div_u64(credit, to_power(all[i].wait, waited, power), ONE);

		if (key < least) {
			least = key;
			best = i;
		}
	}
	return best;
}
