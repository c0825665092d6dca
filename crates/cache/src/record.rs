//! Record and replay: a log of calls taken from a running cache gives the same answers in a fresh policy.
//!
//! The text form has one call a line and is meant for bug reports and comparisons, not for the data path:
//! `a ACCESS +` or `-` admits, `i FRAME ACCESS` insert, `t FRAME ACCESS` touch, `r FRAME` remove, `f ACCESS PAGES NS` fetched,
//! `p NAME` a switch, `k KEY VALUE` a changed key,
//! `e WANT FRAME+ FRAME- ... = FRAME ...` reclaim with each frame asked, what the mechanism
//! answered, and the victims. ACCESS is `BLOCK:BYTES:FLAGS` with the block in hexadecimal and the flags
//! `f` or `c` (grain), `0`..`4` (advice), `a` (readahead), `w` (write).
use crate::reclaimer::Registry;
use crate::{Advice, CacheConfig, FrameId, Grain, PageAccess, ReclaimPolicy};
use alloc::{boxed::Box, collections::BTreeSet, format, string::String, string::ToString, vec::Vec};
use core::fmt::{self, Write as _};
use core::time::Duration;
use types::record::{self, HEAD, Replay, ReplayError, Step};

/// One call and its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// [`ReclaimPolicy::admits`] and its answer.
    Admits(PageAccess, bool),
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

const FORMAT: &str = "stria-cache-log 1";

/// The header of a log.
pub(crate) fn header(policy: &str, config: &CacheConfig) -> String {
    let capacity = ("capacity_pages", config.capacity_pages.to_string());
    let keys = CacheConfig::KEYS.iter().map(|key| (*key, config.get(key).unwrap_or_default()));
    record::header(FORMAT, policy, core::iter::once(capacity).chain(keys))
}

/// Gives a log to fresh policies of a registry and compares the answers; returns the number of calls.
///
/// # Errors
/// [`ReplayError`] at the first line that differs. A call that no mechanism may make is a line that cannot be read.
pub fn replay(log: &str, registry: Registry) -> Result<usize, ReplayError> {
    record::replay_with(log, |policy, settings| Fresh::new(registry, policy, settings))
}

struct Fresh {
    registry: Registry,
    policy: Box<dyn ReclaimPolicy>,
    config: CacheConfig,
    resident: BTreeSet<FrameId>,
}

impl Fresh {
    fn new(registry: Registry, policy: &str, settings: &[(&str, &str)]) -> Result<Fresh, ReplayError> {
        let Some((("capacity_pages", pages), settings)) = settings.split_first() else { return Err(HEAD) };
        let pages = pages.parse().ok().filter(|p| (1..=crate::table::CAPACITY_MAX).contains(p)).ok_or(HEAD)?;
        let mut config = CacheConfig::new(pages);
        settings.iter().try_for_each(|(key, value)| config.set(key, value)).map_err(|_| HEAD)?;
        let policy = registry(policy, &config).map_err(|_| ReplayError::Policy(policy.to_string()))?;
        Ok(Fresh { registry, policy, config, resident: BTreeSet::new() })
    }
    /// A fresh policy takes the place of the one in use.
    fn begin_anew(&mut self, policy: &str) -> Option<Step<'static>> {
        self.policy = (self.registry)(policy, &self.config).ok()?;
        self.resident.clear();
        Some(Step::Context)
    }
    /// Keeps the set of resident frames over a call; refuses what no mechanism may ask of a policy.
    fn follow(&mut self, call: &Call) -> Option<()> {
        let legal = match call {
            Call::Insert(frame, _) => frame.0 < self.config.capacity_pages && self.resident.insert(*frame),
            Call::Touch(frame, _) => self.resident.contains(frame),
            Call::Remove(frame) => self.resident.remove(frame),
            Call::Reclaim { victims, .. } => victims.iter().all(|v| self.resident.remove(v)),
            Call::Admits(..) | Call::Fetched(..) => true,
        };
        legal.then_some(())
    }
}

impl Replay for Fresh {
    const FORMAT: &'static str = FORMAT;
    fn fresh(policy: &str, settings: &[(&str, &str)]) -> Result<Fresh, ReplayError> {
        Fresh::new(crate::build, policy, settings)
    }
    fn step<'a>(&mut self, line: &'a str) -> Option<Step<'a>> {
        if let Some(policy) = line.strip_prefix("p ") {
            return self.begin_anew(policy);
        }
        if let Some(key) = line.strip_prefix("k ") {
            let (key, value) = key.split_once(' ')?;
            self.config.set(key, value).ok()?;
            return self.begin_anew(self.policy.name());
        }
        let call = read_call(line)?;
        self.follow(&call)?;
        let mut replayed = Vec::new();
        write_call(&mut replayed, &perform(&call, &mut *self.policy));
        replayed.pop();
        Some(Step::Call(line, String::from_utf8(replayed).ok()?))
    }
}

/// The same call with the answer it gets now. Frames asked beyond the recorded ones are answered "no".
fn perform(call: &Call, policy: &mut dyn ReclaimPolicy) -> Call {
    match call {
        Call::Admits(access, _) => return Call::Admits(*access, policy.admits(access)),
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

/// The line that says that a fresh policy took the old one's place.
pub(crate) fn write_switch(out: &mut Vec<u8>, policy: &str) {
    out.extend(format!("p {policy}\n").bytes());
}

/// The line that says that a key has another value, and that a fresh policy took the old one's place.
pub(crate) fn write_key(out: &mut Vec<u8>, key: &str, config: &CacheConfig) {
    out.extend(format!("k {key} {}\n", config.get(key).unwrap_or_default()).bytes());
}

/// A call's line.
pub(crate) fn write_call(out: &mut Vec<u8>, call: &Call) {
    let mut line = Line(out);
    // Writing to memory cannot fail.
    let _ = match call {
        Call::Admits(a, yes) => writeln!(line, "a {} {}", Access(a), sign(*yes)),
        Call::Insert(f, a) => writeln!(line, "i {} {}", f.0, Access(a)),
        Call::Touch(f, a) => writeln!(line, "t {} {}", f.0, Access(a)),
        Call::Remove(f) => writeln!(line, "r {}", f.0),
        Call::Fetched(a, pages, took) => writeln!(line, "f {} {pages} {}", Access(a), took.as_nanos()),
        Call::Reclaim { want, asked, victims } => write_reclaim(&mut line, *want, asked, victims),
    };
}

fn write_reclaim(line: &mut Line<'_>, want: u32, asked: &[(FrameId, bool)], victims: &[FrameId]) -> fmt::Result {
    write!(line, "e {want}")?;
    asked.iter().try_for_each(|(f, yes)| write!(line, " {}{}", f.0, sign(*yes)))?;
    line.write_str(" =")?;
    victims.iter().try_for_each(|v| write!(line, " {}", v.0))?;
    line.write_char('\n')
}

fn sign(yes: bool) -> char {
    if yes { '+' } else { '-' }
}

struct Line<'a>(&'a mut Vec<u8>);
impl fmt::Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.bytes());
        Ok(())
    }
}

struct Access<'a>(&'a PageAccess);
impl fmt::Display for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let a = self.0;
        let grain = if a.grain == Grain::Fine { 'f' } else { 'c' };
        write!(f, "{:x}:{}:{grain}{}", a.block, a.request_bytes, a.advice as u8)?;
        f.write_str(if a.readahead { "a" } else { "" })?;
        f.write_str(if a.write { "w" } else { "" })
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
        "a" => {
            let access = read_access(words.next()?)?;
            match words.next()? {
                "+" => Call::Admits(access, true),
                "-" => Call::Admits(access, false),
                _ => return None,
            }
        }
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
