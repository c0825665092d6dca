//! Pools and OSTs that come and go, over crashes of the server.
use std::rc::Rc;

use layout::{LayoutSpec, PoolChoice, PoolName};
use types::{Fid, FsError, OstIndex, Transno};
use wire::Op;
use wire::connect::{
    ConfigReply, Lasting, MapChange, MapChangeReply, MapChangeRequest, Opening, OstEntry, OstFilesReply,
    OstFilesRequest, ParamsReply, ParamsRequest, RegisterRequest,
};

use super::harness::{Fs, entry};
use crate::kv::memory::FailPoint;
use crate::mds::Caller;

const ROOT: Fid = Fid::ROOT;

fn change(fs: &Fs, id: u64, what: MapChange, pool: &str, osts: &[u16]) -> Result<(), (i32, String)> {
    let osts = osts.iter().map(|o| OstIndex(*o)).collect();
    made(fs, &MapChangeRequest { id, what, pool: pool.into(), osts, uuid: 0 }).map(|_| ())
}
fn made(fs: &Fs, q: &MapChangeRequest) -> Result<MapChangeReply, (i32, String)> {
    let r: MapChangeReply = fs.call(Op::MapChange, q).unwrap();
    match r.errno {
        0 => Ok(r),
        errno => Err((i32::from(errno), String::from_utf8_lossy(&r.why).into_owned())),
    }
}
fn in_pool(pool: &str) -> Vec<u8> {
    let mut spec = LayoutSpec::default();
    spec.pool = PoolChoice::Named(PoolName::parse(pool).unwrap());
    layout::xattr::encode_spec(&spec)
}
fn layout_of(fs: &Fs, f: Fid) -> layout::Layout {
    layout::xattr::decode_layout(&fs.getxattr(f, "lustre.lov.stored").unwrap()).unwrap().1
}
fn ost_of(fs: &Fs, f: Fid) -> u16 {
    layout_of(fs, f).objects()[0].ost.0
}
fn files_on(fs: &Fs, ost: u16) -> Vec<String> {
    files(fs, &OstFilesRequest { ost: OstIndex(ost), ..OstFilesRequest::default() })
}
fn lost_on(fs: &Fs, ost: u16) -> Vec<String> {
    files(fs, &OstFilesRequest { ost: OstIndex(ost), lost: true, ..OstFilesRequest::default() })
}
fn files(fs: &Fs, q: &OstFilesRequest) -> Vec<String> {
    let r: OstFilesReply = fs.call(Op::OstFiles, q).unwrap();
    assert!(r.next.is_zero());
    r.files.iter().map(|f| String::from_utf8(f.path.to_vec()).unwrap()).collect()
}

#[test]
fn a_change_that_is_asked_for_again_is_answered_again_also_after_a_crash() {
    let fs = Fs::new();
    assert_eq!(change(&fs, 5, MapChange::PoolNew, "p", &[]), Ok(()));
    let fs = fs.crash();
    assert_eq!(change(&fs, 5, MapChange::PoolNew, "p", &[]), Ok(()), "the same request");
    assert_eq!(change(&fs, 6, MapChange::PoolNew, "p", &[]).unwrap_err().0, FsError::Exists.errno());
    assert_eq!(change(&fs, 7, MapChange::PoolAdd, "p", &[1]), Ok(()));
    assert_eq!(change(&fs, 7, MapChange::PoolAdd, "p", &[1]), Ok(()));
    assert_eq!(change(&fs, 8, MapChange::PoolAdd, "p", &[1]).unwrap_err().0, FsError::Exists.errno());
}

#[test]
fn files_of_a_directory_with_a_pool_lie_in_it_as_long_as_it_is_there() {
    let fs = Fs::new();
    change(&fs, 1, MapChange::PoolNew, "p", &[]).unwrap();
    let d = fs.mkdir(ROOT, "d").unwrap();
    fs.setxattr(d, "lustre.lov", Some(&in_pool("p")), 0).unwrap();
    assert_eq!(fs.create(d, "none").unwrap_err(), FsError::Invalid, "a pool without OSTs");
    change(&fs, 2, MapChange::PoolAdd, "p", &[1]).unwrap();
    let below = fs.mkdir(d, "below").unwrap();
    fs.setxattr(below, "lustre.lov", Some(&in_pool("p")), 0).unwrap();
    fs.sync();
    let fs = fs.crash();
    fs.world.settle();
    for i in 0..6 {
        let f = fs.create(if i % 2 == 0 { d } else { below }, &format!("f{i}")).unwrap();
        assert_eq!((ost_of(&fs, f), layout_of(&fs, f).pool().unwrap().as_str()), (1, "p"));
    }
    change(&fs, 3, MapChange::Close, "", &[1]).unwrap();
    assert_eq!(fs.create(d, "closed").unwrap_err(), FsError::Io, "no OST of the pool takes files");
    let elsewhere = fs.create(ROOT, "elsewhere").unwrap();
    assert_eq!(ost_of(&fs, elsewhere), 0);
    change(&fs, 4, MapChange::Open, "", &[1]).unwrap();
    change(&fs, 5, MapChange::PoolRemove, "p", &[1]).unwrap();
    change(&fs, 6, MapChange::PoolDestroy, "p", &[]).unwrap();
    let f = fs.create(d, "gone").unwrap();
    assert!(layout_of(&fs, f).pool().is_none(), "any OST, and no pool's name");
}

#[test]
fn an_ost_leaves_when_no_file_has_objects_there_and_nothing_of_it_is_left() {
    let fs = Fs::new();
    change(&fs, 1, MapChange::PoolNew, "p", &[]).unwrap();
    change(&fs, 2, MapChange::PoolAdd, "p", &[0, 1]).unwrap();
    let d = fs.mkdir(ROOT, "dir").unwrap();
    let files: Vec<Fid> = (0..8).map(|i| fs.create(d, &format!("f{i}")).unwrap()).collect();
    let there: Vec<usize> = (0..8).filter(|i| ost_of(&fs, files[*i]) == 1).collect();
    assert_eq!(files_on(&fs, 1), there.iter().map(|i| format!("dir/f{i}")).collect::<Vec<_>>());
    let (errno, why) = change(&fs, 3, MapChange::RemoveOst, "", &[1]).unwrap_err();
    assert!(
        errno == FsError::NotEmpty.errno() && why.contains("dir/f") && why.contains(&there.len().to_string()),
        "{why}"
    );
    let more: Vec<u16> = (0..8).map(|i| ost_of(&fs, fs.create(d, &format!("g{i}")).unwrap())).collect();
    assert!(more.contains(&1), "what was refused changed nothing");
    change(&fs, 4, MapChange::Close, "", &[1]).unwrap();
    for name in fs.names(d) {
        fs.unlink(d, &name).unwrap();
    }
    change(&fs, 5, MapChange::RemoveOst, "", &[1]).unwrap();
    fs.sync();
    let fs = fs.crash();
    fs.world.settle();
    assert_eq!(change(&fs, 5, MapChange::RemoveOst, "", &[1]), Ok(()), "the same request");
    assert_eq!(change(&fs, 6, MapChange::RemoveOst, "", &[1]).unwrap_err().0, FsError::NotFound.errno());
    assert_eq!(change(&fs, 7, MapChange::RemoveOst, "", &[0]).unwrap_err().0, FsError::Busy.errno());
    let map = fs.mds.map.map();
    assert_eq!((map.osts.len(), map.closed.len(), map.pools[0].osts.clone()), (1, 0, vec![OstIndex(0)]));
    assert!((0..4).all(|i| ost_of(&fs, fs.create(d, &format!("h{i}")).unwrap()) == 0));
    fs.pass(20);
    fs.sync();
    let kv: std::rc::Rc<dyn crate::MetaKv> = fs.kv.clone();
    let report = fs.world.run(crate::check::check(&kv)).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_new_store_takes_the_place_of_a_lost_one_while_the_server_runs_and_gets_objects_of_its_own() {
    let fs = Fs::new();
    let d = fs.mkdir(ROOT, "d").unwrap();
    let files: Vec<Fid> = (0..40).map(|i| fs.create(d, &format!("f{i}")).unwrap()).collect();
    let object_on_1 =
        |fs: &Fs, f: Fid| layout_of(fs, f).objects().first().filter(|o| o.ost.0 == 1).map(|o| o.object.0.oid);
    let lost: Vec<u32> = files.iter().filter_map(|f| object_on_1(&fs, *f)).collect();
    assert!(lost.len() > 5);
    let ask = |id, ost, uuid| MapChangeRequest {
        id,
        what: MapChange::ReplaceOst,
        osts: vec![OstIndex(ost)],
        uuid,
        ..MapChangeRequest::default()
    };
    let (errno, why) = made(&fs, &ask(1, 1, 900)).unwrap_err();
    assert!(errno == FsError::Busy.errno() && why.contains("has not failed"), "a store in use: {why}");
    assert!(files[..4].iter().any(|f| ost_of(&fs, *f) == 1), "one of those that are removed");
    *fs.osts.down.borrow_mut() = true;
    for name in ["f0", "f1", "f2", "f3"] {
        fs.unlink(d, name).unwrap();
    }
    assert_eq!(made(&fs, &ask(2, 7, 900)).unwrap_err().0, FsError::NotFound.errno());
    assert_eq!(made(&fs, &ask(3, 1, 101)).unwrap_err().0, FsError::Invalid.errno(), "the store that it has");
    assert_eq!(made(&fs, &ask(4, 1, 0)).unwrap_err().0, FsError::Invalid.errno());
    let through = made(&fs, &ask(5, 1, 900)).unwrap().lost_through;
    assert!(lost.iter().all(|oid| *oid <= through), "{lost:?} {through}");
    assert!(!fs.mds.map.is_active(OstIndex(1)), "nobody serves it yet");
    let fs = fs.crash();
    assert_eq!(made(&fs, &ask(5, 1, 900)).unwrap().lost_through, through, "the same request");
    let stores = fs.mds.map.map().osts.iter().map(|e| (e.ost.0, e.uuid)).collect::<Vec<_>>();
    assert_eq!(stores, [(0, 100), (1, 900)]);
    *fs.osts.down.borrow_mut() = false;
    fs.osts.last.borrow_mut().remove(&OstIndex(1));
    let old = RegisterRequest { entry: entry(1), cluster: 77, ..RegisterRequest::default() };
    let refused = fs.call::<_, ConfigReply>(Op::Register, &old);
    assert_eq!(refused.unwrap_err(), FsError::Exists, "the old store comes back");
    let new = RegisterRequest {
        entry: OstEntry { uuid: 900, nid: "local:y".into(), ..entry(1) },
        cluster: 77,
        ..RegisterRequest::default()
    };
    let _: ConfigReply = fs.call(Op::Register, &new).unwrap();
    fs.world.settle();
    fs.pass(5);
    let made_now: Vec<Fid> = (0..40).map(|i| fs.create(d, &format!("g{i}")).unwrap()).collect();
    let given: Vec<u32> = made_now.iter().filter_map(|f| object_on_1(&fs, *f)).collect();
    assert!(given.len() > 5 && given.iter().all(|oid| *oid > through), "{given:?} {through}");
    let left: Vec<String> =
        (4..40).filter(|i| object_on_1(&fs, files[*i]).is_some()).map(|i| format!("d/f{i}")).collect();
    let (mut named, all) = (lost_on(&fs, 1), files_on(&fs, 1));
    named.sort_by_key(|name| name[3..].parse::<u32>().unwrap());
    assert_eq!((named, all.len()), (left.clone(), left.len() + given.len()));
    assert!(lost_on(&fs, 0).is_empty());
    fs.pass(20);
    fs.sync();
    let kv: std::rc::Rc<dyn crate::MetaKv> = fs.kv.clone();
    let report = fs.world.run(crate::check::check(&kv)).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let destroyed = fs.osts.destroyed.borrow();
    let of_before = |o: &&types::ObjectId| o.0.seq == types::ObjectId::seq_of(OstIndex(1)) && o.0.oid <= through;
    assert_eq!(destroyed.iter().find(of_before), None, "what was lost is not destroyed");
}

#[test]
fn a_store_that_takes_a_lost_ones_place_keeps_the_objects_that_this_metadata_store_does_not_know() {
    let fs = Fs::new();
    *fs.osts.down.borrow_mut() = true;
    let q = MapChangeRequest {
        id: 1,
        what: MapChange::ReplaceOst,
        osts: vec![OstIndex(1)],
        uuid: 900,
        ..MapChangeRequest::default()
    };
    // It was made for a replacement which a metadata store that was put back knows nothing of.
    let exist = made(&fs, &q).unwrap().lost_through + 100;
    let asked = fs.osts.precreates.borrow().len();
    fs.osts.last.borrow_mut().insert(OstIndex(1), exist);
    let fs = fs.crash();
    *fs.osts.down.borrow_mut() = false;
    let there = RegisterRequest {
        entry: OstEntry { uuid: 900, nid: "local:y".into(), ..entry(1) },
        cluster: 77,
        ..RegisterRequest::default()
    };
    let _: ConfigReply = fs.call(Op::Register, &there).unwrap();
    fs.world.settle();
    fs.pass(5);
    let of_it = types::ObjectId::seq_of(OstIndex(1));
    let asked: Vec<u32> = fs.osts.precreates.borrow()[asked..]
        .iter()
        .filter(|q| q.orphans && q.seq == of_it)
        .map(|q| q.last_used)
        .collect();
    assert!(!asked.is_empty() && asked.iter().all(|last| *last >= exist), "{asked:?} {exist}");
    let files = (0..30).map(|i| fs.create(ROOT, &format!("f{i}")).unwrap());
    let given: Vec<u32> = files
        .filter_map(|f| layout_of(&fs, f).objects().first().filter(|o| o.ost.0 == 1).map(|o| o.object.0.oid))
        .collect();
    assert!(given.len() > 5 && given.iter().all(|oid| *oid > exist), "{given:?} {exist}");
}

/// Answers to requests that are made at the same time.
fn at_once(fs: &Fs, op: Op, bodies: &[Vec<u8>]) -> Vec<MapChangeReply> {
    let caller = Caller { client: fs.client, replay: None, basis: 0, slot: None };
    let all = bodies.iter().map(|body| fs.mds.serve(caller, op, body)).collect();
    let all = fs.world.run(rt::sync::join_all(all));
    all.into_iter().map(|o| wire::decode(&o.unwrap().body).unwrap()).collect()
}

#[test]
fn an_ost_that_registers_twice_at_the_same_time_is_not_answered_before_its_place_is_on_stable_storage() {
    let fs = Fs::new();
    let caller = Caller { client: fs.client, replay: None, basis: 0, slot: None };
    let q = wire::encode(&RegisterRequest { entry: entry(2), cluster: 77, ..RegisterRequest::default() });
    let twice = rt::sync::race(fs.mds.serve(caller, Op::Register, &q), fs.mds.serve(caller, Op::Register, &q));
    let (Ok(first) | Err(first)) = fs.world.run(twice);
    first.unwrap();
    let fs = fs.crash();
    assert!(fs.mds.map.has_ost(OstIndex(2)), "it does not ask again");
}

#[test]
fn an_ost_that_registers_again_after_the_store_was_full_is_used() {
    let fs = Fs::new();
    let q = RegisterRequest { entry: entry(2), cluster: 77, ..RegisterRequest::default() };
    fs.mds.store().stalled.set(true);
    assert_eq!(fs.call::<_, ConfigReply>(Op::Register, &q).unwrap_err(), FsError::NoSpace);
    fs.mds.store().stalled.set(false);
    let _: ConfigReply = fs.call(Op::Register, &q).unwrap();
    fs.world.settle();
    fs.pass(5);
    let used: Vec<u16> = (0..30).map(|i| ost_of(&fs, fs.create(ROOT, &format!("f{i}")).unwrap())).collect();
    assert!(used.contains(&2), "{used:?}");
}

#[test]
fn osts_without_space_for_objects_destroy_what_is_removed_after_a_restart_too_and_make_objects_when_there_is_some() {
    let fs = Fs::new();
    fs.osts.no_room.set(true);
    // Their pools run low.
    for i in 0..100 {
        fs.create(ROOT, &format!("f{i}")).unwrap();
    }
    let unlink = |fs: &Fs, which: std::ops::Range<usize>| {
        let object = |i: usize| layout_of(fs, fs.walk(&format!("f{i}")).unwrap()).objects()[0].object;
        let objects: Vec<types::ObjectId> = which.clone().map(object).collect();
        which.for_each(|i| fs.unlink(ROOT, &format!("f{i}")).unwrap());
        fs.sync();
        fs.pass(5);
        let destroyed = fs.osts.destroyed.borrow();
        objects.iter().filter(|o| destroyed.contains(o)).count()
    };
    assert_eq!(unlink(&fs, 0..60), 60);
    let fs = fs.crash();
    let told = fs.osts.told.get();
    assert_eq!(unlink(&fs, 60..100), 40);
    assert!(fs.osts.told.get() > told, "and hear of quotas");
    assert_eq!(fs.create(ROOT, "g").unwrap_err(), FsError::NoSpace);
    fs.osts.no_room.set(false);
    fs.pass(2);
    assert!(fs.mds.pools.borrow().all().iter().all(|p| p.ready() > 0));
    fs.create(ROOT, "g").unwrap();
}

/// A change of the map meets a store that fails, and is asked for again. What the second answer says.
fn asked_again_of_a_store_that_fails(bug: Option<&'static str>, op: Op, q: &ParamsRequest) -> Result<(), String> {
    types::planted::plant(bug);
    let fs = Fs::new();
    fs.sync();
    fs.kv.fail_at(fs.kv.commits() + 1, FailPoint::Before);
    let ask = || match fs.call::<_, ParamsReply>(op, q) {
        Ok(reply) if reply.error.is_empty() => Ok(()),
        Ok(reply) => Err(String::from_utf8_lossy(&reply.error).into_owned()),
        Err(e) => Err(e.to_string()),
    };
    ask().unwrap_err();
    let again = ask();
    types::planted::plant(None);
    again
}

#[test]
fn a_change_of_the_map_that_could_not_be_kept_is_not_answered_as_done_when_it_is_asked_for_again() {
    let params = |pattern: &str, value: &str, lasting| ParamsRequest {
        pattern: pattern.into(),
        value: Some(value.into()),
        lasting,
        ..ParamsRequest::default()
    };
    for q in [
        params("osp.*OST0001*.active", "0", Lasting::No),
        params("osp.*OST0001*.max_create_count", "0", Lasting::No),
        params("osc.*.max_dirty_mb", "7", Lasting::Set),
    ] {
        let lost = asked_again_of_a_store_that_fails(Some("map-change-kept-once"), Op::Params, &q);
        assert!(lost.is_ok() || q.lasting == Lasting::Set, "{}", String::from_utf8_lossy(&q.pattern));
        asked_again_of_a_store_that_fails(None, Op::Params, &q).unwrap_err();
    }
}

#[test]
fn what_is_not_committed_is_bounded_by_its_bytes_as_well_as_by_its_keys() {
    const BYTES: usize = 64 << 10;
    let never = types::Duration::from_secs(3600);
    let commit = crate::store::CommitConfig { interval: never, idle: never, ..Default::default() };
    // A commit begins at 256 KiB, and operations wait at 1 MiB.
    let fs = Fs::with_batch_bytes(commit, 2 << 20);
    let f = fs.create(ROOT, "f").unwrap();
    fs.sync();
    let commits = fs.kv.commits();
    let most = Rc::new(std::cell::Cell::new(0));
    for i in 0..40 {
        let (cred, name, value) = (fs.cred.clone(), format!("user.x{i}").as_str().into(), Some(vec![i; BYTES].into()));
        let q = wire::mdt::SetxattrRequest { cred, fid: f, name, value, flags: 0, ..Default::default() };
        let (mds, most, body) = (fs.mds.clone(), most.clone(), wire::encode(&q));
        let caller = Caller { client: fs.client, replay: None, basis: 0, slot: None };
        fs.world.rt().spawn(async move {
            mds.serve(caller, Op::MdtSetxattr, &body).await.unwrap();
            most.set(mds.store.uncommitted_bytes().max(most.get()));
        });
    }
    fs.world.settle();
    assert_eq!(fs.listxattr(f).iter().filter(|name| name.starts_with("user.x")).count(), 40);
    assert!(most.get() > 4 * (256 << 10) && most.get() < (1 << 20) + BYTES + 4096, "{} bytes", most.get());
    assert!(fs.kv.commits() > commits && fs.mds.store.crowded() > 0);
    assert!(fs.mds.store.uncommitted_bytes() <= 1 << 20, "{} bytes", fs.mds.store.uncommitted_bytes());
}

#[test]
fn an_ost_does_not_leave_with_a_file_behind_more_removed_ones_than_are_looked_at_at_a_time() {
    let never = types::Duration::from_secs(3600);
    let fs = Fs::with_commit(crate::store::CommitConfig { interval: never, idle: never, ..Default::default() });
    let d = fs.mkdir(ROOT, "d").unwrap();
    for i in 0..1100 {
        fs.create(d, &format!("f{i}")).unwrap();
    }
    change(&fs, 1, MapChange::Close, "", &[0]).unwrap();
    let kept = fs.create(d, "kept").unwrap();
    assert_eq!(ost_of(&fs, kept), 1);
    fs.sync();
    for i in 0..1100 {
        fs.unlink(d, &format!("f{i}")).unwrap();
    }
    let (errno, why) = change(&fs, 2, MapChange::RemoveOst, "", &[1]).unwrap_err();
    assert!(
        errno == FsError::NotEmpty.errno() && why.contains("1 files have objects on OST 1, d/kept"),
        "{errno} {why}"
    );
}

#[test]
fn an_ost_that_is_opened_while_its_files_are_looked_for_stays() {
    let fs = Fs::new();
    change(&fs, 1, MapChange::Close, "", &[1]).unwrap();
    let ask = |id, what| MapChangeRequest { id, what, osts: vec![OstIndex(1)], ..MapChangeRequest::default() };
    let both = [ask(2, MapChange::RemoveOst), ask(3, MapChange::Open)].map(|q| wire::encode(&q));
    let answers = at_once(&fs, Op::MapChange, &both);
    let told: Vec<i32> = answers.iter().map(|r| i32::from(r.errno)).collect();
    assert_eq!(told, [FsError::Busy.errno(), 0]);
    assert!(fs.mds.map.has_ost(OstIndex(1)) && !fs.mds.map.is_closed(OstIndex(1)));
    change(&fs, 4, MapChange::RemoveOst, "", &[1]).unwrap();
}

#[test]
fn an_ost_that_is_opened_amid_its_removal_stays_for_that_one_although_another_removal_begins() {
    let fs = Fs::new();
    change(&fs, 1, MapChange::Close, "", &[1]).unwrap();
    let ask = |id, what| MapChangeRequest { id, what, osts: vec![OstIndex(1)], ..MapChangeRequest::default() };
    let all = [ask(2, MapChange::RemoveOst), ask(3, MapChange::Open), ask(4, MapChange::RemoveOst)];
    let answers = at_once(&fs, Op::MapChange, &all.map(|q| wire::encode(&q)));
    let told: Vec<i32> = answers.iter().map(|r| i32::from(r.errno)).collect();
    assert_eq!(told, [FsError::Busy.errno(), 0, 0], "the last one has looked at everything since");
    assert!(!fs.mds.map.has_ost(OstIndex(1)));
}

#[test]
fn a_removal_that_is_asked_for_twice_at_the_same_time_is_answered_alike() {
    let fs = Fs::new();
    let (what, osts) = (MapChange::RemoveOst, vec![OstIndex(1)]);
    let q = wire::encode(&MapChangeRequest { id: 5, what, osts, ..MapChangeRequest::default() });
    let answers = at_once(&fs, Op::MapChange, &[q.clone(), q]);
    assert!(answers.iter().all(|r| r.errno == 0), "{answers:?}");
}

#[test]
fn the_last_ost_that_takes_files_is_not_closed() {
    let fs = Fs::new();
    let osts: Vec<u16> = fs.mds.map.map().osts.iter().map(|e| e.ost.0).collect();
    let (last, others) = osts.split_last().unwrap();
    for (id, ost) in (1..).zip(others) {
        change(&fs, id, MapChange::Close, "", &[*ost]).unwrap();
    }
    let (errno, why) = change(&fs, 100, MapChange::Close, "", &[*last]).unwrap_err();
    assert!(errno == FsError::Busy.errno() && why.contains(&format!("OST {last} is the last one")), "{why}");
    change(&fs, 101, MapChange::Close, "", &[others[0]]).unwrap();
    change(&fs, 102, MapChange::Open, "", &[others[0]]).unwrap();
    change(&fs, 103, MapChange::Close, "", &[*last]).unwrap();
}

/// An OST is opened again, and its registration is late: whether it is let in although it has said meanwhile what it has had since.
fn is_let_in_late(bug: Option<&'static str>) -> bool {
    types::planted::plant(bug);
    let fs = Fs::new();
    let mut q = RegisterRequest { entry: entry(0), cluster: 77, last_object: 1 << 20, ..RegisterRequest::default() };
    let mut opened = |mark, committed| {
        let boot = q.openings.len() as u64 + 1;
        q.openings.push(Opening { boot, mark, committed: Transno(committed) });
        fs.mds.osts.link(OstIndex(0)).unwrap().opening.set(mark);
        q.clone()
    };
    let first: ConfigReply = fs.call(Op::Register, &opened(11, 5)).unwrap();
    assert!(first.refused.is_empty());
    let again = opened(12, 13);
    fs.osts.committed.set(Transno(14));
    // Somebody has found it failing.
    fs.world.run(fs.mds.look_at_ost(OstIndex(0)));
    let late: ConfigReply = fs.call(Op::Register, &again).unwrap();
    types::planted::plant(None);
    late.refused.is_empty()
}

#[test]
fn what_an_ost_says_before_its_registration_comes_does_not_make_that_an_older_copys() {
    assert!(is_let_in_late(None));
    assert!(!is_let_in_late(Some("unadmitted-believed")), "the planted bug is found");
}

type Answer = Rc<std::cell::RefCell<Option<Result<Vec<u8>, FsError>>>>;

/// Begins a request of somebody else; its answer when there is one.
fn begun(fs: &Fs, op: Op, body: Vec<u8>) -> Answer {
    let (answer, mds) = (Answer::default(), fs.mds.clone());
    let (out, caller) = (Rc::clone(&answer), Caller { client: fs.client, replay: None, basis: 0, slot: None });
    fs.world.rt().spawn(async move {
        let answered = mds.serve(caller, op, &body).await.map(|outcome| outcome.body);
        *out.borrow_mut() = Some(answered);
    });
    fs.world.settle();
    answer
}

/// What is told of OSTs, of those that were removed, of pools and of settings.
fn told(fs: &Fs) -> (Vec<u16>, Vec<u16>, usize, usize) {
    let map: ConfigReply = fs.call(Op::Config, &()).unwrap();
    let removed = map.removed.iter().map(|o| o.0).collect();
    (map.osts.iter().map(|e| e.ost.0).collect(), removed, map.pools.len(), map.settings.len())
}

#[test]
fn nobody_is_told_of_a_change_of_the_map_before_it_is_on_stable_storage() {
    let remove = MapChangeRequest { id: 3, what: MapChange::RemoveOst, osts: vec![OstIndex(1)], ..Default::default() };
    let pool = MapChangeRequest { id: 4, what: MapChange::PoolNew, pool: "p".into(), ..Default::default() };
    let register = |ost| RegisterRequest { entry: entry(ost), cluster: 77, ..RegisterRequest::default() };
    let lasting = Lasting::Set;
    let (pattern, value) = ("osc.*.max_dirty_mb".into(), Some("7".into()));
    let setting = ParamsRequest { pattern, value, lasting, ..ParamsRequest::default() };
    let changes = [
        (Op::MapChange, wire::encode(&remove)),
        (Op::MapChange, wire::encode(&pool)),
        (Op::Register, wire::encode(&register(2))),
        (Op::Params, wire::encode(&setting)),
    ];
    let fs = Fs::new();
    fs.sync();
    let before = told(&fs);
    assert_eq!(before, (vec![0, 1], vec![], 0, 0));
    fs.kv.hold_commits(true);
    let answers: Vec<_> = changes.into_iter().map(|(op, body)| begun(&fs, op, body)).collect();
    // The server of the OST that is being removed would end, and stay so.
    let turned_away = begun(&fs, Op::Register, wire::encode(&register(1)));
    assert!(answers.iter().chain([&turned_away]).all(|answer| answer.borrow().is_none()), "{answers:?}");
    assert!(fs.mds.map.is_removed(OstIndex(1)) && fs.mds.map.has_ost(OstIndex(2)), "the test shows nothing");
    assert_eq!(told(&fs), before);
    fs.mds.map.set_away(OstIndex(0), true);
    let map: ConfigReply = fs.call(Op::Config, &()).unwrap();
    assert!(!map.osts[0].active, "who is away is told at once");
    fs.kv.hold_commits(false);
    fs.world.settle();
    assert!(answers.iter().all(|answer| matches!(*answer.borrow(), Some(Ok(_)))), "{answers:?}");
    assert_eq!(*turned_away.borrow(), Some(Err(FsError::NotFound)));
    assert_eq!(told(&fs), (vec![0, 2], vec![1], 1, 1));
}

#[test]
fn that_an_ost_refuses_the_metadata_server_is_told_until_it_does_so_no_longer() {
    let fs = Fs::new();
    let told = || fs.mds.told_map().refused;
    let after_a_while = || {
        let rt = fs.world.rt();
        fs.world.run(async move { rt.sleep(types::Duration::from_secs(5)).await });
    };
    assert!(told().is_empty());
    fs.osts.refusing.set(true);
    fs.mds.osts.link(OstIndex(0)).unwrap().on_session();
    after_a_while();
    let [refused] = &told()[..] else { panic!("{:?}", told()) };
    let why = String::from_utf8_lossy(&refused.why);
    assert!(refused.ost == OstIndex(0) && refused.mark == 0 && why.contains("no objects for this metadata"), "{why}");
    assert_eq!(fs.mds.refused_store(), None, "its store is not refused");
    fs.osts.refusing.set(false);
    after_a_while();
    assert!(told().is_empty());
}
