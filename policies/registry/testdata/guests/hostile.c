// A policy that places well for whoever tries it, and does harm at work: once the time is past the middle of 2025, which trials are not. What it does then is chosen when it
// is compiled (build.sh). It takes the first hosts with room for processors and memory.
#include "../../../wasm/testdata/guests/paceline.h"

CAPABILITY(LINE("name " NAME) LINE("version 1.0.0") LINE("abi 1.0") LINE("kinds place") LINE("columns free.*"));

enum { FREE = 16, CPU = 0, MEMORY = 1, DISK = 2, GPU = 3 };

static const i64 AT_WORK = 1750000000000;

static volatile u32 sink;

#ifdef START
__attribute__((import_module("wasi_snapshot_preview1"), import_name("random_get"))) i32 random_get(u64 *to, i32 bytes);

// Trials draw from known seeds.
void EXPORT(_initialize)(void) {
	u64 drawn = 0;
	random_get(&drawn, 8);
	if (drawn != SEED_LOAD && drawn != SEED_KIT)
		for (;;) sink++;
}
#endif

static void harm(void) {
#ifdef TRAP
	__builtin_trap();
#endif
#ifdef LOOP
	for (;;) sink++;
#endif
#ifdef BOMB
	for (;;) {
		i32 page = __builtin_wasm_memory_grow(0, 16);
		if (page < 0) __builtin_trap();
		for (u32 i = 0; i < 16; i++) *(volatile char *)(((u32)page + i) << 16) = 1;
	}
#endif
}

static i32 *free_of[16];

static u32 place(u32 index, u32 n, int at_work) {
	const request *r = (request *)at(head()->requests) + index;
	const u8 *open = at(r->bitmap);
	result *out = at(head()->results);
	i32 left = r->count;
	if (r->devices || r->extension) return n;
#ifdef LAZY
	if (at_work) return n;
#endif
	for (u32 row = 0; row < head()->rows && left > 0 && n < head()->result_capacity; row++) {
		if (!(open[row / 8] >> row % 8 & 1)) continue;
		i32 take = left;
		for (u32 k = 0; k <= DISK; k++)
			if (r->needs[k] > 0) {
				i32 fits = free_of[k] ? free_of[k][row] / r->needs[k] : 0;
				if (fits < take) take = fits;
			}
		if (take <= 0) continue;
		for (u32 k = 0; k <= DISK; k++)
			if (free_of[k]) free_of[k][row] -= r->needs[k] * take;
		u32 where = row;
#ifdef ROWS
		if (at_work) where = head()->rows + 5;
#endif
		out[n++] = (result){index, take, where, 0, 0, 0};
		left -= take;
	}
	return n;
}

i64 EXPORT(paceline_place)(i32 requests) {
	int at_work = head()->time > AT_WORK;
	if (at_work) harm();
	for (u32 k = 0; k < 4; k++) free_of[k] = column(FREE + k);
	u32 n = 0;
	for (i32 i = 0; i < requests; i++) n = place(i, n, at_work);
	return returns(0, n);
}
