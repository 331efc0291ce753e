// Placing by cost: paceline_place for a policy that says what a host costs. Each task of a request goes to the host with room whose cost is the least, the lowest row among
// equals, and costs are asked again of a host that took one. One scan serves a whole request.
//
// Before this is included the policy defines
//
//	static int prepare(const request *r)   // before each request: find columns; 0 places nothing of it
//	static i32 cost(u32 row)               // of one more task there, within 2^30 either way
//
// and, to be asked for four hosts at a time,
//
//	#define COST4(row) ...                 // a v128_t of the costs of row to row + 3
//
// As tasks are taken, the guest's columns free and tasks follow. Others stay as they were at the beginning of the call. The policy should want leftover or whatever its costs
// need, free.*, and the device columns that are named below; without these the host sorts GPUs out.
#ifndef PACELINE_PLACE_H
#define PACELINE_PLACE_H

#include "paceline.h"

#ifdef COST4
#include <wasm_simd128.h>
#endif

enum { TOP = 4096, MAX_CONDITIONS = 24, MAX_MODELS = 64 };

typedef struct {
	i32 cost;
	u32 row;
	i32 room; // tasks that it still takes; -1 before anybody looked
} candidate;

typedef struct {
	const i32 *column;
	i32 need;
} condition;

static candidate heap[TOP];
static u32 size, limit;
static condition conditions[MAX_CONDITIONS]; // what a host must have; those of devices last
static u32 n_conditions, n_divisible;
static i32 *free_of[KINDS], *tasks_of;
static const i32 *bias;
static u16 models[MAX_MODELS];
static u32 n_models;

static void require(const void *column, i32 need) {
	if (need > 0 && column && n_conditions < MAX_CONDITIONS) conditions[n_conditions++] = (condition){column, need};
}

static inline int less(candidate a, candidate b) { return a.cost < b.cost || (a.cost == b.cost && a.row < b.row); }

// sink restores the heap below i: the worst on top, or with best the best.
static inline void sink(u32 i, int best) {
	for (candidate moved = heap[i];;) {
		u32 child = 2 * i + 1;
		if (child + 1 < size && (best ? less(heap[child + 1], heap[child]) : less(heap[child], heap[child + 1]))) child++;
		if (child >= size || !(best ? less(heap[child], moved) : less(moved, heap[child]))) {
			heap[i] = moved;
			return;
		}
		heap[i] = heap[child];
		i = child;
	}
}

static void offer(i32 price, u32 row) {
	candidate c = {price, row, -1};
	if (size == limit) {
		if (!less(c, heap[0])) return;
		heap[0] = c;
		sink(0, 0);
		return;
	}
	u32 i = size++;
	for (; i > 0 && less(heap[(i - 1) / 2], c); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
	heap[i] = c;
}

// bound is the cost that a host must be below to matter.
static inline i32 bound(void) { return size < limit ? 0x7fffffff : heap[0].cost; }

static inline i32 price_of(u32 row) { return cost(row) + (bias ? bias[row] : 0); }

static int meets(u32 row, u32 from) {
	for (u32 i = from; i < n_conditions; i++)
		if (conditions[i].column[row] < conditions[i].need) return 0;
	return 1;
}

static void scan_each(const request *r) {
	const u8 *open = at(r->bitmap);
	for (u32 row = 0; row < head()->rows; row++) {
		if (!(open[row / 8] >> row % 8 & 1) || !meets(row, 0)) continue;
		i32 price = price_of(row);
		if (price < bound()) offer(price, row);
	}
}

#ifdef COST4
// scan_by looks at four hosts at a time, and at 32 before it branches. Each of n conditions is asked of all; further ones of what is left. It is compiled anew for each n, and
// with or without bias: what a request does not need is not even looked at.
static inline __attribute__((always_inline)) void scan_by(const request *r, const u32 n, const int biased) {
	const u32 *open = at(r->bitmap);
	const i32 *a = conditions[0].column, *b = conditions[1].column, *d = conditions[2].column;
	v128_t na = wasm_i32x4_splat(conditions[0].need), nb = wasm_i32x4_splat(conditions[1].need), nc = wasm_i32x4_splat(conditions[2].need);
	v128_t top = wasm_i32x4_splat(bound());
	u32 rows = head()->rows;
	for (u32 from = 0; from < rows; from += 32) {
		v128_t hit[8];
#define QUAD(q)                                                                                                    \
	{                                                                                                          \
		u32 i = from + 4 * q;                                                                              \
		v128_t lack = wasm_i32x4_lt(wasm_v128_load(a + i), na);                                            \
		if (n > 1) lack = wasm_v128_or(lack, wasm_i32x4_lt(wasm_v128_load(b + i), nb));                    \
		if (n > 2) lack = wasm_v128_or(lack, wasm_i32x4_lt(wasm_v128_load(d + i), nc));                    \
		v128_t price = COST4(i);                                                                           \
		if (biased) price = wasm_i32x4_add(price, wasm_v128_load(bias + i));                               \
		hit[q] = wasm_v128_andnot(wasm_i32x4_lt(price, top), lack);                                        \
	}
		QUAD(0)
		QUAD(1)
		QUAD(2)
		QUAD(3)
		QUAD(4)
		QUAD(5)
		QUAD(6)
		QUAD(7)
#undef QUAD
		v128_t low = wasm_v128_or(wasm_v128_or(hit[0], hit[1]), wasm_v128_or(hit[2], hit[3]));
		v128_t high = wasm_v128_or(wasm_v128_or(hit[4], hit[5]), wasm_v128_or(hit[6], hit[7]));
		if (!wasm_v128_any_true(wasm_v128_or(low, high))) continue;
		u32 mask = 0;
		for (u32 q = 0; q < 8; q++) mask |= wasm_i32x4_bitmask(hit[q]) << 4 * q;
		for (mask &= open[from / 32]; mask; mask &= mask - 1) {
			u32 row = from + __builtin_ctz(mask);
			i32 price = price_of(row);
			if (row < rows && price < bound() && meets(row, n)) offer(price, row);
		}
		top = wasm_i32x4_splat(bound());
	}
}

static void scan(const request *r) {
	switch (n_conditions) {
	case 0: return scan_each(r);
	case 1: return bias ? scan_by(r, 1, 1) : scan_by(r, 1, 0);
	case 2: return bias ? scan_by(r, 2, 1) : scan_by(r, 2, 0);
	default: return bias ? scan_by(r, 3, 1) : scan_by(r, 3, 0);
	}
}
#else
static void scan(const request *r) { scan_each(r); }
#endif

// extend reads what stands behind the request: named resources, and the models that will do.
static void extend(const request *r) {
	n_models = 0;
	if (!r->extension) return;
	for (u8 *p = at(r->extension);;) {
		u16 tag = *(u16 *)p, bytes = *(u16 *)(p + 2);
		p += 4;
		if (tag == 0) return;
		if (tag == 1) require(free_of[*(u32 *)p & (KINDS - 1)], *(i32 *)(p + 4));
		if (tag == 2)
			for (u32 i = 0; i < bytes / 2 && n_models < MAX_MODELS; i++) models[n_models++] = ((u16 *)p)[i];
		p += (bytes + 3) & ~3;
	}
}

static int allowed(u16 model) {
	for (u32 i = 0; i < n_models; i++)
		if (models[i] == model) return 1;
	return n_models == 0;
}

// room_for is how many tasks a host takes.
static i32 room_for(const request *r, u32 row) {
	i32 most = r->count;
	for (u32 i = 0; i < n_divisible; i++) {
		i32 n = conditions[i].column[row] / conditions[i].need;
		if (n < most) most = n;
	}
	const i16 *lanes = column(DEVICE_FREE), *model = column(DEVICE_MODEL);
	if (r->devices == 0 || !lanes || !model) return most;
	i32 n = 0;
	for (u32 l = 0; l < LANES; l++)
		if (allowed(model[LANES * row + l]) && lanes[LANES * row + l] > 0) n += lanes[LANES * row + l] / r->share;
	n /= r->devices;
	return n < most ? n : most;
}

// take takes a task's room off the guest's table, for the tasks that follow. Devices are left to the host, which chooses them.
static void take(const request *r, u32 row) {
	for (u32 k = 0; k < 4; k++)
		if (free_of[k]) free_of[k][row] -= r->needs[k];
	if (tasks_of) tasks_of[row]++;
}

// choose takes the cheapest of the heap until the request is served, and returns how many results there are then.
static u32 choose(const request *r, u32 index, u32 n) {
	result *out = at(head()->results);
	for (u32 i = size / 2; i-- > 0;) sink(i, 1);
	result *last = 0;
	for (i32 left = r->count; left > 0 && size > 0;) {
		candidate *c = heap;
		if (c->room < 0) c->room = room_for(r, c->row);
		if (c->room == 0) {
			heap[0] = heap[--size];
			if (size) sink(0, 1);
			continue;
		}
		if (last && last->host == c->row) {
			last->count++;
		} else {
			if (n == head()->result_capacity) return n;
			last = &out[n++];
			*last = (result){index, 1, c->row, c->cost, 0, 0};
		}
		take(r, c->row);
		left--;
		c->room--;
		i32 price = price_of(c->row);
		if (price != c->cost) {
			c->cost = price;
			sink(0, 1);
		}
	}
	return n;
}

static u32 place(u32 index, u32 n) {
	const request *r = (request *)at(head()->requests) + index;
	n_conditions = size = 0;
	for (u32 k = 0; k < 4; k++) require(free_of[k], r->needs[k]);
	extend(r);
	n_divisible = n_conditions;
	if (r->devices) require(column(r->share == WHOLE_DEVICE ? DEVICE_WHOLE : DEVICE_LARGEST), r->share == WHOLE_DEVICE ? r->devices : r->share);
	bias = r->bias ? at(r->bias) : 0;
	limit = r->count < TOP ? r->count : TOP;
	if (!prepare(r)) return n;
	scan(r);
	return choose(r, index, n);
}

i64 EXPORT(paceline_place)(i32 requests) {
	if (head()->major != MAJOR) return returns(BAD_HEADER, 0);
	for (u32 k = 0; k < KINDS; k++) free_of[k] = column(FREE + k);
	tasks_of = column(TASKS);
	u32 n = 0;
	for (i32 i = 0; i < requests; i++) n = place(i, n);
	return returns(OK, n);
}

#endif
