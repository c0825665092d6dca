//! What a client counts: reads and writes that programs (or a kernel's page cache) ask for, and bulk RPCs of each OST;
//! with the texts that tools of the field parse.
use std::cell::{Cell, RefCell};

use types::latency::{Latencies, Latency};
use types::metric::{Metric, Snapshot};
use types::stats::{self, Histogram, Samples, Scale};
use types::{Duration, WallTime};

/// Reads or writes asked of the client.
pub(crate) struct Calls {
    pub bytes: Samples,
    /// Microseconds of each.
    pub time: Samples,
    /// Pages of each.
    pub pages: Histogram,
}
impl Default for Calls {
    fn default() -> Calls {
        Calls { bytes: Samples::default(), time: Samples::default(), pages: Histogram::new(Scale::Doubling) }
    }
}
impl Calls {
    fn done(&mut self, bytes: u64, took: Duration) {
        self.bytes.add(bytes);
        self.time.add_time(took);
        self.pages.add(bytes.div_ceil(4096));
    }
    fn lines(&self, out: &mut String, kind: &str) {
        self.bytes.line(out, &format!("{kind}_bytes"), "bytes");
        self.time.line(out, kind, "usecs");
    }
}

/// Declares the kinds of calls with the names that pages and metrics give them.
macro_rules! calls {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// What a program asks of a file system.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Call { $($(#[doc = $doc])* $name,)* }
        impl Call {
            /// Its name in pages and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Call::$name => $text,)* } }
        }
    };
}

calls! {
    /// Bytes of a file.
    Read = "read",
    /// Bytes to a file.
    Write = "write",
    /// A name becomes an inode.
    Lookup = "lookup",
    /// Attributes.
    Getattr = "getattr",
    /// chmod, chown, truncate, utimens.
    Setattr = "setattr",
    /// Open of what is there.
    Open = "open",
    /// Open of a new file.
    Create = "create",
    /// close(2).
    Flush = "flush",
    /// The last descriptor went.
    Release = "release",
    /// fsync of a file or directory, and of everything.
    Fsync = "fsync",
    /// A directory's entries.
    Readdir = "readdir",
    /// Nodes that are no regular files, and those without a descriptor.
    Mknod = "mknod",
    /// A new directory.
    Mkdir = "mkdir",
    /// A symbolic link is made.
    Symlink = "symlink",
    /// A symbolic link is read.
    Readlink = "readlink",
    /// Another name.
    Link = "link",
    /// A name goes.
    Unlink = "unlink",
    /// A directory goes.
    Rmdir = "rmdir",
    /// A name becomes another one.
    Rename = "rename",
    /// An attribute's value, or the list of them.
    Getxattr = "getxattr",
    /// An attribute changes or goes.
    Setxattr = "setxattr",
    /// Space is reserved or given back.
    Fallocate = "fallocate",
    /// Bytes go from file to file.
    Copy = "copy_file_range",
    /// Where data and holes are.
    Seek = "lseek",
    /// Locks of files among programs, with the wait for them.
    Flock = "flock",
    /// Space of the file system.
    Statfs = "statfs",
}

/// Calls that came to a client: reads and writes, and how long calls of each kind took. (What a kernel answers from its own page
/// cache does not come.)
pub struct CallStats {
    since: Cell<WallTime>,
    calls: RefCell<[Calls; 2]>,
    latencies: RefCell<Latencies<Call>>,
}

impl CallStats {
    pub(crate) fn new(now: WallTime) -> CallStats {
        CallStats { since: Cell::new(now), calls: RefCell::default(), latencies: RefCell::default() }
    }
    pub(crate) fn read(&self, bytes: u64, took: Duration) {
        self.calls.borrow_mut()[0].done(bytes, took);
        self.called(Call::Read, took);
    }
    pub(crate) fn wrote(&self, bytes: u64, took: Duration) {
        self.calls.borrow_mut()[1].done(bytes, took);
        self.called(Call::Write, took);
    }
    /// A call of a program was answered after so long. Reads and writes are counted where they are carried out.
    pub fn called(&self, call: Call, took: Duration) {
        self.latencies.borrow_mut().add(call, took);
    }
    /// Counts from now on.
    pub fn reset(&self, now: WallTime) {
        self.since.set(now);
        *self.calls.borrow_mut() = <[Calls; 2]>::default();
        self.latencies.borrow_mut().clear();
    }
    /// Shows what was counted: reads, then writes.
    pub(crate) fn each<T>(&self, look: impl FnOnce(&[Calls; 2]) -> T) -> T {
        look(&self.calls.borrow())
    }
    /// `llite.*.stats`, with the pages that reads found in the cache and did not find ([`crate::PageCache::found`]).
    #[must_use]
    pub fn text(&self, now: WallTime, (hits, misses): (u64, u64)) -> String {
        let mut out = stats::times(self.since.get(), now);
        let [read, write] = &*self.calls.borrow();
        read.lines(&mut out, "read");
        write.lines(&mut out, "write");
        for (name, pages) in [("cache_hits", hits), ("cache_misses", misses)] {
            out += &format!("{name:<25} {pages} samples [pages]\n");
        }
        out
    }
    /// `llite.*.latency_stats`: how long calls of programs took, by kind.
    #[must_use]
    pub fn latency_text(&self, now: WallTime) -> String {
        self.latencies.borrow().text((self.since.get(), now), Call::name)
    }
    /// Adds how long calls took to a metric whose last label is their kind.
    pub(crate) fn measure(&self, metric: &'static Metric, at: [&str; 2], into: &mut Snapshot) {
        let latencies = self.latencies.borrow();
        latencies.measure(metric, &at, Call::name, into);
        // Series that are there from the start let the first call be seen as a change.
        for call in [Call::Read, Call::Write].into_iter().filter(|c| latencies.each().all(|(kind, _)| kind != *c)) {
            into.add(metric, &[at[0], at[1], call.name()], Latency::default().value());
        }
    }
    /// `llite.*.extents_stats`: sizes of the same reads and writes.
    #[must_use]
    pub fn extents_text(&self, now: WallTime) -> String {
        let mut out = String::new();
        stats::time_line(&mut out, "snapshot_time:", now);
        let [read, write] = &*self.calls.borrow();
        stats::size_table(&mut out, "extents", "calls", &read.pages, &write.pages);
        out
    }
}

/// Bulk RPCs of one direction.
struct Rpcs {
    calls: Calls,
    latency: Latency,
    in_flight: Histogram,
    offset: Histogram,
}
impl Default for Rpcs {
    fn default() -> Rpcs {
        let (in_flight, offset) = (Histogram::new(Scale::Each), Histogram::new(Scale::Doubling));
        Rpcs { calls: Calls::default(), latency: Latency::default(), in_flight, offset }
    }
}

/// Counters of one OST's traffic.
#[derive(Clone, Copy, Debug, Default)]
pub struct OscStats {
    /// Bulk read RPCs.
    pub read_rpcs: u64,
    /// Bytes they brought.
    pub read_bytes: u64,
    /// Bulk write RPCs.
    pub write_rpcs: u64,
    /// Bytes they took.
    pub write_bytes: u64,
}

/// Direction of a bulk RPC.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Read = 0,
    Write = 1,
}

/// The bulk RPCs of one OST.
pub(crate) struct RpcStats {
    since: Cell<WallTime>,
    flying: [Cell<u64>; 2],
    rpcs: RefCell<[Rpcs; 2]>,
}

/// A bulk RPC under way.
pub(crate) struct Flight<'a>(&'a Cell<u64>);
impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl RpcStats {
    pub(crate) fn new(now: WallTime) -> RpcStats {
        RpcStats { since: Cell::new(now), flying: Default::default(), rpcs: RefCell::default() }
    }
    /// An RPC of the object's pages from `page` on is sent.
    pub(crate) fn begin(&self, direction: Direction, page: u64) -> Flight<'_> {
        let flying = &self.flying[direction as usize];
        flying.set(flying.get() + 1);
        let rpcs = &mut self.rpcs.borrow_mut()[direction as usize];
        rpcs.in_flight.add(flying.get());
        rpcs.offset.add(page);
        Flight(flying)
    }
    /// It was answered well.
    pub(crate) fn done(&self, direction: Direction, bytes: u64, took: Duration) {
        let rpcs = &mut self.rpcs.borrow_mut()[direction as usize];
        rpcs.calls.done(bytes, took);
        rpcs.latency.add(took);
    }
    /// Shows what was counted of RPCs that were answered: reads, then writes; and how many are under way.
    pub(crate) fn each<T>(&self, look: impl FnOnce([(&Calls, &Latency, u64); 2]) -> T) -> T {
        let [read, write] = &*self.rpcs.borrow();
        look([(&read.calls, &read.latency, self.flying[0].get()), (&write.calls, &write.latency, self.flying[1].get())])
    }
    pub(crate) fn totals(&self) -> OscStats {
        let [read, write] = &*self.rpcs.borrow();
        let (read, write) = (read.calls.bytes, write.calls.bytes);
        OscStats { read_rpcs: read.count, read_bytes: read.sum, write_rpcs: write.count, write_bytes: write.sum }
    }
    pub(crate) fn reset(&self, now: WallTime) {
        self.since.set(now);
        *self.rpcs.borrow_mut() = <[Rpcs; 2]>::default();
    }
    /// `osc.*.stats`.
    pub(crate) fn text(&self, now: WallTime) -> String {
        let mut out = stats::times(self.since.get(), now);
        let [read, write] = &*self.rpcs.borrow();
        read.calls.lines(&mut out, "read");
        write.calls.lines(&mut out, "write");
        out
    }
    /// `osc.*.latency_stats`.
    pub(crate) fn latency_text(&self, now: WallTime) -> String {
        let mut out = stats::times(self.since.get(), now);
        let rpcs = &*self.rpcs.borrow();
        for (name, side) in ["read", "write"].iter().zip(rpcs) {
            side.latency.line(&mut out, name);
        }
        out
    }
    /// `osc.*.rpc_stats`, with `dirty` pages that wait to be written.
    pub(crate) fn rpc_text(&self, now: WallTime, dirty: u64) -> String {
        let mut out = String::new();
        stats::time_line(&mut out, "snapshot_time:", now);
        let [read, write] = &*self.rpcs.borrow();
        let facts = [
            ("read RPCs in flight:", self.flying[0].get()),
            ("write RPCs in flight:", self.flying[1].get()),
            ("pending write pages:", dirty),
        ];
        for (name, value) in facts {
            out += &format!("{name:<25} {value}\n");
        }
        stats::table(&mut out, "pages per rpc", "rpcs", &read.calls.pages, &write.calls.pages);
        stats::table(&mut out, "rpcs in flight", "rpcs", &read.in_flight, &write.in_flight);
        stats::table(&mut out, "offset", "rpcs", &read.offset, &write.offset);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpcs_are_counted_with_their_size_place_and_company() {
        let (s, ms) = (RpcStats::new(WallTime(0)), Duration::from_millis(1));
        let one = s.begin(Direction::Read, 0);
        let two = s.begin(Direction::Read, 1024);
        s.done(Direction::Read, 4 << 20, ms);
        drop(one);
        let text = s.rpc_text(WallTime(1), 7);
        assert!(
            text.contains("read RPCs in flight:      1\n") && text.contains("pending write pages:      7\n"),
            "{text}"
        );
        drop(two);
        let rows = |title: &str| {
            let part = text.split(title).nth(1).unwrap().lines().skip(1).take_while(|l| !l.is_empty());
            part.map(|l| l.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(rows("pages per rpc"), ["1024: 1"]);
        assert_eq!(rows("rpcs in flight  "), ["1: 1", "2: 1"]);
        assert_eq!(rows("offset").last().unwrap(), "1024: 1");
        assert_eq!((s.totals().read_rpcs, s.totals().read_bytes), (1, 4 << 20));
        assert!(s.text(WallTime(1)).contains("read_bytes                1 samples [bytes] 4194304 4194304 4194304 "));
        let latency = s.latency_text(WallTime(1));
        assert!(
            latency.contains("read                      1 samples [usecs] p50 1024 p90 1024 p99 1024 sum 1000 "),
            "{latency}"
        );
        s.reset(WallTime(2));
        assert_eq!(s.totals().read_rpcs, 0);
    }
}
