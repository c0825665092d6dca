//! The changelog: every kind of record, users, and that records carried out one after the other give the tree, whatever crashes between.
use types::{Fid, FsError, Rng};
use wire::Op;
use wire::changelog::*;
use wire::mdt::{NodeKind, SetBits};

use super::harness::{Fs, user};
use crate::keys;
use crate::kv::memory::FailPoint;

const ROOT: Fid = Fid::ROOT;
const EXCHANGED: u16 = ChangeRecord::EXCHANGED;
const LAST_NAME: u16 = ChangeRecord::LAST_NAME;

pub(super) fn ask(fs: &Fs, act: ChangelogAct, user: u32, index: u64, id: u64) -> Result<(u32, u64), (i32, String)> {
    let r: ChangelogUserReply = fs.call(Op::ChangelogUser, &ChangelogUserRequest { id, act, user, index }).unwrap();
    match r.errno {
        0 => Ok((r.user, r.index)),
        errno => Err((i32::from(errno), String::from_utf8_lossy(&r.why).into_owned())),
    }
}
pub(super) fn register(fs: &Fs, id: u64) -> u32 {
    ask(fs, ChangelogAct::Register, 0, 0, id).unwrap().0
}
pub(super) fn page(fs: &Fs, from: u64) -> ChangelogReply {
    fs.call(Op::Changelog, &ChangelogRequest { from }).unwrap()
}
pub(super) fn all(fs: &Fs, from: u64) -> Vec<ChangeRecord> {
    let (mut all, mut next) = (Vec::new(), from);
    loop {
        let records = page(fs, next).records;
        let Some(last) = records.last() else { return all };
        next = last.index + 1;
        all.extend(records);
    }
}
pub(super) fn name(r: &ChangeRecord) -> String {
    String::from_utf8_lossy(&r.name).into_owned()
}
/// Records that the store has, whoever may see them.
fn kept(fs: &Fs) -> usize {
    let (from, to) = (keys::change(0), keys::end_of(&[keys::CHANGE]));
    fs.world.run(fs.mds.store().scan(&from, &to, 10_000)).unwrap().0.len()
}
pub(super) fn param(fs: &Fs, pattern: &str, value: Option<&str>) -> Result<String, String> {
    let q = wire::connect::ParamsRequest {
        pattern: pattern.into(),
        value: value.map(Into::into),
        ..wire::connect::ParamsRequest::default()
    };
    let r: wire::connect::ParamsReply = fs.call(Op::Params, &q).unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    if r.error.is_empty() { Ok(text(&r.params[0].value)) } else { Err(text(&r.error)) }
}

#[test]
fn each_thing_that_happens_is_one_record_in_order_and_nothing_is_written_for_nobody() {
    let fs = Fs::new();
    fs.mkdir(ROOT, "before").unwrap();
    assert_eq!((page(&fs, 1).records.len(), page(&fs, 1).written, kept(&fs)), (0, false, 0));
    let cl = register(&fs, 5);
    assert_eq!(register(&fs, 5), cl, "asked again");
    let one = fs.by(wire::mdt::Cred { job: 0, ..user(0) });
    let d = one.mkdir(ROOT, "d").unwrap();
    let f = one.create(d, "f").unwrap();
    one.symlink(d, "s", "f").unwrap();
    one.link(f, ROOT, "hard").unwrap();
    let fifo = wire::mdt::CreateRequest {
        cred: user(0),
        parent: d,
        name: "p".into(),
        kind: NodeKind::Node,
        mode: 0o010_644,
        ..wire::mdt::CreateRequest::default()
    };
    let p: wire::mdt::EntryReply = one.call(Op::MdtCreate, &fifo).unwrap();
    one.chmod(f, 0o600).unwrap();
    one.setattr(f, SetBits::SIZE, |q| q.size = 0).unwrap();
    one.setattr(f, SetBits::MTIME_NOW, |_| ()).unwrap();
    one.setattr(f, SetBits::ATIME_NOW, |_| ()).unwrap();
    one.setxattr(f, "user.a", Some(b"1"), 0).unwrap();
    let open = one.open(d, "f", 1, 0).unwrap();
    one.close(open.handle, f, SetBits::DIRTY | SetBits::SIZE, 9).unwrap();
    let quiet = one.open(d, "f", 1, 0).unwrap();
    one.close(quiet.handle, f, 0, 0).unwrap();
    one.rename((d, "s"), (ROOT, "t"), 0).unwrap();
    one.rename((ROOT, "t"), (ROOT, "hard"), 0).unwrap();
    one.rename((ROOT, "hard"), (d, "f"), 2).unwrap();
    one.unlink(d, "p").unwrap();
    let e = one.mkdir(d, "e").unwrap();
    one.rmdir(d, "e").unwrap();
    assert_eq!(one.mkdir(ROOT, "d"), Err(FsError::Exists), "what fails is no record");
    let found = all(&fs, 1);
    let told: Vec<(&str, u16, String)> = found.iter().map(|r| (r.kind.name(), r.flags, name(r))).collect();
    let expected = [
        ("MKDIR", 0, "d"),
        ("CREAT", 0, "f"),
        ("SLINK", 0, "s"),
        ("HLINK", 0, "hard"),
        ("MKNOD", 0, "p"),
        ("SATTR", 0, ""),
        ("TRUNC", 0, ""),
        ("MTIME", 0, ""),
        ("XATTR", 0, "user.a"),
        ("CLOSE", 0, ""),
        ("RENME", 0, "t"),
        ("RENME", 0, "hard"),
        ("RENME", EXCHANGED, "f"),
        ("UNLNK", LAST_NAME, "p"),
        ("MKDIR", 0, "e"),
        ("RMDIR", LAST_NAME, "e"),
    ];
    assert_eq!(told, expected.map(|(k, f, n)| (k, f, n.to_string())));
    assert!(found.iter().enumerate().all(|(i, r)| r.index == i as u64 + 1 && r.client == fs.client));
    assert_eq!((found[1].target, found[1].parent, found[1].uid), (f, d, 0));
    assert_eq!((found[4].target, found[9].target, found[9].uid), (p.attr.fid, f, ChangeRecord::UNKNOWN));
    let over = &found[11];
    assert_eq!((over.target, over.source_parent, &over.source_name[..]), (f, ROOT, &b"t"[..]));
    assert_eq!((found[15].target, found[15].parent), (e, d));
    assert_eq!(found.iter().filter(|r| r.target == ROOT).count(), 0);
}

#[test]
fn a_file_that_was_made_without_a_name_is_made_with_its_first_and_one_that_is_lost_with_its_writer_was_closed() {
    let fs = Fs::new();
    register(&fs, 1);
    let q = fs.open_request(ROOT, "", 0o20_200_002, 0o600);
    let o: wire::mdt::OpenReply = fs.call(Op::MdtOpen, &q).unwrap();
    assert_eq!(all(&fs, 1).len(), 0);
    fs.link(o.entry.attr.fid, ROOT, "a").unwrap();
    fs.link(o.entry.attr.fid, ROOT, "b").unwrap();
    fs.world.run(fs.mds.forget_client(fs.client));
    let kinds: Vec<&str> = all(&fs, 1).iter().map(|r| r.kind.name()).collect();
    assert_eq!(kinds, ["CREAT", "HLINK", "CLOSE"]);
}

#[test]
fn what_all_users_have_taken_in_is_removed_and_wrong_users_and_records_are_refused() {
    let fs = Fs::new();
    let (a, b) = (register(&fs, 1), register(&fs, 2));
    for i in 0..10 {
        fs.mkdir(ROOT, &format!("d{i}")).unwrap();
    }
    assert_eq!(ask(&fs, ChangelogAct::Clear, a, 7, 0), Ok((a, 7)));
    fs.world.settle();
    assert_eq!((kept(&fs), all(&fs, 1).len()), (10, 10), "the other one has seen nothing");
    assert_eq!(ask(&fs, ChangelogAct::Clear, b, 4, 0), Ok((b, 4)));
    fs.world.settle();
    assert_eq!((kept(&fs), all(&fs, 1)[0].index), (6, 5));
    let fs = fs.crash();
    let refused = |done: Result<(u32, u64), (i32, String)>, errno: FsError, text: &str| {
        let (e, why) = done.unwrap_err();
        assert!(e == errno.errno() && why.contains(text), "{e} {why}");
    };
    refused(ask(&fs, ChangelogAct::Clear, a, 11, 0), FsError::Invalid, "the last one is 10");
    refused(ask(&fs, ChangelogAct::Clear, a, 6, 0), FsError::Invalid, "up to 7 already");
    refused(ask(&fs, ChangelogAct::Clear, 9, 6, 0), FsError::NotFound, "cl1, cl2 are");
    assert!(param(&fs, "mdd.*.changelog_users", None).unwrap().starts_with("current index: 10\nID"));
    assert_eq!(ask(&fs, ChangelogAct::Clear, b, 0, 0), Ok((b, 10)), "0: all that there are");
    assert_eq!(ask(&fs, ChangelogAct::Deregister, a, 0, 77), Ok((a, 7)));
    assert_eq!(ask(&fs, ChangelogAct::Deregister, a, 0, 77).map(|d| d.0), Ok(a), "asked again");
    refused(ask(&fs, ChangelogAct::Deregister, a, 0, 78), FsError::NotFound, "cl2 are");
    fs.world.settle();
    assert_eq!(kept(&fs), 0);
    fs.mkdir(ROOT, "more").unwrap();
    assert_eq!(all(&fs, 1)[0].index, 11, "no index is used twice");
    ask(&fs, ChangelogAct::Deregister, b, 0, 79).unwrap();
    fs.world.settle();
    let fs = fs.crash();
    assert_eq!((kept(&fs), page(&fs, 1).written), (0, false));
    assert_eq!(register(&fs, 9), 3, "no number is used twice");
    fs.mkdir(ROOT, "last").unwrap();
    assert_eq!(all(&fs, 1)[0].index, 12);
}

#[test]
fn a_user_that_stays_too_far_behind_goes_and_the_mask_says_what_is_written() {
    let fs = Fs::new();
    let (slow, quick) = (register(&fs, 1), register(&fs, 2));
    assert!(param(&fs, "mdd.*.changelog_max_idle_indexes", Some("none")).unwrap_err().contains("'none'"));
    param(&fs, "mdd.*.changelog_max_idle_indexes", Some("5")).unwrap();
    param(&fs, "mdd.*.changelog_mask", Some("MKDIR")).unwrap();
    for i in 0..5 {
        fs.mkdir(ROOT, &format!("d{i}")).unwrap();
        fs.create(ROOT, &format!("f{i}")).unwrap();
    }
    assert_eq!(all(&fs, 1).len(), 5, "files are not written down");
    ask(&fs, ChangelogAct::Clear, quick, 5, 0).unwrap();
    fs.mkdir(ROOT, "d5").unwrap();
    fs.world.settle();
    assert_eq!(ask(&fs, ChangelogAct::Clear, slow, 6, 0).unwrap_err().0, FsError::NotFound.errno());
    assert_eq!(all(&fs, 1).iter().map(|r| r.index).collect::<Vec<_>>(), [6]);
    assert_eq!(ask(&fs, ChangelogAct::Clear, quick, 6, 0), Ok((quick, 6)));
}

#[test]
fn records_whose_row_is_lost_go_and_neither_they_nor_their_indices_come_again() {
    let fs = Fs::new();
    register(&fs, 1);
    (0..4).for_each(|i| assert!(fs.mkdir(ROOT, &format!("old{i}")).is_ok()));
    fs.sync();
    let mut fs = fs;
    // A user comes at the first start without the row, or at the second, when no record is left either.
    for (round, starts) in [(1u64, 1), (2, 2)] {
        let before = all(&fs, 1).last().unwrap().index;
        fs.kv.tamper(|map| drop(map.remove(keys::CHANGELOG).unwrap()));
        for _ in 0..starts {
            fs = fs.crash();
            fs.world.settle();
            assert_eq!((kept(&fs), page(&fs, 1).written), (0, false), "nobody waits for them");
        }
        register(&fs, 1 + round);
        assert!(all(&fs, 1).is_empty());
        fs.mkdir(ROOT, &format!("new{round}")).unwrap();
        fs.sync();
        for _ in 0..2 {
            let shown: Vec<(u64, String)> = all(&fs, 1).iter().map(|r| (r.index, name(r))).collect();
            assert_eq!(shown, [(before + 1, format!("new{round}"))]);
            fs = fs.crash();
            fs.world.settle();
        }
    }
}

/// All names of the file system.
fn walk(fs: &Fs) -> (Names, Vec<Fid>) {
    let (mut tree, mut dirs, mut at) = (Names::new(), vec![ROOT], 0);
    while at < dirs.len() {
        for name in fs.names(dirs[at]) {
            let attr = fs.lookup(dirs[at], &name).unwrap();
            if attr.mode & 0o170_000 == 0o040_000 {
                dirs.push(attr.fid);
            }
            tree.insert((dirs[at], name.into_bytes()), attr.fid);
        }
        at += 1;
    }
    (tree, dirs)
}
/// Something random; whether it succeeds is not asked.
fn change_something(fs: &Fs, rng: &mut Rng) {
    let (tree, dirs) = walk(fs);
    let dir = |rng: &mut Rng| dirs[rng.below(dirs.len() as u64) as usize];
    let word = |rng: &mut Rng| format!("n{}", rng.below(5));
    let (d, n, e, m) = (dir(rng), word(rng), dir(rng), word(rng));
    let done = match rng.below(9) {
        0 | 1 => fs.mkdir(d, &n).map(drop),
        2 => fs.create(d, &n).map(drop),
        3 => fs.symlink(d, &n, "x").map(drop),
        4 => fs.unlink(d, &n),
        5 => fs.rmdir(d, &n),
        6 => fs.rename((d, &n), (e, &m), 2 * (rng.below(2) as u32)),
        7 => fs.rename((d, &n), (e, &m), 0),
        _ => tree.get(&(d, n.into_bytes())).map_or(Ok(()), |f| fs.link(*f, e, &m)),
    };
    let _ = done;
}

#[test]
fn records_carried_out_in_order_give_the_tree_whatever_crashes_between() {
    for seed in 0..24 {
        let (mut rng, mut fs) = (Rng::new(seed), Fs::new());
        let cl = register(&fs, 1);
        let (mut tree, mut next) = (Names::new(), 1);
        let mut lost = 0;
        for round in 0..6 {
            let dies = fs.kv.commits() + 1 + rng.below(20);
            let point = if rng.below(2) == 0 { FailPoint::After } else { FailPoint::Before };
            fs.kv.fail_at(dies, point);
            for _ in 0..25 {
                if fs.mds.store().failure().is_some() {
                    break;
                }
                change_something(&fs, &mut rng);
                let Ok(page) = fs.call::<_, ChangelogReply>(Op::Changelog, &ChangelogRequest { from: next }) else {
                    break;
                };
                if rng.below(3) > 0 {
                    continue;
                }
                for r in &page.records {
                    assert_eq!(r.index, next, "seed {seed}, round {round}");
                    r.carry_out(&mut tree).unwrap();
                    next += 1;
                }
                if next > 1 && rng.below(2) == 0 {
                    let q = ChangelogUserRequest { act: ChangelogAct::Clear, user: cl, index: next - 1, id: 0 };
                    if fs.call::<_, ChangelogUserReply>(Op::ChangelogUser, &q).is_err() {
                        break;
                    }
                }
            }
            lost += usize::from(fs.mds.store().failure().is_some());
            fs = fs.crash();
        }
        for r in all(&fs, next) {
            assert_eq!(r.index, next, "seed {seed}");
            r.carry_out(&mut tree).unwrap();
            next += 1;
        }
        assert_eq!(tree, walk(&fs).0, "seed {seed}");
        assert!(next > 15 && lost > 1, "seed {seed}: {next} records, {lost} crashes");
    }
}
