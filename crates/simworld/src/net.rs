//! The network: connections between processes, what delays their messages, what ends them.
//!
//! A connection is two lanes. A lane delivers in order whatever is lost on the way: what is lost comes late, and what
//! follows waits behind it, as over TCP; only where duplicates and overtaking are asked for is it less than TCP. Over a cut, or to a host without power, nothing comes and nobody is told.
//! A host that runs answers for dead processes: a message to one ends the connection at its sender.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::{Rc, Weak};

use frames::Bulk;
use rt::sync::Queue;
use rt::{Connection, HEAD_BYTES, Head, Listener, LocalFuture, Nid};
use types::{Duration, Instant};

use crate::exec::Core;
use crate::hash::crc32c_append;
use crate::host::{Process, index_of, sleep_until};
use crate::stream;

/// How long a connection attempt waits for an answer: as `rt::real` does.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// First pause before something lost is sent again; doubles each time.
const RETRANSMIT_NS: u64 = 200_000_000;
/// Longest pause between two attempts over a cut.
const RETRANSMIT_NS_MAX: u64 = 20_000_000_000;

/// Messages of each direction of a connection that always come once and in order: a handshake, which strangers take part
/// in, relies on that.
const HANDSHAKE_MESSAGES: u64 = 2;

pub(crate) struct Message {
    pub head: Head,
    pub body: Vec<u8>,
    pub bulk: Bulk,
    /// How many were sent before it in its direction.
    number: u64,
}

/// Messages to which something happened by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounts {
    /// Sent again after a pause.
    pub lost: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delivered behind the one that was sent next.
    pub reordered: u64,
    /// Delivered with a flipped bit.
    pub corrupted: u64,
}

impl Message {
    /// Behind the handshake.
    fn in_session(&self) -> bool {
        self.number >= HANDSHAKE_MESSAGES
    }
    fn copy(&self) -> Message {
        Message { head: self.head, body: self.body.clone(), bulk: self.bulk.clone(), number: self.number }
    }
}

enum Parcel {
    Message(Message),
    End,
}

/// Bytes that arrive later, and when they go through the sender's NIC.
struct UnderWay {
    from: u64,
    through: u64,
    at: u64,
    bytes: u64,
    has_bulk: bool,
}

/// How far a direction of a connection is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    pub bytes: u64,
    pub waiting_bytes: u64,
    pub is_amid_bulk: bool,
}

/// One direction of a connection.
pub(crate) struct Lane {
    core: Weak<Core>,
    id: u64,
    pub from: Rc<Process>,
    pub to: Rc<Process>,
    pub inbox: Queue<Message>,
    flight: RefCell<VecDeque<Parcel>>,
    last: Cell<u64>,
    /// What is on its way, in the order in which it arrives.
    under_way: RefCell<VecDeque<UnderWay>>,
    /// Bytes that have arrived, and what was told of them last.
    arrived_bytes: Cell<u64>,
    told: Cell<Progress>,
    /// Messages sent.
    sent: Cell<u64>,
    /// Arrivals that found the way cut, and since when.
    owed: Cell<usize>,
    since: Cell<u64>,
    /// The sender said its last.
    ended: Cell<bool>,
    /// The connection is no more.
    broken: Cell<bool>,
    back: RefCell<Weak<Lane>>,
}

impl Lane {
    fn new(core: &Rc<Core>, id: u64, from: &Rc<Process>, to: &Rc<Process>) -> Rc<Lane> {
        Rc::new(Lane {
            core: Rc::downgrade(core),
            id,
            from: from.clone(),
            to: to.clone(),
            inbox: Queue::new(),
            flight: RefCell::default(),
            last: Cell::new(0),
            under_way: RefCell::default(),
            arrived_bytes: Cell::new(0),
            told: Cell::default(),
            sent: Cell::new(0),
            owed: Cell::new(0),
            since: Cell::new(0),
            ended: Cell::new(false),
            broken: Cell::new(false),
            back: RefCell::new(Weak::new()),
        })
    }
    pub fn send(self: &Rc<Self>, head: Head, body: Vec<u8>, bulk: Bulk) {
        if self.from.alive.get() && !self.ended.get() && !self.broken.get() && self.from.host.speaks(&head) {
            let number = self.sent.replace(self.sent.get() + 1);
            let bytes = HEAD_BYTES + body.len() + bulk.len();
            if let Some(core) = self.core.upgrade() {
                core.count(|w| (w.messages, w.bulk_bytes) = (w.messages + 1, w.bulk_bytes + bulk.len() as u64));
            }
            self.post(Parcel::Message(Message { head, body, bulk, number }), bytes as u64);
        }
    }
    /// The sender closes: what it sent still arrives, then the end.
    pub fn end(self: &Rc<Self>) {
        if !self.ended.replace(true) && !self.broken.get() {
            self.post(Parcel::End, 40);
        }
    }
    fn post(self: &Rc<Self>, mut parcel: Parcel, bytes: u64) {
        let Some(core) = self.core.upgrade() else { return };
        let twice = match &mut parcel {
            Parcel::Message(m) => {
                corrupt(&core, m);
                (m.in_session() && core.chance(core.config.duplicate)).then(|| m.copy())
            }
            Parcel::End => None,
        };
        self.ship(&core, parcel, bytes);
        if let Some(copy) = twice {
            core.net.count(|c| c.duplicated += 1);
            self.ship(&core, Parcel::Message(copy), bytes);
        }
    }
    fn ship(self: &Rc<Self>, core: &Core, parcel: Parcel, bytes: u64) {
        let (from, through, at) = self.arrival(core, bytes);
        let has_bulk = matches!(&parcel, Parcel::Message(m) if !m.bulk.is_empty());
        self.pass(core.now().0);
        self.under_way.borrow_mut().push_back(UnderWay { from, through, at, bytes, has_bulk });
        self.flight.borrow_mut().push_back(parcel);
        let me = self.clone();
        core.at(Instant(at), move || me.arrive());
    }
    /// What is there by now is not under way.
    fn pass(&self, now: u64) {
        let mut under_way = self.under_way.borrow_mut();
        while under_way.front().is_some_and(|u| u.at <= now) {
            let bytes = under_way.pop_front().map_or(0, |u| u.bytes);
            self.arrived_bytes.set(self.arrived_bytes.get() + bytes);
        }
    }
    /// How far it is: bytes move while they go through the NIC, and none over a cut or from a host without power.
    pub fn progress(&self) -> Progress {
        let Some(core) = self.core.upgrade() else { return Progress::default() };
        if self.broken.get() || self.owed.get() > 0 || self.is_cut(&core) || !self.from.host.up.get() {
            return self.told.get();
        }
        let now = core.now().0;
        self.pass(now);
        let mut progress = Progress { bytes: self.arrived_bytes.get(), ..Progress::default() };
        for u in self.under_way.borrow().iter() {
            let (passed, takes) = (now.min(u.through).saturating_sub(u.from), u.through.saturating_sub(u.from).max(1));
            let through = (u128::from(u.bytes) * u128::from(passed.min(takes)) / u128::from(takes)) as u64;
            progress.bytes += through;
            progress.waiting_bytes += u.bytes - through;
            progress.is_amid_bulk |= u.has_bulk && u.from <= now;
        }
        self.told.set(progress);
        progress
    }
    /// When something sent now goes through the NIC, from and to, and when it arrives: through both NICs, after the latency and what
    /// it takes to get through, and behind everything sent before it.
    fn arrival(&self, core: &Core, bytes: u64) -> (u64, u64, u64) {
        let c = &core.config;
        let now = core.now().0;
        let takes = |rate: u64| (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64;
        let wire_ns = takes(c.nic_bytes_per_s);
        let mut out = now.max(self.from.host.nic_out.get()) + wire_ns;
        self.from.host.nic_out.set(out);
        if c.switch_bytes_per_s > 0 {
            out = out.max(core.net.switch_free.get() + takes(c.switch_bytes_per_s));
            core.net.switch_free.set(out);
        }
        let through = out;
        let mut at = out + core.between(c.latency_min.as_nanos() as u64, c.latency_max.as_nanos() as u64);
        let mut pause = RETRANSMIT_NS;
        while core.chance(c.loss) {
            core.net.count(|c| c.lost += 1);
            at += pause;
            pause = (pause * 2).min(RETRANSMIT_NS_MAX);
        }
        at = at.max(self.to.host.nic_in.get() + wire_ns).max(self.last.get() + 1);
        self.to.host.nic_in.set(at);
        self.last.set(at);
        (through.saturating_sub(wire_ns), through, at)
    }
    fn is_cut(&self, core: &Core) -> bool {
        !self.to.host.up.get() || core.net.is_cut(self.from.host.index, self.to.host.index)
    }
    fn arrive(self: &Rc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        if self.broken.get() {
            return;
        }
        if self.owed.get() > 0 || self.is_cut(&core) {
            if self.owed.get() == 0 {
                self.since.set(core.now().0);
            }
            self.owed.set(self.owed.get() + 1);
            return;
        }
        let parcel = self.next_parcel(&core);
        match parcel {
            Some(Parcel::Message(m)) if self.to.alive.get() => {
                note(&core, self.id, &m);
                self.inbox.push(m);
            }
            Some(Parcel::Message(_)) => self.refuse(&core),
            Some(Parcel::End) => {
                self.inbox.close();
                if !self.to.alive.get() {
                    self.break_off();
                }
            }
            None => {}
        }
    }
    /// What arrives now: what was sent first, or by chance what was sent next.
    fn next_parcel(&self, core: &Core) -> Option<Parcel> {
        let mut flight = self.flight.borrow_mut();
        let may_swap = matches!((flight.front(), flight.get(1)), (Some(Parcel::Message(a)), Some(Parcel::Message(b)))
            if a.in_session() && b.in_session());
        if may_swap && core.chance(core.config.reorder) {
            flight.swap(0, 1);
            core.net.count(|c| c.reordered += 1);
        }
        flight.pop_front()
    }
    /// Nobody is there: the sender is told.
    fn refuse(self: &Rc<Self>, core: &Core) {
        let me = self.clone();
        let at = core.now() + core.config.latency_min;
        core.at(at, move || me.reset());
    }
    /// What waits on a way that is open again, some time later.
    fn wake(self: &Rc<Self>, core: &Core) {
        if self.owed.get() == 0 || self.broken.get() || self.is_cut(core) {
            return;
        }
        let waited = core.now().0.saturating_sub(self.since.get());
        let pause = core.between(0, waited.clamp(RETRANSMIT_NS, RETRANSMIT_NS_MAX));
        let me = self.clone();
        core.at(core.now() + Duration::from_nanos(pause), move || me.deliver_owed());
    }
    fn deliver_owed(self: &Rc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        if self.is_cut(&core) {
            return;
        }
        for _ in 0..self.owed.replace(0) {
            self.arrive();
        }
    }
    fn break_off(&self) {
        self.broken.set(true);
        self.flight.borrow_mut().clear();
        self.inbox.close();
    }
    /// Both ends learn at once that the connection is no more.
    pub fn reset(&self) {
        self.break_off();
        if let Some(back) = self.back.borrow().upgrade() {
            back.break_off();
        }
    }
}

/// Flips a bit of the bulk, where that was asked for or chance has it.
fn corrupt(core: &Core, m: &mut Message) {
    if m.bulk.is_empty() || !(core.net.corrupt_next.take() || core.chance(core.config.corrupt)) {
        return;
    }
    let mut bytes = m.bulk.to_vec();
    let bit = core.between(0, bytes.len() as u64 * 8 - 1);
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    if let Some(mut copy) = Bulk::alloc(core.pool, bytes.len()) {
        copy.copy_in(0, &bytes);
        m.bulk = copy;
        core.net.count(|c| c.corrupted += 1);
    }
}

/// Makes a delivery part of the history.
fn note(core: &Core, lane: u64, m: &Message) {
    core.fold(core.now().0);
    core.fold(lane);
    let head = crc32c_append(crc32c_append(0, &m.head), &m.body);
    core.fold(u64::from(head) << 32 | u64::from(m.bulk.slices().fold(0, crc32c_append)));
}

struct Port {
    process: Rc<Process>,
    queue: Rc<Queue<Connection>>,
}

/// All connections and ports, and what is cut.
#[derive(Default)]
pub(crate) struct Net {
    ports: RefCell<BTreeMap<String, Port>>,
    lanes: RefCell<Vec<Rc<Lane>>>,
    cuts: RefCell<BTreeSet<(usize, usize)>>,
    pub corrupt_next: Cell<bool>,
    pub counts: Cell<NetCounts>,
    /// When everything that went through the switch so far is through.
    switch_free: Cell<u64>,
}

impl Net {
    /// Messages from one host to another stay away, or come again.
    pub fn cut(&self, from: usize, to: usize, cut: bool) {
        if cut {
            self.cuts.borrow_mut().insert((from, to));
        } else {
            self.cuts.borrow_mut().remove(&(from, to));
        }
    }
    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.borrow().contains(&(from, to))
    }
    fn count(&self, f: impl FnOnce(&mut NetCounts)) {
        let mut counts = self.counts.get();
        f(&mut counts);
        self.counts.set(counts);
    }
    fn all(&self) -> Vec<Rc<Lane>> {
        let gone = |l: &Rc<Lane>| l.broken.get() || !l.from.alive.get() && l.flight.borrow().is_empty();
        let mut lanes = self.lanes.borrow_mut();
        lanes.retain(|l| !gone(l) || l.back.borrow().upgrade().is_some_and(|b| !gone(&b)));
        lanes.clone()
    }
    /// Something may get through that could not before.
    pub fn wake_stalled(&self, core: &Core) {
        for lane in self.all() {
            lane.wake(core);
        }
    }
    pub fn reset(&self, a: usize, b: usize) -> usize {
        let ends = |l: &Lane| (l.from.host.index, l.to.host.index);
        let between: Vec<_> =
            self.all().into_iter().filter(|l| ends(l) == (a, b) && !l.broken.get() && !l.ended.get()).collect();
        for lane in &between {
            lane.reset();
        }
        between.len()
    }
    /// A process has ended; when its operating system is there to do it, its connections are closed.
    pub fn process_ended(&self, process: &Rc<Process>, orderly: bool) {
        let mine: Vec<Port> = {
            let mut ports = self.ports.borrow_mut();
            let names: Vec<String> =
                ports.iter().filter(|(_, p)| p.process.id == process.id).map(|(n, _)| n.clone()).collect();
            names.iter().filter_map(|n| ports.remove(n)).collect()
        };
        for lane in self.all() {
            if lane.from.id == process.id && orderly {
                lane.end();
            }
            if lane.to.id == process.id && orderly && !lane.from.alive.get() {
                lane.break_off();
            }
        }
        drop(mine);
    }
    pub fn close_listener(&self, nid: &Nid) {
        if let Some(port) = self.ports.borrow_mut().remove(&nid.to_string()) {
            port.queue.close();
        }
    }
    pub fn clear(&self) {
        drop(std::mem::take(&mut *self.ports.borrow_mut()));
        drop(std::mem::take(&mut *self.lanes.borrow_mut()));
    }
}

pub(crate) fn connect(core: Rc<Core>, from: Rc<Process>, nid: Nid) -> LocalFuture<io::Result<Connection>> {
    Box::pin(async move {
        let host = index_of(&nid).and_then(|i| core.hosts.borrow().get(i).cloned());
        let unreachable = |core: &Core| {
            host.as_ref().is_some_and(|h| {
                let (a, b) = (from.host.index, h.index);
                !h.up.get() || core.net.is_cut(a, b) || core.net.is_cut(b, a)
            })
        };
        let there_and_back = Duration::from_nanos(2 * core.config.latency_max.as_nanos() as u64);
        let lost = core.chance(core.config.loss);
        let pause = if lost { Duration::from_secs(1) } else { there_and_back };
        sleep_until(core.clone(), core.now() + pause).await;
        if unreachable(&core) {
            sleep_until(core.clone(), core.now() + CONNECT_PATIENCE).await;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{nid} does not answer")));
        }
        let port = core.net.ports.borrow().get(&nid.to_string()).map(|p| (p.process.clone(), p.queue.clone()));
        let Some((to, queue)) = port.filter(|(p, _)| p.alive.get()) else {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("nobody listens at {nid}")));
        };
        let id = core.id();
        let (up, down) = (Lane::new(&core, id << 1, &from, &to), Lane::new(&core, id << 1 | 1, &to, &from));
        *up.back.borrow_mut() = Rc::downgrade(&down);
        *down.back.borrow_mut() = Rc::downgrade(&up);
        core.net.lanes.borrow_mut().extend([up.clone(), down.clone()]);
        queue.push(stream::connection(down.clone(), up.clone()));
        Ok(stream::connection(up, down))
    })
}

pub(crate) fn listen(core: &Rc<Core>, process: &Rc<Process>, nid: &Nid) -> io::Result<Box<dyn Listener>> {
    let name = nid.to_string();
    let mut ports = core.net.ports.borrow_mut();
    if ports.get(&name).is_some_and(|p| p.process.alive.get()) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{nid} is in use")));
    }
    let queue = Rc::new(Queue::new());
    ports.insert(name, Port { process: process.clone(), queue: queue.clone() });
    Ok(Box::new(stream::Accepting { nid: nid.clone(), queue }))
}
