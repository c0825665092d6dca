//! Jobs: the rule by which callers are given job names, and what servers were told of these names.
//!
//! A request carries a job's number only. The names go to each server that sees the job, a moment later and many at a time,
//! so that no operation waits for them; a server that was restarted is told again.
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use ptlrpc::{Import, ImportState};
use rt::Rt;
use types::{Duration, JOB_NAME_BYTES_MAX, job_id};
use wire::connect::JobsRequest;
use wire::mdt::Cred;
use wire::ost::IoOwner;
use wire::{Bytes, Op};

/// Names that a client remembers; further jobs go without.
const NAMES_MAX: usize = 16_384;
/// How long names are gathered before they are told.
const GATHER: Duration = Duration::from_millis(20);
/// Names in one message.
const NAMES_TOLD_MAX: usize = 1024;

/// How job names are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobRule {
    /// `disable`, `procname_uid`, `nodelocal`, or the name of an environment variable of the caller.
    pub var: String,
    /// The format: `%e` program, `%u` user, `%g` group, `%p` process, `%H` short host name, `%h` host name, `%j` the
    /// variable's value.
    pub name: String,
}

impl Default for JobRule {
    fn default() -> JobRule {
        JobRule { var: "procname_uid".into(), name: "%e.%u".into() }
    }
}

impl JobRule {
    /// Refuses a variable's name that cannot be one.
    ///
    /// # Errors
    /// A sentence.
    pub fn check_var(text: &str) -> Result<(), String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if text.is_empty() || text.len() > 64 || !text.chars().all(legal) {
            return Err("write disable, procname_uid, nodelocal, or the name of an environment variable".into());
        }
        Ok(())
    }
    /// Refuses a format that cannot be one.
    ///
    /// # Errors
    /// A sentence.
    pub fn check_name(text: &str) -> Result<(), String> {
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            if c == '%' && !rest.next().is_some_and(|c| "eugpHhj%".contains(c)) {
                return Err("write a format of letters and %e %u %g %p %H %h %j".into());
            }
            if !c.is_ascii_graphic() {
                return Err("write a format without spaces: printable letters and %e %u %g %p %H %h %j".into());
            }
        }
        if text.is_empty() || text.len() > JOB_NAME_BYTES_MAX {
            return Err(format!("write a format of 1 to {JOB_NAME_BYTES_MAX} bytes"));
        }
        Ok(())
    }
}

/// See the module's head.
pub struct Jobs {
    rt: Rt,
    rule: RefCell<Rc<JobRule>>,
    /// Grows with every change of the rule.
    changes: Cell<u64>,
    numbers: RefCell<HashSet<u64>>,
    names: RefCell<Vec<Bytes>>,
    telling: Cell<bool>,
    /// Names for which there was no room.
    limit_hits: Cell<u64>,
    /// Servers that requests of jobs went to, and that do not know all names.
    behind: RefCell<Vec<(Rc<Import>, Rc<Told>)>>,
}

/// What one server was told: so many names, in so many sessions.
#[derive(Default)]
pub(crate) struct Told {
    names: Cell<usize>,
    sessions: Cell<u64>,
    /// Requests of jobs go there.
    wanted: Cell<bool>,
}

impl Told {
    fn is_behind(&self, import: &Import, names: usize) -> bool {
        self.names.get() < names || self.sessions.get() != import.counters().0
    }
}

impl Jobs {
    pub(crate) fn new(rt: Rt, rule: JobRule) -> Rc<Jobs> {
        Rc::new(Jobs {
            rt,
            rule: RefCell::new(Rc::new(rule)),
            changes: Cell::new(1),
            numbers: RefCell::default(),
            names: RefCell::default(),
            telling: Cell::new(false),
            limit_hits: Cell::new(0),
            behind: RefCell::default(),
        })
    }
    /// The rule, and a number that grows with its changes.
    #[must_use]
    pub fn rule(&self) -> (u64, Rc<JobRule>) {
        (self.changes.get(), self.rule.borrow().clone())
    }
    /// Times that a job went without a name, for there are too many.
    #[must_use]
    pub fn name_limit_hits(&self) -> u64 {
        self.limit_hits.get()
    }
    /// Sets `jobid_var`.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_var(&self, text: &str) -> Result<(), String> {
        JobRule::check_var(text)?;
        let rule = JobRule { var: text.into(), ..(**self.rule.borrow()).clone() };
        self.set_rule(rule);
        Ok(())
    }
    /// Sets `jobid_name`.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_name(&self, text: &str) -> Result<(), String> {
        JobRule::check_name(text)?;
        let rule = JobRule { name: text.into(), ..(**self.rule.borrow()).clone() };
        self.set_rule(rule);
        Ok(())
    }
    fn set_rule(&self, rule: JobRule) {
        *self.rule.borrow_mut() = Rc::new(rule);
        self.changes.set(self.changes.get() + 1);
    }

    /// The number of a job's name, which servers will be told; 0: it has none.
    pub(crate) fn number(&self, name: &[u8]) -> u64 {
        let job = job_id(name);
        if job == 0 {
            return 0;
        }
        let mut numbers = self.numbers.borrow_mut();
        if numbers.len() >= NAMES_MAX && !numbers.contains(&job) {
            self.limit_hits.set(self.limit_hits.get() + 1);
        } else if numbers.insert(job) {
            self.names.borrow_mut().push(Bytes(name.to_vec()));
        }
        job
    }

    /// A request of a job goes to a server: it is told the names that it does not know.
    pub(crate) fn seen(self: &Rc<Self>, import: &Rc<Import>, told: &Rc<Told>) {
        if !told.is_behind(import, self.names.borrow().len()) {
            return;
        }
        if !told.wanted.replace(true) {
            self.behind.borrow_mut().push((import.clone(), told.clone()));
        }
        if !self.telling.replace(true) {
            let me = self.clone();
            self.rt.spawn(async move { me.tell().await });
        }
    }

    async fn tell(self: Rc<Self>) {
        self.rt.sleep(GATHER).await;
        self.telling.set(false);
        for (import, told) in self.behind.take() {
            self.tell_to(&import, &told).await;
        }
    }

    async fn tell_to(&self, import: &Rc<Import>, told: &Told) {
        told.wanted.set(false);
        if import.state() != ImportState::Full {
            return;
        }
        let sessions = import.counters().0;
        if told.sessions.replace(sessions) != sessions {
            told.names.set(0);
        }
        loop {
            let from = told.names.get();
            let names: Vec<Bytes> = self.names.borrow().iter().skip(from).take(NAMES_TOLD_MAX).cloned().collect();
            if names.is_empty() {
                return;
            }
            let to = from + names.len();
            if let Err(e) = import.ask::<_, ()>(Op::Jobs, &JobsRequest { names }).await {
                // It is told when it next sees a job.
                tracing::debug!(target = import.target(), "names of jobs: {e}");
                told.sessions.set(0);
                return;
            }
            told.names.set(to);
        }
    }
}

/// Whose I/O it is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Doer {
    uid: u32,
    gid: u32,
    pub(crate) job: u64,
}

impl Doer {
    /// Whose I/O it is that comes with these credentials.
    pub(crate) fn of(cred: &Cred) -> Doer {
        Doer { uid: cred.uid, gid: cred.gid, job: cred.job }
    }
    pub(crate) fn owner(self) -> IoOwner {
        IoOwner { uid: self.uid, gid: self.gid, project: 0, job: self.job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_is_refused_changes_nothing_and_others_are_counted() {
        let jobs = Jobs::new(simworld::TestWorld::new(1, 1 << 20).rt(), JobRule::default());
        let (before, _) = jobs.rule();
        assert!(jobs.set_name("two words").is_err() && jobs.set_var("").is_err());
        assert_eq!(jobs.rule().0, before);
        jobs.set_name("%j").unwrap();
        assert!(jobs.rule().0 > before && jobs.rule().1.name == "%j" && jobs.rule().1.var == "procname_uid");
    }

    #[test]
    fn names_beyond_the_limit_have_a_number_and_are_not_told() {
        let jobs = Jobs::new(simworld::TestWorld::new(1, 1 << 20).rt(), JobRule::default());
        (0..NAMES_MAX as u64).for_each(|i| _ = jobs.number(&i.to_le_bytes()));
        assert_eq!(jobs.number(&0u64.to_le_bytes()), job_id(&0u64.to_le_bytes()));
        assert_eq!(jobs.name_limit_hits(), 0);
        assert_ne!(jobs.number(b"one more"), 0);
        assert_eq!((jobs.name_limit_hits(), jobs.names.borrow().len()), (1, NAMES_MAX));
    }

    #[test]
    fn rules_that_cannot_be_are_refused() {
        assert!(JobRule::check_var("SLURM_JOB_ID").is_ok() && JobRule::check_var("disable").is_ok());
        for bad in ["", "A B", "x=y"] {
            assert!(JobRule::check_var(bad).unwrap_err().contains("environment variable"), "{bad}");
        }
        assert!(JobRule::check_name("%j:%e.%u%%").is_ok());
        for bad in ["", "%q", "%", "two words", &"x".repeat(65)] {
            assert!(JobRule::check_name(bad).unwrap_err().starts_with("write a format"), "{bad}");
        }
    }
}
