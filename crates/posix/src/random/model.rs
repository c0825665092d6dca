//! What a file system is, in a few maps: the model that random operations are checked against. Paths are lists of
//! small numbers, each a name; there are no links to follow, no permissions and no times here.
use std::collections::BTreeMap;

use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};

/// A path below the root, as name numbers; never empty.
pub type Names = Vec<u8>;

/// A file or directory of the model, by number; numbers are not reused.
pub type NodeId = usize;

/// The errnos that are right, where a call must fail: when several reasons hold, any of them.
pub type Errnos = Vec<i32>;

/// What a node is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A regular file and its bytes.
    File(Vec<u8>),
    /// A directory and its entries.
    Dir(BTreeMap<u8, NodeId>),
}

/// A node: what it is, its names, its permissions.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Names that lead here (files).
    pub links: u64,
    /// Permission bits.
    pub mode: u32,
}

/// The model; node 0 is the root.
pub struct Model {
    nodes: Vec<Node>,
}

impl Default for Model {
    fn default() -> Model {
        Model { nodes: vec![Node { kind: Kind::Dir(BTreeMap::new()), links: 1, mode: 0o755 }] }
    }
}

impl Model {
    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }
    /// The bytes of a file.
    #[must_use]
    pub fn data(&self, id: NodeId) -> &Vec<u8> {
        match &self.nodes[id].kind {
            Kind::File(data) => data,
            Kind::Dir(_) => panic!("node {id} is a directory"),
        }
    }
    /// The bytes of a file, to change.
    pub fn data_mut(&mut self, id: NodeId) -> &mut Vec<u8> {
        match &mut self.nodes[id].kind {
            Kind::File(data) => data,
            Kind::Dir(_) => panic!("node {id} is a directory"),
        }
    }
    fn entries(&self, id: NodeId) -> Option<&BTreeMap<u8, NodeId>> {
        match &self.nodes[id].kind {
            Kind::Dir(entries) => Some(entries),
            Kind::File(_) => None,
        }
    }
    fn entries_mut(&mut self, id: NodeId) -> &mut BTreeMap<u8, NodeId> {
        match &mut self.nodes[id].kind {
            Kind::Dir(entries) => entries,
            Kind::File(_) => panic!("node {id} is a file"),
        }
    }
    fn is_dir(&self, id: NodeId) -> bool {
        self.entries(id).is_some()
    }
    /// The directory that holds the last name.
    ///
    /// # Errors
    /// ENOENT or ENOTDIR.
    fn parent(&self, path: &[u8]) -> Result<NodeId, i32> {
        let mut at = 0;
        for name in &path[..path.len() - 1] {
            at = *self.entries(at).ok_or(ENOTDIR)?.get(name).ok_or(ENOENT)?;
        }
        if self.is_dir(at) { Ok(at) } else { Err(ENOTDIR) }
    }
    /// Where a path leads.
    ///
    /// # Errors
    /// ENOENT or ENOTDIR.
    pub fn find(&self, path: &[u8]) -> Result<NodeId, i32> {
        let parent = self.parent(path)?;
        self.entries(parent).ok_or(ENOTDIR)?.get(&path[path.len() - 1]).copied().ok_or(ENOENT)
    }
    fn add(&mut self, path: &[u8], kind: Kind, mode: u32) -> Result<NodeId, i32> {
        let parent = self.parent(path)?;
        let id = self.nodes.len();
        self.nodes.push(Node { kind, links: 1, mode });
        self.entries_mut(parent).insert(path[path.len() - 1], id);
        Ok(id)
    }
    /// open(2) for reading and writing.
    ///
    /// # Errors
    /// The errnos that are right.
    pub fn open(&mut self, path: &[u8], create: bool, excl: bool, trunc: bool) -> Result<NodeId, Errnos> {
        match self.find(path) {
            Ok(_) if create && excl => Err(vec![EEXIST]),
            Ok(id) if self.is_dir(id) => Err(vec![EISDIR]),
            Ok(id) => {
                if trunc {
                    self.data_mut(id).clear();
                }
                Ok(id)
            }
            Err(ENOENT) if create => self.add(path, Kind::File(Vec::new()), 0o644).map_err(|e| vec![e]),
            Err(e) => Err(vec![e]),
        }
    }
    /// mkdir(2).
    ///
    /// # Errors
    /// The errnos that are right.
    pub fn mkdir(&mut self, path: &[u8]) -> Result<(), Errnos> {
        match self.find(path) {
            Ok(_) => Err(vec![EEXIST]),
            Err(ENOENT) => self.add(path, Kind::Dir(BTreeMap::new()), 0o755).map(|_| ()).map_err(|e| vec![e]),
            Err(e) => Err(vec![e]),
        }
    }
    /// chmod(2).
    ///
    /// # Errors
    /// The errnos that are right.
    pub fn chmod(&mut self, path: &[u8], mode: u32) -> Result<(), Errnos> {
        let id = self.find(path).map_err(|e| vec![e])?;
        self.nodes[id].mode = mode;
        Ok(())
    }
    /// unlink(2).
    ///
    /// # Errors
    /// The errnos that are right.
    pub fn unlink(&mut self, path: &[u8]) -> Result<(), Errnos> {
        let id = self.find(path).map_err(|e| vec![e])?;
        if self.is_dir(id) {
            return Err(vec![EISDIR]);
        }
        self.drop_name(path);
        Ok(())
    }
    fn drop_name(&mut self, path: &[u8]) {
        let parent = self.parent(path).expect("the caller found the path");
        if let Some(id) = self.entries_mut(parent).remove(&path[path.len() - 1]) {
            self.nodes[id].links -= 1;
        }
    }
    /// rmdir(2).
    ///
    /// # Errors
    /// The errnos that are right.
    pub fn rmdir(&mut self, path: &[u8]) -> Result<(), Errnos> {
        let id = self.find(path).map_err(|e| vec![e])?;
        match self.entries(id) {
            None => Err(vec![ENOTDIR]),
            Some(entries) if !entries.is_empty() => Err(vec![ENOTEMPTY, EEXIST]),
            Some(_) => {
                self.drop_name(path);
                Ok(())
            }
        }
    }
    /// link(2).
    ///
    /// # Errors
    /// The errnos that are right.
    pub fn link(&mut self, old: &[u8], new: &[u8]) -> Result<(), Errnos> {
        let (from, to) = (self.find(old), self.find(new));
        let mut wrong = Vec::new();
        match from {
            Ok(id) if self.is_dir(id) => wrong.push(EPERM),
            Err(e) => wrong.push(e),
            Ok(_) => {}
        }
        match to {
            Ok(_) => wrong.push(EEXIST),
            Err(_) => wrong.extend(self.parent(new).err()),
        }
        let Ok(id) = from else { return Err(wrong) };
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let parent = self.parent(new).map_err(|e| vec![e])?;
        self.entries_mut(parent).insert(new[new.len() - 1], id);
        self.nodes[id].links += 1;
        Ok(())
    }
    /// renameat2(2).
    ///
    /// # Errors
    /// The errnos that are right.
    pub fn rename(&mut self, old: &[u8], new: &[u8], flags: u32) -> Result<(), Errnos> {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let (from, to) = (self.find(old), self.find(new));
        let mut wrong: Errnos = from.err().into_iter().chain(self.parent(new).err()).collect();
        if let Ok(id) = from {
            if self.is_dir(id) && new.len() > old.len() && new.starts_with(old) {
                wrong.push(EINVAL);
            }
            match to {
                Ok(_) if flags & libc::RENAME_NOREPLACE != 0 => wrong.push(EEXIST),
                Ok(target) if old.len() > new.len() && old.starts_with(new) && self.is_dir(target) => {
                    wrong.extend([if exchange { EINVAL } else { ENOTEMPTY }, EEXIST, EISDIR]);
                }
                Ok(target) if target != id && !exchange => wrong.extend(self.replace_error(id, target)),
                Err(e) if exchange => wrong.push(e),
                _ => {}
            }
        } else if to.is_ok() && flags & libc::RENAME_NOREPLACE != 0 {
            wrong.push(EEXIST);
        }
        let Ok(id) = from else { return Err(wrong) };
        if !wrong.is_empty() {
            return Err(wrong);
        }
        if to == Ok(id) {
            return Ok(());
        }
        self.move_name(old, new, id, to.ok(), exchange);
        Ok(())
    }
    fn replace_error(&self, from: NodeId, to: NodeId) -> Errnos {
        match (self.is_dir(from), self.entries(to)) {
            (true, None) => vec![ENOTDIR],
            (false, Some(_)) => vec![EISDIR],
            (true, Some(entries)) if !entries.is_empty() => vec![ENOTEMPTY, EEXIST],
            _ => vec![],
        }
    }
    fn move_name(&mut self, old: &[u8], new: &[u8], id: NodeId, target: Option<NodeId>, exchange: bool) {
        let from = self.parent(old).expect("the old name was found");
        let to = self.parent(new).expect("the new parent was found");
        if !exchange && target.is_some() {
            self.drop_name(new);
        }
        self.entries_mut(from).remove(&old[old.len() - 1]);
        self.entries_mut(to).insert(new[new.len() - 1], id);
        if let (true, Some(target)) = (exchange, target) {
            self.entries_mut(from).insert(old[old.len() - 1], target);
        }
    }
    /// The names in a directory.
    ///
    /// # Errors
    /// ENOENT or ENOTDIR.
    pub fn list(&self, path: &[u8]) -> Result<Vec<u8>, Errnos> {
        let id = if path.is_empty() { 0 } else { self.find(path).map_err(|e| vec![e])? };
        self.entries(id).map(|e| e.keys().copied().collect()).ok_or_else(|| vec![ENOTDIR])
    }
}
