//! Where an operation is dropped: two clients, and a directory with a striped file, a small file and a subdirectory in it. What
//! anybody can see of that, and what the clients have in hand.
use std::collections::BTreeMap;

use client::{InUse, NewNode};
use wire::mdt::NodeKind;

use super::operations::OWNER;
use crate::world::*;

/// Bytes of the striped file: two rounds of its two objects, but for a part of the last stripe.
pub const LEN: u64 = 3 * STRIPE + 5000;
/// Bytes of the small file.
pub const SMALL: u64 = 300;
/// How long the world may go on until nothing is under way.
const QUIET_MAX: u32 = 600;

/// See the module's head.
pub struct Place {
    /// Whose operation is dropped.
    pub one: Rc<Client>,
    /// The other one.
    pub two: Rc<Client>,
    pub dir: Fid,
    /// The striped file, `f`, opened by `one` for reading and writing.
    pub file: Rc<OpenFile>,
    /// The small file, `g`.
    pub small: Fid,
    /// What operations opened.
    pub opened: RefCell<Vec<Rc<OpenFile>>>,
    /// What the other client opened.
    pub held: RefCell<Vec<Rc<OpenFile>>>,
}

/// What a name stands for.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub size: u64,
    pub mtime: types::WallTime,
    pub bytes: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub names: BTreeMap<Vec<u8>, Node>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Node { mode, nlink, uid, size, mtime, .. } = self;
        write!(f, "{mode:o} nlink {nlink} uid {uid} size {size} mtime {} s", mtime.0 / 1_000_000_000)?;
        write!(f, " bytes {}#{:08x}", self.bytes.len(), wire::crc32c(&self.bytes))?;
        for (name, value) in &self.xattrs {
            write!(f, " {}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))?;
        }
        for (name, node) in &self.names {
            write!(f, "\n    {}: {node:?}", String::from_utf8_lossy(name))?;
        }
        Ok(())
    }
}

impl Node {
    /// The same without times, which differ between one run and the next.
    pub fn timeless(mut self) -> Node {
        self.mtime = types::WallTime(0);
        self.names = self.names.into_iter().map(|(name, node)| (name, node.timeless())).collect();
        self
    }
}

fn is_dir(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}

/// What differs, line by line.
pub fn differ(one: &Node, other: &Node) -> String {
    let (one, other) = (format!("{one:?}"), format!("{other:?}"));
    let lines = |of: &str, but: &str, mark| {
        let but: Vec<&str> = but.lines().collect();
        of.lines().filter(|l| !but.contains(l)).map(|l| format!("\n{mark} {l}")).collect::<String>()
    };
    lines(&one, &other, '<') + &lines(&other, &one, '>')
}

/// All that a client sees of an inode.
pub fn look_at(c: Rc<Client>, fid: Fid) -> rt::LocalFuture<Node> {
    Box::pin(async move {
        let attr = c.getattr(&root(), fid, None).await.unwrap().attr;
        let mut node = Node {
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            size: if is_dir(attr.mode) { 0 } else { attr.size },
            // A writer is told its own time of a write, others that of the last page.
            mtime: types::WallTime(attr.mtime.0 / 1_000_000_000 * 1_000_000_000),
            bytes: Vec::new(),
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        // A layout names objects, which differ between one place and the next.
        let names = c.meta().listxattr(&root(), fid).await.unwrap();
        for name in names.into_iter().filter(|n| !n.starts_with(b"lustre.")) {
            let value = c.getxattr(&root(), fid, &name).await.unwrap();
            node.xattrs.insert(name, value);
        }
        match attr.mode & 0o170_000 {
            0o040_000 => {
                for (name, child) in list(&c, fid).await {
                    let found = c.lookup(&root(), fid, &name).await.unwrap();
                    assert_eq!(found.attr.fid, child, "{} as listed and as looked up", String::from_utf8_lossy(&name));
                    node.names.insert(name, look_at(c.clone(), child).await);
                }
            }
            0o120_000 => node.bytes = c.meta().readlink(&root(), fid).await.unwrap(),
            0o100_000 => {
                let file = c.open(&root(), fid, 0).await.unwrap();
                node.bytes = read_all(&c, &file, attr.size + MIB).await;
                c.release(&file).await.unwrap();
                assert_eq!(node.bytes.len() as u64, node.size, "{fid}: as much can be read as the file is long");
            }
            _ => {}
        }
        node
    })
}

/// The entries of a directory.
async fn list(c: &Rc<Client>, dir: Fid) -> Vec<(Vec<u8>, Fid)> {
    let (mut cookie, mut out) = (0, Vec::new());
    loop {
        let page = c.meta().readdir(&root(), dir, cookie, 64 << 10, false).await.unwrap();
        let dots: [&[u8]; 2] = [b".", b".."];
        cookie = page.entries.last().map_or(cookie, |e| e.cookie);
        let entries = page.entries.into_iter().filter(|e| !dots.contains(&&e.name.0[..]));
        out.extend(entries.map(|e| (e.name.0, e.fid)));
        if page.eof {
            return out;
        }
    }
}

/// A layout to wish for: so many stripes, from that OST on.
pub fn striped(count: layout::StripeCount, first: u16) -> Vec<u8> {
    let mut spec = layout::LayoutSpec::default();
    spec.stripe_size = Some(layout::StripeSize::new(STRIPE).unwrap());
    spec.stripe_count = count;
    spec.index = Some(OstIndex(first));
    layout::xattr::encode_spec(&spec)
}

impl Place {
    /// A new one, in a directory of that name.
    pub async fn new(one: &Rc<Client>, two: &Rc<Client>, name: &str) -> Rc<Place> {
        let node = NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() };
        let dir = one.create(&root(), Fid::ROOT, name.as_bytes(), node.clone()).await.unwrap().attr.fid;
        one.create(&root(), dir, b"s", node).await.unwrap();
        let layout = striped(layout::StripeCount::All, 0);
        let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, layout: &layout, ..NewFile::default() };
        let file = one.create_open(&root(), dir, b"f", new).await.unwrap().1;
        one.data().write(&file, 0, &pattern(0, LEN as usize, 3)).await.unwrap();
        let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
        let small = one.create_open(&root(), dir, b"g", new).await.unwrap().1;
        one.data().write(&small, 0, &pattern(0, SMALL as usize, 5)).await.unwrap();
        one.release(&small).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        Rc::new(Place {
            one: one.clone(),
            two: two.clone(),
            dir,
            file,
            small: small.fid(),
            opened: RefCell::default(),
            held: RefCell::default(),
        })
    }

    /// An open that an operation brought.
    pub fn take(&self, file: Rc<OpenFile>) {
        self.opened.borrow_mut().push(file);
    }

    /// The other client knows the directory, and has bytes of both files that it has not written out.
    pub async fn held_by_two(&self) {
        for (fid, at) in [(self.file.fid(), STRIPE - 50), (self.small, 10)] {
            let file = self.two.open(&root(), fid, O_RDWR).await.unwrap();
            let bytes = read_all(&self.two, &file, MIB).await;
            let to = (at as usize + 100).min(bytes.len());
            self.two.data().write(&file, at, &bytes[at as usize..to]).await.unwrap();
            self.held.borrow_mut().push(file);
        }
        look_at(self.two.clone(), self.dir).await;
    }

    /// The operation's owner gives all locks back, as one who closes the file does.
    pub async fn gives_locks_back(&self) {
        for whole in [false, true] {
            self.one.flocks().drop_locks(self.file.fid(), OWNER, whole).await.unwrap();
        }
    }
    /// The same on the other client, for one who had a lock when the operation came.
    pub async fn two_gives_locks_back(&self) {
        for whole in [false, true] {
            self.two.flocks().drop_locks(self.file.fid(), 9, whole).await.unwrap();
        }
    }

    /// Ends what was opened.
    pub async fn end_opens(&self) {
        self.one.release(&self.file).await.unwrap();
        for (client, files) in [(&self.one, self.opened.take()), (&self.two, self.held.take())] {
            for file in files {
                client.release(&file).await.unwrap();
            }
        }
    }
}

/// Waits until a client has no more in hand than that.
pub async fn nothing_more(world: &World, c: &Rc<Client>, than: &InUse, what: &str) {
    for _ in 0..QUIET_MAX {
        if c.in_use() == *than {
            return;
        }
        world.sim.sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(c.in_use(), *than, "{what}: in use");
}

/// Waits until a client has nothing under way, and what it has in hand then.
pub async fn quiet(world: &World, c: &Rc<Client>) -> InUse {
    const WORK: [&str; 4] = ["requests", "unwritten pages", "ends not told", "uses of locks"];
    for _ in 0..QUIET_MAX {
        let now = c.in_use();
        if WORK.iter().all(|what| now.of(what) == 0) {
            return now;
        }
        world.sim.sleep(Duration::from_millis(100)).await;
    }
    c.in_use()
}
