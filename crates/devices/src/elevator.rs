//! Block-device elevators: what reaches the disk next, and what is merged on the way.
//!
//! `paper001`: the elevator of the calibrated hardware model. An empty elevator that gets a request is plugged: nothing
//! is handed to the disk until 8 requests have come or 3 ms have passed; then everything is drained, sorted, into a
//! FIFO driver queue. Back merges (a merged request that closes a gap joins the one behind it, too), front merges with the
//! newest only, at most 4 MiB a request. That the plug stops the driver as well, and that it counts what came and not what
//! was left after merging, are the readings under which paper 001's Figure 5 and Table 1 come out.
//! `deadline`: batches in sector order, reads before writes, each with an expiry. `cscan`: one-way sweep over at most
//! `depth` requests; one that waited for `expire_ns` is next, because an allocator that always allocates ahead of the head
//! would keep the sweep from ever coming back. `noop`: FIFO with back merges into any waiting request.
//! Source: paper 001 and the block layers of its time. Deliberately not here: time of service (see `disk`).
use alloc::{collections::VecDeque, format, string::String, vec::Vec};

/// Which elevator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ElevatorKind {
    /// Plugged, then drained in sorted batches.
    #[default]
    Paper001,
    /// Sorted batches with expiries.
    Deadline,
    /// One-way sweep.
    Cscan,
    /// First in, first out.
    Noop,
}

impl ElevatorKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        ElevatorKind::NAMES[self as usize]
    }
    /// The names `elevator.kind` takes.
    pub const NAMES: [&'static str; 4] = ["paper001", "deadline", "cscan", "noop"];
    /// The kind called `name`.
    ///
    /// # Errors
    /// A sentence listing the names.
    pub fn named(name: &str) -> Result<ElevatorKind, String> {
        match name {
            "paper001" => Ok(ElevatorKind::Paper001),
            "deadline" => Ok(ElevatorKind::Deadline),
            "cscan" => Ok(ElevatorKind::Cscan),
            "noop" => Ok(ElevatorKind::Noop),
            _ => Err(format!("'{name}' is not an elevator; there are: {}", Self::NAMES.join(", "))),
        }
    }
}

/// Parameters of an elevator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElevatorConfig {
    /// Which.
    pub kind: ElevatorKind,
    /// Requests that `cscan` and `deadline` sort at once; what comes on top waits in order of arrival. >= 1.
    pub depth: u32,
    /// Largest block request in bytes: 4 MiB in the calibrated model.
    pub request_bytes_max: u64,
    /// Requests that unplug `paper001`: 8.
    pub plug_requests: u32,
    /// Time that unplugs `paper001`: 3 ms.
    pub plug_ns: u64,
    /// Wait after which `cscan` serves a request out of turn: 5 s, Linux's for writes.
    pub expire_ns: u64,
}

impl Default for ElevatorConfig {
    fn default() -> Self {
        ElevatorConfig {
            kind: ElevatorKind::Paper001,
            depth: 128,
            request_bytes_max: 4 << 20,
            plug_requests: 8,
            plug_ns: 3_000_000,
            expire_ns: 5_000_000_000,
        }
    }
}

/// End of a list of pieces.
pub const NO_PIECE: u32 = u32::MAX;

/// A part of an RPC that is contiguous on the medium.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Whose.
    pub owner: u32,
    next: u32,
}

/// All pieces in an elevator or in service, linked per block request.
#[derive(Clone, Debug)]
pub struct Pieces {
    items: Vec<Piece>,
    free: u32,
}

impl Default for Pieces {
    fn default() -> Self {
        Pieces { items: Vec::new(), free: NO_PIECE }
    }
}

impl Pieces {
    fn take(&mut self, owner: u32) -> u32 {
        if self.free == NO_PIECE {
            self.items.push(Piece { owner, next: NO_PIECE });
            return (self.items.len() - 1) as u32;
        }
        let i = self.free;
        self.free = self.items[i as usize].next;
        self.items[i as usize] = Piece { owner, next: NO_PIECE };
        i
    }
    /// Frees the pieces of `request`, calling `owner` for each in the order of the medium.
    pub fn release(&mut self, request: &BlockRequest, mut owner: impl FnMut(u32)) {
        let mut i = request.first;
        while i != NO_PIECE {
            let piece = self.items[i as usize];
            owner(piece.owner);
            self.items[i as usize].next = self.free;
            self.free = i;
            i = piece.next;
        }
    }
}

/// A request to the disk: one or more pieces, contiguous on the medium.
#[derive(Clone, Copy, Debug)]
pub struct BlockRequest {
    /// First byte on the medium.
    pub lba: u64,
    /// Bytes.
    pub len: u64,
    /// When its oldest piece came.
    pub since: u64,
    first: u32,
    last: u32,
    /// Writes.
    pub write: bool,
}

impl BlockRequest {
    fn end(&self) -> u64 {
        self.lba + self.len
    }
}

/// Expiries and batch of `deadline`, as Linux ships them: 500 ms for reads, 5 s for writes, 16 in a batch, writes pass
/// after two batches of reads.
const READ_EXPIRE_NS: u64 = 500_000_000;
const WRITE_EXPIRE_NS: u64 = 5_000_000_000;
const BATCH: u32 = 16;
const WRITES_STARVED: u32 = 2;

/// One disk's queue.
#[derive(Clone, Debug)]
pub struct Elevator {
    config: ElevatorConfig,
    /// `paper001`: pending while plugged, in order of arrival. `cscan`, `deadline`: ascending by lba.
    pending: Vec<BlockRequest>,
    /// `paper001`: the driver's queue. `noop`: the queue. `cscan`, `deadline`: what exceeds `depth`.
    fifo: VecDeque<BlockRequest>,
    plugged_until: Option<u64>,
    /// Pieces that came since the plug was set.
    plugged_pieces: u32,
    /// One past the byte handed out last.
    head: u64,
    batch_left: u32,
    batch_writes: bool,
    starved: u32,
    merged: u64,
}

impl Elevator {
    /// An empty queue.
    #[must_use]
    pub fn new(config: ElevatorConfig) -> Elevator {
        Elevator {
            config,
            pending: Vec::new(),
            fifo: VecDeque::new(),
            plugged_until: None,
            plugged_pieces: 0,
            head: 0,
            batch_left: 0,
            batch_writes: false,
            starved: 0,
            merged: 0,
        }
    }
    /// Requests that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.pending.len() + self.fifo.len()
    }
    /// Pieces that joined a waiting request.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.merged
    }
    /// Takes a piece of `owner` in. Answers when [`Elevator::on_timer`] must be called, if this piece plugged the queue.
    pub fn add(&mut self, now: u64, owner: u32, lba: u64, len: u64, write: bool, pieces: &mut Pieces) -> Option<u64> {
        if self.try_merge(owner, lba, len, write, pieces) {
            self.merged += 1;
            if self.plugged_until.is_some() {
                self.count_plugged();
            }
            return None;
        }
        let piece = pieces.take(owner);
        let request = BlockRequest { lba, len, since: now, first: piece, last: piece, write };
        match self.config.kind {
            ElevatorKind::Noop => self.fifo.push_back(request),
            ElevatorKind::Cscan | ElevatorKind::Deadline => {
                if self.pending.len() < self.config.depth as usize {
                    self.insert_sorted(request);
                } else {
                    self.fifo.push_back(request);
                }
            }
            ElevatorKind::Paper001 => return self.add_plugged(now, request),
        }
        None
    }
    /// The plug's time may have passed.
    pub fn on_timer(&mut self, now: u64) {
        if self.plugged_until.is_some_and(|t| t <= now) {
            self.unplug();
        }
    }
    /// The request that the disk gets now.
    pub fn next(&mut self, now: u64) -> Option<BlockRequest> {
        let request = match self.config.kind {
            ElevatorKind::Noop => self.fifo.pop_front(),
            ElevatorKind::Paper001 if self.plugged_until.is_some() => None,
            ElevatorKind::Paper001 => self.fifo.pop_front(),
            ElevatorKind::Cscan => self.next_swept(now),
            ElevatorKind::Deadline => self.next_by_deadline(now),
        }?;
        self.head = request.end();
        Some(request)
    }

    fn add_plugged(&mut self, now: u64, request: BlockRequest) -> Option<u64> {
        let mut timer = None;
        if self.pending.is_empty() {
            timer = Some(now + self.config.plug_ns);
            self.plugged_until = timer;
        }
        self.pending.push(request);
        self.count_plugged();
        timer.filter(|_| self.plugged_until.is_some())
    }

    fn count_plugged(&mut self) {
        self.plugged_pieces += 1;
        if self.plugged_pieces >= self.config.plug_requests {
            self.unplug();
        }
    }

    fn unplug(&mut self) {
        self.plugged_until = None;
        self.plugged_pieces = 0;
        self.pending.sort_by_key(|r| r.lba);
        self.fifo.extend(self.pending.drain(..));
    }

    fn insert_sorted(&mut self, request: BlockRequest) {
        let i = self.pending.partition_point(|r| r.lba < request.lba);
        self.pending.insert(i, request);
    }

    /// Fills the sorted window from the waiting ones.
    fn take_out(&mut self, i: usize) -> BlockRequest {
        let request = self.pending.remove(i);
        if self.config.kind != ElevatorKind::Paper001
            && let Some(waiting) = self.fifo.pop_front()
        {
            self.insert_sorted(waiting);
        }
        request
    }

    fn next_swept(&mut self, now: u64) -> Option<BlockRequest> {
        let (since, oldest) = self.pending.iter().enumerate().map(|(i, r)| (r.since, i)).min()?;
        if now >= since + self.config.expire_ns {
            return Some(self.take_out(oldest));
        }
        let i = self.pending.partition_point(|r| r.lba < self.head);
        Some(self.take_out(if i < self.pending.len() { i } else { 0 }))
    }

    fn next_by_deadline(&mut self, now: u64) -> Option<BlockRequest> {
        let (mut reads, mut writes, mut oldest) = (0, 0, [(u64::MAX, 0); 2]);
        for (i, r) in self.pending.iter().enumerate() {
            let dir = usize::from(r.write);
            *(if r.write { &mut writes } else { &mut reads }) += 1;
            oldest[dir] = oldest[dir].min((r.since, i));
        }
        if reads + writes == 0 {
            return None;
        }
        let has = |w: bool| if w { writes > 0 } else { reads > 0 };
        if self.batch_left > 0
            && has(self.batch_writes)
            && let Some(i) = self.pending.iter().position(|r| r.write == self.batch_writes && r.lba >= self.head)
        {
            self.batch_left -= 1;
            return Some(self.take_out(i));
        }
        let write = reads == 0 || (writes > 0 && self.starved >= WRITES_STARVED);
        self.starved = if write || writes == 0 { 0 } else { self.starved + 1 };
        (self.batch_writes, self.batch_left) = (write, BATCH - 1);
        let (since, eldest) = oldest[usize::from(write)];
        let expiry = if write { WRITE_EXPIRE_NS } else { READ_EXPIRE_NS };
        let swept = self.pending.iter().position(|r| r.write == write && r.lba >= self.head);
        let first = self.pending.iter().position(|r| r.write == write);
        let i = if now >= since + expiry { Some(eldest) } else { swept.or(first) };
        i.map(|i| self.take_out(i))
    }

    /// Joins the piece to a waiting request, if one ends or begins where it does.
    fn try_merge(&mut self, owner: u32, lba: u64, len: u64, write: bool, pieces: &mut Pieces) -> bool {
        let max = self.config.request_bytes_max;
        let fits = |r: &BlockRequest| r.write == write && r.len + len <= max;
        if self.config.kind == ElevatorKind::Noop {
            let back = self.fifo.iter_mut().rev().find(|r| r.end() == lba && fits(r));
            return back.map(|r| append(r, owner, len, pieces)).is_some();
        }
        let sorted = self.config.kind != ElevatorKind::Paper001;
        let behind = if sorted { self.pending.partition_point(|r| r.lba < lba) } else { self.pending.len() };
        let back = match sorted {
            true => behind.checked_sub(1).filter(|i| self.pending[*i].end() == lba && fits(&self.pending[*i])),
            false => self.pending.iter().position(|r| r.end() == lba && fits(r)),
        };
        if let Some(i) = back {
            append(&mut self.pending[i], owner, len, pieces);
            self.close_gap(i, pieces);
            return true;
        }
        let front = if sorted { behind } else { behind.wrapping_sub(1) };
        let Some(r) = self.pending.get_mut(front).filter(|r| r.lba == lba + len && fits(r)) else { return false };
        let piece = pieces.take(owner);
        pieces.items[piece as usize].next = r.first;
        (r.first, r.lba, r.len) = (piece, lba, r.len + len);
        true
    }

    /// Request `i` has grown at its end: it may have reached the next one.
    fn close_gap(&mut self, i: usize, pieces: &mut Pieces) {
        let r = self.pending[i];
        let Some(j) = self.pending.iter().position(|n| n.lba == r.end() && n.write == r.write) else { return };
        let next = self.pending[j];
        if r.len + next.len > self.config.request_bytes_max {
            return;
        }
        pieces.items[r.last as usize].next = next.first;
        self.pending[i] = BlockRequest { len: r.len + next.len, last: next.last, since: r.since.min(next.since), ..r };
        self.take_out(j);
    }
}

fn append(r: &mut BlockRequest, owner: u32, len: u64, pieces: &mut Pieces) {
    let piece = pieces.take(owner);
    pieces.items[r.last as usize].next = piece;
    (r.last, r.len) = (piece, r.len + len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const M: u64 = 1 << 20;

    fn elevator(kind: ElevatorKind) -> (Elevator, Pieces) {
        (Elevator::new(ElevatorConfig { kind, ..ElevatorConfig::default() }), Pieces::default())
    }

    fn drain(e: &mut Elevator) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| e.next(0)).map(|r| (r.lba / M, r.len / M)).collect()
    }

    #[test]
    fn a_plugged_queue_holds_everything_until_eight_have_come() {
        let (mut e, mut p) = elevator(ElevatorKind::Paper001);
        assert_eq!(e.add(5, 0, 70 * M, M, true, &mut p), Some(3_000_005));
        for i in 1..7u64 {
            assert_eq!(e.add(5, i as u32, (70 - 10 * i) * M, M, true, &mut p), None);
            assert!(e.next(5).is_none());
        }
        assert_eq!(e.add(6, 7, 0, M, true, &mut p), None);
        assert_eq!(drain(&mut e), [(0, 1), (10, 1), (20, 1), (30, 1), (40, 1), (50, 1), (60, 1), (70, 1)]);
    }

    #[test]
    fn a_plug_ends_after_three_milliseconds() {
        let (mut e, mut p) = elevator(ElevatorKind::Paper001);
        e.add(0, 0, 0, M, true, &mut p);
        e.on_timer(2_999_999);
        assert!(e.next(2_999_999).is_none());
        e.on_timer(3_000_000);
        assert!(e.next(3_000_000).is_some());
    }

    #[test]
    fn merges_stop_at_four_mebibytes_and_release_their_owners_in_order() {
        let (mut e, mut p) = elevator(ElevatorKind::Paper001);
        for i in [1u64, 2, 3, 0, 4] {
            e.add(0, i as u32, i * M, M, true, &mut p);
        }
        e.on_timer(3_000_000);
        let first = e.next(3_000_000).unwrap();
        assert_eq!((first.lba, first.len), (0, 4 * M));
        let mut owners = Vec::new();
        p.release(&first, |o| owners.push(o));
        assert_eq!(owners, [0, 1, 2, 3]);
        assert_eq!(e.next(3_000_000).map(|r| r.lba), Some(4 * M));
    }

    #[test]
    fn a_request_that_closes_a_gap_joins_both_sides() {
        for kind in [ElevatorKind::Paper001, ElevatorKind::Cscan] {
            let (mut e, mut p) = elevator(kind);
            for i in [0u64, 2, 1] {
                e.add(0, i as u32, i * M, M, true, &mut p);
            }
            e.on_timer(3_000_000);
            let whole = e.next(3_000_000).unwrap();
            assert_eq!((whole.lba, whole.len), (0, 3 * M));
            let mut owners = Vec::new();
            p.release(&whole, |o| owners.push(o));
            assert_eq!(owners, [0, 1, 2]);
        }
    }

    #[test]
    fn noop_keeps_the_order_of_arrival_and_merges_behind_any_that_waits() {
        let (mut e, mut p) = elevator(ElevatorKind::Noop);
        for i in [50u64, 10, 51, 30, 11] {
            e.add(0, i as u32, i * M, M, true, &mut p);
        }
        assert_eq!((drain(&mut e), e.merged()), (vec![(50, 2), (10, 2), (30, 1)], 2));
    }

    #[test]
    fn a_sweep_goes_one_way_and_wraps() {
        let (mut e, mut p) = elevator(ElevatorKind::Cscan);
        for i in [50u64, 10, 30] {
            e.add(0, 0, i * M, M, false, &mut p);
        }
        assert_eq!(e.next(0).map(|r| r.lba / M), Some(10));
        e.add(0, 0, 5 * M, M, false, &mut p);
        e.add(0, 0, 20 * M, M, false, &mut p);
        assert_eq!(drain(&mut e), [(20, 1), (30, 1), (50, 1), (5, 1)]);
    }

    #[test]
    fn a_sweep_that_never_wraps_still_serves_what_lies_behind() {
        let config = ElevatorConfig { kind: ElevatorKind::Cscan, expire_ns: 100_000_000, ..ElevatorConfig::default() };
        let (mut e, mut p) = (Elevator::new(config), Pieces::default());
        e.add(0, 0, 500 * M, M, true, &mut p);
        e.next(0);
        e.add(0, 1, 0, M, true, &mut p);
        let mut waited = 0;
        for step in 1..1000u64 {
            e.add(step * 2_000_000, 2, (500 + 3 * step) * M, M, true, &mut p);
            let next = e.next(step * 2_000_000).unwrap();
            if next.lba == 0 {
                waited = step * 2;
                break;
            }
        }
        assert!((100..=102).contains(&waited), "{waited} ms");
    }

    #[test]
    fn a_sweep_of_depth_one_is_first_come_first_served() {
        let config = ElevatorConfig { kind: ElevatorKind::Cscan, depth: 1, ..ElevatorConfig::default() };
        let (mut e, mut p) = (Elevator::new(config), Pieces::default());
        for i in [50u64, 10, 30] {
            e.add(0, 0, i * M, M, false, &mut p);
        }
        assert_eq!(drain(&mut e), [(50, 1), (10, 1), (30, 1)]);
    }

    #[test]
    fn deadline_serves_an_expired_write_before_the_sweep() {
        let (mut e, mut p) = elevator(ElevatorKind::Deadline);
        e.add(0, 1, 90 * M, M, true, &mut p);
        e.add(WRITE_EXPIRE_NS, 2, 10 * M, M, true, &mut p);
        assert_eq!(e.next(WRITE_EXPIRE_NS).map(|r| r.lba / M), Some(90));
    }

    #[test]
    fn deadline_prefers_reads_but_lets_writes_pass_in_the_end() {
        let (mut e, mut p) = elevator(ElevatorKind::Deadline);
        e.add(0, 0, 500 * M, M, true, &mut p);
        for i in 0..64u64 {
            e.add(0, 0, (i * 3) * M, M, false, &mut p);
        }
        let order: Vec<bool> = std::iter::from_fn(|| e.next(0)).map(|r| r.write).collect();
        assert!(!order[0] && order[2 * BATCH as usize], "{order:?}");
    }
}
