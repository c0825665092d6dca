//! Backups: what is put back is what was there, and nothing else is taken for it.
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use types::{Fid, ObjectId, OstIndex, WallTime};
use wire::changelog::ChangelogAct;
use wire::connect::ParamsRequest;

use super::changelog::{all, ask, name, page, param, register};
use super::harness::Fs;
use crate::backup::{self, BackupError, Header, Kind, Numbers};
use crate::check::check;
use crate::keys;
use crate::kv::{MemoryKv, MetaKv, unseal};
use crate::record::PrecreateRow;

const FILE: &str = "/backup";

fn write(fs: &Fs, path: &str) -> Result<Header, BackupError> {
    let (rt, kv): (_, Rc<dyn MetaKv>) = (fs.world.rt(), fs.kv.clone());
    fs.world.run(async move { backup::write(&rt, &kv, Path::new(path), Kind::Backup, |_| {}).await })
}

fn restore(fs: &Fs, path: &str, wanted: (u64, u64)) -> Result<Rc<MemoryKv>, BackupError> {
    let kv = MemoryKv::new();
    let (rt, target): (_, Rc<dyn MetaKv>) = (fs.world.rt(), kv.clone());
    fs.world.run(async move { backup::restore(&rt, Path::new(path), &target, wanted, Kind::Backup).await }).map(|_| kv)
}

/// The store that is made of the backup, with numbers above these, and its boot.
fn restore_above(fs: &Fs, least: Numbers) -> (Rc<MemoryKv>, u64) {
    let kv = MemoryKv::new();
    let (rt, target): (_, Rc<dyn MetaKv>) = (fs.world.rt(), kv.clone());
    let made = fs
        .world
        .run(async move { backup::restore_above(&rt, Path::new(FILE), &target, (77, 5), Kind::Backup, least).await });
    (kv, made.unwrap().1)
}

/// A store whose copy is made while it changes: the copy is of one moment.
fn filled() -> Fs {
    let fs = Fs::new();
    let d = fs.mkdir(Fid::ROOT, "d").unwrap();
    (0..20).for_each(|i| assert!(fs.create(d, &format!("f{i}")).is_ok()));
    fs.sync();
    fs
}

#[test]
fn what_is_put_back_is_what_was_there_without_its_sessions() {
    let fs = filled();
    let header = write(&fs, FILE).unwrap();
    assert_eq!((header.cluster, header.uuid), (77, 5));
    assert!(matches!(write(&fs, FILE), Err(BackupError::Exists)));
    fs.create(Fid::ROOT, "later").unwrap();
    fs.sync();
    let kv = restore(&fs, FILE, (77, 5)).unwrap();
    let dynkv: Rc<dyn MetaKv> = kv.clone();
    let report = fs.world.run(check(&dynkv)).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!(report.inodes.len(), 22);
    let rows = &report.parts.precreates;
    assert!(
        rows.len() == 2 && rows.values().all(|row| !row.is_left_over(u32::MAX)),
        "what is newer on the OSTs is not left over"
    );
    kv.tamper(|map| assert!(!map.keys().any(|k| [keys::SESSION, keys::REPLY].contains(&k[0]))));
    assert!(matches!(restore(&fs, FILE, (77, 6)), Err(BackupError::Foreign((77, 5), (77, 6)))));
}

#[test]
fn an_export_makes_the_same_store_and_is_no_backup() {
    let fs = filled();
    let (rt, kv): (_, Rc<dyn MetaKv>) = (fs.world.rt(), fs.kv.clone());
    let moved: Rc<MemoryKv> = MemoryKv::new();
    let target: Rc<dyn MetaKv> = moved.clone();
    let again = target.clone();
    fs.world.run(async move {
        let (file, to) = (Path::new("/export"), (77, 5));
        backup::write(&rt, &kv, file, Kind::Export, |_| {}).await.unwrap();
        let other = backup::restore(&rt, file, &target, to, Kind::Backup).await.unwrap_err();
        assert!(matches!(other, BackupError::Other(Kind::Export)), "{other}");
        let header = backup::restore(&rt, file, &target, to, Kind::Export).await.unwrap();
        let whole = backup::whole(&*kv).await.unwrap();
        assert!(whole.records == header.records && whole == backup::whole(&*target).await.unwrap());
        let full = backup::restore(&rt, file, &target, to, Kind::Export).await.unwrap_err();
        assert!(matches!(full, BackupError::Exists), "{full}");
        backup::write(&rt, &kv, Path::new(FILE), Kind::Backup, |_| {}).await.unwrap();
        let other = backup::restore(&rt, Path::new(FILE), &again, to, Kind::Export).await.unwrap_err();
        assert!(matches!(other, BackupError::Other(Kind::Backup)), "{other}");
    });
    let mut was = std::collections::BTreeMap::new();
    fs.kv.tamper(|map| was = map.clone());
    moved.tamper(|map| assert_eq!(*map, was, "all of it, sessions and answers too"));
}

/// As `filled`, with attributes of more bytes than fit a block.
fn with_large_attributes() -> Fs {
    let fs = filled();
    for i in 0..20 {
        let file = fs.walk(&format!("d/f{i}")).unwrap();
        (0..63).for_each(|x| fs.setxattr(file, &format!("user.x{x}"), Some(&vec![x; 65_536]), 0).unwrap());
        fs.sync();
    }
    fs
}

#[test]
fn a_store_that_has_gone_back_by_itself_becomes_what_one_is_that_was_put_back_also_where_that_was_interrupted() {
    let fs = filled();
    register(&fs, 1);
    let d = fs.walk("d").unwrap();
    fs.open(d, "", 0o20_200_000 | 2, 0o600).unwrap();
    fs.open(d, "f1", 2, 0).unwrap();
    fs.unlink(d, "f1").unwrap();
    fs.sync();
    write(&fs, FILE).unwrap();
    let all = |kv: &MemoryKv| {
        let mut all = std::collections::BTreeMap::new();
        kv.tamper(|map| all = map.clone());
        all
    };
    let now = fs.world.rt().wall();
    let least = Numbers::at(now, 0);
    let (was, expected) = (all(&fs.kv), all(&restore_above(&fs, least).0));
    let in_place = |kv: &Rc<MemoryKv>| {
        let (target, now): (Rc<dyn MetaKv>, _) = (kv.clone(), now);
        fs.world.run(async move { backup::put_back_in_place(&target, now).await }).unwrap();
    };
    let kv = fs.kv.reopen();
    in_place(&kv);
    assert!(all(&kv) == expected);
    // It came as far as the inodes.
    let marks: Vec<_> = was.iter().filter(|(key, _)| key[0] == keys::ORPHAN).collect();
    assert_eq!(marks.len(), 2);
    kv.tamper(|map| map.extend(marks.iter().map(|(k, v)| ((*k).clone(), (*v).clone()))));
    in_place(&kv);
    assert!(all(&kv).into_keys().eq(expected.into_keys()));
}

#[test]
fn a_store_of_large_attributes_is_put_back_from_its_backup_and_its_export() {
    let fs = with_large_attributes();
    write(&fs, FILE).unwrap();
    let kv = restore(&fs, FILE, (77, 5)).unwrap();
    let kv: Rc<dyn MetaKv> = kv;
    assert_eq!(fs.world.run(check(&kv)).unwrap().findings, []);
    let (rt, from): (_, Rc<dyn MetaKv>) = (fs.world.rt(), fs.kv.clone());
    let target: Rc<dyn MetaKv> = MemoryKv::new();
    fs.world.run(async move {
        let file = Path::new("/export");
        backup::write(&rt, &from, file, Kind::Export, |_| {}).await.unwrap();
        let header = backup::restore(&rt, file, &target, (77, 5), Kind::Export).await.unwrap();
        assert_eq!(header.records, backup::whole(&*target).await.unwrap().records);
    });
}

/// What an earlier build wrote: all records of a page in one block, here of more bytes than it could be read with.
#[test]
fn a_backup_of_an_earlier_build_with_a_long_block_is_put_back() {
    let fs = with_large_attributes();
    let records = write(&fs, FILE).unwrap().records;
    let file = fs.world.rt().open_blocking(Path::new(FILE), false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read(0, &mut bytes).unwrap();
    let (mut at, mut all, mut blocks) = (64, Vec::new(), 0);
    while at + 8 < bytes.len() {
        let len = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        all.extend_from_slice(&bytes[at + 8..at + 8 + len]);
        (at, blocks) = (at + 8 + len, blocks + 1);
    }
    assert!(blocks > 4 && all.len() > 64 << 20, "{blocks} blocks");
    let mut place = 64;
    for payload in [&all[..], &[]] {
        let crc = wire::crc32c_append(wire::crc32c(&(place as u64).to_le_bytes()), payload);
        file.write(place as u64, &[&(payload.len() as u32).to_le_bytes()[..], &crc.to_le_bytes(), payload].concat())
            .unwrap();
        place += 8 + payload.len();
    }
    file.set_len(place as u64).unwrap();
    let kv: Rc<dyn MetaKv> = restore(&fs, FILE, (77, 5)).unwrap();
    let report = fs.world.run(check(&kv)).unwrap();
    assert!(report.findings.is_empty() && records > 20 * 63);
}

#[test]
fn every_flipped_byte_and_every_cut_of_a_backup_is_refused_before_anything_is_written() {
    let fs = filled();
    write(&fs, FILE).unwrap();
    let file = fs.world.rt().open_blocking(Path::new(FILE), false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read(0, &mut bytes).unwrap();
    for (at, byte) in bytes.iter().enumerate() {
        file.write(at as u64, &[byte ^ 1 << (at % 8)]).unwrap();
        let refused = restore(&fs, FILE, (77, 5)).err().unwrap_or_else(|| panic!("byte {at} was missed"));
        assert!(!matches!(refused, BackupError::Store(_) | BackupError::Io(_)), "byte {at}: {refused}");
        file.write(at as u64, &[*byte]).unwrap();
    }
    let mut newer = bytes.clone();
    newer[8] = 2;
    file.write(0, &newer).unwrap();
    let said = restore(&fs, FILE, (77, 5)).err().unwrap().to_string();
    assert!(said.contains("format 2") && said.contains("up to 1"), "{said}");
    file.write(0, &bytes).unwrap();
    for len in (0..bytes.len()).step_by(17) {
        file.set_len(len as u64).unwrap();
        assert!(restore(&fs, FILE, (77, 5)).is_err(), "{len} bytes");
    }
}

#[test]
fn a_server_over_a_backup_removes_no_newer_object_and_gives_out_none_again() {
    let fs = filled();
    write(&fs, FILE).unwrap();
    let first: Vec<ObjectId> = objects(&fs);
    let d = fs.walk("d").unwrap();
    (0..300).for_each(|i| assert!(fs.create(d, &format!("later{i}")).is_ok()));
    fs.sync();
    let newer: Vec<ObjectId> = objects(&fs).into_iter().filter(|o| !first.contains(o)).collect();
    assert_eq!(newer.len(), 300);
    let exist = fs.osts.last.borrow().clone();
    let asked = fs.osts.precreates.borrow().len();
    let kv = restore(&fs, FILE, (77, 5)).unwrap();
    let fs = fs.on(kv);
    let again = fs.create(Fid::ROOT, "again").unwrap();
    fs.sync();
    let asked: Vec<_> = fs.osts.precreates.borrow()[asked..].iter().filter(|q| q.orphans).cloned().collect();
    assert!(!asked.is_empty());
    for q in asked {
        let ost = (0..2).map(OstIndex).find(|o| ObjectId::seq_of(*o) == q.seq).unwrap();
        assert!(q.last_used >= exist[&ost], "{ost} is told to remove what lies behind {}", q.last_used);
    }
    assert!(fs.osts.destroyed.borrow().iter().all(|o| !newer.contains(o)));
    let (_, layout) = layout::xattr::decode_layout(&fs.getxattr(again, "lustre.lov").unwrap()).unwrap();
    assert!(layout.objects().iter().all(|o| o.object.0.oid > exist[&o.ost]), "{layout:?}");
    // The mark is gone once it was acted upon.
    fs.kv.tamper(|map| {
        for (key, value) in map.iter().filter(|(k, _)| k[0] == keys::PRECREATE) {
            let row: PrecreateRow = wire::decode(&unseal(key, value.clone()).unwrap()).unwrap();
            assert!(!row.newer);
        }
    });
}

#[test]
fn files_without_a_name_keep_their_objects_in_a_store_that_was_put_back() {
    let fs = filled();
    let d = fs.walk("d").unwrap();
    // A migration's copy, or what a program is about to link; a file that is open and removed.
    let tmpfile = fs.open(d, "", 0o20_200_000 | 2, 0o600).unwrap().entry.attr.fid;
    let removed = fs.open(d, "f1", 2, 0).unwrap().entry.attr.fid;
    fs.unlink(d, "f1").unwrap();
    fs.sync();
    let all = objects(&fs);
    write(&fs, FILE).unwrap();
    // The copy gets the name of what it was made for.
    fs.link(tmpfile, d, "linked").unwrap();
    fs.sync();
    let kv = restore(&fs, FILE, (77, 5)).unwrap();
    let fs = fs.on(kv);
    fs.pass(5);
    fs.sync();
    assert_eq!(*fs.osts.destroyed.borrow(), [], "whose they are by now nobody knows");
    assert_eq!(objects(&fs), all);
    // A repair gives them names, and nothing is left to say.
    let kv: Rc<dyn MetaKv> = fs.kv.reopen();
    fs.world.run(async move {
        let report = check(&kv).await.unwrap();
        crate::repair::repair(&kv, &report, &crate::repair::Objects::default(), types::WallTime(9)).await.unwrap();
        let report = check(&kv).await.unwrap();
        assert_eq!(report.findings, []);
        for fid in [tmpfile, removed] {
            let inode = &report.inodes[&fid];
            assert!(inode.nlink == 1 && inode.parent == crate::repair::LOST_FOUND, "{fid}");
        }
        assert_eq!(report.objects.into_keys().collect::<Vec<_>>(), all);
    });
}

/// Records of the changelog that are kept, as the metric has it.
fn kept(fs: &Fs) -> String {
    param(fs, "mdd.*.changelog_records", None).unwrap()
}
/// The file system as it is in a copy that is made of it now.
fn put_back(fs: Fs, path: &str) -> Fs {
    fs.sync();
    write(&fs, path).unwrap();
    let kv = restore(&fs, path, (77, 5)).unwrap();
    fs.on(kv)
}

#[test]
fn two_stores_that_are_made_of_one_copy_give_no_number_out_twice_however_often_the_first_one_started() {
    let fs = filled();
    register(&fs, 1);
    fs.sync();
    write(&fs, FILE).unwrap();
    let now = fs.world.rt().wall();
    let (kv, mut boot) = restore_above(&fs, Numbers::at(now, 0));
    let (mut fs, mut fids, mut indices) = (fs.on(kv), BTreeSet::new(), BTreeSet::new());
    for life in 0..3 {
        for start in 0..3 {
            let made = fs.mkdir(Fid::ROOT, &format!("d{life}.{start}")).unwrap();
            assert!(fids.insert(made), "{made} was given out before, {fids:?}");
            fs.world.settle();
            fs = fs.crash();
        }
        let records: Vec<u64> = all(&fs, 1).iter().map(|r| r.index).collect();
        assert!(!records.is_empty() && records.iter().all(|r| indices.insert(*r)), "{records:?}, {indices:?}");
        // All in the same minute, and a thousand starts in it.
        let (kv, next) = restore_above(&fs, Numbers::at(WallTime(now.0 + (life + 1) * 1_000_000_000), boot));
        assert!(next > boot + 1024, "{next}, {boot}");
        (fs, boot) = (fs.on(kv), next);
    }
}

#[test]
fn numbers_go_by_the_clock_and_by_what_was_put_back_before_and_stay_within_their_range() {
    let at = |seconds: i64, before| Numbers::at(WallTime(seconds * 1_000_000_000), before).boot;
    let day = 86_400;
    let since = 20_454 * day;
    assert_eq!([at(0, 0), at(since, 0), at(since + day, 0)], [0, 0, 1440]);
    assert_eq!([at(since + day, 5), at(since + day, 2000)], [5 + (1 << 14), 2000 + (1 << 14)]);
    assert!(at(1 << 33, 0) < 1 << 24 && at(since, u64::MAX) < 1 << 24);
}

#[test]
fn users_of_the_changelog_go_on_where_they_were_in_a_store_that_was_put_back_however_often() {
    let fs = Fs::new();
    let cl = register(&fs, 1);
    (0..3).for_each(|i| assert!(fs.mkdir(Fid::ROOT, &format!("d{i}")).is_ok()));
    ask(&fs, ChangelogAct::Clear, cl, 1, 0).unwrap();
    fs.mkdir(Fid::ROOT, "d3").unwrap();
    let fs = put_back(fs, FILE);
    assert_eq!(kept(&fs), "3");
    fs.mkdir(Fid::ROOT, "e").unwrap();
    fs.world.settle();
    let written = |fs: &Fs| (page(fs, 1).written, all(fs, 1).iter().map(name).collect::<Vec<_>>(), kept(fs));
    let names = |of: &[&str]| of.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(written(&fs), (true, names(&["d1", "d2", "d3", "e"]), "4".into()));
    // Once more, before the user has come past the gap, and after another start.
    let fs = put_back(fs.crash(), "/second");
    fs.mkdir(Fid::ROOT, "f").unwrap();
    fs.world.settle();
    assert_eq!(written(&fs), (true, names(&["d1", "d2", "d3", "e", "f"]), "5".into()));
    let indices: Vec<u64> = all(&fs, 1).iter().map(|r| r.index).collect();
    assert!(indices[2] == 4 && indices[3] > 1 << 40 && indices[4] > 2 << 40, "{indices:?}");
    // In a gap, where programs are that have read what came after the copy; behind it; at the end.
    for (index, left) in [(1000, "2"), (indices[3], "1"), (0, "0")] {
        ask(&fs, ChangelogAct::Clear, cl, index, 0).unwrap();
        assert_eq!(kept(&fs), left);
    }
}

#[test]
fn a_user_of_a_store_that_was_put_back_is_removed_when_it_is_behind_by_records() {
    let fs = Fs::new();
    let cl = register(&fs, 1);
    (0..3).for_each(|i| assert!(fs.mkdir(Fid::ROOT, &format!("d{i}")).is_ok()));
    let fs = put_back(fs, FILE);
    param(&fs, "mdd.*.changelog_max_idle_indexes", Some("5")).unwrap();
    for (more, there) in [("e", true), ("f", true), ("g", false)] {
        fs.mkdir(Fid::ROOT, more).unwrap();
        fs.world.settle();
        let users = param(&fs, "mdd.*.changelog_users", None).unwrap();
        assert_eq!(users.contains(&format!("cl{cl} ")), there, "{more}: {users}");
    }
}

fn objects(fs: &Fs) -> Vec<ObjectId> {
    let kv: Rc<dyn MetaKv> = fs.kv.reopen();
    fs.world.run(check(&kv)).unwrap().objects.into_keys().collect()
}

#[test]
fn a_scrub_of_records_names_the_damaged_one_and_can_be_stopped() {
    let fs = filled();
    let param = |value: Option<&str>| -> String {
        let q =
            ParamsRequest { pattern: "mdt.*.scrub".into(), value: value.map(Into::into), ..ParamsRequest::default() };
        let r: wire::connect::ParamsReply = fs.call(wire::Op::Params, &q).unwrap();
        assert_eq!(String::from_utf8_lossy(&r.error), "");
        String::from_utf8(r.params[0].value.0.clone()).unwrap()
    };
    assert!(param(None).starts_with("status: idle"));
    param(Some("100"));
    fs.pass(5);
    let said = param(None);
    assert!(said.contains("status: complete") && said.contains("faults: 0\n"), "{said}");
    let mut records = 0;
    let key = keys::inode(Fid::ROOT).to_vec();
    fs.kv.tamper(|map| {
        records = map.len();
        map.get_mut(&key).unwrap()[60] ^= 4;
    });
    assert!(said.contains(&format!("records: {records}\n")), "{said}");
    param(Some("100"));
    fs.pass(5);
    let said = param(None);
    assert!(said.contains("faults: 1\n") && said.contains(&crate::kv::show_key(&key)), "{said}");
    param(Some("1"));
    param(Some("stop"));
    fs.pass(5);
    assert!(param(None).starts_with("status: stopped") || param(None).starts_with("status: complete"));
    let q = ParamsRequest { pattern: "mdt.*.scrub".into(), value: Some("fast".into()), ..ParamsRequest::default() };
    let r: wire::connect::ParamsReply = fs.call(wire::Op::Params, &q).unwrap();
    assert!(String::from_utf8_lossy(&r.error).contains("'fast' is no rate"));
}
