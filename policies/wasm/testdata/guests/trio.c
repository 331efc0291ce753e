// A policy of three kinds that are not placement: pools get what they demand in the order of their shares, those that lose the least work make room first, and tasks go to
// the cheapest cluster that has room for them.
#include "paceline.h"

CAPABILITY(LINE("name trio-c") LINE("version 1.0.0") LINE("abi 1.0") LINE("kinds preempt quota route")
	LINE("columns parent reservation.* limit.* share.* demand.* entitlement.* capacity.* placeable price"));

enum { ROWS = 16384 };

static i64 left[ROWS]; // what a pool may still hand to its children
static u32 order[ROWS];

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

// by_share sorts the pools of a level of the tree, all of them, by share, the largest first, and by row.
static void by_share(const i64 *share, u32 n) {
	for (u32 gap = n / 2; gap > 0; gap /= 2)
		for (u32 i = gap; i < n; i++) {
			u32 x = order[i], j = i;
			for (; j >= gap; j -= gap) {
				u32 y = order[j - gap];
				if (share[y] > share[x] || (share[y] == share[x] && y < x)) break;
				order[j] = y;
			}
			order[j] = x;
		}
}

// entitle works one kind out. Parents come before their children at each depth, so whoever hands out has got what it will get.
static void entitle(u32 k, u32 n, const i32 *parent) {
	const i64 *reservation = column(RESERVATION + k), *limit = column(LIMIT + k), *share = column(SHARE + k), *demand = column(DEMAND + k);
	const i64 *capacity = column(CAPACITY + k);
	i64 *given = column(ENTITLEMENT + k);
	if (!reservation || !limit || !share || !demand || !given || !capacity || !parent) return;
	given[0] = capacity[0];
	for (u32 i = 0; i < n; i++) left[i] = i ? 0 : given[0];
	for (u32 i = 1; i < n; i++) {
		given[i] = least(reservation[i], demand[i]);
		left[parent[i]] -= given[i];
		left[i] += given[i];
	}
	for (u32 i = 1; i < n; i++) order[i - 1] = i;
	by_share(share, n - 1);
	for (u32 depth = 1; depth <= 8; depth++) // a pool of a larger share must not hand out before its parent has
		for (u32 o = 0; o + 1 < n; o++) {
			u32 i = order[o], at = i, d = 0;
			while (parent[at] >= 0) at = parent[at], d++;
			if (d != depth) continue;
			i64 more = least(least(demand[i], limit[i]) - given[i], left[parent[i]]);
			if (more <= 0) continue;
			given[i] += more;
			left[i] += more;
			left[parent[i]] -= more;
		}
}

i64 EXPORT(paceline_quota)(u32 pools) {
	for (u32 k = 0; k < KINDS; k++) entitle(k, pools, column(PARENT));
	return returns(0, pools);
}

i64 EXPORT(paceline_preempt)(u32 candidates) {
	const candidate_job *c = at(head()->requests);
	result *r = at(head()->results);
	for (u32 i = 0; i < candidates; i++)
		r[i] = (result){.request = (u16)i, .host = (u32)least(c[i].work, 0x7fffffff)};
	return returns(0, candidates);
}

i64 EXPORT(paceline_route)(u32 requests) {
	const request *q = at(head()->requests);
	result *r = at(head()->results);
	i32 *placeable = column(PLACEABLE);
	const float *price = column(PRICE);
	u32 n = 0, rows = head()->rows, best;
	for (u32 i = 0; i < requests; i++, n++) {
		const u8 *open = at(q[i].bitmap);
		best = rows;
		for (u32 row = 0; row < rows; row++)
			if ((open[row / 8] >> (row % 8) & 1) && placeable[row] >= q[i].count && (best == rows || price[row] < price[best])) best = row;
		r[n] = best == rows ? (result){.request = (u16)i, .host = 0xffffffffu}
		                    : (result){.request = (u16)i, .count = (u16)q[i].count, .host = best, .score = price[best]};
	}
	return returns(0, n);
}
