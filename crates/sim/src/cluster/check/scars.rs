//! What a check of the stores says of blocks that media have lost, and whether a repair makes them whole: by the steps of `stria fsck`.
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use mds::repair::Objects;

use super::super::context::Context;
use super::super::nodes::{CLUSTER_ID, OST_DIR};

/// Memory for pages of a database that is read.
const CACHE_BYTES: usize = 1 << 20;

/// Compares what a check finds with what was hit, and repairs it.
///
/// # Errors
/// A store cannot be read or written.
pub(super) async fn find_and_repair(context: &Rc<Context>) -> Result<(), String> {
    let cluster = &context.cluster;
    let (mut objects, mut bad) = (Objects::default(), BTreeMap::new());
    for (i, oss) in cluster.ost_indices().into_iter().zip(cluster.osses()) {
        let rt = oss.host().boot();
        let found = store_file::check(&rt, Path::new(OST_DIR), true, CACHE_BYTES).await.map_err(|e| e.to_string())?;
        if found.broken || found.bad_rows || !found.complete || found.faults.len() != found.bad_blocks.len() {
            context.complain(format!("OST {i}: only blocks of data were hit, and a check says {:?}", found.faults));
        }
        for b in &found.bad_blocks {
            context.count(|c| c.checks += 1);
            if !context.scars.hit.borrow().contains(&(i, b.place)) {
                context.complain(format!("OST {i}: {b:?} was not hit"));
            }
        }
        objects.damaged.extend(found.bad_blocks.iter().map(|b| b.object));
        bad.insert(i, found.bad_blocks);
    }
    for places in context.scars.must.borrow().iter() {
        let named =
            places.iter().any(|(ost, place)| bad.get(ost).is_some_and(|all| all.iter().any(|b| b.place == *place)));
        let outcome =
            if named { Ok(()) } else { Err(format!("none of {places:?} is named, and a block was hit there")) };
        context.expect("a check of damaged stores", outcome);
    }
    let rt = cluster.mds.host().boot();
    let kv = cluster.mdt_store(&rt).await?;
    let report = mds::check::check(&kv).await.map_err(|e| e.to_string())?;
    mds::repair::repair(&kv, &report, &objects, rt.wall()).await.map_err(|e| e.to_string())?;
    drop(kv);
    for (oss, bad) in cluster.osses().zip(bad.values()) {
        oss.host().kill();
        let rt = oss.host().boot();
        store_file::accept(&rt, Path::new(OST_DIR), CLUSTER_ID, bad).await.map_err(|e| e.to_string())?;
    }
    context.scars.are_repaired();
    cluster.end();
    Ok(())
}
