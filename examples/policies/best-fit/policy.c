// Best fit: each task goes to the host where the least is left over, so that large tasks still find room elsewhere. With SIMD it looks at four hosts at a time.
#include <wasm_simd128.h>

#include "paceline.h"

CAPABILITY(LINE("name best-fit-c") LINE("version 1.0.0") LINE("abi 1.0") LINE("kinds place")
	LINE("columns leftover free.* device_free device_model device_whole device_largest") LINE("sdk c 1.0.0"));

static const i32 *leftover; // what is free of a host, as a share of the largest host's

static int prepare(const request *r) {
	(void)r;
	leftover = column(LEFTOVER);
	return leftover != 0;
}

static i32 cost(u32 row) { return leftover[row]; }

#define COST4(row) wasm_v128_load(leftover + (row))

#include "paceline_place.h"
