//! After a run: what the stores hold, read without any server, as `stria fsck` reads it.
use std::collections::BTreeSet;
use std::rc::Rc;

use fsck::Outcome;
use mds::check::Report;
use oss::store::{ObjectInfo, ObjectStore, Owner};
use types::ObjectId;

use super::context::Context;
use super::nodes::open_ost;

mod down;
mod rotten;
mod scars;

pub use down::Down;
pub use rotten::rot_and_repair;

/// Checks all stores against themselves and each other. The cluster has been stopped. What media have lost for good has to be found, and
/// nothing else; once that is repaired nothing is.
/// With `counts` they are first looked at as `stria fsck` does, which compares what is counted for users, groups and projects with what
/// is there.
pub async fn check_stores(context: &Rc<Context>, counts: bool) {
    if counts && context.scars.hit.borrow().is_empty() {
        check_counts(context).await;
    }
    check_all(context).await;
    if !context.failed() && !context.scars.hit.borrow().is_empty() {
        if let Err(e) = scars::find_and_repair(context).await {
            context.complain(format!("the stores, when they were repaired: {e}"));
        }
        check_all(context).await;
    }
}

async fn check_counts(context: &Rc<Context>) {
    let down = Down::of(&context.cluster);
    let found = fsck::run(&down, false, false).await;
    let outcome = if found == Ok(Outcome::Clean) { Ok(()) } else { Err(format!("{found:?}: {:?}", down.said())) };
    context.expect("fsck of the stores", outcome);
}

async fn check_all(context: &Rc<Context>) {
    let cluster = &context.cluster;
    let rt = cluster.mds.host().boot();
    let report = match cluster.mdt_store(&rt).await {
        Ok(kv) => mds::check::check(&kv).await.map_err(|e| e.to_string()),
        Err(e) => Err(e),
    };
    let report = match report {
        Ok(report) => report,
        Err(e) => return context.complain(format!("the metadata store: {e}")),
    };
    for finding in &report.findings {
        context.complain(format!("the metadata store: {finding}"));
    }
    context.count(|c| c.checks += report.inodes.len() as u64);
    let owned: BTreeSet<ObjectId> = report.objects.keys().chain(&report.doomed).copied().collect();
    let mut missing: BTreeSet<ObjectId> = report.objects.keys().copied().collect();
    for (i, oss) in cluster.ost_indices().into_iter().zip(cluster.osses()) {
        let rt = oss.host().boot();
        match open_ost(&rt, types::MIB, cluster.config.commit_interval).await {
            Ok(store) => check_ost(context, i, &store, (&report, &owned), &mut missing).await,
            Err(e) => context.complain(format!("the store of OST {i}: {e}")),
        }
    }
    for object in missing {
        context.complain(format!("object {object} of file {} is on no OST", report.objects[&object]));
    }
    cluster.end();
}

/// Clients that have written everything out have no dirty bytes left on their books, and agree with their servers on the
/// grant that they have.
pub async fn check_books(context: &Rc<Context>) {
    let cluster = &context.cluster;
    for c in 0..cluster.clients.len() {
        let synced = context.on(c, "sync before the books are looked at", async move |c| c.sync_all().await).await;
        if let Some(Err(e)) = synced {
            context.complain(format!("client{c}: sync: {e}"));
        }
        let Some(client) = cluster.client(c) else { continue };
        for osc in client.osts().all().into_iter().filter(|o| cluster.has_ost(usize::from(o.index().0))) {
            let ((dirty, grant), i) = (osc.dirty_and_grant(), usize::from(osc.index().0));
            let promised = cluster.ost_granted(i, client.sessions().id());
            let told = format!("client{c} at OST {i}: {dirty} bytes dirty, {grant} granted, {promised} there");
            let outcome = if dirty == 0 && grant == promised { Ok(()) } else { Err(told) };
            context.expect("books", outcome);
        }
    }
}

async fn check_ost(
    context: &Rc<Context>,
    index: usize,
    store: &dyn ObjectStore,
    (report, owned): (&Report, &BTreeSet<ObjectId>),
    missing: &mut BTreeSet<ObjectId>,
) {
    let mut after = ObjectId::default();
    loop {
        let page = match store.objects(after, 1000).await {
            Ok(page) => page,
            Err(e) => return context.complain(format!("OST {index}: {e}")),
        };
        let Some(last) = page.last() else { return };
        after = last.object;
        for info in &page {
            context.count(|c| c.checks += 1);
            missing.remove(&info.object);
            let empty = info.attr.size == 0 && info.attr.blocks == 0;
            if !owned.contains(&info.object) && !empty {
                context.complain(format!("OST {index}: {} has {} bytes and no file", info.object, info.attr.size));
            }
            check_owner(context, index, report, info);
            if context.scars.is_unrepaired() {
                // Which blocks are bad is looked at by their places.
                continue;
            }
            match store.verify(info.object).await {
                Ok(bad) => bad.iter().for_each(|b| context.complain(format!("OST {index}: {b:?}"))),
                Err(e) => context.complain(format!("OST {index}: {}: {e}", info.object)),
            }
        }
    }
}

/// The space of an object counts for its file's owner, unless a change of owners may be lost with those who knew it.
fn check_owner(context: &Context, index: usize, report: &Report, info: &ObjectInfo) {
    let inode = report.objects.get(&info.object).and_then(|fid| report.inodes.get(fid));
    let Some(inode) = inode.filter(|_| info.attr.blocks > 0 && context.owners_are_known()) else { return };
    let owner = Owner { uid: inode.uid, gid: inode.gid, project: inode.project };
    if info.attr.owner != Some(owner) {
        let (object, fid) = (info.object, inode.fid);
        context.complain(format!(
            "OST {index}: {object} counts for {:?}, its file {fid} is of {owner:?}",
            info.attr.owner
        ));
    }
}
