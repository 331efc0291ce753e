// Package fuel rewrites WebAssembly modules so that whoever runs them can bound what they do, exactly and the same way every time.
//
// The rewritten module has one more global, a counter that the host sets before a call and finds lowered after it. Code lowers it
//
//   - at the entry of a function, by the instructions of the function outside its loops and an eighth of its locals,
//   - at the head of a loop, each time round, by the instructions of the loop outside the loops in it,
//   - before an instruction that works on a stretch of memory or a table, by the stretch: an eighth of its bytes, or its elements; growing memory counts
//     as writing all of it,
//
// and traps as soon as it is below zero. Every way to go on without end passes one of these points. What is charged depends on the code and its input only, not on the machine:
// a loop pays for a branch that it does not take, so the counter bounds the instructions executed and is not their number.
//
// Everything else stays as it was: names, other custom sections, the numbers of functions, tables and globals. Debugging sections are left out, since what they say of
// positions in code is no longer so.
//
// It takes what the core specification of WebAssembly 2.0 has (MVP, sign extension, saturating conversions, bulk memory, multiple values, reference types, 128-bit
// SIMD) and refuses the rest by name: threads, tail calls, exceptions, 64-bit and several memories, relaxed SIMD, garbage-collected types. It does not
// validate: a module that is not valid gives one that is not valid either, or an error. Whoever compiles the result finds out. But whatever a module announces is held
// to limits and to the bytes that are there, so that a compiler does not make room for lists of billions.
//
// The package is pure. Rewrite may be called concurrently.
package fuel
