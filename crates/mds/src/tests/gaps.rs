//! A client does not come back after a restart: which replays of others are carried out without what it had done.
use types::{Duration, Fid, FsError};
use wire::mdt::*;
use wire::{Encode, Op as Rpc};

use super::harness::Fs;
use super::model::findings;
use crate::config::MdsConfig;
use crate::store::CommitConfig;

const ROOT: Fid = Fid::ROOT;

/// A request of the client that comes back, as it will be replayed.
struct Kept {
    op: Rpc,
    body: Vec<u8>,
    answer: (u64, u64),
}

struct Raw<'a>(&'a [u8]);
impl Encode for Raw<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
}

fn does<Q: Encode>(fs: &Fs, op: Rpc, q: &Q) -> Kept {
    Kept { op, body: wire::encode(q), answer: fs.of(2).change(op, q) }
}
fn mkdir(parent: Fid, name: &str) -> CreateRequest {
    CreateRequest { parent, name: name.into(), mode: 0o755, ..CreateRequest::default() }
}
fn unlink(parent: Fid, name: &str) -> UnlinkRequest {
    UnlinkRequest { parent, name: name.into(), ..UnlinkRequest::default() }
}
fn rename(from: &str, to: &str) -> RenameRequest {
    let (from_name, to_name) = (from.into(), to.into());
    RenameRequest { from: ROOT, from_name, to: ROOT, to_name, ..RenameRequest::default() }
}
fn chmod(fid: Fid, mode: u32) -> SetattrRequest {
    SetattrRequest { fid, valid: SetBits::MODE, mode, ..SetattrRequest::default() }
}

/// A server that commits only when it must, with what is committed in it: directories "d" and "e", files "x" and "y".
fn prepared(commit_on_sharing: bool) -> (Fs, [Fid; 4]) {
    let never = Duration::from_secs(3600);
    let commit = CommitConfig { interval: never, idle: never, ..CommitConfig::default() };
    let fs = Fs::with_config(MdsConfig { commit, commit_on_sharing, ..MdsConfig::default() });
    let [d, e] = ["d", "e"].map(|n| fs.mkdir(ROOT, n).unwrap());
    let [x, y] = ["x", "y"].map(|n| fs.create(ROOT, n).unwrap());
    fs.sync();
    (fs, [d, e, x, y])
}

/// `missing` of the client that never comes back, and `kept` of the one that does; then a crash. Gives how the latter's
/// replays end.
fn crashed(
    (fs, fids): (Fs, [Fid; 4]),
    missing: impl FnOnce(&Fs, [Fid; 4]),
    kept: impl FnOnce(&Fs, [Fid; 4]) -> Vec<Kept>,
) -> (Fs, Vec<Result<(), FsError>>) {
    missing(&fs.of(1), fids);
    let kept = kept(&fs, fids);
    let fs = fs.crash();
    let ends = kept.iter().map(|k| fs.of(2).replay(k.answer, k.op, &Raw(&k.body))).collect();
    ptlrpc::Service::recovered(&*fs.mds);
    fs.sync();
    fs.world.settle();
    assert_eq!(findings(&fs), Vec::<String>::new());
    (fs, ends)
}

/// The same after a server that answered before it committed what another client's change rested on, as earlier builds do.
fn after_the_loss_of(
    missing: impl FnOnce(&Fs, [Fid; 4]),
    kept: impl FnOnce(&Fs, [Fid; 4]) -> Vec<Kept>,
) -> (Fs, Vec<Result<(), FsError>>) {
    crashed(prepared(false), missing, kept)
}

const REFUSED: Result<(), FsError> = Err(FsError::NotRecoverable);

#[test]
fn what_rests_on_nothing_that_is_missing_is_carried_out() {
    let (fs, ends) = after_the_loss_of(
        |fs, [d, _, x, y]| {
            fs.mkdir(d, "other").unwrap();
            fs.mkdir(ROOT, "another").unwrap();
            fs.setxattr(y, "user.a", Some(b"1"), 0).unwrap();
            fs.setattr(x, SetBits::MTIME, |q| q.mtime = types::WallTime(9)).unwrap();
            fs.chmod(y, 0o600).unwrap();
        },
        |fs, [d, e, x, y]| {
            vec![
                does(fs, Rpc::MdtCreate, &mkdir(d, "own")),
                does(fs, Rpc::MdtCreate, &mkdir(ROOT, "top")),
                does(fs, Rpc::MdtSetattr, &chmod(x, 0o640)),
                does(
                    fs,
                    Rpc::MdtSetxattr,
                    &SetxattrRequest {
                        fid: y,
                        name: "user.b".into(),
                        value: Some(b"2"[..].into()),
                        ..SetxattrRequest::default()
                    },
                ),
                does(fs, Rpc::MdtUnlink, &unlink(ROOT, "y")),
                does(fs, Rpc::MdtRename, &rename("x", "z")),
                does(fs, Rpc::MdtLink, &LinkRequest { fid: x, parent: e, name: "l".into(), ..LinkRequest::default() }),
            ]
        },
    );
    assert_eq!(ends, vec![Ok(()); 7]);
    let mut names = fs.names(ROOT);
    names.sort();
    assert_eq!(names, ["d", "e", "top", "z"]);
    assert_eq!(fs.walk("z").unwrap(), fs.walk("e/l").unwrap());
    assert_eq!(fs.getattr(fs.walk("z").unwrap()).unwrap().mode & 0o7777, 0o640);
}

#[test]
fn a_name_that_stands_for_something_else_is_neither_removed_nor_replaced() {
    let (fs, ends) = after_the_loss_of(
        |fs, _| {
            fs.rename((ROOT, "x"), (ROOT, "safe"), 0).unwrap();
            fs.rename((ROOT, "y"), (ROOT, "safe too"), 0).unwrap();
        },
        |fs, _| {
            let x = fs.of(2).open_request(ROOT, "x", 0o1102, 0o644);
            vec![
                does(fs, Rpc::MdtOpen, &x),
                does(fs, Rpc::MdtUnlink, &unlink(ROOT, "x")),
                does(fs, Rpc::MdtCreate, &CreateRequest { kind: NodeKind::Node, ..mkdir(ROOT, "new") }),
                does(fs, Rpc::MdtRename, &rename("new", "y")),
            ]
        },
    );
    assert_eq!(ends, [REFUSED, REFUSED, Ok(()), REFUSED]);
    let mut names = fs.names(ROOT);
    names.sort();
    assert_eq!(names, ["d", "e", "new", "x", "y"], "what was moved away by the missing client is where it was");
}

#[test]
fn the_last_name_of_a_file_stays_when_another_name_is_missing() {
    let (fs, ends) = after_the_loss_of(
        |fs, [d, _, x, _]| fs.link(x, d, "kept").unwrap(),
        |fs, _| vec![does(fs, Rpc::MdtUnlink, &unlink(ROOT, "x"))],
    );
    assert_eq!(ends, [REFUSED]);
    assert!(fs.lookup(ROOT, "x").is_ok());
}

#[test]
fn nothing_is_made_where_the_rights_are_others_or_the_directory_is_missing() {
    let (fs, ends) = after_the_loss_of(
        |fs, [d, ..]| {
            fs.chmod(d, 0o700).unwrap();
            fs.mkdir(ROOT, "new").unwrap();
        },
        |fs, [d, _, x, _]| {
            let new = fs.lookup(ROOT, "new").unwrap().fid;
            vec![
                does(fs, Rpc::MdtCreate, &mkdir(d, "secret")),
                does(fs, Rpc::MdtCreate, &mkdir(new, "sub")),
                does(fs, Rpc::MdtRename, &RenameRequest { to: d, to_name: "moved".into(), ..rename("x", "") }),
                does(fs, Rpc::MdtSetattr, &chmod(x, 0o777)),
            ]
        },
    );
    assert_eq!(ends, [REFUSED, REFUSED, REFUSED, Ok(())]);
    assert_eq!(fs.names(fs.walk("d").unwrap()), Vec::<String>::new());
    assert_eq!(fs.getattr(fs.walk("x").unwrap()).unwrap().mode & 0o7777, 0o777);
}

#[test]
fn what_rests_on_a_refused_replay_is_refused_too() {
    let (fs, ends) = after_the_loss_of(
        |fs, _| fs.rename((ROOT, "x"), (ROOT, "away"), 0).unwrap(),
        |fs, [d, ..]| {
            let made = does(fs, Rpc::MdtCreate, &mkdir(ROOT, "x"));
            let fid = fs.lookup(ROOT, "x").unwrap().fid;
            vec![
                made,
                does(fs, Rpc::MdtCreate, &mkdir(fid, "below")),
                does(fs, Rpc::MdtSetattr, &chmod(fid, 0o700)),
                does(fs, Rpc::MdtCreate, &mkdir(d, "beside")),
            ]
        },
    );
    assert_eq!(ends, [REFUSED, REFUSED, REFUSED, Ok(())]);
    assert_eq!(fs.names(fs.walk("d").unwrap()), ["beside"]);
}

#[test]
fn what_was_answered_rests_on_nothing_that_can_be_missing() {
    let moved_away = |fs: &Fs, [d, _, x, y]: [Fid; 4]| {
        fs.rename((ROOT, "x"), (ROOT, "safe"), 0).unwrap();
        fs.link(y, d, "kept").unwrap();
        fs.mkdir(ROOT, "new").unwrap();
        fs.chmod(d, 0o700).unwrap();
        fs.setattr(x, SetBits::MTIME, |q| q.mtime = types::WallTime(9)).unwrap();
    };
    let (fs, ends) = crashed(prepared(true), moved_away, |fs, [d, _, x, _]| {
        let new = fs.lookup(ROOT, "new").unwrap().fid;
        let open = fs.of(2).open_request(ROOT, "x", 0o1102, 0o644);
        vec![
            does(fs, Rpc::MdtOpen, &open),
            does(fs, Rpc::MdtUnlink, &unlink(ROOT, "y")),
            does(fs, Rpc::MdtCreate, &mkdir(new, "sub")),
            does(fs, Rpc::MdtCreate, &mkdir(d, "secret")),
            does(fs, Rpc::MdtSetattr, &chmod(x, 0o600)),
        ]
    });
    assert_eq!(ends, vec![Ok(()); 5]);
    for path in ["safe", "x", "d/kept", "new/sub", "d/secret"] {
        assert!(fs.walk(path).is_ok(), "{path}");
    }
}

#[test]
fn replays_of_different_clients_may_come_in_any_order() {
    let (fs, [d, e, ..]) = prepared(true);
    let a = fs.of(1);
    a.mkdir(ROOT, "name").unwrap();
    a.rename((ROOT, "name"), (ROOT, "moved"), 0).unwrap();
    // It would be in the way of the first one's, if that had still to be replayed.
    does(&fs, Rpc::MdtCreate, &mkdir(ROOT, "name"));
    let first = mkdir(d, "first");
    let answer = a.change(Rpc::MdtCreate, &first);
    let second = does(&fs, Rpc::MdtCreate, &mkdir(e, "second"));
    let fs = fs.crash();
    assert!(fs.lookup(ROOT, "moved").is_ok() && fs.lookup(ROOT, "name").is_ok(), "both are committed");
    assert!(fs.lookup(d, "first").is_err() && fs.lookup(e, "second").is_err(), "these share nothing");
    assert_eq!(fs.of(2).replay(second.answer, second.op, &Raw(&second.body)), Ok(()));
    assert_eq!(fs.of(1).replay(answer, Rpc::MdtCreate, &first), Ok(()));
    assert!(fs.lookup(d, "first").is_ok() && fs.lookup(e, "second").is_ok());
}

#[test]
fn whoever_shares_nothing_waits_for_no_commit() {
    let (fs, [d, e, x, y]) = prepared(true);
    let (commits, ..) = fs.mds.store.commit_counters();
    for n in 0..20 {
        for (client, dir, file) in [(1, d, x), (2, e, y)] {
            let fs = fs.of(client);
            let name = format!("{n}");
            fs.create(dir, &name).unwrap();
            fs.rename((dir, &name), (dir, "at last"), 0).unwrap();
            fs.unlink(dir, "at last").unwrap();
            fs.mkdir(ROOT, &format!("in one directory, of {client}: {n}")).unwrap();
            fs.setattr(file, SetBits::MTIME, |q| q.mtime = types::WallTime(n)).unwrap();
        }
    }
    assert_eq!((fs.mds.store.commit_counters().0, fs.mds.store.sharing.borrow().waits()), (commits, 0));
    fs.of(2).chmod(x, 0o600).unwrap();
    assert_eq!(fs.mds.store.sharing.borrow().waits(), 1, "what another client changed");
    assert_eq!(fs.mds.store.commit_counters().0, commits + 1);
}
