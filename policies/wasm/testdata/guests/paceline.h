// The part of docs/policy-abi.md that the guests here need, in C.
#ifndef PACELINE_H
#define PACELINE_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short i16;
typedef int i32;
typedef long long i64;

#define EXPORT(name) __attribute__((export_name(#name))) name
// LINE is a line of the custom section that tells what the policy is; the first must be "paceline.policy 1".
#define LINE(text) ".ascii \"" text "\\n\"\n"
#define CAPABILITY(lines) __asm__(".section .custom_section.paceline.policy,\"\",@\n" LINE("paceline.policy 1") lines)

enum { MAJOR = 1, PLACE = 1, ALL_DIRTY = -1 };

typedef struct {
	u32 magic;
	u16 major, minor;
	u64 epoch, base_epoch, generation, seed;
	i64 time;
	u32 rows, capacity, directory, columns, requests, request_count, results, result_capacity;
	u32 config, config_bytes, mix, mix_count, dirty, dirty_count, extension, extension_bytes;
	u32 scratch, scratch_bytes, kind, total;
} header;

typedef struct {
	u32 id;
	u8 type, lanes, shift, flags;
	u32 offset, stride, rows, pad;
	u64 key;
} entry;

typedef struct {
	u64 class;
	i32 count;
	u32 flags, bitmap, bias;
	i32 needs[4];
	i32 share, devices, priority;
	u32 spread, pool, extension;
} request;

typedef struct {
	u16 request, count;
	u32 host;
	float score;
	u16 devices, reason;
} result;

typedef struct {
	u64 job, pool;
	i64 over, work;
	i32 priority;
	u32 flags;
	i32 runs, members, use[4];
} candidate_job;

_Static_assert(sizeof(header) == 128 && sizeof(entry) == 32 && sizeof(request) == 64 && sizeof(result) == 16 && sizeof(candidate_job) == 64, "layouts");

static char *arena;

static inline header *head(void) { return (header *)arena; }
static inline void *at(u32 offset) { return arena + offset; }

// column finds a column of the table, 0 when it has none.
static void *column(u32 id) {
	entry *e = at(head()->directory);
	for (u32 i = 0; i < head()->columns; i++)
		if (e[i].id == id) return at(e[i].offset);
	return 0;
}

i32 EXPORT(paceline_abi)(void) { return MAJOR << 16; }

char *EXPORT(paceline_arena)(i32 bytes) {
	i32 page = __builtin_wasm_memory_grow(0, (bytes + 65535) >> 16);
	if (page < 0) return 0;
	return arena = (char *)((u32)page << 16);
}

static inline i64 returns(i32 status, u32 count) { return (i64)(u64)status << 32 | count; }

#endif
