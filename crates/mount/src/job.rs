//! Which job a caller is of: a name made from its process, its user or its environment, by the rule that `jobid_var` and
//! `jobid_name` say. What is known of a process is believed for a few seconds.
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use client::{Client, JobRule};
use types::JOB_NAME_BYTES_MAX;

/// How long a process is believed to be of the same job.
const BELIEVED: Duration = Duration::from_secs(5);
/// Processes remembered.
const PROCESSES_MAX: usize = 4096;
/// Most of a process's environment that is looked at.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;

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
    host: RefCell<Option<Rc<str>>>,
}

impl JobsOfCallers {
    /// The number of a caller's job; 0: none.
    pub(crate) fn of(&self, client: &Rc<Client>, uid: u32, gid: u32, pid: u32) -> u64 {
        let (changes, rule) = client.sessions().jobs().rule();
        if pid == 0 || rule.var == "disable" {
            return 0;
        }
        let mut known = self.known.borrow_mut();
        if let Some(k) = known.get(&pid)
            && k.rule == changes
            && k.uid == uid
            && k.at.elapsed() < BELIEVED
        {
            return k.job;
        }
        let job = client.sessions().job_named(self.name(&rule, uid, gid, pid).as_bytes());
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        known.insert(pid, Known { at: Instant::now(), rule: changes, uid, job });
        job
    }

    fn name(&self, rule: &JobRule, uid: u32, gid: u32, pid: u32) -> String {
        const BY_PROCESS: &str = "%e.%u";
        let (format, value) = match rule.var.as_str() {
            "procname_uid" => (BY_PROCESS, String::new()),
            "nodelocal" => (rule.name.as_str(), String::new()),
            var => match variable(pid, var) {
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
        let name = |var: &str, name: &str| jobs.name(&JobRule { var: var.into(), name: name.into() }, 7, 8, me);
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
}
