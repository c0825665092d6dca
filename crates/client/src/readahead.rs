//! Readahead of a client: the room and every open's state in it, changed, advised and recorded while files are open.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ::readahead::record::Call;
use ::readahead::{Ahead, AheadFile, Config, EachFile, Facts, Plan, Recorded, Stats};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::Instant;
use types::record::Recordable as _;

/// How one open is read.
pub(crate) struct Stream {
    number: u64,
    file: RefCell<AheadFile>,
    /// When it was read last.
    pub(crate) read_at: Cell<Instant>,
    /// Locks are taken no wider than what is read or written ([`crate::OpenFile::set_no_expand`]).
    pub(crate) no_expand: Cell<bool>,
    /// A task fetches what WILLNEED named.
    pub(crate) fetches: Cell<bool>,
    /// Its open has ended.
    pub(crate) released: Cell<bool>,
    /// What it held of the budget was given back, for good.
    closed: Cell<bool>,
}

impl Stream {
    /// Whether a range that was advised is still to be fetched.
    pub(crate) fn has_willneed(&self) -> bool {
        self.file.borrow().file().has_willneed()
    }
    /// Bytes that were fetched ahead and not read.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.file.borrow().file().outstanding_bytes()
    }
}

/// The readahead of a client.
pub struct Readahead {
    ahead: RefCell<Ahead>,
    /// The settings that were asked for; those in use have a budget that fits the cache.
    wanted: RefCell<Config>,
    cache_bytes: Cell<u64>,
    streams: RefCell<HashMap<u64, Rc<Stream>, FxBuildHasher>>,
    opened: Cell<u64>,
}

/// The same settings with a budget that leaves most of a cache of `cache_bytes` to what was read ahead earlier and is
/// not read yet: several readers, each of them ahead of itself, must not push out each other's pages.
fn within_cache(config: Config, cache_bytes: u64) -> Config {
    let budget_bytes_max = config.budget_bytes_max.min(cache_bytes / 4);
    Config { budget_bytes_max, ..config }
}

impl Readahead {
    /// Readahead into a cache of that size.
    ///
    /// # Errors
    /// A sentence that names the policies there are.
    pub(crate) fn new(policy: &str, wanted: Config, cache_bytes: u64) -> Result<Rc<Readahead>, String> {
        let ahead = Ahead::new(policy, within_cache(wanted.clone(), cache_bytes)).map_err(|e| e.to_string())?;
        Ok(Rc::new(Readahead {
            ahead: RefCell::new(ahead),
            wanted: RefCell::new(wanted),
            cache_bytes: Cell::new(cache_bytes),
            streams: RefCell::default(),
            opened: Cell::new(0),
        }))
    }
    /// An open begins.
    pub(crate) fn open(&self, now: Instant) -> Rc<Stream> {
        let number = self.opened.get();
        self.opened.set(number + 1);
        let stream = Rc::new(Stream {
            number,
            file: RefCell::new(self.ahead.borrow_mut().open()),
            read_at: Cell::new(now),
            no_expand: Cell::new(false),
            fetches: Cell::new(false),
            released: Cell::new(false),
            closed: Cell::new(false),
        });
        self.streams.borrow_mut().insert(number, stream.clone());
        stream
    }
    /// An open is not read any more: what it holds of the budget is given back. A read that goes on after it, as that of a copy whose
    /// program was killed, gets nothing ahead: nobody would give that back.
    pub(crate) fn close(&self, stream: &Stream) {
        stream.closed.set(true);
        let mut ahead = self.ahead.borrow_mut();
        let ended = stream.file.replace(ahead.open());
        ahead.close(ended);
    }
    /// An open is over; nothing is told of it from now on.
    pub(crate) fn forget(&self, stream: &Stream) {
        self.streams.borrow_mut().remove(&stream.number);
    }
    /// Tells the policy something of an open; what it wants then. Of one that is closed: nothing.
    pub(crate) fn call(&self, stream: &Stream, call: Call, facts: &Facts, plan: &mut Plan) {
        if stream.closed.get() {
            *plan = Plan::default();
            return;
        }
        self.ahead.borrow_mut().call(&mut stream.file.borrow_mut(), call, facts, plan);
    }
    /// Whether the budget becomes short.
    pub(crate) fn is_short(&self) -> bool {
        let ahead = self.ahead.borrow();
        ahead.budget().held_bytes() > ahead.budget().limit_bytes() / 2
    }

    /// The policy in use.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.ahead.borrow().policy()
    }
    /// Changes the policy of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence that names the policies there are.
    pub fn set_policy(&self, name: &str) -> Result<(), String> {
        let wanted = self.wanted.borrow().clone();
        self.switch(name, wanted)
    }
    /// A setting by its key or Lustre's name for it, in bytes or what the key counts.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<u64> {
        let row = Config::KEYS.iter().find(|k| k.key == key || !key.is_empty() && k.alias_mb == key)?;
        self.ahead.borrow().config().get(row.key)
    }
    /// Changes a setting (Lustre's names count MiB) of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence with the key's range.
    pub fn set(&self, key: &str, value: &str) -> Result<(), String> {
        let mut wanted = self.wanted.borrow().clone();
        wanted.set(key, value).map_err(|e| e.to_string())?;
        self.switch(self.policy(), wanted)
    }
    /// The cache has another size: a budget that was cut to the old one is cut anew.
    pub(crate) fn fit(&self, cache_bytes: u64) {
        self.cache_bytes.set(cache_bytes);
        let (policy, wanted) = (self.policy(), self.wanted.borrow().clone());
        self.switch(policy, wanted).expect("the policy in use is known");
    }
    fn switch(&self, policy: &str, wanted: Config) -> Result<(), String> {
        let config = within_cache(wanted.clone(), self.cache_bytes.get());
        let done = self.each(|files| self.ahead.borrow_mut().switch(policy, config, files));
        done.map_err(|e| e.to_string())?;
        *self.wanted.borrow_mut() = wanted;
        Ok(())
    }
    /// Counters over all files since the client joined.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.each(|files| self.ahead.borrow().stats(files))
    }
    /// Bytes that all open files have prefetched and not used.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.ahead.borrow().budget().held_bytes()
    }
    /// The recording: `on`, what the last check said, or `off`.
    #[must_use]
    pub fn record(&self) -> String {
        self.recorded(|r| r.record_param())
    }
    /// Records: a size of memory starts, `check` ends and replays, `off` drops.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_record(&self, text: &str) -> Result<(), String> {
        self.recorded(|r| r.set_record_param(text))
    }
    fn recorded<T>(&self, work: impl FnOnce(&mut Recorded<'_>) -> T) -> T {
        self.each(|files| work(&mut Recorded { ahead: &mut self.ahead.borrow_mut(), files }))
    }
    fn each<T>(&self, work: impl FnOnce(EachFile<'_>) -> T) -> T {
        let streams = self.streams.borrow();
        work(&mut |each| streams.values().for_each(|stream| each(&mut stream.file.borrow_mut())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Extent, MIB};

    #[test]
    fn the_budget_is_cut_to_a_quarter_of_the_cache_and_grows_with_it() {
        let ahead = Readahead::new("parallel", Config::default(), 64 * MIB).unwrap();
        let budget = || ahead.setting("budget_bytes_max").unwrap();
        assert_eq!(budget(), 16 * MIB);
        ahead.fit(128 * MIB);
        assert_eq!(budget(), 32 * MIB);
        assert!(Readahead::new("clairvoyant", Config::default(), MIB).err().unwrap().contains("parallel"));
    }

    #[test]
    fn what_an_open_holds_of_the_budget_ends_with_it() {
        let ahead = Readahead::new("parallel", Config::default(), 1024 * MIB).unwrap();
        let (stream, other) = (ahead.open(Instant(0)), ahead.open(Instant(0)));
        let facts = Facts { file_size: 512 * MIB, stripe_size: 0, rpc_bytes: MIB, lock: Extent::ALL };
        for i in 0..16 {
            let mut plan = Plan::default();
            ahead.call(&stream, Call::Read(Extent::at(i * MIB, MIB)), &facts, &mut plan);
            ahead.call(&stream, Call::of_wait(Extent::at(i * MIB, MIB), false), &facts, &mut plan);
            ahead.call(&stream, Call::Progress(Extent::at(i * MIB, MIB)), &facts, &mut plan);
        }
        assert!(ahead.held_bytes() > 0, "it was read in order");
        let reads = ahead.stats().reads;
        ahead.close(&stream);
        assert_eq!((ahead.held_bytes(), ahead.stats().reads), (0, reads));
        ahead.forget(&stream);
        assert_eq!(ahead.streams.borrow().len(), 1);
        ahead.forget(&other);
    }

    #[test]
    fn a_read_that_outlives_its_open_takes_nothing_of_the_budget() {
        let ahead = Readahead::new("parallel", Config::default(), 1024 * MIB).unwrap();
        let stream = ahead.open(Instant(0));
        let facts = Facts { file_size: 512 * MIB, stripe_size: 0, rpc_bytes: MIB, lock: Extent::ALL };
        let mut plan = Plan::default();
        let mut read = |i| {
            ahead.call(&stream, Call::Read(Extent::at(i * MIB, MIB)), &facts, &mut plan);
            ahead.call(&stream, Call::of_wait(Extent::at(i * MIB, MIB), false), &facts, &mut plan);
            ahead.call(&stream, Call::Progress(Extent::at(i * MIB, MIB)), &facts, &mut plan);
            plan.is_empty()
        };
        assert!((0..16).any(|i| !read(i)), "it was read in order");
        ahead.close(&stream);
        assert!((16..32).all(read), "nothing is fetched ahead for it any more");
        ahead.forget(&stream);
        assert_eq!(ahead.held_bytes(), 0);
    }
}
