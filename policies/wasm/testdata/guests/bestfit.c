// Best fit, as the scheduler's own: the hosts with the least left over, filled one after the other. The scan looks at four hosts at a time and at sixteen before it
// branches.
#include <wasm_simd128.h>

#include "paceline.h"

CAPABILITY(LINE("name best-fit-c") LINE("version 1.0.0") LINE("abi 1.0") LINE("kinds place")
	LINE("columns leftover free.* device_free device_model device_whole device_largest"));

enum { FREE = 16, DEVICE_FREE = 64, DEVICE_MODEL = 66, DEVICE_WHOLE = 67, DEVICE_LARGEST = 68, LEFTOVER = 71, TOP = 4096, MAX_CONDITIONS = 24 };

typedef struct {
	i32 cost;
	u32 row;
} candidate;

typedef struct {
	const i32 *column;
	i32 need;
} condition;

static candidate heap[TOP]; // the worst on top
static u32 size, limit;
static condition conditions[MAX_CONDITIONS];
static u32 n_conditions;
static i32 *free_of[16];

static void require(const void *column, i32 need) {
	if (need > 0 && column && n_conditions < MAX_CONDITIONS) conditions[n_conditions++] = (condition){column, need};
}

static inline int less(candidate a, candidate b) { return a.cost < b.cost || (a.cost == b.cost && a.row < b.row); }

static void sink(u32 i) {
	for (;;) {
		u32 child = 2 * i + 1;
		if (child >= size) return;
		if (child + 1 < size && less(heap[child], heap[child + 1])) child++;
		if (!less(heap[i], heap[child])) return;
		candidate t = heap[i];
		heap[i] = heap[child];
		heap[child] = t;
		i = child;
	}
}

static void offer(i32 cost, u32 row) {
	candidate c = {cost, row};
	if (size < limit) {
		u32 i = size++;
		heap[i] = c;
		while (i > 0 && less(heap[(i - 1) / 2], heap[i])) {
			candidate t = heap[i];
			heap[i] = heap[(i - 1) / 2];
			heap[(i - 1) / 2] = t;
			i = (i - 1) / 2;
		}
		return;
	}
	if (!less(c, heap[0])) return;
	heap[0] = c;
	sink(0);
}

// bound is the cost that a host must be below to matter.
static inline i32 bound(void) { return size < limit ? 0x7fffffff : heap[0].cost; }

static int rest(u32 row) {
	for (u32 i = 3; i < n_conditions; i++)
		if (conditions[i].column[row] < conditions[i].need) return 0;
	return 1;
}

static void scan(const request *r) {
	const i32 *cost = column(LEFTOVER), *bias = r->bias ? at(r->bias) : 0;
	const u16 *open = at(r->bitmap);
	condition always = {cost, -0x40000000}, c[3];
	for (u32 i = 0; i < 3; i++) c[i] = i < n_conditions ? conditions[i] : always;
	v128_t na = wasm_i32x4_splat(c[0].need), nb = wasm_i32x4_splat(c[1].need), nc = wasm_i32x4_splat(c[2].need);
	const i32 *a = c[0].column, *b = c[1].column, *d = c[2].column;
	v128_t top = wasm_i32x4_splat(bound());
	u32 rows = head()->rows;
	for (u32 from = 0; from < rows; from += 16) {
		v128_t hit[4];
#define QUAD(q)                                                                                                                         \
	{                                                                                                                               \
		u32 i = from + 4 * q;                                                                                                   \
		v128_t lack = wasm_v128_or(wasm_v128_or(wasm_i32x4_sub(wasm_v128_load(a + i), na), wasm_i32x4_sub(wasm_v128_load(b + i), nb)), \
					   wasm_i32x4_sub(wasm_v128_load(d + i), nc));                                                 \
		v128_t price = wasm_v128_load(cost + i);                                                                               \
		if (bias) price = wasm_i32x4_add(price, wasm_v128_load(bias + i));                                                     \
		hit[q] = wasm_v128_andnot(wasm_i32x4_lt(price, top), wasm_i32x4_shr(lack, 31));                                        \
	}
		QUAD(0)
		QUAD(1)
		QUAD(2)
		QUAD(3)
		if (!wasm_v128_any_true(wasm_v128_or(wasm_v128_or(hit[0], hit[1]), wasm_v128_or(hit[2], hit[3])))) continue;
		u32 mask = wasm_i32x4_bitmask(hit[0]) | wasm_i32x4_bitmask(hit[1]) << 4 | wasm_i32x4_bitmask(hit[2]) << 8 | wasm_i32x4_bitmask(hit[3]) << 12;
		for (mask &= open[from / 16]; mask; mask &= mask - 1) {
			u32 row = from + __builtin_ctz(mask);
			i32 price = cost[row] + (bias ? bias[row] : 0);
			if (row < rows && price < bound() && rest(row)) offer(price, row);
		}
		top = wasm_i32x4_splat(bound());
	}
}

static u16 models[64];
static u32 n_models;

// extend reads what stands behind the request: named resources, and the models that will do.
static void extend(const request *r) {
	n_models = 0;
	if (!r->extension) return;
	for (u8 *p = at(r->extension);;) {
		u16 tag = *(u16 *)p, bytes = *(u16 *)(p + 2);
		p += 4;
		if (tag == 0) return;
		if (tag == 1) require(free_of[*(u32 *)p & 15], *(i32 *)(p + 4));
		if (tag == 2)
			for (u32 i = 0; i < bytes / 2 && n_models < 64; i++) models[n_models++] = ((u16 *)p)[i];
		p += (bytes + 3) & ~3;
	}
}

static int allowed(u16 model) {
	for (u32 i = 0; i < n_models; i++)
		if (models[i] == model) return 1;
	return n_models == 0;
}

// times is how many tasks a host takes.
static i32 times(const request *r, u32 row, i32 most) {
	for (u32 i = 0; i < n_conditions; i++) {
		if (conditions[i].column == column(DEVICE_WHOLE) || conditions[i].column == column(DEVICE_LARGEST)) continue;
		i32 n = conditions[i].column[row] / conditions[i].need;
		if (n < most) most = n;
	}
	if (r->devices == 0) return most;
	const i16 *lanes = (i16 *)column(DEVICE_FREE) + 16 * row, *model = (i16 *)column(DEVICE_MODEL) + 16 * row;
	i32 n = 0;
	for (u32 l = 0; l < 16; l++)
		if (allowed(model[l]) && lanes[l] > 0) n += lanes[l] / r->share;
	if (r->devices > 1) n /= r->devices;
	return n < most ? n : most;
}

// spend takes what tasks use off the table, for the requests that follow. Devices are left to the host, which chooses them.
static void spend(const request *r, u32 row, i32 n) {
	for (u32 k = 0; k < 4; k++)
		if (free_of[k]) free_of[k][row] -= r->needs[k] * n;
}

static result *out;

static u32 place(u32 index, u32 n) {
	const request *r = (request *)at(head()->requests) + index;
	n_conditions = size = 0;
	for (u32 k = 0; k < 3; k++) require(free_of[k], r->needs[k]);
	require(free_of[3], r->needs[3]);
	if (r->devices) require(column(r->share == 1000 ? DEVICE_WHOLE : DEVICE_LARGEST), r->share == 1000 ? r->devices : r->share);
	extend(r);
	limit = r->count < TOP ? r->count : TOP;
	scan(r);
	// The cheapest first: sort the heap in place.
	u32 found = size;
	while (size > 1) {
		candidate t = heap[0];
		heap[0] = heap[--size];
		heap[size] = t;
		sink(0);
	}
	i32 left = r->count;
	for (u32 i = 0; i < found && left > 0 && n < head()->result_capacity; i++) {
		i32 take = times(r, heap[i].row, left);
		if (take <= 0) continue;
		out[n++] = (result){index, take, heap[i].row, heap[i].cost, 0, 0};
		spend(r, heap[i].row, take);
		left -= take;
	}
	return n;
}

i64 EXPORT(paceline_place)(i32 requests) {
	if (head()->major != MAJOR) return returns(-2, 0);
	out = at(head()->results);
	for (u32 k = 0; k < 16; k++) free_of[k] = column(FREE + k);
	u32 n = 0;
	for (i32 i = 0; i < requests; i++) n = place(i, n);
	return returns(0, n);
}
