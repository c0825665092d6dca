//! Readahead of all open files of one client shard: the policy and configuration in use, the budget that the files share,
//! and the recording of what they are asked and answer.
use alloc::format;
use alloc::string::{String, ToString};
use types::Extent;
use types::record::{self, Recordable, Recording, Tape};
use types::registry::UnknownPolicy;

use crate::budget::Budget;
use crate::config::Config;
use crate::file::{Facts, FileReadahead, Hint, Plan, Stats};
use crate::policy::{POLICIES, PolicyEntry};
use crate::record::{Call, FORMAT, apply, call_text, close_text, facts_line, plan_text};

/// See the module's head. Opens [`AheadFile`]s, makes every call on them, and closes them.
pub struct Ahead {
    entry: &'static PolicyEntry,
    config: Config,
    budget: Budget,
    opened: u64,
    /// Of files that were closed.
    closed: Stats,
    tape: Tape,
    /// Counts recordings: a file of an earlier one begins anew with its first call.
    recording: u64,
    /// What the log's reader knows by now: the file that calls are about, and its facts.
    at_file: u64,
    facts: Option<Facts>,
}

/// One open file's readahead; give it back to its [`Ahead`] with [`Ahead::close`].
pub struct AheadFile {
    file: FileReadahead,
    number: u64,
    recording: u64,
}

/// Calls what it is given with every open file.
pub type EachFile<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&mut AheadFile));

impl AheadFile {
    /// The file.
    #[must_use]
    pub fn file(&self) -> &FileReadahead {
        &self.file
    }
}

impl Ahead {
    /// No file is open.
    ///
    /// # Errors
    /// [`UnknownPolicy`].
    pub fn new(policy: &str, config: Config) -> Result<Ahead, UnknownPolicy> {
        let budget = Budget::new(config.budget_bytes_max);
        let entry = entry(policy)?;
        Ok(Ahead {
            entry,
            config,
            budget,
            opened: 0,
            closed: Stats::default(),
            tape: Tape::default(),
            recording: 0,
            at_file: 0,
            facts: None,
        })
    }
    /// Name of the policy in use.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.entry.name
    }
    /// The configuration in use.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// What all open files hold.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Counters of all files, open ones and those that were closed.
    pub fn stats(&self, files: EachFile<'_>) -> Stats {
        let mut all = self.closed;
        files(&mut |open| all.add(open.file.stats()));
        all
    }

    /// Readahead of a file just opened.
    pub fn open(&mut self) -> AheadFile {
        self.opened += 1;
        self.numbered(self.opened - 1)
    }
    pub(crate) fn numbered(&self, number: u64) -> AheadFile {
        AheadFile { file: FileReadahead::with_entry(self.entry, &self.config), number, recording: self.recording }
    }
    /// Makes a call on an open file.
    #[inline]
    pub fn call(&mut self, open: &mut AheadFile, call: Call, facts: &Facts, plan: &mut Plan) {
        if self.tape.is_recording() {
            return self.call_recorded(open, call, facts, plan);
        }
        apply(call, &mut open.file, facts, &mut self.budget, plan);
    }
    /// Takes back what a file held; ends it.
    pub fn close(&mut self, open: AheadFile) -> Stats {
        let known = open.recording == self.recording;
        let number = open.number;
        let stats = open.file.close(&mut self.budget);
        self.closed.add(&stats);
        if self.tape.is_recording() && known {
            self.turn_to(number);
            self.tape.write(|out| out.extend(format!("close => {}\n", close_text(&stats)).bytes()));
        }
        stats
    }
    /// Changes policy and configuration, of all open files too.
    ///
    /// # Errors
    /// [`UnknownPolicy`]; nothing has changed then.
    pub fn switch(&mut self, policy: &str, config: Config, files: EachFile<'_>) -> Result<(), UnknownPolicy> {
        let entry = entry(policy)?;
        files(&mut |open| open.file.switch(entry, &config));
        self.budget.set_limit(config.budget_bytes_max);
        self.tape.write(|out| out.extend(record::header("switch", policy, config.texts()).bytes()));
        (self.entry, self.config) = (entry, config);
        Ok(())
    }

    /// Starts to record up to `bytes_max` bytes: every open file begins anew, as in a replay, and keeps only its hints.
    ///
    /// # Errors
    /// A sentence: a file that `files` left out holds readahead, because it is being closed.
    pub fn record(&mut self, bytes_max: usize, files: EachFile<'_>) -> Result<(), String> {
        let mut held = 0;
        files(&mut |open| held += open.file.outstanding_bytes());
        if held != self.budget.held_bytes() {
            return Err("a file that is being closed still holds readahead: write it again".to_string());
        }
        self.tape.start(record::header(FORMAT, self.policy(), self.config.texts()), bytes_max);
        (self.recording, self.at_file, self.facts) = (self.recording + 1, 0, None);
        files(&mut |open| self.begin_anew(open));
        Ok(())
    }
    fn begin_anew(&mut self, open: &mut AheadFile) {
        let old = core::mem::replace(open, self.numbered(open.number));
        let (hint, willneed) = old.file.hints();
        self.closed.add(&old.file.close(&mut self.budget));
        for (hint, extent) in [(hint, Extent::ALL), (Hint::WillNeed, willneed)] {
            if hint != Hint::Normal && !extent.is_empty() {
                let facts =
                    self.facts.unwrap_or(Facts { file_size: 0, stripe_size: 0, rpc_bytes: 0, lock: Extent::ALL });
                self.call_recorded(open, Call::Hint(hint, extent), &facts, &mut Plan::default());
            }
        }
    }
    #[cold]
    fn call_recorded(&mut self, open: &mut AheadFile, call: Call, facts: &Facts, plan: &mut Plan) {
        if open.recording != self.recording {
            // It was being closed when the recording began, and held nothing.
            *open = self.numbered(open.number);
        }
        apply(call, &mut open.file, facts, &mut self.budget, plan);
        self.turn_to(open.number);
        if self.facts != Some(*facts) {
            self.facts = Some(*facts);
            self.tape.write(|out| out.extend(facts_line(facts).bytes()));
        }
        self.tape.write(|out| out.extend(format!("{} => {}\n", call_text(call), plan_text(plan)).bytes()));
    }
    fn turn_to(&mut self, number: u64) {
        if self.at_file != number {
            self.at_file = number;
            self.tape.write(|out| out.extend(format!("file {number}\n").bytes()));
        }
    }
    pub(crate) fn tape(&mut self) -> &mut Tape {
        &mut self.tape
    }
}

fn entry(policy: &str) -> Result<&'static PolicyEntry, UnknownPolicy> {
    POLICIES.find(policy)
}

/// An [`Ahead`] with the files that are open, for the parameter.
pub struct Recorded<'a> {
    /// The readahead.
    pub ahead: &'a mut Ahead,
    /// The open files.
    pub files: EachFile<'a>,
}

impl Recordable for Recorded<'_> {
    fn tape(&mut self) -> &mut Tape {
        self.ahead.tape()
    }
    fn begin(&mut self, bytes_max: usize) -> Result<(), String> {
        self.ahead.record(bytes_max, self.files)
    }
    fn replay(&self, recording: Recording) -> Result<u64, String> {
        record::replay_text(&recording, crate::record::replay)
    }
}
