//! Record and replay: a log of calls taken from a running cache gives the same answers in a fresh policy.
//!
//! The text form has one call a line and is meant for bug reports and comparisons, not for the data path:
//! `i FRAME ACCESS` insert, `t FRAME ACCESS` touch, `r FRAME` remove, `f ACCESS PAGES NS` fetched,
//! `e WANT FRAME+ FRAME- ... = FRAME ...` reclaim with each frame asked, what the mechanism
//! answered, and the victims. ACCESS is `BLOCK:BYTES:FLAGS` with the block in hexadecimal and the flags
//! `f` or `c` (grain), `0`..`4` (advice), `a` (readahead), `w` (write).
use crate::{Advice, CacheConfig, FrameId, Grain, PageAccess, ReclaimPolicy};
use alloc::{boxed::Box, collections::BTreeSet, format, string::String, string::ToString, vec::Vec};
use core::fmt::Write as _;
use core::time::Duration;

/// One call and its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// [`ReclaimPolicy::insert`].
    Insert(FrameId, PageAccess),
    /// [`ReclaimPolicy::touch`].
    Touch(FrameId, PageAccess),
    /// [`ReclaimPolicy::remove`].
    Remove(FrameId),
    /// [`ReclaimPolicy::on_fetched`].
    Fetched(PageAccess, u32, Duration),
    /// [`ReclaimPolicy::reclaim`]: how many were wanted, who was asked with what answer, the victims.
    Reclaim {
        /// Frames wanted.
        want: u32,
        /// Frames asked, in order, with the mechanism's answer.
        asked: Vec<(FrameId, bool)>,
        /// Frames returned, in order.
        victims: Vec<FrameId>,
    },
}

/// What a policy was built from and what happened to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// Registry name.
    pub policy: String,
    /// Its configuration.
    pub config: CacheConfig,
    /// All calls since it was empty.
    pub calls: Vec<Call>,
}

/// The first call of a log that a policy answers differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// Index in [`Log::calls`].
    pub call: usize,
    /// The recorded call and answer.
    pub recorded: Call,
    /// The same call with the answer it gets now. Frames asked beyond the recorded ones are answered "no".
    pub replayed: Call,
}

const MAGIC: &str = "stria-cache-log 1";

impl Log {
    /// Gives all calls to `policy`, a fresh one of the same configuration, and compares the answers.
    ///
    /// # Errors
    /// The first [`Divergence`].
    pub fn replay(&self, policy: &mut dyn ReclaimPolicy) -> Result<(), Box<Divergence>> {
        for (call, recorded) in self.calls.iter().enumerate() {
            let replayed = perform(recorded, policy);
            if replayed != *recorded {
                return Err(Box::new(Divergence { call, recorded: recorded.clone(), replayed }));
            }
        }
        Ok(())
    }

    /// The text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("{MAGIC} {} capacity_pages={}", self.policy, self.config.capacity_pages);
        for key in CacheConfig::KEYS {
            let _ = write!(out, " {key}={}", self.config.get(key).unwrap_or_default());
        }
        out.push('\n');
        for call in &self.calls {
            write_call(&mut out, call);
            out.push('\n');
        }
        out
    }

    /// Reads the text form. What comes back can be replayed: it asks nothing of a policy that its contract forbids.
    ///
    /// # Errors
    /// A sentence naming the line.
    pub fn from_text(text: &str) -> Result<Log, String> {
        let mut lines = text.lines();
        let head = lines.next().and_then(|l| l.strip_prefix(MAGIC)).ok_or("line 1: not a cache log of version 1")?;
        let mut words = head.split_whitespace();
        let policy = words.next().ok_or("line 1: no policy name")?.to_string();
        let mut config = None;
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("line 1: '{word}' is not key=value"))?;
            match (&mut config, key) {
                (None, "capacity_pages") => config = Some(CacheConfig::new(capacity(value)?)),
                (Some(config), _) => config.set(key, value).map_err(|e| format!("line 1: {e}"))?,
                (None, _) => return Err("line 1: capacity_pages must come first".to_string()),
            }
        }
        let config = config.ok_or("line 1: no capacity_pages")?;
        let mut calls = Vec::new();
        let mut resident = BTreeSet::new();
        for (i, line) in lines.enumerate() {
            let call = read_call(line).ok_or_else(|| format!("line {}: '{line}'", i + 2))?;
            follow(&call, config.capacity_pages, &mut resident).map_err(|e| format!("line {}: {e}", i + 2))?;
            calls.push(call);
        }
        Ok(Log { policy, config, calls })
    }
}

/// Keeps the set of resident frames over a call; refuses what no mechanism may ask of a policy.
fn follow(call: &Call, capacity_pages: u32, resident: &mut BTreeSet<FrameId>) -> Result<(), String> {
    let absent = |frame: &FrameId| format!("frame {} is not resident", frame.0);
    match call {
        Call::Insert(frame, _) if frame.0 >= capacity_pages => {
            return Err(format!("frame {} is beyond the capacity of {capacity_pages} pages", frame.0));
        }
        Call::Insert(frame, _) if !resident.insert(*frame) => return Err(format!("frame {} is resident", frame.0)),
        Call::Touch(frame, _) if !resident.contains(frame) => return Err(absent(frame)),
        Call::Remove(frame) if !resident.remove(frame) => return Err(absent(frame)),
        Call::Reclaim { victims, .. } => {
            if let Some(frame) = victims.iter().find(|v| !resident.remove(v)) {
                return Err(absent(frame));
            }
        }
        _ => {}
    }
    Ok(())
}

fn capacity(value: &str) -> Result<u32, String> {
    let pages = value.parse().ok().filter(|p| (1..=crate::table::CAPACITY_MAX).contains(p));
    pages.ok_or_else(|| format!("line 1: capacity_pages '{value}' is out of range"))
}

fn perform(call: &Call, policy: &mut dyn ReclaimPolicy) -> Call {
    match call {
        Call::Insert(frame, access) => policy.insert(*frame, *access),
        Call::Touch(frame, access) => policy.touch(*frame, *access),
        Call::Remove(frame) => policy.remove(*frame),
        Call::Fetched(access, pages, took) => policy.on_fetched(access, *pages, *took),
        Call::Reclaim { want, asked: recorded, .. } => {
            let mut answers = recorded.iter();
            let (mut asked, mut victims) = (Vec::new(), Vec::new());
            let mut may = |f: FrameId| {
                let answer = answers.next().is_some_and(|&(g, answer)| g == f && answer);
                asked.push((f, answer));
                answer
            };
            policy.reclaim(*want, &mut may, &mut victims);
            return Call::Reclaim { want: *want, asked, victims };
        }
    }
    call.clone()
}

fn write_access(out: &mut String, a: &PageAccess) {
    let grain = if a.grain == Grain::Fine { 'f' } else { 'c' };
    let _ = write!(out, " {:x}:{}:{grain}{}", a.block, a.request_bytes, a.advice as u8);
    out.push_str(if a.readahead { "a" } else { "" });
    out.push_str(if a.write { "w" } else { "" });
}

fn write_call(out: &mut String, call: &Call) {
    // Writing to a String cannot fail.
    let _ = match call {
        Call::Insert(f, _) => write!(out, "i {}", f.0),
        Call::Touch(f, _) => write!(out, "t {}", f.0),
        Call::Remove(f) => write!(out, "r {}", f.0),
        Call::Fetched(..) => write!(out, "f"),
        Call::Reclaim { want, .. } => write!(out, "e {want}"),
    };
    match call {
        Call::Insert(_, a) | Call::Touch(_, a) => write_access(out, a),
        Call::Remove(_) => {}
        Call::Fetched(a, pages, took) => {
            write_access(out, a);
            let _ = write!(out, " {pages} {}", took.as_nanos());
        }
        Call::Reclaim { asked, victims, .. } => {
            for (f, yes) in asked {
                let _ = write!(out, " {}{}", f.0, if *yes { '+' } else { '-' });
            }
            out.push_str(" =");
            for v in victims {
                let _ = write!(out, " {}", v.0);
            }
        }
    }
}

fn read_access(word: &str) -> Option<PageAccess> {
    let mut parts = word.split(':');
    let block = u64::from_str_radix(parts.next()?, 16).ok()?;
    let request_bytes = parts.next()?.parse().ok()?;
    let mut flags = parts.next()?.bytes();
    let grain = match flags.next()? {
        b'f' => Grain::Fine,
        b'c' => Grain::Coarse,
        _ => return None,
    };
    let advice = *Advice::ALL.get(usize::from(flags.next()?.checked_sub(b'0')?))?;
    let mut access = PageAccess { block, request_bytes, grain, advice, readahead: false, write: false };
    for flag in flags {
        match flag {
            b'a' => access.readahead = true,
            b'w' => access.write = true,
            _ => return None,
        }
    }
    parts.next().is_none().then_some(access)
}

fn read_call(line: &str) -> Option<Call> {
    let mut words = line.split(' ');
    let verb = words.next()?;
    let call = match verb {
        "i" => Call::Insert(frame(words.next()?)?, read_access(words.next()?)?),
        "t" => Call::Touch(frame(words.next()?)?, read_access(words.next()?)?),
        "r" => Call::Remove(frame(words.next()?)?),
        "f" => {
            let (access, pages) = (read_access(words.next()?)?, words.next()?.parse().ok()?);
            Call::Fetched(access, pages, Duration::from_nanos(words.next()?.parse().ok()?))
        }
        "e" => {
            let want = words.next()?.parse().ok()?;
            let mut asked = Vec::new();
            for word in words.by_ref().take_while(|w| *w != "=") {
                let (f, yes) =
                    word.strip_suffix('+').map(|f| (f, true)).or(word.strip_suffix('-').map(|f| (f, false)))?;
                asked.push((frame(f)?, yes));
            }
            let victims = words.by_ref().map(frame).collect::<Option<_>>()?;
            Call::Reclaim { want, asked, victims }
        }
        _ => return None,
    };
    words.next().is_none().then_some(call)
}

fn frame(word: &str) -> Option<FrameId> {
    word.parse().ok().map(FrameId)
}

/// A policy that writes down its calls. Recording ends after `calls_max` calls; the policy goes on.
pub struct Recorder {
    inner: Box<dyn ReclaimPolicy>,
    log: Log,
    calls_max: usize,
    not_recorded: u64,
}

impl Recorder {
    /// Wraps `inner`, which must be empty and built from `config`. Keeps at most `calls_max` calls (32 to 64 bytes
    /// each, and 8 per frame asked).
    ///
    /// # Panics
    /// When `inner` is not empty.
    #[must_use]
    pub fn new(inner: Box<dyn ReclaimPolicy>, config: CacheConfig, calls_max: usize) -> Recorder {
        assert!(inner.resident() == 0, "a recording starts with an empty policy");
        let log = Log { policy: inner.name().to_string(), config, calls: Vec::new() };
        Recorder { inner, log, calls_max, not_recorded: 0 }
    }

    /// The calls so far.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Calls that came after the limit and are not in the log. `admits`, a question, is not recorded.
    #[must_use]
    pub fn not_recorded(&self) -> u64 {
        self.not_recorded
    }

    fn write(&mut self, call: impl FnOnce() -> Call) {
        if self.log.calls.len() < self.calls_max {
            self.log.calls.push(call());
        } else {
            self.not_recorded += 1;
        }
    }
}

impl ReclaimPolicy for Recorder {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn admits(&self, access: &PageAccess) -> bool {
        self.inner.admits(access)
    }
    fn insert(&mut self, frame: FrameId, access: PageAccess) {
        self.write(|| Call::Insert(frame, access));
        self.inner.insert(frame, access);
    }
    fn touch(&mut self, frame: FrameId, access: PageAccess) {
        self.write(|| Call::Touch(frame, access));
        self.inner.touch(frame, access);
    }
    fn remove(&mut self, frame: FrameId) {
        self.write(|| Call::Remove(frame));
        self.inner.remove(frame);
    }
    fn reclaim(&mut self, want: u32, can_evict: &mut dyn FnMut(FrameId) -> bool, victims: &mut Vec<FrameId>) {
        let before = victims.len();
        let mut asked = Vec::new();
        let mut ask = |f: FrameId| {
            let answer = can_evict(f);
            asked.push((f, answer));
            answer
        };
        self.inner.reclaim(want, &mut ask, victims);
        self.write(|| Call::Reclaim { want, asked, victims: victims[before..].to_vec() });
    }
    fn on_fetched(&mut self, access: &PageAccess, pages: u32, took: Duration) {
        self.write(|| Call::Fetched(*access, pages, took));
        self.inner.on_fetched(access, pages, took);
    }
    fn resident(&self) -> u32 {
        self.inner.resident()
    }
    fn metadata_bytes_per_page(&self) -> u32 {
        self.inner.metadata_bytes_per_page()
    }
    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(into);
        into.push(("calls_not_recorded", self.not_recorded));
    }
}
