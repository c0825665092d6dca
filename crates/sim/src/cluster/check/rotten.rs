//! What a repair makes of stores that rotted after everything was on stable storage: whatever nobody named is there as it was, and
//! what was named can be read.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use client::Client;
use fsck::Outcome;
use mds::MetaKv;
use types::{Duration, Fid, MIB, ObjectId, Rng};
use wire::mdt::Cred;

use super::super::class::FaultClass;
use super::super::context::Context;
use super::super::nodes::{Cluster, MDT_FILE, NodeId, OST_DATABASE, OST_FILE, open_mdt};
use super::Down;

/// Bits of a page.
const PAGE_BITS: u64 = 8 * 4096;
/// Bytes of a file that are compared.
const READ_MAX: u64 = 64 * MIB;
/// Types of files.
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// What a client sees of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    fid: Fid,
    parent: Fid,
    mode: u32,
    owner: (u32, u32),
    nlink: u32,
    size: u64,
    /// Checksum of what it holds.
    content: u32,
}

/// Everything below the root, by path.
type Tree = BTreeMap<String, Seen>;

/// Times that bits flip and are repaired in one run.
const ROUNDS: u32 = 3;

/// Lets bits of stopped stores flip, has them repaired, and compares what clients see with what they saw.
///
/// # Errors
/// What is not as it must be.
pub async fn rot_and_repair(context: &Rc<Context>) -> Result<(), String> {
    let (cluster, mut rng) = (&context.cluster, context.rng("rotten stores"));
    start(cluster).await?;
    let mut before = look(cluster).await?;
    stop(cluster).await?;
    for _ in 0..ROUNDS {
        let owners = owners(cluster).await?;
        rot(context, &mut rng);
        let Some(said) = repair(cluster).await? else { return Ok(()) };
        start(cluster).await?;
        let after = look(cluster).await?;
        stop(cluster).await?;
        Named { said: &said, before: &before, owners: &owners }.compare(context, &after);
        super::check_all(context).await;
        if context.failed() {
            return Ok(());
        }
        before = after;
    }
    Ok(())
}

/// Repairs all stores; what was said about it. `None`: of a small database that one page was everything.
async fn repair(cluster: &Cluster) -> Result<Option<Vec<String>>, String> {
    let down = Down::of(cluster);
    let mended = fsck::run(&down, true, true).await.map_err(|e| format!("fsck --repair: {e}"))?;
    let said = down.said();
    if mended == Outcome::Uncorrected {
        let gone = said.iter().any(|s| s.contains("no record can be read of its database"));
        return if gone { Ok(None) } else { Err(format!("fsck --repair does not come to its end: {said:?}")) };
    }
    if said.iter().any(|s| s.contains("its last commit was damaged")) {
        return Err(format!("a repair gave up a commit that was whole: {said:?}"));
    }
    let again = fsck::run(&down, true, true).await;
    if again != Ok(Outcome::Clean) {
        return Err(format!("fsck --repair, for the second time: {again:?}: {:?}; first: {said:?}", down.said()));
    }
    Ok(Some(said))
}

/// Seconds within which all OSTs are in the map.
const KNOWN_WITHIN_S: u32 = 60;

async fn start(cluster: &Cluster) -> Result<(), String> {
    for id in cluster.ost_indices().into_iter().map(NodeId::Oss).chain([NodeId::Mds, NodeId::Client(0)]) {
        cluster.start(id).await.map_err(|e| format!("when its stores were repaired: {e}"))?;
    }
    // A repair may have lost the cluster map: OSTs that were added register anew, and nobody waited for them.
    let is_known = |i: &usize| {
        let knows = |c: &Client| c.osts().all().iter().any(|o| usize::from(o.index().0) == *i && o.import().is_ok());
        cluster.client(0).is_some_and(|c| knows(&c))
    };
    for _ in 0..KNOWN_WITHIN_S * 10 {
        if cluster.ost_indices().iter().all(is_known) {
            return Ok(());
        }
        cluster.sim.sleep(Duration::from_millis(100)).await;
    }
    Err("when its stores were repaired: an OST is not in the cluster map any more".into())
}

async fn stop(cluster: &Cluster) -> Result<(), String> {
    for id in [NodeId::Client(0), NodeId::Mds].into_iter().chain(cluster.ost_indices().into_iter().map(NodeId::Oss)) {
        cluster.stop(id).await?;
    }
    Ok(())
}

/// Objects of files.
async fn owners(cluster: &Cluster) -> Result<BTreeMap<ObjectId, Fid>, String> {
    let kv: Rc<dyn MetaKv> = open_mdt(&cluster.mds.host().boot(), false)?;
    let report = mds::check::check(&kv).await.map_err(|e| e.to_string());
    drop(kv);
    cluster.mds.host().kill();
    Ok(report?.objects)
}

/// Some bits flip.
fn rot(context: &Context, rng: &mut Rng) {
    let cluster = &context.cluster;
    for _ in 0..1 + rng.below(3) {
        let osts = cluster.ost_indices();
        let oss = NodeId::Oss(osts[rng.below(osts.len() as u64) as usize]);
        let (id, path) = match rng.below(6) {
            0 | 1 => (NodeId::Mds, MDT_FILE),
            2 | 3 => (oss, OST_DATABASE),
            _ => (oss, OST_FILE),
        };
        let (host, bit) = (cluster.node(id).host(), rng.below(PAGE_BITS));
        let what = if rng.chance(0.2) {
            if !host.flip(path.as_ref(), bit) {
                continue;
            }
            format!("bit {bit}")
        } else {
            let Some(page) = host.some_page(path.as_ref(), rng.next_u64()) else { continue };
            format!("bit {bit} of pages {:?}", host.rot_pages(path.as_ref(), &page, bit))
        };
        context.note(FaultClass::Fsck, &format!("{what} of {path} of {id} flips, for good"));
    }
}

/// Reads everything from the client.
async fn look(cluster: &Cluster) -> Result<Tree, String> {
    let looked = cluster.on(0, async move |c| see(&c).await);
    let looked = rt::sync::race(looked, cluster.sim.sleep(types::Duration::from_secs(1800))).await;
    looked.map_err(|()| "reading everything hangs")?.ok_or("the client died")?
}

async fn see(c: &Rc<Client>) -> Result<Tree, String> {
    let (mut found, mut dirs) = (Tree::new(), vec![(String::new(), Fid::ROOT)]);
    while let Some((path, dir)) = dirs.pop() {
        let mut cookie = 0;
        loop {
            let page = c.meta().readdir(&Cred::default(), dir, cookie, 4096, false).await;
            let page = page.map_err(|e| format!("readdir of {path}/: {e}"))?;
            for e in &page.entries {
                cookie = e.cookie;
                let at = format!("{path}/{}", String::from_utf8_lossy(&e.name));
                let seen = see_one(c, dir, e.fid).await.map_err(|e| format!("{at}: {e}"))?;
                if seen.mode & S_IFMT == S_IFDIR {
                    dirs.push((at.clone(), e.fid));
                }
                found.insert(at, seen);
            }
            if page.eof || page.entries.is_empty() {
                break;
            }
        }
    }
    Ok(found)
}

async fn see_one(c: &Rc<Client>, parent: Fid, fid: Fid) -> Result<Seen, String> {
    let cred = Cred::default();
    let attr = c.getattr(&cred, fid, None).await.map_err(|e| format!("getattr: {e}"))?.attr;
    let mut content = 0;
    match attr.mode & S_IFMT {
        S_IFREG => {
            let file = c.open(&cred, fid, 0).await.map_err(|e| format!("open: {e}"))?;
            for at in (0..attr.size.min(READ_MAX)).step_by(MIB as usize) {
                let got = c.data().read(&file, at, MIB as usize).await.map_err(|e| format!("read at {at}: {e}"))?;
                content = wire::crc32c_append(content, &got.to_vec());
            }
            c.release(&file).await.map_err(|e| format!("close: {e}"))?;
        }
        S_IFLNK => {
            let target = c.meta().readlink(&cred, fid).await.map_err(|e| format!("readlink: {e}"))?;
            content = wire::crc32c(&target);
        }
        _ => {}
    }
    let (mode, owner) = (attr.mode, (attr.uid, attr.gid));
    Ok(Seen { fid, parent, mode, owner, nlink: attr.nlink, size: attr.size, content })
}

/// What was said while stores were repaired, and what it excuses.
struct Named<'a> {
    said: &'a [String],
    before: &'a Tree,
    owners: &'a BTreeMap<ObjectId, Fid>,
}

impl Named<'_> {
    fn has(&self, name: &str) -> bool {
        self.said.iter().any(|s| s.contains(name))
    }
    /// Files of which something is named: themselves, their directories or their objects.
    fn fids(&self) -> BTreeSet<Fid> {
        let all: BTreeSet<Fid> = self.before.values().flat_map(|s| [s.fid, s.parent]).collect();
        let mut named: BTreeSet<Fid> =
            all.into_iter().filter(|fid| *fid != Fid::ROOT && self.has(&fid.to_string())).collect();
        let objects = self.owners.iter().filter(|(o, _)| self.has(&o.to_string()));
        named.extend(objects.map(|(_, fid)| *fid));
        loop {
            let below = self.before.values().filter(|s| named.contains(&s.parent) && !named.contains(&s.fid));
            let below: Vec<Fid> = below.map(|s| s.fid).collect();
            if below.is_empty() {
                return named;
            }
            named.extend(below);
        }
    }
    fn compare(&self, context: &Context, after: &Tree) {
        let named = self.fids();
        for (path, seen) in self.before.iter().filter(|(_, s)| !named.contains(&s.fid)) {
            let outcome = match after.get(path) {
                Some(now) if now == seen => Ok(()),
                now => Err(format!("was {seen:?}, is {now:?}, and nothing of it was named: {:?}", self.said)),
            };
            context.expect(&format!("{path} after a repair"), outcome);
        }
        // What has lost data does not pass for whole, whoever named it. What an earlier repair moved there says so already.
        for (path, seen) in self.before.iter().filter(|(path, _)| !path.starts_with("/lost+found/damaged-")) {
            let holds = |s: &Seen| (s.size, s.content);
            let wrong = after.get(path).filter(|now| now.fid == seen.fid && holds(now) != holds(seen));
            if let Some(now) = wrong {
                context.complain(format!("{path} was {seen:?}, and is {now:?} after a repair: {:?}", self.said));
            }
        }
        let is_known = |path: &str| self.before.contains_key(path) || path.starts_with("/lost+found");
        for (path, seen) in after.iter().filter(|(path, _)| !is_known(path)) {
            if !named.contains(&seen.parent) {
                context.complain(format!("{path} is new after a repair: {seen:?}: {:?}", self.said));
            }
        }
    }
}
