//! Quotas at the metadata server: what is counted when, who is refused, what OSTs are told.
use types::{Fid, FsError, OstIndex, Rng};
use wire::Op;
use wire::connect::{ConfigReply, MapChange, MapChangeReply, MapChangeRequest, OstEntry, RegisterRequest};
use wire::mdt::{Cred, SetBits};
use wire::quota::{
    AskQuotaCallback, AskQuotaReply, EVERYBODY, OstUsage, QuotaBits, QuotaKind, QuotaLimits, QuotaParts,
    SetQuotaRequest, UNLIMITED,
};

use super::harness::{Fs, entry, user};
use super::model::findings;
use crate::keys;
use crate::kv::FailPoint;
use crate::record::Superblock;

const USER: QuotaKind = QuotaKind::User;
const MIB: u64 = types::MIB;

fn inode_limits(soft: u64, hard: u64) -> QuotaLimits {
    QuotaLimits { inode_soft: soft, inode_hard: hard, ..QuotaLimits::default() }
}

fn inodes(fs: &Fs, kind: QuotaKind, id: u32) -> u64 {
    fs.quota(kind, id).inodes
}

/// A file system with a directory where everybody may make files.
fn open_to_all() -> (Fs, Fid) {
    let fs = Fs::new();
    let d = fs.mkdir(Fid::ROOT, "d").unwrap();
    fs.chmod(d, 0o777).unwrap();
    (fs, d)
}

#[test]
fn inodes_count_for_their_users_groups_and_projects_until_they_are_gone() {
    let (fs, d) = open_to_all();
    fs.setattr(d, SetBits::PROJECT, |q| q.project = 7).unwrap();
    let by = fs.by(user(5));
    let all = |fs: &Fs| [(USER, 5), (QuotaKind::Group, 5), (QuotaKind::Project, 7)].map(|(k, id)| inodes(fs, k, id));
    by.mkdir(d, "dir").unwrap();
    by.symlink(d, "link", "x").unwrap();
    let f = by.create(d, "f").unwrap();
    assert_eq!(all(&fs), [3, 3, 4]);
    by.link(f, d, "g").unwrap();
    by.unlink(d, "f").unwrap();
    assert_eq!(all(&fs), [3, 3, 4], "a name more or less is no inode");
    let open = by.open(f, "", 0, 0).unwrap();
    by.unlink(d, "g").unwrap();
    assert_eq!(all(&fs), [3, 3, 4], "it is open");
    by.close(open.handle, f, 0, 0).unwrap();
    by.rmdir(d, "dir").unwrap();
    assert_eq!(all(&fs), [1, 1, 2]);
    let link = fs.lookup(d, "link").unwrap().fid;
    fs.setattr(link, SetBits::UID | SetBits::GID, |q| (q.uid, q.gid) = (6, 8)).unwrap();
    fs.setattr(link, SetBits::PROJECT, |q| q.project = 0).unwrap();
    assert_eq!((all(&fs), inodes(&fs, USER, 6), inodes(&fs, QuotaKind::Group, 8)), ([0, 0, 1], 1, 1));
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn ids_that_nothing_counts_for_any_more_are_forgotten() {
    let fs = Fs::new();
    let f = fs.create(Fid::ROOT, "f").unwrap();
    let give = |project| assert!(fs.setattr(f, SetBits::PROJECT, |q| q.project = project).is_ok());
    let known = || fs.mds.quotas.known();
    let before = known();
    (1..300).for_each(give);
    assert_eq!(known(), before + 1, "the one that it has");
    give(0);
    assert_eq!(known(), before);
    let project = QuotaKind::Project;
    assert_eq!(fs.set_quota(project, 7, QuotaBits::INODE_HARD, inode_limits(0, 5)).errno, 0);
    [7, 0].into_iter().for_each(give);
    assert_eq!((known(), fs.quota(project, 7).limits.inode_hard), (before + 1, 5), "it has a limit");
}

#[test]
fn who_is_at_the_hard_limit_makes_nothing_more_and_root_is_not_limited() {
    let (fs, d) = open_to_all();
    let by = fs.by(user(5));
    assert_eq!(fs.set_quota(USER, 5, QuotaBits::INODE_HARD, inode_limits(0, 2)).errno, 0);
    by.mkdir(d, "a").unwrap();
    let b = by.create(d, "b").unwrap();
    assert_eq!(by.mkdir(d, "c"), Err(FsError::Quota));
    assert_eq!(by.symlink(d, "c", "x"), Err(FsError::Quota));
    assert_eq!(by.open(d, "c", 0o302, 0o644).map(drop), Err(FsError::Quota));
    assert_eq!(by.open(d, "", 0o20_200_002, 0o644).map(drop), Err(FsError::Quota));
    assert_eq!(fs.lookup(d, "c"), Err(FsError::NotFound), "nothing is left of it");
    by.link(b, d, "second").unwrap();
    fs.by(user(6)).create(d, "other").unwrap();
    let root = fs.by(Cred { caps: 1, ..Cred::default() });
    let given = root.create(d, "given").unwrap();
    root.setattr(given, SetBits::UID, |q| q.uid = 5).unwrap();
    assert_eq!(inodes(&fs, USER, 5), 3, "root may give it more than it may have");
    by.rmdir(d, "a").unwrap();
    by.unlink(d, "given").unwrap();
    by.create(d, "c").unwrap();
    // A group's limit holds for its owner's chgrp, too.
    fs.set_quota(QuotaKind::Group, 9, QuotaBits::INODE_HARD, inode_limits(0, 1));
    let member = fs.by(Cred { groups: [9].into(), ..user(5) });
    member.setattr(b, SetBits::GID, |q| q.gid = 9).unwrap();
    let c = fs.lookup(d, "c").unwrap().fid;
    assert_eq!(member.setattr(c, SetBits::GID, |q| q.gid = 9), Err(FsError::Quota));
    assert_eq!(fs.set_quota(USER, 5, QuotaBits::INODE_HARD, QuotaLimits::default()).errno, 0);
    by.create(d, "without limit").unwrap();
}

#[test]
fn a_soft_limit_holds_when_its_grace_is_over_and_is_free_again_below() {
    let (fs, d) = open_to_all();
    let by = fs.by(user(5));
    let grace = SetQuotaRequest { set: QuotaBits::INODE_GRACE, inode_grace_s: 60, ..SetQuotaRequest::default() };
    let _: wire::quota::SetQuotaReply = fs.call(Op::MdtSetQuota, &grace).unwrap();
    fs.set_quota(USER, 5, QuotaBits::INODE_SOFT, inode_limits(1, 0));
    by.create(d, "a").unwrap();
    assert_eq!(fs.quota(USER, 5).inode_expires.0, 0);
    by.create(d, "b").unwrap();
    let told = fs.quota(USER, 5);
    assert!((50..=60).contains(&((told.inode_expires.0 - told.now.0) / 1_000_000_000)), "{told:?}");
    fs.pass(59);
    by.create(d, "c").unwrap();
    fs.pass(2);
    assert_eq!(by.create(d, "x"), Err(FsError::Quota));
    fs.sync();
    let fs = fs.crash();
    let by = fs.by(user(5));
    assert_eq!(by.create(d, "x"), Err(FsError::Quota), "over a restart");
    by.unlink(d, "c").unwrap();
    assert_eq!(by.create(d, "x"), Err(FsError::Quota));
    by.unlink(d, "b").unwrap();
    assert_eq!(fs.quota(USER, 5).inode_expires.0, 0);
    by.create(d, "x").unwrap();
    assert_eq!(fs.quota(QuotaKind::Group, 5).inode_grace_s, 7 * 24 * 3600, "groups have their own");
}

#[test]
fn limits_that_contradict_each_other_are_refused_whichever_comes_second() {
    let fs = Fs::new();
    let both = QuotaBits::INODE_SOFT | QuotaBits::INODE_HARD;
    let said = fs.set_quota(USER, 5, both, inode_limits(10, 9));
    let text = String::from_utf8(said.why.0).unwrap();
    assert!(said.errno == 22 && text.contains("the soft inode limit, 10, is above the hard one, 9"), "{text}");
    assert_eq!(fs.quota(USER, 5).limits, QuotaLimits::default(), "nothing was set");
    fs.set_quota(USER, 5, QuotaBits::INODE_HARD, inode_limits(0, 9));
    assert_eq!(fs.set_quota(USER, 5, QuotaBits::INODE_SOFT, inode_limits(10, 0)).errno, 22);
    let bytes = QuotaLimits { block_soft: 4 * MIB, block_hard: 3 * MIB, ..QuotaLimits::default() };
    let said = fs.set_quota(USER, 5, QuotaBits::BLOCK_SOFT | QuotaBits::BLOCK_HARD, bytes);
    let text = String::from_utf8(said.why.0).unwrap();
    assert!(text.contains("4096 KiB") && text.contains("3072 KiB"), "{text}");
}

/// One random change by a random user; refusals are part of the game.
fn step(fs: &Fs, d: Fid, rng: &mut Rng) {
    let by = fs.by(user(1 + rng.below(3) as u32));
    let (a, b) = (format!("n{}", rng.below(8)), format!("n{}", rng.below(8)));
    let root = fs.by(Cred { caps: 1, ..Cred::default() });
    match rng.below(9) {
        0 | 1 => drop(by.create(d, &a)),
        2 => drop(by.mkdir(d, &a)),
        3 => drop(by.symlink(d, &a, "x")),
        4 => drop(by.unlink(d, &a)),
        5 => drop(by.rename((d, &a), (d, &b), 0)),
        6 => drop(fs.lookup(d, &a).and_then(|at| by.link(at.fid, d, &b))),
        7 => drop(by.rmdir(d, &a)),
        _ => {
            let (uid, gid, project) = (1 + rng.below(3) as u32, 1 + rng.below(3) as u32, rng.below(2) as u32);
            let all = SetBits::UID | SetBits::GID | SetBits::PROJECT;
            let give = |fid| root.setattr(fid, all, |q| (q.uid, q.gid, q.project) = (uid, gid, project));
            drop(fs.lookup(d, &a).and_then(|at| give(at.fid)));
        }
    }
}

/// Random changes with three crashes at commits: kept counts are those of the inodes after each.
fn crashes(seed: u64) {
    let mut rng = Rng::new(seed);
    let (mut fs, d) = open_to_all();
    for id in 1..4 {
        fs.set_quota(USER, id, QuotaBits::INODE_HARD, inode_limits(0, 3));
    }
    fs.sync();
    for _ in 0..3 {
        let point = if rng.below(2) == 0 { FailPoint::After } else { FailPoint::Before };
        fs.kv.fail_at(fs.kv.commits() + 1 + rng.below(6), point);
        for _ in 0..60 {
            step(&fs, d, &mut rng);
            if rng.below(8) == 0 && fs.world.run(fs.mds.store().sync()).is_err() {
                break;
            }
        }
        fs = fs.crash();
        fs.world.settle();
        assert_eq!(findings(&fs), Vec::<String>::new(), "seed {seed}");
    }
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new(), "seed {seed}");
}

#[test]
fn counts_are_those_of_the_inodes_that_are_there_after_a_crash_at_any_commit() {
    (0..40).for_each(crashes);
}

#[test]
fn counts_that_are_not_in_the_transaction_or_do_not_move_with_a_chown_are_found() {
    for fault in ["count-apart", "chown-keeps-count"] {
        types::planted::plant(Some(fault));
        let found = (0..10).any(|seed| std::panic::catch_unwind(|| crashes(seed)).is_err());
        types::planted::plant(None);
        assert!(found, "{fault}");
    }
}

#[test]
fn a_replayed_create_counts_once_and_is_not_refused_for_a_limit() {
    let (fs, d) = open_to_all();
    fs.world.run(fs.mds.remember_client(types::ClientId(1), Op::MdtLookup, || false)).unwrap();
    fs.sync();
    let q = wire::mdt::CreateRequest { cred: user(5), parent: d, name: "a".into(), mode: 0o755, ..Default::default() };
    let (_, t) = fs.call_as::<_, wire::mdt::EntryReply>(None, Op::MdtCreate, &q).unwrap();
    let fs = fs.crash();
    assert_eq!(inodes(&fs, USER, 5), 0);
    fs.set_quota(USER, 5, QuotaBits::INODE_HARD, inode_limits(0, 1));
    let other = wire::mdt::CreateRequest { name: "b".into(), ..q.clone() };
    fs.call_as::<_, wire::mdt::EntryReply>(Some(t + 1), Op::MdtCreate, &other).unwrap();
    fs.call_as::<_, wire::mdt::EntryReply>(Some(t), Op::MdtCreate, &q).unwrap();
    assert_eq!(inodes(&fs, USER, 5), 2, "what was answered stays answered");
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn a_store_of_before_quotas_is_counted_when_it_is_started() {
    let (fs, d) = open_to_all();
    fs.by(user(5)).create(d, "f").unwrap();
    fs.sync();
    let kv = fs.kv.reopen();
    kv.tamper(|map| {
        map.retain(|key, _| key.first() != Some(&keys::USAGE));
        let value = crate::kv::unseal(keys::SUPERBLOCK, map[keys::SUPERBLOCK].clone()).unwrap();
        let then = Superblock { version: 3, ..wire::decode(&value).unwrap() };
        let mut sealed = Vec::new();
        crate::kv::seal(keys::SUPERBLOCK, &wire::encode(&then), &mut sealed);
        map.insert(keys::SUPERBLOCK.to_vec(), sealed);
        // What an earlier try has left.
        let (key, mut sealed) = (keys::usage((USER, 99)), Vec::new());
        crate::kv::seal(&key, &7u64.to_le_bytes(), &mut sealed);
        map.insert(key.to_vec(), sealed);
    });
    let fs = fs.on(kv);
    assert_eq!((inodes(&fs, USER, 5), inodes(&fs, USER, 0), inodes(&fs, USER, 99)), (1, 2, 0));
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn wrong_counts_are_found_and_repaired() {
    let (fs, d) = open_to_all();
    fs.by(user(5)).create(d, "f").unwrap();
    fs.sync();
    let kv = fs.kv.reopen();
    kv.tamper(|map| {
        for (key, value) in [(keys::usage((USER, 5)), 9u64), (keys::usage((USER, 77)), 1)] {
            let mut sealed = Vec::new();
            crate::kv::seal(&key, &value.to_le_bytes(), &mut sealed);
            map.insert(key.to_vec(), sealed);
        }
    });
    let dynkv: std::rc::Rc<dyn crate::MetaKv> = kv.clone();
    let report = fs.world.run(crate::check::check(&dynkv)).unwrap();
    let said: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let wanted = ["9 inodes are counted for user 5, 1 exist", "1 inodes are counted for user 77, 0 exist"];
    assert_eq!(said, wanted);
    let none = crate::repair::Objects::default();
    fs.world.run(crate::repair::repair(&dynkv, &report, &none, types::WallTime(9))).unwrap();
    let fs = fs.on(kv);
    assert_eq!((inodes(&fs, USER, 5), findings(&fs)), (1, Vec::new()));
}

fn ask(fs: &Fs, ost: u16, id: u32, told: (u64, u64), wanted: u64) -> u64 {
    let (used, share) = told;
    fs.osts.told.set(fs.osts.told.get() + 1);
    let q = AskQuotaCallback { kind: USER, id, used, share, wanted, told: fs.osts.told.get() };
    let body = fs.world.run(fs.mds.ost_asks_quota(OstIndex(ost), &wire::encode(&q))).unwrap();
    let share = wire::decode::<AskQuotaReply>(&body).unwrap().share;
    fs.osts.quotas.borrow_mut().insert((OstIndex(ost), USER, id), (used, share));
    share
}

#[test]
fn osts_have_shares_of_a_limit_and_give_back_what_another_needs() {
    let fs = Fs::new();
    fs.osts.quotas.borrow_mut().insert((OstIndex(1), USER, 5), (2 * MIB, UNLIMITED));
    let limit = |bytes| QuotaLimits { block_hard: bytes, ..QuotaLimits::default() };
    fs.set_quota(USER, 5, QuotaBits::BLOCK_HARD, limit(10 * MIB));
    let shares = |fs: &Fs| -> Vec<(u64, u64)> { fs.quota(USER, 5).osts.iter().map(|o| (o.used, o.share)).collect() };
    assert_eq!(shares(&fs), [(0, 0), (2 * MIB, 2 * MIB)], "each has what it uses");
    assert_eq!(ask(&fs, 0, 5, (0, 0), 5 * MIB), 5 * MIB);
    assert_eq!(ask(&fs, 1, 5, (2 * MIB, 2 * MIB), 3 * MIB), 5 * MIB);
    // One that does not answer keeps its share, over a restart of this server, too.
    *fs.osts.down.borrow_mut() = true;
    let fs = fs.crash();
    assert_eq!(ask(&fs, 0, 5, (5 * MIB, 5 * MIB), MIB), 5 * MIB);
    let quota = fs.quota(USER, 5);
    assert!(
        quota.osts.iter().all(|o| o.away) && quota.osts.iter().map(|o| o.used).sum::<u64>() == 7 * MIB,
        "{quota:?}"
    );
    *fs.osts.down.borrow_mut() = false;
    fs.pass(1);
    fs.set_quota(USER, 5, QuotaBits::BLOCK_HARD, limit(0));
    assert!(shares(&fs).iter().all(|(_, share)| *share == UNLIMITED));
    assert_eq!(ask(&fs, 0, 5, (4 * MIB, 4 * MIB), MIB), UNLIMITED, "asked before it was told");
}

#[test]
fn a_limit_that_was_taken_away_and_comes_again_is_known_to_every_ost_when_that_is_answered() {
    let fs = Fs::new();
    let limit = |bytes| QuotaLimits { block_hard: bytes, ..QuotaLimits::default() };
    for bytes in [10 * MIB, 0, 8 * MIB] {
        fs.set_quota(USER, 5, QuotaBits::BLOCK_HARD, limit(bytes));
        let all = fs.osts.quotas.borrow();
        let shares: Vec<u64> = (0..2).map(|ost| all[&(OstIndex(ost), USER, 5)].1).collect();
        assert!(shares.iter().all(|share| (*share == UNLIMITED) == (bytes == 0)), "{bytes}: {shares:?}");
    }
}

#[test]
fn what_a_limit_is_changed_to_while_osts_are_told_the_one_before_is_told_next() {
    for (first, then) in [(10 * MIB, 0), (0, 8 * MIB)] {
        let fs = Fs::new();
        let limit = |bytes| QuotaLimits { block_hard: bytes, ..QuotaLimits::default() };
        fs.set_quota(USER, 5, QuotaBits::BLOCK_HARD, limit(if first == 0 { MIB } else { 0 }));
        *fs.osts.late.borrow_mut() = Some((fs.world.rt(), types::Duration::from_secs(3)));
        // Answered when it was waited for OSTs for long enough.
        fs.set_quota(USER, 5, QuotaBits::BLOCK_HARD, limit(first));
        *fs.osts.late.borrow_mut() = None;
        fs.set_quota(USER, 5, QuotaBits::BLOCK_HARD, limit(then));
        fs.pass(2);
        let all = fs.osts.quotas.borrow();
        let shares: Vec<u64> = (0..2).map(|ost| all[&(OstIndex(ost), USER, 5)].1).collect();
        assert!(shares.iter().all(|share| (*share == UNLIMITED) == (then == 0)), "{first}, then {then}: {shares:?}");
    }
}

#[test]
fn bytes_above_a_soft_limit_have_their_grace_and_are_held_when_it_is_over() {
    let fs = Fs::new();
    let grace = SetQuotaRequest { set: QuotaBits::BLOCK_GRACE, block_grace_s: 60, ..SetQuotaRequest::default() };
    let _: wire::quota::SetQuotaReply = fs.call(Op::MdtSetQuota, &grace).unwrap();
    let soft = QuotaLimits { block_soft: 4 * MIB, ..QuotaLimits::default() };
    fs.set_quota(USER, 5, QuotaBits::BLOCK_SOFT, soft);
    let set = |bytes: u64| {
        let mut all = fs.osts.quotas.borrow_mut();
        all.entry((OstIndex(0), USER, 5)).or_insert((0, UNLIMITED)).0 = bytes;
    };
    set(5 * MIB);
    fs.pass(11);
    let told = fs.quota(USER, 5);
    assert!(told.block_expires.0 > told.now.0, "{told:?}");
    let share = |ost: usize| fs.quota(USER, 5).osts[ost].share;
    assert_eq!(share(0), UNLIMITED);
    fs.pass(70);
    assert_eq!((share(0), share(1)), (5 * MIB, 0), "grace is over");
    assert_eq!(ask(&fs, 0, 5, (5 * MIB, 5 * MIB), MIB), 5 * MIB);
    set(3 * MIB);
    fs.pass(22);
    assert_eq!((fs.quota(USER, 5).block_expires.0, share(0)), (0, UNLIMITED));
}

#[test]
fn objects_hear_of_a_new_owner_once_the_change_is_stable_and_until_they_have_heard() {
    let fs = Fs::new();
    let f = fs.create(Fid::ROOT, "f").unwrap();
    fs.sync();
    *fs.osts.down.borrow_mut() = true;
    fs.setattr(f, SetBits::UID, |q| q.uid = 5).unwrap();
    fs.setattr(f, SetBits::GID, |q| q.gid = 6).unwrap();
    fs.sync();
    let fs = fs.crash();
    assert!(fs.osts.owned.borrow().is_empty());
    *fs.osts.down.borrow_mut() = false;
    fs.pass(2);
    let told: Vec<_> = fs.osts.owned.borrow().iter().map(|o| (o.uid, o.gid, o.unless_owned)).collect();
    assert_eq!(told, [(5, 0, false), (5, 6, false)], "in order");
    fs.sync();
    let fs = fs.crash();
    fs.pass(2);
    assert_eq!(fs.osts.owned.borrow().len(), 2, "the log forgot what was done");
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn an_ost_of_before_owners_learns_whose_all_its_objects_are() {
    let (fs, d) = open_to_all();
    for i in 0..5 {
        fs.by(user(5)).create(d, &format!("f{i}")).unwrap();
    }
    fs.sync();
    fs.osts.unowned.set(true);
    let fs = fs.crash();
    fs.pass(3);
    assert!(!fs.osts.unowned.get(), "it is told when that was all");
    let owned = fs.osts.owned.borrow();
    assert!(owned.len() >= 5 && owned.iter().all(|o| (o.uid, o.unless_owned) == (5, true)), "{owned:?}");
    let counting = |o: &OstUsage| o.counting;
    assert!(!fs.quota(USER, 5).osts.iter().any(counting));
}

#[test]
fn an_ost_of_before_owners_learns_whose_its_objects_are_past_a_damaged_inode() {
    let (fs, d) = open_to_all();
    let files: Vec<Fid> = (0..5).map(|i| fs.by(user(5)).create(d, &format!("f{i}")).unwrap()).collect();
    fs.sync();
    let key = keys::inode(files[1]).to_vec();
    fs.kv.tamper(|map| map.get_mut(&key).unwrap()[9] ^= 1);
    fs.osts.unowned.set(true);
    let fs = fs.crash();
    fs.pass(3);
    assert!(!fs.osts.unowned.get(), "it is told when that was all");
    assert_eq!(fs.osts.owned.borrow().len(), 4);
}

#[test]
fn a_store_in_the_place_of_a_lost_one_is_told_of_limits_and_what_the_lost_one_had_counts_no_more() {
    let (fs, _) = open_to_all();
    let limits = QuotaLimits { block_hard: 100 * MIB, ..QuotaLimits::default() };
    assert_eq!(fs.set_quota(USER, 5, QuotaBits::BLOCK_HARD, limits).errno, 0);
    let there = (OstIndex(1), USER, 5);
    fs.osts.quotas.borrow_mut().insert(there, (10 * MIB, 20 * MIB));
    // It was opened often, so that what it says has high numbers.
    fs.osts.told.set(1 << 40);
    fs.pass(20);
    let known = |fs: &Fs| fs.mds.quotas.account((USER, 5)).shares.of(OstIndex(1));
    assert_eq!(known(&fs).map(|s| (s.used, s.share)), Some((10 * MIB, 20 * MIB)));
    *fs.osts.down.borrow_mut() = true;
    let (what, osts) = (MapChange::ReplaceOst, vec![OstIndex(1)]);
    let q = MapChangeRequest { id: 1, what, osts, uuid: 900, ..MapChangeRequest::default() };
    let reply: MapChangeReply = fs.call(Op::MapChange, &q).unwrap();
    assert_eq!(reply.errno, 0);
    assert_eq!(known(&fs), None, "it is lost");
    fs.osts.quotas.borrow_mut().remove(&there);
    fs.osts.last.borrow_mut().remove(&OstIndex(1));
    fs.osts.told.set(0);
    *fs.osts.down.borrow_mut() = false;
    let entry = OstEntry { uuid: 900, nid: "local:y".into(), ..entry(1) };
    let _: ConfigReply =
        fs.call(Op::Register, &RegisterRequest { entry, cluster: 77, ..RegisterRequest::default() }).unwrap();
    fs.pass(5);
    assert_eq!(fs.osts.quotas.borrow().get(&there), Some(&(0, 0)), "the new one has a share, and asks for more");
    assert_eq!(known(&fs).map(|s| (s.used, s.share)), Some((0, 0)));
}

fn block_limits(hard: u64) -> QuotaLimits {
    QuotaLimits { block_hard: hard, ..QuotaLimits::default() }
}

/// The default of all users, for bytes; 0: none.
fn set_default_bytes(fs: &Fs, bytes: u64) {
    assert_eq!(fs.set_quota(USER, EVERYBODY, QuotaBits::BLOCK_HARD, block_limits(bytes)).errno, 0);
}

/// What OSTs have of an id's.
fn shares_at_osts(fs: &Fs, id: u32) -> Vec<u64> {
    let all = fs.osts.quotas.borrow();
    (0..2).map(|ost| all.get(&(OstIndex(ost), USER, id)).map_or(UNLIMITED, |q| q.1)).collect()
}

#[test]
fn the_default_holds_for_inodes_of_all_who_have_no_limits_of_their_own_but_root() {
    let (fs, d) = open_to_all();
    fs.by(user(5)).create(d, "a").unwrap();
    fs.by(user(7)).create(d, "b").unwrap();
    fs.set_quota(USER, 7, QuotaBits::INODE_HARD, inode_limits(0, 3));
    fs.set_quota(USER, 8, QuotaBits::INODE_HARD, inode_limits(0, 0));
    assert_eq!(fs.set_quota(USER, EVERYBODY, QuotaBits::INODE_HARD, inode_limits(0, 1)).errno, 0);
    let refused = |fs: &Fs, uid: u32, name: &str| fs.by(user(uid)).create(d, name) == Err(FsError::Quota);
    assert!(refused(&fs, 5, "a2"), "who had some before");
    assert!(!refused(&fs, 6, "c") && refused(&fs, 6, "c2"), "who has the first one now");
    assert!(!refused(&fs, 7, "b2") && !refused(&fs, 7, "b3") && refused(&fs, 7, "b4"), "its own limits are others");
    assert!(!refused(&fs, 8, "d") && !refused(&fs, 8, "d2"), "it has none, by its own");
    for i in 0..3 {
        fs.create(d, &format!("root{i}")).unwrap();
    }
    let said = |fs: &Fs, uid| (fs.quota(USER, uid).limits.inode_hard, fs.quota(USER, uid).by_default);
    let all = QuotaParts::ALL;
    fs.sync();
    let fs = fs.crash();
    let told = [5, 6, 7, 8, 9, 0, EVERYBODY].map(|id| said(&fs, id));
    let wanted = [(1, all), (1, all), (3, QuotaParts::BLOCKS), (0, QuotaParts::BLOCKS), (1, all), (0, all), (1, all)];
    assert_eq!(told, wanted, "over a restart");
    assert!(refused(&fs, 5, "a2") && refused(&fs, 6, "c2") && !refused(&fs, 8, "d3"));
    // Back to the default, and to none.
    for id in [7, 8] {
        assert_eq!(fs.set_quota(USER, id, QuotaBits::TO_DEFAULT, QuotaLimits::default()).errno, 0);
        assert_eq!(said(&fs, id), (1, all));
    }
    assert!(refused(&fs, 8, "d4"));
    fs.set_quota(USER, EVERYBODY, QuotaBits::INODE_HARD, QuotaLimits::default());
    fs.sync();
    let fs = fs.crash();
    assert!(!refused(&fs, 5, "a2") && !refused(&fs, 7, "b4") && !refused(&fs, 9, "e"));
    assert_eq!(said(&fs, 5), (0, all));
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn what_is_not_named_of_an_ids_limits_stays_the_defaults() {
    let fs = Fs::new();
    set_default_bytes(&fs, 10 * MIB);
    fs.set_quota(USER, 5, QuotaBits::INODE_HARD, inode_limits(0, 3));
    let said = |fs: &Fs| (fs.quota(USER, 5).limits, fs.quota(USER, 5).by_default);
    let wanted = QuotaLimits { inode_hard: 3, block_hard: 10 * MIB, ..QuotaLimits::default() };
    assert_eq!(said(&fs), (wanted.clone(), QuotaParts::BLOCKS));
    set_default_bytes(&fs, 20 * MIB);
    let wanted = QuotaLimits { block_hard: 20 * MIB, ..wanted };
    assert_eq!(said(&fs), (wanted.clone(), QuotaParts::BLOCKS));
    // A soft limit of its own, and the hard one as it is.
    fs.set_quota(USER, 5, QuotaBits::BLOCK_SOFT, QuotaLimits { block_soft: MIB, ..QuotaLimits::default() });
    set_default_bytes(&fs, 0);
    fs.sync();
    let fs = fs.crash();
    assert_eq!(said(&fs), (QuotaLimits { block_soft: MIB, ..wanted }, 0));
    let both = QuotaBits::TO_DEFAULT | QuotaBits::BLOCK_HARD;
    let said = fs.set_quota(USER, 5, both, block_limits(MIB));
    assert!(said.errno == 22 && String::from_utf8_lossy(&said.why.0).contains("user 5 cannot have"), "{said:?}");
    let said = fs.set_quota(USER, EVERYBODY, QuotaBits::TO_DEFAULT, QuotaLimits::default());
    assert!(said.errno == 22 && String::from_utf8_lossy(&said.why.0).contains("all users"), "{said:?}");
}

#[test]
fn an_ost_that_asks_for_an_unknown_id_gets_what_the_default_leaves_of_what_all_osts_have() {
    let fs = Fs::new();
    set_default_bytes(&fs, 10 * MIB);
    assert_eq!(shares_at_osts(&fs, EVERYBODY), [0, 0], "each knows that there is a default");
    fs.osts.quotas.borrow_mut().insert((OstIndex(1), USER, 5), (7 * MIB, UNLIMITED));
    assert_eq!(ask(&fs, 0, 5, (0, 0), 9 * MIB), 3 * MIB, "what the other one has counts");
    assert_eq!(shares_at_osts(&fs, 5), [3 * MIB, 7 * MIB]);
    assert_eq!(ask(&fs, 0, 0, (0, 0), MIB), UNLIMITED, "root");
    fs.set_quota(USER, 6, QuotaBits::BLOCK_HARD, block_limits(0));
    assert_eq!(ask(&fs, 0, 6, (0, 0), MIB), UNLIMITED, "who has no limit by its own");
    // The id of its own limits that loses them is told to all, and so is a lower default.
    fs.set_quota(USER, 6, QuotaBits::TO_DEFAULT, QuotaLimits::default());
    assert_eq!(shares_at_osts(&fs, 6), [0, 0]);
    fs.osts.quotas.borrow_mut().insert((OstIndex(0), USER, 5), (MIB, 3 * MIB));
    set_default_bytes(&fs, 8 * MIB);
    assert_eq!(shares_at_osts(&fs, 5), [MIB, 7 * MIB]);
    set_default_bytes(&fs, 0);
    for id in [5, 6, EVERYBODY] {
        assert_eq!(shares_at_osts(&fs, id), [UNLIMITED, UNLIMITED], "{id}");
    }
    assert_eq!(ask(&fs, 0, 5, (3 * MIB, 3 * MIB), MIB), UNLIMITED);
}

#[test]
fn bytes_that_are_there_when_a_default_is_set_count_within_its_grace() {
    let (fs, d) = open_to_all();
    fs.by(user(5)).create(d, "f").unwrap();
    fs.osts.quotas.borrow_mut().insert((OstIndex(1), USER, 5), (5 * MIB, UNLIMITED));
    let grace = SetQuotaRequest { set: QuotaBits::BLOCK_GRACE, block_grace_s: 60, ..SetQuotaRequest::default() };
    let _: wire::quota::SetQuotaReply = fs.call(Op::MdtSetQuota, &grace).unwrap();
    let soft = QuotaLimits { block_soft: 4 * MIB, inode_soft: 1, ..QuotaLimits::default() };
    fs.set_quota(USER, EVERYBODY, QuotaBits::BLOCK_SOFT | QuotaBits::INODE_SOFT, soft);
    fs.pass(11);
    let told = fs.quota(USER, 5);
    assert!(told.block_expires.0 > told.now.0 && told.inode_expires.0 == 0, "{told:?}");
    fs.by(user(5)).create(d, "g").unwrap();
    assert!(fs.quota(USER, 5).inode_expires.0 > 0);
    fs.sync();
    let fs = fs.crash();
    assert!(fs.quota(USER, 5).inode_expires.0 > 0, "over a restart");
    fs.pass(70);
    assert_eq!(shares_at_osts(&fs, 5), [0, 5 * MIB], "grace is over");
    set_default_bytes(&fs, 100 * MIB);
    let none = QuotaLimits::default();
    fs.set_quota(USER, EVERYBODY, QuotaBits::BLOCK_SOFT | QuotaBits::INODE_SOFT, none);
    let told = fs.quota(USER, 5);
    assert_eq!((told.block_expires.0, told.inode_expires.0), (0, 0), "the soft limits went");
}

/// A default that is set and one that is taken away while OSTs are away, and deaths of this server amid.
fn defaults_reach_who_was_away(die: bool) {
    let (mut fs, d) = open_to_all();
    fs.by(user(5)).create(d, "f").unwrap();
    fs.osts.quotas.borrow_mut().insert((OstIndex(0), USER, 5), (5 * MIB, UNLIMITED));
    for bytes in [10 * MIB, 0] {
        *fs.osts.down.borrow_mut() = true;
        set_default_bytes(&fs, bytes);
        if die {
            fs = fs.crash();
        }
        *fs.osts.down.borrow_mut() = false;
        fs.pass(25);
        for id in [5, EVERYBODY] {
            let told = shares_at_osts(&fs, id);
            assert!(told.iter().all(|share| (*share == UNLIMITED) == (bytes == 0)), "{bytes}, {id}: {told:?}");
        }
    }
}

#[test]
fn osts_that_were_away_and_a_server_that_dies_know_the_default_that_was_answered() {
    defaults_reach_who_was_away(false);
    defaults_reach_who_was_away(true);
}

#[test]
fn an_ost_that_does_not_hear_of_defaults_when_it_is_back_is_found() {
    types::planted::plant(Some("default-unheard"));
    let found = std::panic::catch_unwind(|| defaults_reach_who_was_away(true)).is_err();
    types::planted::plant(None);
    assert!(found);
}

#[test]
fn limits_are_answered_when_the_slowest_ost_knows_them() {
    let fs = Fs::new();
    *fs.osts.late.borrow_mut() = Some((fs.world.rt(), types::Duration::from_millis(300)));
    fs.osts.late_only.set(Some(OstIndex(1)));
    fs.osts.taken.set(0);
    set_default_bytes(&fs, 10 * MIB);
    assert_eq!(fs.osts.taken.get(), 2, "both have answered");
}
