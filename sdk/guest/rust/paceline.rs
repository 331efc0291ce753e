//! What a policy in Rust needs of docs/policy-abi.md, and placing by cost: each task of a request goes to the host with room whose cost is the least, the lowest row among
//! equals, and costs are asked again of a host that took one. One scan serves a whole request. It wants no crates and works from Rust 1.63 on.
#![allow(dead_code)]

use core::cell::{Cell, UnsafeCell};

// Columns. FREE, TOTAL and the like are families: FREE + MEMORY, TOPOLOGY + 0.
pub const FREE: u32 = 16;
pub const TOTAL: u32 = 32;
pub const DEVICE_WHOLE: u32 = 67;
pub const DEVICE_LARGEST: u32 = 68;
pub const FLAGS: u32 = 69;
pub const TASKS: u32 = 70;
pub const LEFTOVER: u32 = 71;
pub const FREE_SHARE: u32 = 72;
pub const PORTS: u32 = 73;
pub const SLACK: u32 = 80;
pub const USAGE: u32 = 96;
pub const TOPOLOGY: u32 = 112;

// Kinds of resources; those that a cell names itself come after these.
pub const CPU: u32 = 0;
pub const MEMORY: u32 = 1;
pub const DISK: u32 = 2;
pub const GPU: u32 = 3;
const KINDS: usize = 16;

/// What leftover and free_share are parts of, and a bound of costs.
pub const WHOLE: i32 = 1 << 30;

// Statuses.
pub const UNSUPPORTED: i32 = -1;
const BAD_HEADER: i32 = -2;

pub const VERSION: i32 = 1 << 16;
const INT32: u8 = 2;

#[repr(C)]
struct Header {
    magic: u32,
    major: u16,
    minor: u16,
    epoch: u64,
    base_epoch: u64,
    generation: u64,
    seed: u64,
    time: i64,
    rows: u32,
    capacity: u32,
    directory: u32,
    columns: u32,
    requests: u32,
    request_count: u32,
    results: u32,
    result_capacity: u32,
    config: u32,
    config_bytes: u32,
    mix: u32,
    mix_count: u32,
    dirty: u32,
    dirty_count: u32,
    extension: u32,
    extension_bytes: u32,
    scratch: u32,
    scratch_bytes: u32,
    kind: u32,
    total: u32,
}

#[repr(C)]
struct Entry {
    id: u32,
    element: u8,
    lanes: u8,
    shift: u8,
    flags: u8,
    offset: u32,
    stride: u32,
    rows: u32,
    zero: u32,
    key: u64,
}

/// A request for room for `count` tasks that are alike.
#[repr(C)]
pub struct Request {
    pub class: u64,
    pub count: i32,
    pub flags: u32,
    bitmap: u32,
    bias: u32,
    /// Of CPU, memory, disk and GPU.
    pub needs: [i32; 4],
    pub share: i32,
    pub devices: i32,
    pub priority: i32,
    pub spread: u32,
    pub pool: u32,
    extension: u32,
}

#[repr(C)]
struct Answer {
    request: u16,
    count: u16,
    host: u32,
    score: f32,
    devices: u16,
    reason: u16,
}

/// A column of int32, by row. The free columns and tasks follow what is taken in a call.
pub type Column = &'static [Cell<i32>];

/// What a policy says of hosts.
pub trait Policy {
    /// Is called before each request, to look columns up. Where it returns false, nothing of the request is placed.
    fn prepare(&mut self, table: &Table, request: &Request) -> bool;
    /// The cost of one more task on a row, within 2^30 either way.
    fn cost(&self, row: usize) -> i32;
}

#[derive(Clone, Copy)]
struct Candidate {
    cost: i32,
    row: u32,
}

impl Candidate {
    fn before(self, other: Candidate) -> bool {
        (self.cost, self.row) < (other.cost, other.row)
    }
}

const TOP: usize = 4096;

/// What lives from call to call. A guest has one thread.
struct Memory<T>(UnsafeCell<T>);
unsafe impl<T> Sync for Memory<T> {}

static ARENA: Memory<usize> = Memory(UnsafeCell::new(0));
static HEAP: Memory<[Candidate; TOP]> = Memory(UnsafeCell::new([Candidate { cost: 0, row: 0 }; TOP]));

/// The table of hosts, as the arena has it.
#[derive(Clone, Copy)]
pub struct Table {
    base: usize,
}

impl Table {
    /// Some place of the arena as a value of another type. The layout is the host's, and it puts every section at a multiple of 64.
    fn at<T>(&self, offset: u32) -> *mut T {
        (self.base + offset as usize) as *mut T
    }

    fn header(&self) -> &'static Header {
        unsafe { &*self.at(0) }
    }

    pub fn rows(&self) -> usize {
        self.header().rows as usize
    }

    /// Milliseconds, the only clock.
    pub fn time(&self) -> i64 {
        self.header().time
    }

    /// The only randomness.
    pub fn seed(&self) -> u64 {
        self.header().seed
    }

    /// A column of int32 by its id, None where the table has none.
    pub fn column(&self, id: u32) -> Option<Column> {
        let h = self.header();
        for i in 0..h.columns {
            let e: &Entry = unsafe { &*self.at(h.directory + 32 * i) };
            if e.id == id && e.element == INT32 && e.lanes == 1 {
                return Some(unsafe { core::slice::from_raw_parts(self.at(e.offset), h.rows as usize) });
            }
        }
        None
    }
}

/// What a host must have at least of a column.
#[derive(Clone, Copy)]
struct Condition {
    column: Column,
    need: i32,
}

struct Search<'a, P: Policy> {
    table: Table,
    policy: &'a P,
    bias: Option<Column>,
    conditions: [Condition; KINDS + 1],
    count: usize,
    heap: &'a mut [Candidate; TOP],
    size: usize,
}

impl<'a, P: Policy> Search<'a, P> {
    fn require(&mut self, column: Option<Column>, need: i32) {
        if let (Some(column), true) = (column, need > 0 && self.count < KINDS + 1) {
            self.conditions[self.count] = Condition { column, need };
            self.count += 1;
        }
    }

    fn fits(&self, row: usize) -> bool {
        self.conditions[..self.count].iter().all(|c| c.column[row].get() >= c.need)
    }

    fn cost(&self, row: usize) -> i32 {
        let bias = match self.bias {
            Some(bias) => bias[row].get(),
            None => 0,
        };
        self.policy.cost(row).wrapping_add(bias)
    }

    /// Restores the heap below i: the last of all on top, or with `best` the first.
    fn sink(&mut self, mut i: usize, best: bool) {
        let above = |a: Candidate, b: Candidate| if best { a.before(b) } else { b.before(a) };
        loop {
            let mut child = 2 * i + 1;
            if child + 1 < self.size && above(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            if child >= self.size || !above(self.heap[child], self.heap[i]) {
                return;
            }
            self.heap.swap(i, child);
            i = child;
        }
    }

    fn offer(&mut self, c: Candidate, limit: usize) {
        if self.size == limit {
            if c.before(self.heap[0]) {
                self.heap[0] = c;
                self.sink(0, false);
            }
            return;
        }
        let mut i = self.size;
        self.heap[i] = c;
        self.size += 1;
        while i > 0 && self.heap[(i - 1) / 2].before(self.heap[i]) {
            self.heap.swap(i, (i - 1) / 2);
            i = (i - 1) / 2;
        }
    }

    /// Keeps the cheapest hosts with room: as many as there are tasks, for no other can win.
    fn scan(&mut self, open: &[u8], limit: usize) {
        for row in 0..self.table.rows() {
            if open[row / 8] >> (row % 8) & 1 == 0 || !self.fits(row) {
                continue;
            }
            let cost = self.cost(row);
            if self.size < limit || cost < self.heap[0].cost {
                self.offer(Candidate { cost, row: row as u32 }, limit);
            }
        }
    }

    fn drop_first(&mut self) {
        self.size -= 1;
        self.heap[0] = self.heap[self.size];
        self.sink(0, true);
    }
}

/// Reads what stands behind a request: needs of named resources.
fn named(table: &Table, r: &Request, mut each: impl FnMut(u32, i32)) {
    let mut at = r.extension;
    while at != 0 {
        let [tag, bytes]: [u16; 2] = unsafe { *table.at(at) };
        match tag {
            0 => return,
            1 => {
                let (kind, amount): (u32, i32) = unsafe { (*table.at(at + 4), *table.at(at + 8)) };
                each(kind, amount);
            }
            _ => {}
        }
        at += 4 + (bytes as u32 + 3 & !3);
    }
}

/// Places every request of a call; `policy!` calls it.
pub fn place<P: Policy>(policy: &mut P, requests: u32) -> i64 {
    let table = Table { base: unsafe { *ARENA.0.get() } };
    let h = table.header();
    if h.major != 1 {
        return returns(BAD_HEADER, 0);
    }
    let mut n = 0;
    for index in 0..requests {
        let r: &'static Request = unsafe { &*table.at(h.requests + 64 * index) };
        if policy.prepare(&table, r) {
            n = serve(&table, policy, r, index, n);
        }
    }
    returns(0, n)
}

fn serve<P: Policy>(table: &Table, policy: &P, r: &Request, index: u32, mut n: u32) -> u32 {
    let h = table.header();
    let free = |kind: u32| table.column(FREE + kind);
    let bias = match r.bias {
        0 => None,
        offset => Some(unsafe { core::slice::from_raw_parts(table.at::<Cell<i32>>(offset), h.rows as usize) }),
    };
    let heap = unsafe { &mut *HEAP.0.get() };
    let mut s = Search { table: *table, policy, bias, conditions: [Condition { column: &[], need: 0 }; KINDS + 1], count: 0, heap, size: 0 };
    for kind in 0..4 {
        s.require(free(kind), r.needs[kind as usize]);
    }
    named(table, r, |kind, amount| s.require(free(kind), amount));
    let lasting = s.count; // these fall as tasks are taken
    if r.devices > 0 && r.share == 1000 {
        s.require(table.column(DEVICE_WHOLE), r.devices);
    } else if r.devices > 0 {
        s.require(table.column(DEVICE_LARGEST), r.share);
    }
    let open = unsafe { core::slice::from_raw_parts(table.at::<u8>(r.bitmap), h.capacity as usize / 8) };
    s.scan(open, TOP.min(r.count.max(0) as usize));
    for i in (0..s.size / 2).rev() {
        s.sink(i, true);
    }
    let tasks = table.column(TASKS);
    let mut left = r.count;
    while left > 0 && s.size > 0 && n < h.result_capacity {
        let Candidate { row, .. } = s.heap[0];
        let at = row as usize;
        if !s.conditions[..lasting].iter().all(|c| c.column[at].get() >= c.need) {
            s.drop_first();
            continue;
        }
        let answer = Answer { request: index as u16, count: 1, host: row, score: s.heap[0].cost as f32, devices: 0, reason: 0 };
        unsafe { *table.at(h.results + 16 * n) = answer };
        n += 1;
        left -= 1;
        for c in &s.conditions[..lasting] {
            c.column[at].set(c.column[at].get() - c.need);
        }
        if let Some(tasks) = tasks {
            tasks[at].set(tasks[at].get() + 1);
        }
        s.heap[0].cost = s.cost(at);
        s.sink(0, true);
    }
    n
}

/// What a call returns.
pub fn returns(status: i32, count: u32) -> i64 {
    (status as u32 as i64) << 32 | count as i64
}

#[cfg(target_arch = "wasm32")]
#[no_mangle]
pub extern "C" fn paceline_abi() -> i32 {
    VERSION
}

#[cfg(target_arch = "wasm32")]
#[no_mangle]
pub extern "C" fn paceline_arena(bytes: i32) -> usize {
    let page = core::arch::wasm32::memory_grow(0, (bytes as usize + 0xffff) >> 16);
    if page == usize::MAX {
        return 0;
    }
    unsafe { *ARENA.0.get() = page << 16 };
    page << 16
}

#[cfg(all(target_arch = "wasm32", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}

/// `policy!("name best-fit\nabi 1.0\nkinds place\ncolumns leftover free.*\n", MyPolicy::new())` makes a policy of a crate: the lines of the custom section without the first, and
/// the policy that each call begins with.
#[macro_export]
macro_rules! policy {
    ($lines:expr, $policy:expr) => {
        const TEXT: &[u8] = concat!("paceline.policy 1\n", $lines).as_bytes();

        #[cfg(target_arch = "wasm32")]
        #[link_section = "paceline.policy"]
        #[used]
        static SECTION: [u8; TEXT.len()] = {
            let mut section = [0; TEXT.len()];
            let mut i = 0;
            while i < section.len() {
                section[i] = TEXT[i];
                i += 1;
            }
            section
        };

        #[cfg(target_arch = "wasm32")]
        #[no_mangle]
        pub extern "C" fn paceline_place(requests: u32) -> i64 {
            paceline::place(&mut $policy, requests)
        }
    };
}
