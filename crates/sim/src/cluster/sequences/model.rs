//! What a short sequence of operations makes of a small file system: the states between the operations, which of them
//! a crash may leave, and whether what was found is one of these.
use std::collections::BTreeMap;

/// The operations that sequences are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes an empty file.
    Create,
    /// Writes 6,000 units of bytes at byte 100.
    Write,
    /// Appends 5,000 units.
    Append,
    /// Cuts to 1,234 units.
    Truncate,
    /// Renames to a free name.
    Rename,
    /// Renames onto another file.
    RenameOver,
    /// Makes a second name.
    Link,
    /// Removes a name.
    Unlink,
    /// Makes a directory.
    Mkdir,
    /// Removes a directory.
    Rmdir,
    /// Sets an extended attribute.
    Setxattr,
    /// Reserves 9,000 units, which makes the file as long as that.
    Fallocate,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 12] = [
        Op::Create,
        Op::Write,
        Op::Append,
        Op::Truncate,
        Op::Rename,
        Op::RenameOver,
        Op::Link,
        Op::Unlink,
        Op::Mkdir,
        Op::Rmdir,
        Op::Setxattr,
        Op::Fallocate,
    ];
    /// Whether it works on an open file, which is what is synced then.
    #[must_use]
    pub fn has_file_open(self) -> bool {
        matches!(self, Op::Create | Op::Write | Op::Append | Op::Truncate | Op::Setxattr | Op::Fallocate)
    }
}

/// How an operation's result is made to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The file is only closed.
    Close,
    /// fsync(2) of the file, or of its directory.
    Fsync,
    /// fdatasync(2) of the file, or of its directory.
    Fdatasync,
    /// syncfs(2).
    Syncfs,
}

impl Sync {
    /// All of them.
    pub const ALL: [Sync; 4] = [Sync::Close, Sync::Fsync, Sync::Fdatasync, Sync::Syncfs];
}

/// The inodes of a sequence: the two files and the directory that are there before it, what the first and the second
/// operation make.
pub type Id = usize;
/// The first file.
pub const A: Id = 0;
/// The second file.
pub const B: Id = 1;
/// The directory.
pub const DIR: Id = 2;
/// What operation `i` makes.
#[must_use]
pub const fn made_by(i: usize) -> Id {
    3 + i
}
/// Every name that a sequence may use.
pub const NAMES: [&str; 9] = ["a", "b", "s", "c0", "c1", "r0", "r1", "l0", "l1"];
/// Names of directories that operations make.
pub const DIR_NAMES: [&str; 2] = ["m0", "m1"];
/// The byte that operation `i` writes.
#[must_use]
pub const fn pattern(i: usize) -> u8 {
    0x50 + i as u8
}

/// A file's bytes and extended attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// Bytes.
    pub content: Vec<u8>,
    /// The attribute `user.x`.
    pub xattr: Option<Vec<u8>>,
}

/// One state: names and files. Directories have a name and no file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Names.
    pub names: BTreeMap<String, Id>,
    /// Files by id.
    pub files: BTreeMap<Id, File>,
    /// What the sizes of files and of operations are multiples of.
    pub unit: usize,
}

/// What an operation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name it begins with.
    pub name: String,
    /// The name it ends with, or makes.
    pub to: String,
    /// The file it works on.
    pub file: Option<Id>,
}

impl State {
    /// What is there, synced, before the sequence.
    #[must_use]
    pub fn initial(unit: usize) -> State {
        let names = [("a", A), ("b", B), ("s", DIR)].map(|(n, id)| (n.to_string(), id));
        let file = |byte: u8, len: usize| File { content: vec![byte; len * unit], xattr: None };
        State { names: names.into(), files: [(A, file(b'A', 5000)), (B, file(b'B', 3000))].into(), unit }
    }

    /// What operation number `i` would be about in this state; `None` where it makes no sense.
    #[must_use]
    pub fn target(&self, op: Op, i: usize) -> Option<Target> {
        let first = |not: &str| {
            let order = ["a", "r0", "c0", "l0", "b"];
            let name = order.into_iter().find(|n| *n != not && self.names.contains_key(*n))?;
            Some((name.to_string(), self.names[name]))
        };
        let new = |prefix: &str| format!("{prefix}{i}");
        Some(match op {
            Op::Create => Target { name: new("c"), to: new("c"), file: Some(made_by(i)) },
            Op::Mkdir => Target { name: new("m"), to: new("m"), file: None },
            Op::Rmdir => {
                self.names.get("s")?;
                Target { name: "s".into(), to: "s".into(), file: None }
            }
            Op::RenameOver => {
                let (name, id) = first("b").filter(|_| self.names.contains_key("b"))?;
                Target { name, to: "b".into(), file: Some(id) }
            }
            Op::Rename => {
                let (name, id) = first("")?;
                Target { name, to: new("r"), file: Some(id) }
            }
            Op::Link => {
                let (name, id) = first("")?;
                Target { name, to: new("l"), file: Some(id) }
            }
            _ => {
                let (name, id) = first("")?;
                Target { name: name.clone(), to: name, file: Some(id) }
            }
        })
    }

    /// The state after operation number `i`.
    #[must_use]
    pub fn after(&self, op: Op, target: &Target, i: usize) -> State {
        let mut s = self.clone();
        let unit = self.unit;
        let mut change = |f: &mut dyn FnMut(&mut File)| {
            if let Some(file) = target.file.and_then(|id| s.files.get_mut(&id)) {
                f(file);
            }
        };
        match op {
            Op::Create => {
                s.names.insert(target.to.clone(), made_by(i));
                s.files.insert(made_by(i), File::default());
            }
            Op::Mkdir => {
                s.names.insert(target.to.clone(), made_by(i));
            }
            Op::Unlink | Op::Rmdir => {
                s.names.remove(&target.name);
            }
            Op::Rename | Op::RenameOver => {
                if let Some(id) = s.names.remove(&target.name) {
                    // Two names of one file: rename(2) does nothing then.
                    if s.names.get(&target.to) == Some(&id) {
                        s.names.insert(target.name.clone(), id);
                    } else {
                        s.names.insert(target.to.clone(), id);
                    }
                }
            }
            Op::Link => {
                if let Some(id) = target.file {
                    s.names.insert(target.to.clone(), id);
                }
            }
            Op::Write => change(&mut |f| {
                let end = f.content.len().max(100 + 6000 * unit);
                f.content.resize(end, 0);
                f.content[100..100 + 6000 * unit].fill(pattern(i));
            }),
            Op::Append => change(&mut |f| f.content.extend_from_slice(&vec![pattern(i); 5000 * unit])),
            Op::Truncate => change(&mut |f| f.content.resize(1234 * unit, 0)),
            Op::Fallocate => change(&mut |f| {
                let end = f.content.len().max(9000 * unit);
                f.content.resize(end, 0);
            }),
            Op::Setxattr => change(&mut |f| f.xattr = Some(vec![pattern(i)])),
        }
        s
    }
}

/// The states of a sequence, and which of them are on stable storage.
pub struct Run {
    /// Before, between and after the operations.
    pub states: Vec<State>,
    /// Operations that were begun, each with what it is about and its number: the first leads from the first state to the second.
    pub begun: Vec<(Op, Target, usize)>,
    /// Names and attributes: the state that a sync which returned made last.
    pub durable: usize,
    /// The same for each file's bytes.
    pub durable_bytes: BTreeMap<Id, usize>,
}

impl Run {
    /// Nothing has happened.
    #[must_use]
    pub fn new(unit: usize) -> Run {
        Run { states: vec![State::initial(unit)], begun: Vec::new(), durable: 0, durable_bytes: BTreeMap::new() }
    }
    /// The last state.
    #[must_use]
    pub fn last(&self) -> &State {
        self.states.last().expect("there is an initial state")
    }
    /// Operation number `i` begins.
    pub fn begin(&mut self, op: Op, target: &Target, i: usize) {
        let next = self.last().after(op, target, i);
        self.states.push(next);
        self.begun.push((op, target.clone(), i));
    }
    /// A sync after the last operation returned: of the file that `op` has open, else of the directory, which says nothing
    /// of files' bytes.
    pub fn synced(&mut self, op: Op, sync: Sync, target: &Target) {
        let now = self.states.len() - 1;
        match sync {
            Sync::Close => {}
            Sync::Syncfs => {
                self.durable = now;
                let ids: Vec<Id> = self.last().files.keys().copied().collect();
                self.durable_bytes.extend(ids.into_iter().map(|id| (id, now)));
            }
            Sync::Fsync | Sync::Fdatasync => {
                self.durable = now;
                self.durable_bytes.extend(target.file.filter(|_| op.has_file_open()).map(|id| (id, now)));
            }
        }
    }

    /// Whether exactly the last state was found.
    ///
    /// # Errors
    /// How they differ.
    pub fn check_exact(&self, found: &State) -> Result<(), String> {
        let last = self.last();
        if found.names != last.names {
            return Err(format!("the names are {:?}, should be {:?}", found.names, last.names));
        }
        for (id, file) in &found.files {
            let wanted = &last.files[id];
            if file.xattr != wanted.xattr {
                return Err(format!("user.x of inode {id} is {:?}, should be {:?}", file.xattr, wanted.xattr));
            }
            if file.content != wanted.content {
                return Err(format!("inode {id}: {}", difference(&file.content, &wanted.content)));
            }
        }
        Ok(())
    }

    /// Whether what was found is a state that a crash may leave: names and attributes as after some operation since the
    /// last sync, each byte of a file as it was at some time since its own last sync; a cut is done as a whole or not at all.
    ///
    /// # Errors
    /// What cannot be.
    pub fn check_crashed(&self, found: &State) -> Result<(), String> {
        let possible = &self.states[self.durable..];
        let attributes = |s: &State| -> BTreeMap<Id, Option<Vec<u8>>> {
            s.names.values().filter_map(|id| Some((*id, s.files.get(id)?.xattr.clone()))).collect()
        };
        let fits = |s: &&State| s.names == found.names && attributes(s) == attributes(found);
        if !possible.iter().any(|s| fits(&s)) {
            let wanted: Vec<_> = possible.iter().map(|s| &s.names).collect();
            return Err(format!(
                "names {:?} with attributes {:?}: neither of {wanted:?}",
                found.names,
                attributes(found)
            ));
        }
        for (id, file) in &found.files {
            let told = self.contents(*id).into_iter().map(|world| bytes_fit(&file.content, &world));
            let told: Result<Vec<String>, ()> = told.map(|fits| fits.err().ok_or(())).collect();
            if let Ok(wrong) = told {
                return Err(format!("inode {id}: {}", wrong.join("; or else ")));
            }
        }
        Ok(())
    }

    /// What a file's bytes may have been since its last sync, for each choice of which cuts were done.
    fn contents(&self, id: Id) -> Vec<Vec<Vec<u8>>> {
        let from = self.durable_bytes.get(&id).copied().unwrap_or(0);
        let from = (from..self.states.len()).find(|i| self.states[*i].files.contains_key(&id)).unwrap_or(from);
        let Some(first) = self.states[from].files.get(&id) else { return vec![Vec::new()] };
        let changes: Vec<_> = self.begun[from..].iter().filter(|(_, target, _)| target.file == Some(id)).collect();
        let cuts = changes.iter().filter(|(op, ..)| *op == Op::Truncate).count();
        let world = |done: usize| {
            let (mut versions, mut cut) = (vec![first.content.clone()], 0);
            for (op, target, i) in &changes {
                let after = versions.iter().map(|content| {
                    let file = File { content: content.clone(), xattr: None };
                    let state = State { files: [(id, file)].into(), unit: self.last().unit, ..State::default() };
                    state.after(*op, target, *i).files.remove(&id).map_or_else(Vec::new, |f| f.content)
                });
                let after: Vec<Vec<u8>> = after.collect();
                match op {
                    Op::Truncate => {
                        if done >> cut & 1 == 1 {
                            versions = after;
                        }
                        cut += 1;
                    }
                    _ => versions.extend(after),
                }
            }
            versions
        };
        (0..1 << cuts).map(world).collect()
    }
}

fn bytes_fit(found: &[u8], versions: &[Vec<u8>]) -> Result<(), String> {
    let shortest = versions.iter().map(|v| v.len()).min().unwrap_or(0);
    let longest = versions.iter().map(|v| v.len()).max().unwrap_or(0);
    if !(shortest..=longest).contains(&found.len()) {
        return Err(format!("{} bytes, should be {shortest} to {longest}", found.len()));
    }
    let may_be = |at: usize, byte: u8| versions.iter().any(|v| v.get(at).copied().unwrap_or(0) == byte);
    match (0..found.len()).find(|at| !may_be(*at, found[*at])) {
        Some(at) => Err(format!("byte {at} is {:#x}, which it never was since the last sync", found[at])),
        None => Ok(()),
    }
}

fn difference(found: &[u8], wanted: &[u8]) -> String {
    let at = found.iter().zip(wanted).position(|(a, b)| a != b);
    format!("{} bytes, should be {}; the first difference is at {at:?}", found.len(), wanted.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(ops: &[(Op, Sync)]) -> Run {
        let mut run = Run::new(1);
        for (i, (op, sync)) in ops.iter().enumerate() {
            let target = run.last().target(*op, i).unwrap();
            run.begin(*op, &target, i);
            run.synced(*op, *sync, &target);
        }
        run
    }

    #[test]
    fn what_was_synced_must_be_there_and_what_was_not_may() {
        let run = played(&[(Op::Write, Sync::Close), (Op::Rename, Sync::Close)]);
        assert!(run.states.iter().all(|s| run.check_crashed(s).is_ok()));
        assert!(run.check_exact(&run.states[2]).is_ok() && run.check_exact(&run.states[1]).is_err());
        let synced = played(&[(Op::Write, Sync::Fsync), (Op::Rename, Sync::Close)]);
        assert!(synced.check_crashed(&synced.states[0]).is_err(), "the bytes were synced");
        assert!(synced.check_crashed(&synced.states[1]).is_ok());
        let named = played(&[(Op::Write, Sync::Close), (Op::Rename, Sync::Fsync)]);
        let unwritten = |run: &Run| State { names: run.last().names.clone(), ..run.states[0].clone() };
        assert!(named.check_crashed(&unwritten(&named)).is_ok(), "the directory was synced, the file was not");
        let renamed = played(&[(Op::Write, Sync::Close), (Op::Rename, Sync::Syncfs)]);
        assert!(renamed.check_crashed(&renamed.states[1]).is_err(), "the name was synced");
        let mut torn = run.states[2].clone();
        torn.files.get_mut(&A).unwrap().content[5500..6000].fill(0);
        assert!(run.check_crashed(&torn).is_ok(), "part of a write");
        torn.files.get_mut(&A).unwrap().content[10] = 7;
        assert!(run.check_crashed(&torn).is_err(), "a byte that nobody wrote");
    }

    #[test]
    fn a_cut_is_done_as_a_whole_or_not_at_all() {
        let run = played(&[(Op::Write, Sync::Close), (Op::Truncate, Sync::Close)]);
        assert!(run.states.iter().all(|s| run.check_crashed(s).is_ok()));
        let file = |content: Vec<u8>| {
            let mut state = run.states[0].clone();
            state.files.get_mut(&A).unwrap().content = content;
            state
        };
        assert!(run.check_crashed(&file(vec![b'A'; 1234])).is_ok(), "the write is lost, the cut is done");
        assert!(run.check_crashed(&file(vec![b'A'; 3000])).is_err(), "half of the cut");
        let mut half = run.states[1].files[&A].content.clone();
        half[4000..5000].fill(0);
        assert!(run.check_crashed(&file(half)).is_err(), "half of the cut");
        let after = played(&[(Op::Truncate, Sync::Close), (Op::Append, Sync::Close)]);
        assert!(after.states.iter().all(|s| after.check_crashed(s).is_ok()));
        let synced = played(&[(Op::Truncate, Sync::Fsync), (Op::Append, Sync::Close)]);
        assert!(synced.check_crashed(&synced.states[0]).is_err() && synced.check_crashed(&synced.states[1]).is_ok());
    }
}
