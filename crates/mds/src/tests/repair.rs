//! Stores that were damaged: what the check says of every byte, and that a repair leaves nothing to say.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use types::{Fid, ObjectId, OstIndex, Rng, WallTime};

use super::harness::Fs;
use crate::check::{Finding, Report, check_or};
use crate::kv::{MemoryKv, MetaKv, seal, show_key, unseal};
use crate::record::{HorizonRow, Inode, InodeFlags, PrecreateRow, S_IFDIR};
use crate::repair::{Objects, Stray, repair};
use crate::{dirent, keys};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A small file system with one of everything; what was read of its files.
fn store() -> Fs {
    let fs = Fs::new();
    let d = fs.mkdir(Fid::ROOT, "d").unwrap();
    let e = fs.mkdir(d, "e").unwrap();
    let a = fs.create(Fid::ROOT, "a").unwrap();
    let b = fs.create(e, "b").unwrap();
    fs.create(d, "c").unwrap();
    fs.link(b, d, "b2").unwrap();
    fs.link(b, Fid::ROOT, "b3").unwrap();
    fs.symlink(d, "s", "../a").unwrap();
    fs.setxattr(a, "user.x", Some(b"value"), 0).unwrap();
    let acl = crate::acl::Acl::parse(&acl_bytes()).unwrap().encode();
    fs.setxattr(d, "system.posix_acl_access", Some(&acl), 0).unwrap();
    let open = fs.open(e, "open", 0o302, 0o644).unwrap();
    fs.unlink(e, "open").unwrap();
    assert!(fs.getattr(open.entry.attr.fid).is_ok());
    fs.create(e, "gone").unwrap();
    *fs.osts.down.borrow_mut() = true;
    fs.unlink(e, "gone").unwrap();
    fs.sync();
    let mut horizon = Vec::new();
    seal(keys::HORIZON, &wire::encode(&HorizonRow { before: 1, doubting: false }), &mut horizon);
    fs.kv.tamper(|map| drop(map.insert(keys::HORIZON.to_vec(), horizon)));
    fs
}

fn acl_bytes() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn look(fs: &Fs, kv: &Rc<MemoryKv>) -> Report {
    let kv: Rc<dyn MetaKv> = kv.clone();
    let known = fs.mds.superblock().clone();
    fs.world.run(check_or(&kv, Some(known))).unwrap()
}

/// The store with one change.
fn with(fs: &Fs, change: impl FnOnce(&mut Map)) -> Rc<MemoryKv> {
    let kv = fs.kv.reopen();
    kv.tamper(change);
    kv
}

fn records(fs: &Fs) -> Map {
    let mut all = Map::new();
    fs.kv.tamper(|map| all = map.clone());
    all
}

#[test]
fn every_flipped_byte_of_every_record_is_found_and_names_the_record_and_hides_no_other() {
    let fs = store();
    let (clean, all) = (look(&fs, &fs.kv), records(&fs));
    assert_eq!(clean.findings, []);
    let kinds: BTreeSet<u8> = all.keys().map(|k| k[0]).collect();
    assert_eq!(String::from_utf8(kinds.into_iter().collect()).unwrap(), "RUbcdehilmopsx");
    for (key, value) in &all {
        for at in 0..value.len() {
            let kv = with(&fs, |map| map.get_mut(key).unwrap()[at] ^= 1 << (at % 8));
            let found = look(&fs, &kv);
            let damaged = |f: &&Finding| matches!(f, Finding::Damaged(_));
            let named: Vec<_> = found.findings.iter().filter(damaged).cloned().collect();
            assert_eq!(named, [Finding::Damaged(show_key(key))], "byte {at} of the value");
            let others = found.inodes.len() + usize::from(key[0] == keys::INODE);
            assert_eq!(others, clean.inodes.len(), "{}: the others stay", show_key(key));
        }
        for at in 0..key.len() {
            let mut wrong = key.clone();
            wrong[at] ^= 1 << (at % 8);
            let kv = with(&fs, |map| {
                let value = map.remove(key).unwrap();
                map.insert(wrong.clone(), value);
            });
            let found = look(&fs, &kv).findings;
            assert!(found.contains(&Finding::Damaged(show_key(&wrong))), "byte {at} of {}: {found:?}", show_key(key));
        }
    }
}

#[test]
fn a_report_of_before_a_start_repairs_nothing() {
    let fs = store();
    let kv = with(&fs, |map| drop(map.remove(&keys::inode(Fid::ROOT)[..])));
    let report = look(&fs, &kv);
    let boot = (report.parts.boot.unwrap() + 1).to_le_bytes();
    let mut started = Vec::new();
    seal(keys::BOOT, &boot, &mut started);
    kv.tamper(|map| drop(map.insert(keys::BOOT.to_vec(), started)));
    let before = kv.reopen();
    let dynkv: Rc<dyn MetaKv> = kv.clone();
    let refused = fs.world.run(repair(&dynkv, &report, &Objects::default(), WallTime(9))).unwrap_err();
    assert!(matches!(refused, crate::kv::KvError::Conflict { .. }), "{refused}");
    let (mut was, mut is) = (Map::new(), Map::new());
    before.tamper(|map| was = map.clone());
    kv.reopen().tamper(|map| is = map.clone());
    assert!(was == is, "nothing was written");
}

/// Repairs until nothing is found; what was said.
fn repaired(fs: &Fs, kv: &Rc<MemoryKv>, objects: &BTreeMap<ObjectId, u64>) -> Vec<String> {
    let mut said = Vec::new();
    for round in 0.. {
        let report = look(fs, kv);
        let doomed: BTreeSet<ObjectId> = report.doomed.iter().copied().collect();
        let owned = |o: &ObjectId| report.objects.contains_key(o) || doomed.contains(o);
        let strays: Vec<Stray> =
            objects.iter().filter(|(o, size)| !owned(o) && **size > 0).map(|(o, size)| stray(*o, *size)).collect();
        let missing: BTreeSet<ObjectId> = report.objects.keys().filter(|o| !objects.contains_key(o)).copied().collect();
        if report.findings.is_empty() && strays.is_empty() && missing.is_empty() {
            return said;
        }
        assert!(round < 4, "it does not end: {:?} {strays:?} {missing:?} after {said:?}", report.findings);
        let kv: Rc<dyn MetaKv> = kv.clone();
        let objects = Objects { strays, missing, ..Objects::default() };
        let now = fs.world.run(repair(&kv, &report, &objects, WallTime(9))).unwrap();
        // Of whom nothing is heard, nothing more is expected.
        assert!(!now.is_empty(), "it says nothing of {:?}", report.findings);
        said.extend(now);
    }
    said
}

fn stray(object: ObjectId, size: u64) -> Stray {
    let ost = OstIndex(u16::from(object.0.seq != ObjectId::seq_of(OstIndex(0))));
    Stray { ost, object, size, blocks: 8, mtime: WallTime(3), uid: 7, gid: 8 }
}

/// One random change of what a store holds, logically: checksums are right afterwards.
fn damage(rng: &mut Rng, map: &mut Map) {
    let keys: Vec<Vec<u8>> = map.keys().filter(|k| k[0] != b's').cloned().collect();
    let key = keys[rng.below(keys.len() as u64) as usize].clone();
    let value = unseal(&key, map[&key].clone()).unwrap_or_default();
    let mut put = |key: &[u8], value: &[u8]| {
        let mut sealed = Vec::new();
        seal(key, value, &mut sealed);
        map.insert(key.to_vec(), sealed);
    };
    match rng.below(6) {
        0 => drop(map.remove(&key)),
        1 => map.get_mut(&key).unwrap()[0] ^= 0x40,
        2 => {
            // A copy under the key of another record of the kind, or of an inode that does not exist.
            let same: Vec<&Vec<u8>> = keys.iter().filter(|k| k[0] == key[0]).collect();
            let mut to = same[rng.below(same.len() as u64) as usize].clone();
            if rng.below(2) == 0 && to.len() > 16 {
                to[15] ^= 1 + rng.below(7) as u8;
            }
            put(&to, &value);
        }
        3 if key[0] == keys::INODE => {
            let mut inode = Inode::decode(Fid::ROOT, &value).unwrap_or_default();
            match rng.below(7) {
                0 => inode.nlink = rng.below(9) as u32,
                1 => inode.entries = rng.below(9),
                2 => (inode.parent, inode.place) = (Fid::new(0x2_0000_0401, rng.below(9) as u32), rng.below(1 << 40)),
                3 => inode.flags = rng.below(512) as u16,
                4 => inode.mode = S_IFDIR | 0o755,
                5 => inode.tail = inode.tail.iter().rev().copied().collect(),
                _ => inode.set(InodeFlags::ORPHAN, !inode.has(InodeFlags::ORPHAN)),
            }
            put(&key, &inode.encode());
        }
        3 | 4 if key[0] == keys::ENTRY => {
            // Another inode, type or directory behind a name.
            let inodes: Vec<Fid> =
                keys.iter().filter(|k| k[0] == keys::INODE).filter_map(|k| keys::fid_of(k)).collect();
            let fid = inodes[rng.below(inodes.len() as u64) as usize];
            let slot = dirent::entries(&value).next().map_or(0, |e| e.slot);
            put(&key, &dirent::rebound(&value, slot, fid, rng.below(16) as u8));
        }
        _ => {
            let mut bytes = value.clone();
            if !bytes.is_empty() {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            put(&key, &bytes);
        }
    }
}

#[test]
fn random_damage_is_repaired_once_and_for_all_and_touches_no_other_file() {
    let fs = store();
    let clean = look(&fs, &fs.kv);
    let sized: BTreeMap<ObjectId, u64> =
        clean.objects.keys().chain(&clean.doomed).enumerate().map(|(i, o)| (*o, 100 + i as u64)).collect();
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let (mut objects, kv) = (sized.clone(), fs.kv.reopen());
        for _ in 0..=rng.below(8) {
            if rng.below(5) == 0 && !objects.is_empty() {
                let nth = rng.below(objects.len() as u64) as usize;
                let object = *objects.keys().nth(nth).unwrap();
                objects.remove(&object);
            }
            kv.tamper(|map| damage(&mut rng, map));
        }
        let before = look(&fs, &kv);
        let said = repaired(&fs, &kv, &objects);
        // Nothing is left to repair: a second run writes nothing.
        let after = look(&fs, &kv);
        let (mut stored, mut stored_then) = (Map::new(), Map::new());
        kv.tamper(|map| stored = map.clone());
        let dynkv: Rc<dyn MetaKv> = kv.clone();
        let again = fs.world.run(repair(&dynkv, &after, &Objects::default(), WallTime(10))).unwrap();
        kv.tamper(|map| stored_then = map.clone());
        let changed: Vec<String> =
            stored_then.iter().filter(|(k, v)| stored.get(*k) != Some(*v)).map(|(k, _)| show_key(k)).collect();
        assert_eq!((again, changed), (Vec::new(), Vec::new()), "seed {seed}: {said:?}");
        assert_eq!(stored.len(), stored_then.len(), "seed {seed}");
        // No object with data is forgotten, and none was given up that could be read.
        for object in objects.keys() {
            let known = after.objects.contains_key(object) || after.doomed.contains(object);
            assert!(known, "seed {seed}: {object} is nobody's after {said:?}");
        }
        for (fid, inode) in before.inodes.iter().filter(|(f, _)| **f != Fid::ROOT) {
            let layout = before.layout_of(inode).filter(|_| inode.has(InodeFlags::HAS_LAYOUT));
            let whole = layout.filter(|l| l.objects().iter().all(|o| objects.contains_key(&o.object)));
            let alone =
                !before.findings.iter().any(|f| matches!(f, Finding::SharedObject { second, .. } if second == fid));
            if let (Some(layout), true) = (whole, alone) {
                let now =
                    after.layout_of(&after.inodes[fid]).unwrap_or_else(|| panic!("seed {seed}: {fid} lost its data"));
                assert_eq!(now, layout, "seed {seed}: {fid}");
            }
        }
        // Names of which nothing was said lead where they did.
        let silent = |fid: Fid| !said.iter().any(|s| s.contains(&fid.to_string()));
        for (at, bucket) in before.parts.buckets.iter().filter(|(at, _)| silent(at.0)) {
            for e in bucket.iter().filter(|e| silent(e.fid)) {
                let there = after.parts.buckets.get(at).and_then(|b| b.iter().find(|a| a.slot == e.slot));
                assert_eq!(there.map(|a| (a.fid, &a.name)), Some((e.fid, &e.name)), "seed {seed}: {said:?}");
            }
        }
    }
}

#[test]
fn a_repaired_store_starts_and_its_files_are_found() {
    let fs = store();
    let clean = look(&fs, &fs.kv);
    let objects: BTreeMap<ObjectId, u64> = clean.objects.keys().chain(&clean.doomed).map(|o| (*o, 5)).collect();
    let d = fs.walk("d").unwrap();
    let (a, b) = (fs.walk("a").unwrap(), fs.walk("d/e/b").unwrap());
    // The directory d, the superblock and the boot count are lost; b's first name as well.
    fs.mds.halt();
    fs.kv.tamper(|map| {
        map.get_mut(&keys::inode(d).to_vec()).unwrap()[20] ^= 1;
        map.get_mut(keys::BOOT).unwrap()[0] ^= 1;
    });
    let said = repaired(&fs, &fs.kv, &objects);
    assert!(said.iter().any(|s| s.contains(&format!("directory {d} was made again"))), "{said:?}");
    *fs.osts.down.borrow_mut() = false;
    let fs = fs.crash();
    assert_eq!(fs.walk("a").unwrap(), a);
    assert_eq!(fs.walk("d/e/b").unwrap(), b);
    assert_eq!(fs.getattr(b).unwrap().nlink, 3);
    let new = fs.create(Fid::ROOT, "new").unwrap();
    assert!(!clean.inodes.contains_key(&new), "no FID is given out twice");
    fs.sync();
    let again = look(&fs, &fs.kv);
    assert_eq!(again.findings, []);
}

#[test]
fn an_ost_whose_allocation_state_is_lost_counts_on_from_the_highest_object_of_a_file() {
    let fs = store();
    let clean = look(&fs, &fs.kv);
    let objects: BTreeMap<ObjectId, u64> = clean.objects.keys().chain(&clean.doomed).map(|o| (*o, 5)).collect();
    let ost = OstIndex(0);
    let kv = with(&fs, |map| drop(map.remove(&keys::precreate(ost).to_vec()).expect("it has given objects out")));
    let found = look(&fs, &kv).findings;
    assert!(matches!(found[..], [Finding::Allocation { says: 0, .. }]), "{found:?}");
    let said = repaired(&fs, &kv, &objects);
    assert!(matches!(&said[..], [one] if one.contains("OST0000") && one.contains("given out")), "{said:?}");
}

#[test]
fn objects_before_one_that_is_adopted_may_still_be_replayed_and_are_removed_if_nobody_does() {
    let (fs, ost) = (store(), OstIndex(0));
    // Two creates were answered and not committed: of the first one nothing is written out yet.
    let row = PrecreateRow { last_used: 1000, ceiling: 1010, ..PrecreateRow::default() };
    let mut sealed = Vec::new();
    seal(&keys::precreate(ost), &wire::encode(&row), &mut sealed);
    let kv = with(&fs, |map| drop(map.insert(keys::precreate(ost).to_vec(), sealed)));
    let dynkv: Rc<dyn MetaKv> = kv.clone();
    let strays = [1002, 1005, 1003].map(|oid| stray(ObjectId::new(ost, oid), 5)).to_vec();
    let objects = Objects { strays, ..Objects::default() };
    fs.world.run(repair(&dynkv, &look(&fs, &kv), &objects, WallTime(9))).unwrap();
    let after = look(&fs, &kv);
    let row = &after.parts.precreates[&ost];
    assert_eq!(Vec::from_iter(row.may_be_lost()), [1001, 1004, 1006, 1007, 1008, 1009, 1010]);
    let left_over = (1000..1007).filter(|oid| after.is_left_over(ost, ObjectId::new(ost, *oid)));
    assert_eq!(Vec::from_iter(left_over), [1001, 1004, 1006]);
    assert_eq!(after.findings, []);
}

/// A store whose file of FID `object` was made of that object by an earlier repair, and has got the objects of another file since: what the check says
/// of it.
fn moved_on(fs: &Fs, object: ObjectId) -> (Rc<MemoryKv>, Report) {
    let kv = fs.kv.reopen();
    let a = look(fs, &kv).inodes[&fs.walk("a").unwrap()].clone();
    let dynkv: Rc<dyn MetaKv> = kv.clone();
    let objects = Objects { strays: vec![stray(object, 5)], ..Objects::default() };
    fs.world.run(repair(&dynkv, &look(fs, &kv), &objects, WallTime(9))).unwrap();
    let mut adopted = look(fs, &kv).inodes[&object.0].clone();
    kv.tamper(|map| {
        let mut put = |inode: &Inode| {
            let key = keys::inode(inode.fid);
            let mut sealed = Vec::new();
            seal(&key, &inode.encode(), &mut sealed);
            map.insert(key.to_vec(), sealed);
        };
        let (_, layout) = layout::xattr::decode_layout(&a.tail).unwrap();
        adopted.tail = layout::xattr::encode_layout(&layout, object.0, layout::xattr::Form::Stored);
        let mut empty = a.clone();
        empty.set(InodeFlags::HAS_LAYOUT, false);
        (empty.size, empty.tail) = (0, Vec::new());
        put(&adopted);
        put(&empty);
    });
    let report = look(fs, &kv);
    assert_eq!(report.findings, [], "that is no fault");
    (kv, report)
}

#[test]
fn an_object_whose_id_is_the_fid_of_a_file_with_other_objects_becomes_a_file_beside_it() {
    let fs = store();
    let object = ObjectId::new(OstIndex(0), 9000);
    let (kv, before) = moved_on(&fs, object);
    let objects: BTreeMap<ObjectId, u64> =
        before.objects.keys().chain(&before.doomed).chain([&object]).map(|o| (*o, 5)).collect();
    let said = repaired(&fs, &kv, &objects);
    assert!(said.iter().any(|s| s.contains(&format!("object {object} belonged to no file"))), "{said:?}");
    let after = look(&fs, &kv);
    assert_eq!(
        after.inodes[&object.0], before.inodes[&object.0],
        "the file that has the id as its FID stays as it was"
    );
    let owner = after.objects[&object];
    assert!(owner != object.0 && !before.inodes.contains_key(&owner), "{owner} has the object");
    assert_eq!(after.inodes[&owner].parent, crate::repair::LOST_FOUND);
    let names = |report: &Report| -> Vec<(Fid, Vec<u8>)> {
        report.parts.buckets.values().flatten().map(|e| (e.fid, e.name.clone())).collect()
    };
    let (was, is) = (names(&before), names(&after));
    assert!(was.iter().all(|name| is.contains(name)), "every name stays: {was:?} {is:?}");
}

#[test]
fn a_lost_horizon_makes_every_size_doubtful() {
    for lost in [keys::HORIZON, keys::COUNTERS] {
        let fs = store();
        let clean = look(&fs, &fs.kv);
        let objects: BTreeMap<ObjectId, u64> = clean.objects.keys().chain(&clean.doomed).map(|o| (*o, 5)).collect();
        let kv = with(&fs, |map| map.get_mut(lost).unwrap()[0] ^= 1);
        let said = repaired(&fs, &kv, &objects);
        assert!(said.iter().any(|s| s.contains("asked of their OSTs anew")), "{said:?}");
        let mut row = Vec::new();
        kv.tamper(|map| row = map[keys::HORIZON].clone());
        let row: HorizonRow = wire::decode(&unseal(keys::HORIZON, row).unwrap()).unwrap();
        assert!(row.doubting);
    }
}
