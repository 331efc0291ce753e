#!/bin/sh
# Compiles the guests beside it; needs clang with the WebAssembly target, and wasm-ld.
set -eu
cd "$(dirname "$0")"
build() {
	name=$1
	shift
	clang --target=wasm32 -O2 -nostdlib -mbulk-memory -Wall -Wno-unused -Wl,--no-entry -Wl,--strip-all "-DNAME=\"$name\"" "$@" -o "$name.wasm" hostile.c
}
build firstfit
build trap -DTRAP
build loop -DLOOP
build bomb -DBOMB
build rows -DROWS
build lazy -DLAZY
# The seeds are the first draws of SplitMix64 from 0 and 42, which modules are tried with.
build start -DSTART -DSEED_LOAD="${SEED_LOAD:-16294208416658607535}ull" -DSEED_KIT="${SEED_KIT:-13679457532755275413}ull"
