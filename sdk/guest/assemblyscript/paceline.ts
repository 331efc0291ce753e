// What a policy in AssemblyScript needs of docs/policy-abi.md, and placing by cost: each task of a request goes to the host with room whose cost is the least, the lowest row
// among equals, and costs are asked again of a host that took one. One scan serves a whole request.
//
// A policy extends Policy, and exports what is here for it:
//
//	export { paceline_abi, paceline_arena } from "./paceline";
//	export function paceline_place(requests: u32): i64 { return place(policy, requests); }
//	export function paceline_describe(): i64 { return describe("name fewest-tasks\nabi 1.0\nkinds place\ncolumns tasks free.*\n"); }
//
// The language has no custom sections; `paceline policy build` makes one of what paceline_describe returns.

// Columns. FREE and TOTAL are families: FREE + MEMORY, TOPOLOGY + 0.
export const FREE: u32 = 16;
export const TOTAL: u32 = 32;
export const DEVICE_WHOLE: u32 = 67;
export const DEVICE_LARGEST: u32 = 68;
export const FLAGS: u32 = 69;
export const TASKS: u32 = 70;
export const LEFTOVER: u32 = 71;
export const FREE_SHARE: u32 = 72;
export const PORTS: u32 = 73;
export const SLACK: u32 = 80;
export const USAGE: u32 = 96;
export const TOPOLOGY: u32 = 112;

// Kinds of resources; those that a cell names itself come after these.
export const CPU: u32 = 0;
export const MEMORY: u32 = 1;
export const DISK: u32 = 2;
export const GPU: u32 = 3;

const INT32: u8 = 2;
const BAD_HEADER: i32 = -2;
const TOP: i32 = 4096;
const MAX_CONDITIONS: i32 = 24;

@unmanaged
class Header {
  magic: u32;
  major: u16;
  minor: u16;
  epoch: u64;
  baseEpoch: u64;
  generation: u64;
  seed: u64;
  time: i64;
  rows: u32;
  capacity: u32;
  directory: u32;
  columns: u32;
  requests: u32;
  requestCount: u32;
  results: u32;
  resultCapacity: u32;
  config: u32;
  configBytes: u32;
  mix: u32;
  mixCount: u32;
  dirty: u32;
  dirtyCount: u32;
  extension: u32;
  extensionBytes: u32;
}

@unmanaged
class Entry {
  id: u32;
  type: u8;
  lanes: u8;
  shift: u8;
  flags: u8;
  offset: u32;
  stride: u32;
  rows: u32;
  zero: u32;
  key: u64;
}

// A request for room for count tasks that are alike.
@unmanaged
export class Request {
  class: u64;
  count: i32;
  flags: u32;
  bitmap: u32;
  bias: u32;
  cpu: i32;
  memory: i32;
  disk: i32;
  gpu: i32;
  share: i32;
  devices: i32;
  priority: i32;
  spread: u32;
  pool: u32;
  extension: u32;
}

@unmanaged
class Result {
  request: u16;
  count: u16;
  host: u32;
  score: f32;
  devices: u16;
  reason: u16;
}

// What a policy says of hosts.
export abstract class Policy {
  // Is called before each request, to look columns up. Where it returns false, nothing of the request is placed.
  abstract prepare(request: Request): bool;
  // The cost of one more task on a row, within 2^30 either way.
  abstract cost(row: u32): i32;
}

let arena: usize = 0;

// The memory of this module, which lives as long as it does.
const kept: usize = memory.data(8 * TOP); // of pairs cost, row
const columns: usize = memory.data(4 * MAX_CONDITIONS);
const needs: usize = memory.data(4 * MAX_CONDITIONS);
let size: i32 = 0;
let conditions: i32 = 0;
let bias: usize = 0;

export function paceline_abi(): i32 {
  return 1 << 16;
}

export function paceline_arena(bytes: u32): usize {
  arena = (heap.alloc(bytes + 64) + 63) & ~63;
  return arena;
}

// @ts-ignore: decorator
@inline
function header(): Header {
  return changetype<Header>(arena);
}

// rows is how many hosts there are, those that are gone among them.
export function rows(): u32 {
  return header().rows;
}

// column is the address of a column of int32, 0 when the table has none. The free columns and tasks follow what is taken in a call.
export function column(id: u32): usize {
  const h = header();
  for (let i: u32 = 0; i < h.columns; i++) {
    const e = changetype<Entry>(arena + h.directory + offsetof<Entry>() * i);
    if (e.id == id && e.type == INT32 && e.lanes == 1) return arena + e.offset;
  }
  return 0;
}

// value is what a column holds for a row.
// @ts-ignore: decorator
@inline
export function value(column: usize, row: u32): i32 {
  return load<i32>(column + (<usize>row << 2));
}

function require(column: usize, need: i32): void {
  if (need <= 0 || column == 0 || conditions == MAX_CONDITIONS) return;
  store<usize>(columns + (conditions << 2), column);
  store<i32>(needs + (conditions << 2), need);
  conditions++;
}

function meets(row: u32, count: i32): bool {
  for (let i = 0; i < count; i++) {
    if (value(load<usize>(columns + (i << 2)), row) < load<i32>(needs + (i << 2))) return false;
  }
  return true;
}

// @ts-ignore: decorator
@inline
function costAt(i: i32): i32 {
  return load<i32>(kept + (i << 3));
}

// @ts-ignore: decorator
@inline
function rowAt(i: i32): u32 {
  return load<u32>(kept + (i << 3), 4);
}

// @ts-ignore: decorator
@inline
function before(i: i32, j: i32): bool {
  return costAt(i) < costAt(j) || (costAt(i) == costAt(j) && rowAt(i) < rowAt(j));
}

function put(i: i32, cost: i32, row: u32): void {
  store<i32>(kept + (i << 3), cost);
  store<u32>(kept + (i << 3), row, 4);
}

function swap(i: i32, j: i32): void {
  const cost = costAt(i);
  const row = rowAt(i);
  put(i, costAt(j), rowAt(j));
  put(j, cost, row);
}

// sink restores the heap below i: the last of all on top, or with best the first.
function sink(i: i32, best: bool): void {
  for (;;) {
    let child = 2 * i + 1;
    if (child + 1 < size && before(child + 1, child) == best) child++;
    if (child >= size || before(child, i) != best) return;
    swap(i, child);
    i = child;
  }
}

function offer(cost: i32, row: u32, limit: i32): void {
  if (size == limit) {
    put(0, cost, row);
    sink(0, false);
    return;
  }
  let i = size++;
  put(i, cost, row);
  while (i > 0 && before((i - 1) >> 1, i)) {
    swap(i, (i - 1) >> 1);
    i = (i - 1) >> 1;
  }
}

// @ts-ignore: decorator
@inline
function priceOf(policy: Policy, row: u32): i32 {
  return policy.cost(row) + (bias ? value(bias, row) : 0);
}

// scan keeps the cheapest hosts with room: as many as there are tasks, for no other can win.
function scan(policy: Policy, open: usize, limit: i32): void {
  const n = rows();
  for (let row: u32 = 0; row < n; row++) {
    if (!((load<u8>(open + (row >> 3)) >> <u8>(row & 7)) & 1) || !meets(row, conditions)) continue;
    const cost = priceOf(policy, row);
    if (size < limit || cost < costAt(0)) offer(cost, row, limit);
  }
}

// extend reads what stands behind a request: needs of named resources.
function extend(request: Request): void {
  if (!request.extension) return;
  for (let at = arena + request.extension; ; ) {
    const tag = load<u16>(at);
    const bytes = <usize>load<u16>(at, 2);
    if (tag == 0) return;
    if (tag == 1) require(column(FREE + load<u32>(at, 4)), load<i32>(at, 8));
    at += 4 + ((bytes + 3) & ~3);
  }
}

function serve(policy: Policy, request: Request, index: u32, n: u32): u32 {
  const h = header();
  size = 0;
  conditions = 0;
  bias = request.bias ? arena + request.bias : 0;
  require(column(FREE + CPU), request.cpu);
  require(column(FREE + MEMORY), request.memory);
  require(column(FREE + DISK), request.disk);
  require(column(FREE + GPU), request.gpu);
  extend(request);
  const lasting = conditions; // these fall as tasks are taken
  if (request.devices > 0) {
    if (request.share == 1000) require(column(DEVICE_WHOLE), request.devices);
    else require(column(DEVICE_LARGEST), request.share);
  }
  scan(policy, arena + request.bitmap, min(request.count, TOP));
  for (let i = size / 2 - 1; i >= 0; i--) sink(i, true);
  const tasks = column(TASKS);
  for (let left = request.count; left > 0 && size > 0 && n < h.resultCapacity; ) {
    const row = rowAt(0);
    if (!meets(row, lasting)) {
      size--;
      put(0, costAt(size), rowAt(size));
      sink(0, true);
      continue;
    }
    const r = changetype<Result>(arena + h.results + offsetof<Result>() * n++);
    r.request = <u16>index;
    r.count = 1;
    r.host = row;
    r.score = <f32>costAt(0);
    r.devices = 0;
    r.reason = 0;
    left--;
    for (let i = 0; i < lasting; i++) {
      const at = load<usize>(columns + (i << 2)) + (<usize>row << 2);
      store<i32>(at, load<i32>(at) - load<i32>(needs + (i << 2)));
    }
    if (tasks) store<i32>(tasks + (<usize>row << 2), value(tasks, row) + 1);
    put(0, priceOf(policy, row), row);
    sink(0, true);
  }
  return n;
}

// describe returns the lines of the custom section, the first put before them.
export function describe(lines: string): i64 {
  const text = String.UTF8.encode("paceline.policy 1\n" + lines);
  return (<i64>changetype<usize>(text) << 32) | <i64>text.byteLength;
}

// place serves every request of a call; what it returns, paceline_place returns.
export function place(policy: Policy, requests: u32): i64 {
  const h = header();
  if (h.major != 1) return <i64>BAD_HEADER << 32;
  let n: u32 = 0;
  for (let i: u32 = 0; i < requests; i++) {
    const request = changetype<Request>(arena + h.requests + offsetof<Request>() * i);
    if (policy.prepare(request)) n = serve(policy, request, i, n);
  }
  return <i64>n;
}
