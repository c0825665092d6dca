//! Which job a caller is of: a name made from its process, its user or its environment, by the rule that `jobid_var` and
//! `jobid_name` say. What is known of a process is believed for a few seconds.
//!
//! A process's environment is its memory, and who reads it waits for locks that the process may hold while it waits for this mount: of
//! execve(2) until files are closed, of mmap(2) until pages are written. So no shard reads it: a worker does, and a request
//! waits for that a limited time only and has no job then. Other files of `/proc` that are read here (`comm`) take no such lock.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use client::{Client, JobRule};
use rt::Rt;
use rt::sync::{OneReceiver, oneshot};
use types::JOB_NAME_BYTES_MAX;

/// How long a process is believed to be of the same job.
const BELIEVED: Duration = Duration::from_secs(5);
/// Processes remembered.
const PROCESSES_MAX: usize = 4096;
/// Most of a process's environment that is looked at.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;
/// How long a request waits for its caller's environment at most.
const LOOKED_WITHIN: types::Duration = types::Duration::from_secs(1);
/// Environments looked at in the same moment; each takes a worker, and a process may keep it waiting.
const LOOKS_MAX: usize = 32;
/// The same, of processes of one user.
const LOOKS_OF_USER_MAX: usize = 8;

#[derive(Clone, Copy)]
struct Known {
    at: Instant,
    rule: u64,
    uid: u32,
    job: u64,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct JobsOfCallers {
    known: RefCell<HashMap<u32, Known>>,
    /// Processes whose environment is looked at just now, and their users.
    looks: RefCell<HashMap<u32, u32>>,
    /// Times that an environment was not looked at, for too many were.
    look_limit_hits: Cell<u64>,
    host: RefCell<Option<Rc<str>>>,
}

impl JobsOfCallers {
    /// The number of a caller's job; 0: none, or it is not known yet.
    pub(crate) async fn of(self: &Rc<Self>, client: &Rc<Client>, uid: u32, gid: u32, pid: u32) -> u64 {
        let (changes, rule) = client.sessions().jobs().rule();
        if pid == 0 || rule.var == "disable" {
            return 0;
        }
        if let Some(job) = self.believed(pid, uid, changes) {
            return job;
        }
        if !is_of_environment(&rule) {
            let job = client.sessions().job_named(self.name(&rule, uid, gid, pid, None).as_bytes());
            self.learn(pid, Known { at: Instant::now(), rule: changes, uid, job });
            return job;
        }
        let var = rule.var.clone();
        let Some(looked) = self.look(client.rt(), uid, pid, move || variable(pid, &var)) else { return 0 };
        let (told, answer) = oneshot();
        let (me, by) = (self.clone(), client.clone());
        client.rt().spawn(async move {
            let value = looked.await.flatten();
            let job = by.sessions().job_named(me.name(&rule, uid, gid, pid, value).as_bytes());
            me.learn(pid, Known { at: Instant::now(), rule: changes, uid, job });
            told.send(job);
        });
        client.rt().timeout(LOOKED_WITHIN, answer).await.flatten().unwrap_or(0)
    }

    fn believed(&self, pid: u32, uid: u32, rule: u64) -> Option<u64> {
        let known = self.known.borrow().get(&pid).copied();
        known.filter(|k| k.rule == rule && k.uid == uid && k.at.elapsed() < BELIEVED).map(|k| k.job)
    }

    fn learn(&self, pid: u32, what: Known) {
        let mut known = self.known.borrow_mut();
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        known.insert(pid, what);
    }

    /// Lets a worker look at a process's environment; nothing when one does already, or too many do.
    fn look(
        self: &Rc<Self>,
        rt: &Rt,
        uid: u32,
        pid: u32,
        look: impl FnOnce() -> Option<String> + Send + 'static,
    ) -> Option<OneReceiver<Option<String>>> {
        if self.looks.borrow().contains_key(&pid) {
            return None;
        }
        let of_user = self.looks.borrow().values().filter(|u| **u == uid).count();
        if self.looks.borrow().len() >= LOOKS_MAX || of_user >= LOOKS_OF_USER_MAX {
            self.look_limit_hits.set(self.look_limit_hits.get() + 1);
            tracing::debug!(
                uid,
                hits = self.look_limit_hits.get(),
                "too many environments are looked at: a job is not known"
            );
            return None;
        }
        self.looks.borrow_mut().insert(pid, uid);
        let (told, looked) = oneshot();
        let (me, worker) = (self.clone(), rt.clone());
        rt.spawn(async move {
            let value = worker.offload(look).await;
            me.looks.borrow_mut().remove(&pid);
            told.send(value);
        });
        Some(looked)
    }

    /// `value`: of the environment variable that the rule names, if the process has it.
    fn name(&self, rule: &JobRule, uid: u32, gid: u32, pid: u32, value: Option<String>) -> String {
        const BY_PROCESS: &str = "%e.%u";
        let (format, value) = match rule.var.as_str() {
            "procname_uid" => (BY_PROCESS, String::new()),
            "nodelocal" => (rule.name.as_str(), String::new()),
            _ => match value {
                Some(value) if rule.name.contains("%j") => (rule.name.as_str(), value),
                Some(value) => return legal(&value),
                None => (BY_PROCESS, String::new()),
            },
        };
        let mut name = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            match if c == '%' { rest.next() } else { None } {
                Some('e') => name += program(pid).trim_end(),
                Some('u') => name += &uid.to_string(),
                Some('g') => name += &gid.to_string(),
                Some('p') => name += &pid.to_string(),
                Some('h') => name += &self.host(),
                Some('H') => name += self.host().split('.').next().unwrap_or_default(),
                Some('j') => name += &value,
                Some(other) => name.push(other),
                None => name.push(c),
            }
        }
        legal(&name)
    }

    fn host(&self) -> Rc<str> {
        let read = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.host.borrow_mut().get_or_insert_with(|| read().trim_end().into()).clone()
    }
}

/// Whether a rule names an environment variable.
fn is_of_environment(rule: &JobRule) -> bool {
    !matches!(rule.var.as_str(), "disable" | "procname_uid" | "nodelocal")
}

fn program(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// A variable of a process's environment, as it was when its program began.
fn variable(pid: u32, name: &str) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let found = bytes.split(|b| *b == 0).find_map(|e| e.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(found).into_owned()).filter(|v| !v.is_empty())
}

/// A name as servers take it: printable, without spaces and quotes, not too long.
fn legal(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_graphic() && !"\"'\\{}".contains(c) { c } else { '_' };
    name.chars().map(keep).take(JOB_NAME_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_by_rule_from_this_process() {
        let jobs = JobsOfCallers::default();
        let me = std::process::id();
        let name = |var: &str, name: &str| {
            let rule = JobRule { var: var.into(), name: name.into() };
            let value = if is_of_environment(&rule) { variable(me, var) } else { None };
            jobs.name(&rule, 7, 8, me, value)
        };
        let program = legal(program(me).trim_end());
        assert_eq!(name("procname_uid", ""), format!("{program}.7"));
        assert_eq!(name("nodelocal", "%g:%p%%"), format!("8:{me}%"));
        assert!(name("nodelocal", "at-%H").len() > 3);
        assert_eq!(name("NO_SUCH_VARIABLE_HERE", "%j"), format!("{program}.7"));
        let (key, value) = std::env::vars().find(|(k, v)| JobRule::check_var(k).is_ok() && !v.is_empty()).unwrap();
        assert_eq!(name(&key, "%e"), legal(&value));
        assert!(name(&key, "%j").starts_with(&legal(&value)));
        assert_eq!(legal("a b\"{c}\n"), "a_b__c__");
    }

    #[test]
    fn a_process_is_looked_at_once_at_a_time_and_a_user_has_few_looks() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let (rt, jobs) = (world.rt(), Rc::new(JobsOfCallers::default()));
        let look = |uid: u32, pid: u32| jobs.look(&rt, uid, pid, || Some("j".into()));
        let first = look(1, 1).unwrap();
        assert!(look(1, 1).is_none());
        assert_eq!(jobs.look_limit_hits.get(), 0);
        let more: Vec<_> = (2..100).filter_map(|pid| look(1, pid)).collect();
        assert_eq!(more.len() + 1, LOOKS_OF_USER_MAX);
        assert!(look(2, 100).is_some(), "another user's");
        assert!(jobs.look_limit_hits.get() > 0);
        assert_eq!(world.run(first), Some(Some("j".into())));
        assert!(look(1, 1).is_some(), "that look is over");
    }
}
