//! Jobs: the rule by which callers are given job names, and what servers were told of these names.
//!
//! A request carries a job's number only. The names go to each server that sees the job, a moment later and many at a time,
//! so that no operation waits for them; a server that was restarted is told again.
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use ptlrpc::{Import, ImportState};
use types::{Duration, JOB_NAME_BYTES_MAX, job_id};
use wire::connect::JobsRequest;
use wire::ost::IoOwner;
use wire::{Bytes, Op};

use crate::client::Client;
use crate::open::OpenFile;

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
#[derive(Default)]
pub(crate) struct Jobs {
    rule: RefCell<Rc<JobRule>>,
    /// Grows with every change of the rule.
    changes: Cell<u64>,
    numbers: RefCell<HashSet<u64>>,
    names: RefCell<Vec<Bytes>>,
    telling: Cell<bool>,
    /// Names for which there was no room.
    limit_hits: Cell<u64>,
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

impl Client {
    /// The rule, and a number that grows with its changes.
    #[must_use]
    pub fn job_rule(&self) -> (u64, Rc<JobRule>) {
        (self.jobs.changes.get(), self.jobs.rule.borrow().clone())
    }
    /// Times that a job went without a name, for there are too many.
    #[must_use]
    pub fn job_name_limit_hits(&self) -> u64 {
        self.jobs.limit_hits.get()
    }
    /// Sets `jobid_var`.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_job_var(&self, text: &str) -> Result<(), String> {
        JobRule::check_var(text)?;
        let rule = JobRule { var: text.into(), ..(**self.jobs.rule.borrow()).clone() };
        self.set_job_rule(rule);
        Ok(())
    }
    /// Sets `jobid_name`.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_job_name(&self, text: &str) -> Result<(), String> {
        JobRule::check_name(text)?;
        let rule = JobRule { name: text.into(), ..(**self.jobs.rule.borrow()).clone() };
        self.set_job_rule(rule);
        Ok(())
    }
    pub(crate) fn set_job_rule(&self, rule: JobRule) {
        *self.jobs.rule.borrow_mut() = Rc::new(rule);
        self.jobs.changes.set(self.jobs.changes.get() + 1);
    }

    /// The number of a job's name; servers will be told the name.
    pub fn job_named(self: &Rc<Self>, name: &[u8]) -> u64 {
        let job = job_id(name);
        if job == 0 {
            return 0;
        }
        let mut numbers = self.jobs.numbers.borrow_mut();
        if numbers.len() >= NAMES_MAX && !numbers.contains(&job) {
            self.jobs.limit_hits.set(self.jobs.limit_hits.get() + 1);
        } else if numbers.insert(job) {
            self.jobs.names.borrow_mut().push(Bytes(name.to_vec()));
        }
        drop(numbers);
        self.job_seen(&self.mdc(), &self.jobs_of_mdt);
        job
    }

    /// A request of a job goes to a server: it is told the names that it does not know.
    pub(crate) fn job_seen(self: &Rc<Self>, import: &Import, told: &Told) {
        if told.is_behind(import, self.jobs.names.borrow().len()) {
            told.wanted.set(true);
            if !self.jobs.telling.replace(true) {
                let me = self.clone();
                self.rt.spawn(async move { me.tell_jobs().await });
            }
        }
    }

    async fn tell_jobs(self: Rc<Self>) {
        self.rt.sleep(GATHER).await;
        self.jobs.telling.set(false);
        self.tell_jobs_to(&self.mdc(), &self.jobs_of_mdt).await;
        for osc in self.oscs() {
            if let Ok(import) = osc.import() {
                self.tell_jobs_to(&import, osc.jobs_told()).await;
            }
        }
    }

    async fn tell_jobs_to(&self, import: &Rc<Import>, told: &Told) {
        if !told.wanted.replace(false) || import.state() != ImportState::Full {
            return;
        }
        let sessions = import.counters().0;
        if told.sessions.replace(sessions) != sessions {
            told.names.set(0);
        }
        loop {
            let from = told.names.get();
            let names: Vec<Bytes> = self.jobs.names.borrow().iter().skip(from).take(NAMES_TOLD_MAX).cloned().collect();
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
    pub(crate) fn owner(self) -> IoOwner {
        IoOwner { uid: self.uid, gid: self.gid, project: 0, job: self.job }
    }
}

impl OpenFile {
    /// Whose I/O through this open is.
    pub(crate) fn doer(&self) -> Doer {
        let cred = self.cred();
        Doer { uid: cred.uid, gid: cred.gid, job: cred.job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
