//! Random operations against a model of what POSIX says.
use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::prelude::*;
use types::{Fid, FsError};

use super::harness::Fs;
use crate::kv::MetaKv;

#[derive(Clone, Debug)]
pub enum Op {
    Mkdir(usize, u8),
    Create(usize, u8),
    Symlink(usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Rename(usize, u8, usize, u8, u32),
    Link(usize, u8, usize, u8),
    OpenUnlinked(usize, u8),
    CloseOne,
    Sync,
}

pub fn ops(n: usize) -> impl Strategy<Value = Vec<Op>> {
    let d = 0usize..6;
    let name = 0u8..6;
    let one = prop_oneof![
        3 => (d.clone(), name.clone()).prop_map(|(d, n)| Op::Mkdir(d, n)),
        4 => (d.clone(), name.clone()).prop_map(|(d, n)| Op::Create(d, n)),
        1 => (d.clone(), name.clone()).prop_map(|(d, n)| Op::Symlink(d, n)),
        3 => (d.clone(), name.clone()).prop_map(|(d, n)| Op::Unlink(d, n)),
        2 => (d.clone(), name.clone()).prop_map(|(d, n)| Op::Rmdir(d, n)),
        6 => (d.clone(), name.clone(), d.clone(), name.clone(), 0u32..3).prop_map(|(d, n, e, m, f)| Op::Rename(d, n, e, m, f)),
        3 => (d.clone(), name.clone(), d.clone(), name.clone()).prop_map(|(d, n, e, m)| Op::Link(d, n, e, m)),
        2 => (d, name).prop_map(|(d, n)| Op::OpenUnlinked(d, n)),
        1 => Just(Op::CloseOne),
        1 => Just(Op::Sync),
    ];
    prop::collection::vec(one, 1..n)
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Node {
    dir: bool,
    names: u32,
    parent: Fid,
    children: BTreeMap<String, Fid>,
}

/// What POSIX says.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    pub nodes: BTreeMap<Fid, Node>,
}

type Opens = Vec<(types::HandleId, Fid)>;

impl Model {
    pub fn new() -> Model {
        let root = Node { dir: true, names: 1, parent: Fid::ROOT, ..Node::default() };
        Model { nodes: BTreeMap::from([(Fid::ROOT, root)]) }
    }
    /// The `i`-th directory that lives.
    fn dir(&self, i: usize) -> Fid {
        let dirs: Vec<Fid> = self.nodes.iter().filter(|(_, n)| n.dir).map(|(f, _)| *f).collect();
        dirs[i % dirs.len()]
    }
    fn child(&self, d: Fid, n: &str) -> Option<Fid> {
        self.nodes[&d].children.get(n).copied()
    }
    fn add(&mut self, d: Fid, n: &str, fid: Fid, dir: bool) {
        self.nodes.get_mut(&d).unwrap().children.insert(n.into(), fid);
        let node = self.nodes.entry(fid).or_insert(Node { dir, parent: d, ..Node::default() });
        node.names += 1;
    }
    fn drop_name(&mut self, d: Fid, n: &str) {
        let fid = self.nodes.get_mut(&d).unwrap().children.remove(n).unwrap();
        let node = self.nodes.get_mut(&fid).unwrap();
        node.names -= 1;
        if node.names == 0 {
            self.nodes.remove(&fid);
        }
    }
    fn is_below(&self, mut at: Fid, above: Fid) -> bool {
        loop {
            if at == above {
                return true;
            }
            if at == Fid::ROOT {
                return false;
            }
            at = self.nodes[&at].parent;
        }
    }
    fn subdirs(&self, d: Fid) -> u32 {
        self.nodes[&d].children.values().filter(|c| self.nodes[*c].dir).count() as u32
    }

    fn rename(&mut self, (d, n): (Fid, &str), (e, m): (Fid, &str), flags: u32) -> Result<(), FsError> {
        let a = self.child(d, n).ok_or(FsError::NotFound)?;
        let b = self.child(e, m);
        match b {
            Some(_) if flags == 1 => return Err(FsError::Exists),
            None if flags == 2 => return Err(FsError::NotFound),
            _ => {}
        }
        let is_dir = |f: Fid| self.nodes[&f].dir;
        if d != e {
            if is_dir(a) && self.is_below(e, a) {
                return Err(FsError::Invalid);
            }
            if let Some(b) = b.filter(|b| is_dir(*b) && self.is_below(d, *b)) {
                let _ = b;
                return Err(if flags == 2 { FsError::Invalid } else { FsError::NotEmpty });
            }
        }
        if b == Some(a) {
            return Ok(());
        }
        if flags == 2 {
            let b = b.expect("checked above");
            self.nodes.get_mut(&d).unwrap().children.insert(n.into(), b);
            self.nodes.get_mut(&e).unwrap().children.insert(m.into(), a);
            self.nodes.get_mut(&a).unwrap().parent = e;
            self.nodes.get_mut(&b).unwrap().parent = d;
            return Ok(());
        }
        if let Some(b) = b {
            match (is_dir(a), is_dir(b)) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !self.nodes[&b].children.is_empty() => return Err(FsError::NotEmpty),
                _ => {}
            }
            self.drop_name(e, m);
        }
        self.nodes.get_mut(&d).unwrap().children.remove(n);
        self.nodes.get_mut(&e).unwrap().children.insert(m.into(), a);
        self.nodes.get_mut(&a).unwrap().parent = e;
        Ok(())
    }

    /// Carries one operation out on both sides and compares the outcome.
    pub fn step(&mut self, fs: &Fs, op: &Op, opens: &mut Opens) {
        let name = |n: &u8| format!("name{n}");
        match op {
            Op::Mkdir(d, n) | Op::Create(d, n) | Op::Symlink(d, n) => {
                let (d, n) = (self.dir(*d), name(n));
                let got = match op {
                    Op::Mkdir(..) => fs.mkdir(d, &n),
                    Op::Create(..) => fs.create(d, &n),
                    _ => fs.symlink(d, &n, "target"),
                };
                match self.child(d, &n) {
                    Some(_) => assert_eq!(got, Err(FsError::Exists)),
                    None => self.add(d, &n, got.unwrap(), matches!(op, Op::Mkdir(..))),
                }
            }
            Op::Unlink(d, n) | Op::Rmdir(d, n) => {
                let (d, n, rmdir) = (self.dir(*d), name(n), matches!(op, Op::Rmdir(..)));
                let got = if rmdir { fs.rmdir(d, &n) } else { fs.unlink(d, &n) };
                let want = match self.child(d, &n).map(|f| &self.nodes[&f]) {
                    None => Err(FsError::NotFound),
                    Some(c) if rmdir && !c.dir => Err(FsError::NotDirectory),
                    Some(c) if !rmdir && c.dir => Err(FsError::IsDirectory),
                    Some(c) if !c.children.is_empty() => Err(FsError::NotEmpty),
                    Some(_) => Ok(()),
                };
                assert_eq!(got, want);
                if want.is_ok() {
                    self.drop_name(d, &n);
                }
            }
            Op::Rename(d, n, e, m, flags) => {
                let (d, n, e, m) = (self.dir(*d), name(n), self.dir(*e), name(m));
                assert_eq!(fs.rename((d, &n), (e, &m), *flags), self.rename((d, &n), (e, &m), *flags), "{op:?}");
            }
            Op::Link(d, n, e, m) => {
                let (d, n, e, m) = (self.dir(*d), name(n), self.dir(*e), name(m));
                let Some(fid) = self.child(d, &n) else { return };
                let got = fs.link(fid, e, &m);
                if self.child(e, &m).is_some() {
                    assert_eq!(got, Err(FsError::Exists));
                } else if self.nodes[&fid].dir {
                    assert_eq!(got, Err(FsError::NotPermitted));
                } else {
                    assert_eq!(got, Ok(()));
                    self.add(e, &m, fid, false);
                }
            }
            Op::OpenUnlinked(d, n) => {
                let (d, n) = (self.dir(*d), name(n));
                if self.child(d, &n).is_none() {
                    let o = fs.open(d, &n, 0o302, 0o600).unwrap();
                    fs.unlink(d, &n).unwrap();
                    opens.push((o.handle, o.entry.attr.fid));
                }
            }
            Op::CloseOne => {
                if let Some((handle, fid)) = opens.pop() {
                    assert_eq!(fs.getattr(fid).unwrap().nlink, 0);
                    fs.close(handle, fid, 0, 0).unwrap();
                    assert_eq!(fs.getattr(fid), Err(FsError::Stale));
                }
            }
            Op::Sync => fs.sync(),
        }
    }

    /// Whether the file system shows exactly this.
    pub fn matches(&self, fs: &Fs) -> bool {
        self.nodes.iter().all(|(fid, node)| {
            let Ok(attr) = fs.getattr(*fid) else { return false };
            if !node.dir {
                return attr.nlink == node.names;
            }
            let mut names = fs.names(*fid);
            names.sort();
            let same = names.iter().eq(node.children.keys());
            same && attr.nlink == 2 + self.subdirs(*fid)
                && node.children.iter().all(|(n, f)| fs.lookup(*fid, n).is_ok_and(|a| a.fid == *f))
        })
    }
}

/// Findings of a check of what is on stable storage.
pub fn findings(fs: &Fs) -> Vec<String> {
    let kv: Rc<dyn MetaKv> = fs.kv.reopen();
    let report = fs.world.run(crate::check::check(&kv)).unwrap();
    report.findings.iter().map(ToString::to_string).collect()
}

fn run(fs: &Fs, list: &[Op]) {
    let mut model = Model::new();
    let mut opens = Vec::new();
    for op in list {
        model.step(fs, op, &mut opens);
    }
    assert!(model.matches(fs));
    fs.sync();
    assert!(model.matches(fs), "after the commit");
    assert_eq!(findings(fs), Vec::<String>::new());
    for (fid, node) in model.nodes.iter().filter(|(_, n)| !n.dir) {
        let paths: Vec<String> = (0..node.names).map(|i| fs.path(*fid, i)).collect();
        let inside = |p: &String| fs.walk(p).is_ok_and(|f| f == *fid);
        assert!(paths.iter().all(inside), "{paths:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_operations_do_what_posix_says(list in ops(80)) {
        run(&Fs::new(), &list);
    }
    #[test]
    fn colliding_names_change_nothing(list in ops(60)) {
        run(&Fs::with_hash(1), &list);
    }
}
proptest! {
    #![proptest_config(ProptestConfig::with_cases(15))]
    #[test]
    fn an_engine_that_answers_later_changes_nothing(list in ops(50)) {
        let fs = Fs::new();
        fs.kv.set_slow_reads(true);
        run(&fs, &list);
    }
}
