// What a policy in C needs of docs/policy-abi.md: the layouts, the columns, and the exports that every policy has. paceline_place.h places with it.
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
// CAPABILITY(LINE("name ...") LINE("abi 1.0") LINE("kinds place") ...) is what the policy says of itself: the lines of the custom section.
#define LINE(text) ".ascii \"" text "\\n\"\n"
#define CAPABILITY(lines) __asm__(".section .custom_section.paceline.policy,\"\",@\n" LINE("paceline.policy 1") lines)

enum { MAJOR = 1, MINOR = 0 };

// Columns. FREE, TOTAL, INVERSE and the like are families: FREE + MEMORY, TOPOLOGY + 0.
enum {
	FREE = 16,
	TOTAL = 32,
	INVERSE = 48,
	DEVICE_FREE = 64,
	DEVICE_TOTAL = 65,
	DEVICE_MODEL = 66,
	DEVICE_WHOLE = 67,
	DEVICE_LARGEST = 68,
	FLAGS = 69,
	TASKS = 70,
	LEFTOVER = 71,
	FREE_SHARE = 72,
	PORTS = 73,
	VERSION = 74,
	HOST = 75,
	SLACK = 80,
	USAGE = 96,
	TOPOLOGY = 112,
	// of pools
	POOL = 512,
	PARENT = 513,
	RESERVATION = 528,
	LIMIT = 544,
	SHARE = 560,
	DEMAND = 576,
	POOL_USAGE = 592,
	ENTITLEMENT = 608,
	CAPACITY = 624,
	// of clusters
	CLUSTER = 640,
	PLACEABLE = 641,
	WAITING = 642,
	PRICE = 643,
};

// Kinds of resources; those that a cell names itself come after these.
enum { CPU, MEMORY, DISK, GPU, KINDS = 16 };

enum { LANES = 16, WHOLE_DEVICE = 1000 };

// Flags of requests.
enum { ALL_OR_NONE = 1, EXCLUSIVE = 2, REVOCABLE = 4, ONE_HOST = 8, PLANNING = 16, ONE_EACH = 32 };

// Statuses.
enum { OK = 0, UNSUPPORTED = -1, BAD_HEADER = -2, BAD_CONFIG = -3, NO_MEMORY = -4, INTERNAL = -5 };

static const u32 ALL_DIRTY = 0xffffffff, NO_ROW = 0xffffffff;

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

i32 EXPORT(paceline_abi)(void) { return MAJOR << 16 | MINOR; }

char *EXPORT(paceline_arena)(i32 bytes) {
	i32 page = __builtin_wasm_memory_grow(0, (bytes + 65535) >> 16);
	if (page < 0) return 0;
	return arena = (char *)((u32)page << 16);
}

// returns is what a call returns.
static inline i64 returns(i32 status, u32 count) { return (i64)((u64)(u32)status << 32 | count); }

#endif
