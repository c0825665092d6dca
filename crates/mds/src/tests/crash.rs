//! Crashes: after every commit, before and after it became durable; replays; what reconnecting clients find.
use proptest::prelude::*;
use types::{ClientId, Fid, FsError};
use wire::mdt::*;
use wire::{Op as Rpc, connect::ConfigReply};

use super::harness::Fs;
use super::model::{Model, Op, findings, ops};
use crate::keys;
use crate::kv::memory::FailPoint;

fn first_object(fs: &Fs, file: Fid) -> types::ObjectId {
    layout::xattr::decode_layout(&fs.getxattr(file, "lustre.lov").unwrap()).unwrap().1.objects()[0].object
}

/// The file system is as after some operation not before the last sync that was answered.
fn some_state_fits(states: &[Model], synced: usize, fs: &Fs) -> bool {
    states[synced..].iter().any(|m| m.matches(fs) && fs.count() as usize == m.nodes.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn after_a_crash_at_any_commit_a_whole_prefix_is_found(list in ops(40), at in 1u64..8, after in any::<bool>()) {
        let fs = Fs::new();
        fs.sync();
        let point = if after { FailPoint::After } else { FailPoint::Before };
        fs.kv.fail_at(fs.kv.commits() + at, point);
        let mut states = vec![Model::new()];
        let mut synced = 0;
        for op in list.iter().filter(|o| !matches!(o, Op::OpenUnlinked(..) | Op::CloseOne)) {
            if matches!(op, Op::Sync) {
                match fs.world.run(fs.mds.store().sync()) {
                    Ok(()) => synced = states.len() - 1,
                    Err(e) => {
                        prop_assert_eq!(e, FsError::Io);
                        break;
                    }
                }
                continue;
            }
            let mut m = states[states.len() - 1].clone();
            if fs.mds.store().failure().is_some() {
                break;
            }
            m.step(&fs, op, &mut Vec::new());
            states.push(m);
        }
        let fs = fs.crash();
        prop_assert_eq!(findings(&fs), Vec::<String>::new());
        prop_assert!(some_state_fits(&states, synced, &fs));
    }
}

#[test]
fn a_store_that_failed_answers_no_change_any_more() {
    let fs = Fs::new();
    fs.sync();
    fs.kv.fail_at(fs.kv.commits() + 1, FailPoint::Before);
    fs.mkdir(Fid::ROOT, "a").unwrap();
    assert_eq!(fs.world.run(fs.mds.store().sync()), Err(FsError::Io));
    assert_eq!(fs.mkdir(Fid::ROOT, "b"), Err(FsError::Io));
    let fs = fs.crash();
    assert_eq!(fs.lookup(Fid::ROOT, "a"), Err(FsError::NotFound));
    fs.mkdir(Fid::ROOT, "b").unwrap();
}

#[test]
fn replayed_transactions_give_the_same_files_objects_and_handles() {
    let fs = Fs::new();
    fs.world.run(fs.mds.remember_client(ClientId(1), Rpc::MdtLookup, || false)).unwrap();
    let root = Fid::ROOT;
    let mkdir = CreateRequest { parent: root, name: "d".into(), mode: 0o755, ..CreateRequest::default() };
    let (d, t1) = fs.call_as::<_, EntryReply>(None, Rpc::MdtCreate, &mkdir).unwrap();
    let mut open = fs.open_request(d.attr.fid, "f", 0o302, 0o644);
    let (f, t2) = fs.call_as::<_, OpenReply>(None, Rpc::MdtOpen, &open).unwrap();
    let unlink = UnlinkRequest { parent: d.attr.fid, name: "f".into(), ..UnlinkRequest::default() };
    let (_, t3) = fs.call_as::<_, EntryReply>(None, Rpc::MdtUnlink, &unlink).unwrap();
    (open.fid, open.handle, open.layout) = (f.entry.attr.fid, f.handle, f.entry.layout.clone());
    let fs = fs.crash();
    assert_eq!(fs.lookup(root, "d"), Err(FsError::NotFound));
    let (again, _) = fs.call_as::<_, EntryReply>(Some(t1), Rpc::MdtCreate, &mkdir).unwrap();
    assert_eq!(again.attr.fid, d.attr.fid);
    let (again, _) = fs.call_as::<_, OpenReply>(Some(t2), Rpc::MdtOpen, &open).unwrap();
    assert_eq!((again.handle, &again.entry.layout), (f.handle, &f.entry.layout));
    fs.call_as::<_, EntryReply>(Some(t3), Rpc::MdtUnlink, &unlink).unwrap();
    // The open told again as state is the same open.
    let state = OpenRequest { parent: open.fid, name: Default::default(), ..open.clone() };
    let (again, t) = fs.call_as::<_, OpenReply>(Some(0), Rpc::MdtOpen, &state).unwrap();
    assert_eq!((again.handle, t), (f.handle, 0));
    assert_eq!(ptlrpc::Service::sessions(&*fs.mds).len(), 1);
    ptlrpc::Service::recovered(&*fs.mds);
    fs.sync();
    fs.world.settle();
    assert!(fs.getattr(open.fid).is_ok(), "it is open");
    let (_, layout) = layout::xattr::decode_layout(&open.layout).unwrap();
    assert!(!fs.osts.destroyed.borrow().contains(&layout.objects()[0].object));
    fs.close(f.handle, open.fid, 0, 0).unwrap();
    assert_eq!(fs.getattr(open.fid), Err(FsError::Stale));
    let new = fs.create(d.attr.fid, "g").unwrap();
    assert!(new > open.fid, "no FID is used twice");
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn objects_of_lost_creates_are_destroyed_and_never_given_out_again() {
    let fs = Fs::new();
    fs.sync();
    let o = fs.open(Fid::ROOT, "lost", 0o302, 0o644).unwrap();
    let (_, lost) = layout::xattr::decode_layout(&o.entry.layout).unwrap();
    let lost = lost.objects()[0];
    let fs = fs.crash();
    fs.sync();
    fs.world.settle();
    assert!(fs.osts.destroyed.borrow().contains(&lost.object));
    for i in 0..8 {
        let o = fs.open(Fid::ROOT, &format!("f{i}"), 0o302, 0o644).unwrap();
        let (_, l) = layout::xattr::decode_layout(&o.entry.layout).unwrap();
        assert_ne!(l.objects()[0].object, lost.object);
    }
}

#[test]
fn destroys_wait_for_the_commit_and_for_the_ost() {
    let fs = Fs::new();
    let f = fs.create(Fid::ROOT, "f").unwrap();
    let object = first_object(&fs, f);
    let times = |fs: &Fs| fs.osts.destroyed.borrow().iter().filter(|o| **o == object).count();
    fs.sync();
    *fs.osts.down.borrow_mut() = true;
    fs.unlink(Fid::ROOT, "f").unwrap();
    assert!(fs.osts.destroyed.borrow().is_empty());
    fs.sync();
    fs.world.settle();
    assert_eq!(fs.getattr(f), Err(FsError::Stale));
    let fs = fs.crash();
    assert!(fs.osts.destroyed.borrow().is_empty());
    *fs.osts.down.borrow_mut() = false;
    fs.pass(2);
    assert_eq!(times(&fs), 1);
    fs.sync();
    let fs = fs.crash();
    fs.pass(2);
    assert_eq!(times(&fs), 1, "the log forgot what was done");
}

#[test]
fn orphans_of_dead_clients_go_when_recovery_is_over() {
    let fs = Fs::new();
    let o = fs.open(Fid::ROOT, "f", 0o302, 0o644).unwrap();
    let object = first_object(&fs, o.entry.attr.fid);
    fs.unlink(Fid::ROOT, "f").unwrap();
    fs.sync();
    let fs = fs.crash();
    fs.world.settle();
    assert_eq!(fs.getattr(o.entry.attr.fid), Err(FsError::Stale));
    fs.sync();
    fs.world.settle();
    assert_eq!(fs.osts.destroyed.borrow().iter().filter(|d| **d == object).count(), 1);
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn a_damaged_nameless_inode_keeps_no_other_from_its_removal_and_is_named_once() {
    let fs = Fs::new();
    let fids = ["a", "b", "c"].map(|name| {
        let fid = fs.open(Fid::ROOT, name, 0o302, 0o644).unwrap().entry.attr.fid;
        fs.unlink(Fid::ROOT, name).unwrap();
        fid
    });
    fs.sync();
    let key = keys::inode(fids[0]).to_vec();
    fs.kv.tamper(|map| map.get_mut(&key).unwrap()[9] ^= 1);
    let said = super::log::Said::begin();
    let fs = fs.crash();
    fs.pass(20);
    assert_eq!(fs.getattr(fids[0]), Err(FsError::Corrupt));
    assert_eq!([fs.getattr(fids[1]), fs.getattr(fids[2])], [Err(FsError::Stale), Err(FsError::Stale)]);
    let lines = said.lines();
    let named = format!("nameless inode {} stays", fids[0]);
    assert_eq!(lines.iter().filter(|l| l.contains(&named) && l.contains("stria fsck")).count(), 1, "{lines:?}");
}

#[test]
fn a_damaged_row_of_what_osts_are_owed_keeps_no_server_from_its_start_and_is_named() {
    let fs = Fs::new();
    let objects = ["a", "b"].map(|name| first_object(&fs, fs.create(Fid::ROOT, name).unwrap()));
    fs.sync();
    *fs.osts.down.borrow_mut() = true;
    ["a", "b"].into_iter().for_each(|name| fs.unlink(Fid::ROOT, name).unwrap());
    fs.sync();
    fs.kv.tamper(|map| {
        let row = map.iter_mut().find(|(key, _)| key[0] == keys::DESTROY).unwrap();
        row.1[3] ^= 1;
    });
    let said = super::log::Said::begin();
    let fs = fs.crash();
    *fs.osts.down.borrow_mut() = false;
    fs.pass(3);
    let destroyed = fs.osts.destroyed.borrow();
    assert_eq!(objects.map(|o| destroyed.contains(&o)), [false, true]);
    let lines = said.lines();
    assert!(lines.iter().any(|l| l.contains("what OSTs are owed") && l.contains("stria fsck")), "{lines:?}");
}

#[test]
fn a_lost_client_closes_what_it_had_open_and_its_files_have_unknown_sizes() {
    let fs = Fs::new();
    let o = fs.open(Fid::ROOT, "f", 0o302, 0o644).unwrap();
    let fid = o.entry.attr.fid;
    let other = fs.of(2);
    let p = other.open(fid, "", 1, 0).unwrap();
    fs.world.run(fs.mds.forget_client(ClientId(1)));
    assert_eq!(fs.mds.handles.borrow().len(), 1);
    other.close(p.handle, fid, 0, 0).unwrap();
    assert_eq!(other.getattr(fid).unwrap().flags & AttrFlags::SIZE_KNOWN, 0, "the lost one may have written");
    let p = other.open(fid, "", 1, 0).unwrap();
    other.close(p.handle, fid, SetBits::SIZE, 4).unwrap();
    assert_ne!(other.getattr(fid).unwrap().flags & AttrFlags::SIZE_KNOWN, 0);
}

#[test]
fn sizes_that_a_lost_client_told_lately_are_not_known_any_more() {
    const TOLD: u32 = SetBits::DIRTY | SetBits::SIZE;
    let fs = Fs::new();
    let other = fs.of(2);
    let known = |f| other.getattr(f).unwrap().flags & AttrFlags::SIZE_KNOWN != 0;
    let written = |fs: &Fs, name: &str| {
        let o = fs.open(Fid::ROOT, name, 0o302, 0o644).unwrap();
        fs.close(o.handle, o.entry.attr.fid, TOLD, 4).unwrap();
        o.entry.attr.fid
    };
    let (of_lost, of_other, both) = (written(&fs, "lost"), written(&other, "other"), written(&fs, "both"));
    let touched = written(&fs, "touched");
    let (p, q) = (other.open(both, "", 1, 0).unwrap(), other.open(touched, "", 1, 0).unwrap());
    fs.world.run(fs.mds.forget_client(ClientId(1)));
    fs.world.settle();
    other.close(q.handle, touched, 0, 0).unwrap();
    assert!(!known(touched), "who wrote nothing knows nothing of it");
    assert!(!known(of_lost), "its data may have gone with the client");
    assert!(known(of_other));
    other.close(p.handle, both, TOLD, 9).unwrap();
    assert!(known(both), "who writes it tells its size");
    // One that leaves in order has written everything out.
    fs.world.run(ptlrpc::Service::session_closed(fs.mds.clone(), ClientId(2), false));
    fs.world.settle();
    assert_ne!(fs.of(3).getattr(of_other).unwrap().flags & AttrFlags::SIZE_KNOWN, 0);
}

/// A client that wrote nothing, or asked the OSTs, tells a size in the end that counts what another one has not written out.
#[test]
fn sizes_that_others_told_of_a_lost_clients_data_are_not_known_any_more() {
    const TOLD: u32 = SetBits::DIRTY | SetBits::SIZE;
    let fs = Fs::new();
    let other = fs.of(2);
    let written = |name: &str, valid: u32, by_other: u32| {
        let o = fs.open(Fid::ROOT, name, 0o302, 0o644).unwrap();
        let fid = o.entry.attr.fid;
        let p = other.open(fid, "", 1, 0).unwrap();
        fs.close(o.handle, fid, valid, 4).unwrap();
        other.close(p.handle, fid, by_other, 4).unwrap();
        fid
    };
    let (idle, both, hidden) =
        (written("idle", TOLD, 0), written("both", TOLD, TOLD), written("hidden", SetBits::DIRTY, TOLD));
    for fid in [both, hidden] {
        // Who asked the OSTs says so.
        let p = other.open(fid, "", 1, 0).unwrap();
        other.close(p.handle, fid, SetBits::SIZE, 4).unwrap();
    }
    assert!([idle, both, hidden].iter().all(|f| knows_size(&other, *f)));
    fs.world.run(fs.mds.forget_client(ClientId(1)));
    fs.world.settle();
    let known = [idle, both, hidden].map(|f| knows_size(&other, f));
    assert_eq!(known, [false; 3], "its data may have gone with the client");
}

/// A file of four bytes that was written and closed.
fn written(fs: &Fs, name: &str) -> Fid {
    let o = fs.open(Fid::ROOT, name, 0o302, 0o644).unwrap();
    fs.close(o.handle, o.entry.attr.fid, SetBits::DIRTY | SetBits::SIZE, 4).unwrap();
    o.entry.attr.fid
}

fn knows_size(fs: &Fs, fid: Fid) -> bool {
    fs.getattr(fid).unwrap().flags & AttrFlags::SIZE_KNOWN != 0
}

#[test]
fn sizes_told_before_a_restart_are_doubted_when_a_client_does_not_come_back() {
    let fs = Fs::new();
    let _session = fs.world.run(fs.mds.remember_client(ClientId(1), wire::Op::MdtCreate, || false));
    let (told, set) = (written(&fs, "told"), written(&fs, "set"));
    assert!(knows_size(&fs, told));
    fs.sync();
    let fs = fs.crash().of(2);
    fs.world.run(fs.mds.forget_client(ClientId(1)));
    fs.mds.end_recovery();
    fs.world.settle();
    assert!(!knows_size(&fs, told) && !knows_size(&fs, set), "nobody knows which of them it had told");
    assert_ne!(fs.getattr(told).unwrap().flags & AttrFlags::UNSETTLED, 0, "who asks the OSTs may say what they said");
    // The doubt outlives the server, and ends with a size that is told.
    let o = fs.open(told, "", 1, 0).unwrap();
    fs.close(o.handle, told, SetBits::DIRTY | SetBits::SIZE, 3).unwrap();
    let fresh = written(&fs, "fresh");
    fs.sync();
    let fs = fs.crash();
    fs.world.settle();
    assert!(knows_size(&fs, told) && knows_size(&fs, fresh) && !knows_size(&fs, set));
    // Who opens it for writing and writes nothing does not know.
    let o = fs.open(set, "", 1, 0).unwrap();
    fs.close(o.handle, set, 0, 0).unwrap();
    assert!(!knows_size(&fs, set));
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn nothing_is_doubted_when_everybody_comes_back_or_leaves_in_order() {
    let fs = Fs::new();
    let _session = fs.world.run(fs.mds.remember_client(ClientId(1), wire::Op::MdtCreate, || false));
    let told = written(&fs, "told");
    fs.sync();
    let fs = fs.crash().of(2);
    fs.mds.end_recovery();
    fs.world.run(ptlrpc::Service::session_closed(fs.mds.clone(), ClientId(1), false));
    fs.world.settle();
    assert!(knows_size(&fs, told));
}

#[test]
fn a_server_that_dies_while_it_doubts_sizes_doubts_them_afterwards() {
    let fs = Fs::new();
    let told = written(&fs, "told");
    fs.sync();
    assert!(fs.mds.doubt_sizes_of(ClientId(1)));
    let (key, row) = fs.mds.horizon.change();
    fs.world.settle();
    assert!(!knows_size(&fs, told), "marked");
    let o = fs.open(told, "", 1, 0).unwrap();
    fs.close(o.handle, told, SetBits::DIRTY | SetBits::SIZE, 4).unwrap();
    assert!(knows_size(&fs, told));
    // What goes into the store with the end of the session, before the mark is made.
    fs.mds.store().apply([(key, row)], 0, 0);
    fs.sync();
    let fs = fs.crash();
    fs.world.settle();
    assert!(!knows_size(&fs, told));
}

#[test]
fn a_second_server_on_one_store_is_stopped_by_the_first_commit() {
    let fs = Fs::new();
    fs.sync();
    let kv: std::rc::Rc<dyn crate::MetaKv> = fs.kv.clone();
    let second = fs.world.run(crate::Mds::start(fs.world.rt(), crate::MdsConfig::default(), kv)).unwrap();
    assert!(second.store().failure().is_none());
    fs.mkdir(Fid::ROOT, "d").unwrap();
    assert_eq!(fs.world.run(fs.mds.store().sync()), Err(FsError::Io));
}

#[test]
fn damaged_records_are_errors_that_name_the_key_and_checks_find_them() {
    let fs = Fs::new();
    let d = fs.mkdir(Fid::ROOT, "d").unwrap();
    fs.sync();
    fs.kv.tamper(|map| {
        let key = crate::keys::inode(d).to_vec();
        map.get_mut(&key).unwrap()[9] ^= 1;
    });
    let fs = fs.crash();
    assert_eq!(fs.getattr(d), Err(FsError::Corrupt));
    assert!(findings(&fs).iter().any(|f| f.contains("i:") && f.contains("damaged")), "{:?}", findings(&fs));
}

#[test]
fn the_cluster_map_and_deactivation_survive() {
    let fs = Fs::new();
    let q = wire::connect::ParamsRequest {
        pattern: "osp.*OST0001*.active".into(),
        value: Some("0".into()),
        ..Default::default()
    };
    let r: wire::connect::ParamsReply = fs.call(Rpc::Params, &q).unwrap();
    assert_eq!(&r.params[0].value[..], b"0");
    let fs = fs.crash();
    let map: ConfigReply = fs.call(Rpc::Config, &()).unwrap();
    assert_eq!(map.osts.iter().map(|o| o.active).collect::<Vec<_>>(), [true, false]);
    for i in 0..4 {
        let o = fs.open(Fid::ROOT, &format!("f{i}"), 0o302, 0o644).unwrap();
        let (_, l) = layout::xattr::decode_layout(&o.entry.layout).unwrap();
        assert_eq!(l.objects()[0].ost.0, 0);
    }
}

#[test]
fn operations_wait_when_commits_fall_behind_and_lose_nothing() {
    let fs = Fs::with_commit(crate::store::CommitConfig { keys_max: 16, ..Default::default() });
    for i in 0..100 {
        fs.mkdir(Fid::ROOT, &format!("d{i}")).unwrap();
        let (_, _, waiting) = fs.mds.store().commit_counters();
        assert!(waiting <= 4 * 16 + 16, "{waiting} keys wait");
    }
    assert!(fs.kv.commits() > 3);
    assert_eq!(fs.names(Fid::ROOT).len(), 100);
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
}
