//! Clients whose replays say what no server has ever answered them.
use std::sync::Arc;

use layout::StripeObject;
use ptlrpc::Limits;
use types::{ClientId, Fid, FsError, HandleId, Transno};
use wire::credential::{Credential, CredentialFlags};
use wire::mdt::*;
use wire::{Bytes, Op as Rpc};

use super::harness::{Fs, user};
use crate::config::MdsConfig;
use crate::entering::Enters;
use crate::handles::Open;
use crate::mds::{Answered, Caller};
use crate::tx::{Done, Tx};

const ROOT: Fid = Fid::ROOT;

/// A server in its recovery, with a directory "d" that everybody may write to and files of root's that nobody else may.
struct Recovering {
    fs: Fs,
    dir: Fid,
    secret: Fid,
    object: StripeObject,
    /// What the client was answered, and what is lost: the next file's request as it is replayed, and its transaction.
    lost: (OpenRequest, u64),
}

fn recovering() -> Recovering {
    let fs = Fs::new();
    fs.world.run(fs.mds.remember_client(ClientId(1), Rpc::MdtOpen, || false)).unwrap();
    let dir = fs.mkdir_mode(ROOT, "d", 0o777).unwrap();
    fs.chmod(dir, 0o777).unwrap();
    let secret = fs.create(dir, "secret").unwrap();
    fs.chmod(secret, 0o600).unwrap();
    let object = layout::xattr::decode_layout(&fs.getxattr(secret, "lustre.lov").unwrap()).unwrap().1.objects()[0];
    fs.sync();
    let mut request = fs.by(user(1000)).open_request(dir, "lost", 0o302, 0o400);
    let (reply, transno) = fs.call_as::<_, OpenReply>(None, Rpc::MdtOpen, &request).unwrap();
    (request.fid, request.handle, request.layout) = (reply.entry.attr.fid, reply.handle, reply.entry.layout);
    let fs = fs.crash();
    assert_eq!(fs.lookup(dir, "lost"), Err(FsError::NotFound), "it was not committed");
    Recovering { fs, dir, secret, object, lost: (request, transno) }
}

/// Of a client whose root is nobody in particular here.
fn squashed() -> Arc<Limits> {
    let (version, id, name, flags) = (1, 9, "lab".into(), CredentialFlags::SQUASH_ROOT);
    let (squash_uid, squash_gid) = (1000, 1000);
    let said = Credential { version, id, name, flags, squash_uid, squash_gid, ..Credential::default() };
    Arc::new(Limits::new(said).unwrap())
}

/// A replay in a session that such a credential limits, as the service carries it out.
fn limited<Q: Enters + Clone, T>(
    fs: &Fs,
    transno: u64,
    q: &Q,
    op: impl Fn(&mut Tx<'_>, &Q) -> Done<T>,
) -> Result<(), FsError> {
    let (limits, mut q) = (squashed(), q.clone());
    q.enter(&limits)?;
    let caller = Caller { client: ClientId(1), replay: Some(Transno(transno)), basis: 0, slot: None };
    let within = |tx: &mut Tx<'_>| {
        tx.within(&limits, &q.names())?;
        op(tx, &q).map(drop)
    };
    fs.world.run(fs.mds.run(caller, within, |_, ()| Ok(()))).map(|_: Answered<()>| ())
}

/// A request, no replay, in a session that such a credential limits.
fn asked<Q: Enters + Clone, T>(fs: &Fs, q: &Q, op: impl Fn(&mut Tx<'_>, &Q) -> Done<T>) -> Result<(), FsError> {
    let (limits, mut q) = (squashed(), q.clone());
    q.enter(&limits)?;
    let caller = Caller { client: ClientId(1), replay: None, basis: 0, slot: None };
    let within = |tx: &mut Tx<'_>| {
        tx.within(&limits, &q.names())?;
        op(tx, &q).map(drop)
    };
    fs.world.run(fs.mds.run(caller, within, |_, ()| Ok(()))).map(|_: Answered<()>| ())
}

/// The inode that a transaction makes.
fn fid_of(transno: u64) -> Fid {
    Fid::new(Fid::MDT_SEQ_FIRST + (transno >> 32), transno as u32)
}
/// What a client was answered together with an inode and its layout.
fn proof_of(fs: &Fs, client: u64, fid: Fid, layout: &[u8]) -> Bytes {
    let key = fs.mds.config.key.capabilities().unwrap();
    Bytes::from(&key.of_gift(ClientId(client), fid, layout)[..])
}

#[test]
fn a_limited_client_makes_nothing_in_the_place_of_what_another_one_is_still_to_replay() {
    let r = recovering();
    let (request, transno) = r.lost.clone();
    let shown = |number: u64| proof_of(&r.fs, 1, fid_of(number), &[]);
    let (name, mode, proof) = ("own".into(), 0o755, shown(transno + 1));
    let own = CreateRequest { parent: r.dir, name, mode, proof, ..CreateRequest::default() };
    assert_eq!(limited(&r.fs, transno + 1, &own, |tx, q| tx.create(q)), Ok(()));
    let (name, kind, mode) = ("taken".into(), NodeKind::Node, 0o100_666);
    let node = CreateRequest { parent: r.dir, name, kind, mode, ..CreateRequest::default() };
    for proof in [Bytes::default(), shown(transno + 1), proof_of(&r.fs, 2, request.fid, &[])] {
        let forged = CreateRequest { proof, ..node.clone() };
        assert_eq!(limited(&r.fs, transno, &forged, |tx, q| tx.create(q)), Err(FsError::NotPermitted));
    }
    for flags in [0o102, 0o20_200_002] {
        let name = if flags == 0o102 { "taken".into() } else { Bytes::default() };
        let forged = OpenRequest { name, flags, fid: Fid::ZERO, layout: Bytes::default(), ..request.clone() };
        assert_eq!(limited(&r.fs, transno, &forged, |tx, q| tx.open(q)), Err(FsError::NotPermitted), "{flags:o}");
    }
    let (from_name, to_name, flags) = ("own".into(), "moved".into(), 4);
    let whiteout = RenameRequest { from: r.dir, from_name, to: r.dir, to_name, flags, ..RenameRequest::default() };
    assert_eq!(limited(&r.fs, transno, &whiteout, |tx, q| tx.rename(q)), Err(FsError::NotPermitted));
    // Whose it was makes it again, with what was given to it.
    let (reply, _) = r.fs.of(2).call_as::<_, OpenReply>(Some(transno), Rpc::MdtOpen, &request).unwrap();
    assert_eq!((reply.entry.attr.fid, reply.entry.layout), (request.fid, request.layout));
    // With what it was answered it makes its own again.
    let own = RenameRequest { proof: shown(transno + 2), ..whiteout };
    assert_eq!(limited(&r.fs, transno + 2, &own, |tx, q| tx.rename(q)), Ok(()));
    assert_eq!(r.fs.lookup(r.dir, "own").unwrap().fid, fid_of(transno + 2));
}

#[test]
fn opens_that_a_client_tells_take_no_place_of_anothers_and_are_bounded() {
    let r = recovering();
    let told = |client, handle| {
        let open = OpenRequest { fid: r.secret, handle: HandleId(handle), ..r.fs.open_request(r.secret, "", 0, 0) };
        r.fs.of(client).call_as::<_, OpenReply>(Some(0), Rpc::MdtOpen, &open).map(drop)
    };
    let opens = |client| r.fs.mds.opens_of(ClientId(client));
    assert_eq!((told(5, 77), told(6, 77), told(6, 77)), (Ok(()), Ok(()), Ok(())));
    assert_eq!((opens(5), opens(6)), (1, 1), "each has its own");
    assert_eq!(r.fs.of(5).close(HandleId(77), r.secret, 0, 0), Ok(()));
    assert_eq!((opens(5), opens(6)), (0, 1));
    let all = MdsConfig::default().opens_max as u64;
    let open = Open { client: ClientId(5), fid: r.secret, writes: false, uid: 0, path: false };
    (1..=all).for_each(|handle| r.fs.mds.handles.borrow_mut().reopen(HandleId(handle), open));
    assert_eq!(told(5, all + 1), Err(FsError::TooManyOpen));
    assert_eq!((told(5, all), told(6, all + 1)), (Ok(()), Ok(())), "what is there is no more, and others have theirs");
}

#[test]
fn no_end_of_an_open_tells_a_size_that_no_file_can_have_nor_a_limited_client_a_time_to_come() {
    let fs = Fs::new();
    let o = fs.open(ROOT, "f", 0o302, 0o666).unwrap();
    let f = o.entry.attr.fid;
    let told = SetBits::DIRTY | SetBits::SIZE | SetBits::BLOCKS;
    let (size, blocks) = (1 << 63, 1 << 54);
    let closed = fs.end(Close { handle: o.handle, fid: f, valid: told, size, blocks, ..Close::default() }).unwrap();
    let found = fs.getattr(f).unwrap();
    assert_eq!((found.size, found.blocks), (0, 0));
    assert_eq!((closed.flags | found.flags) & AttrFlags::SIZE_KNOWN, 0, "the OSTs say it");
    fs.setattr(f, SetBits::UID, |q| q.uid = 1000).unwrap();
    let handle = fs.by(user(1000)).open(f, "", 1, 0).unwrap().handle;
    let later = types::WallTime(i64::MAX / 2);
    let valid = SetBits::SIZE | SetBits::MTIME | SetBits::CTIME | SetBits::ATIME;
    let close = Close { handle, fid: f, valid, size: 9, mtime: later, ctime: later, atime: later, ..Close::default() };
    assert_eq!(asked(&fs, &CloseRequest { closes: vec![close] }, |tx, q| tx.close(q)), Ok(()));
    let (found, now) = (fs.getattr(f).unwrap(), fs.mds.clock());
    assert_eq!(found.size, 9);
    assert!([found.mtime, found.ctime, found.atime].iter().all(|time| *time <= now), "{found:?}");
}

#[test]
fn an_open_with_o_path_tells_no_time_of_access() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let before = fs.getattr(f).unwrap().atime;
    fs.pass(1);
    let end = |flags| {
        let handle = fs.open(f, "", flags, 0).unwrap().handle;
        let atime = fs.mds.clock();
        fs.end(Close { handle, fid: f, valid: SetBits::ATIME, atime, ..Close::default() }).unwrap().atime
    };
    assert_eq!(end(0o10_000_000), before);
    assert!(end(0) > before);
}

#[test]
fn a_setattr_of_bits_that_are_none_changes_nothing_of_others_files() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let before = fs.getattr(f).unwrap();
    fs.pass(1);
    for valid in [SetBits::BLOCKS, SetBits::CTIME, SetBits::DIRTY | SetBits::OUTDATED, 1 << 31] {
        fs.by(user(1000)).setattr(f, valid, |_| ()).unwrap();
        assert_eq!(fs.getattr(f).unwrap(), before, "{valid:#x}");
    }
}

#[test]
fn only_who_has_a_nameless_file_open_gives_it_a_name() {
    let fs = Fs::new();
    let f = fs.open(ROOT, "", 0o20_200_002, 0o600).unwrap().entry.attr.fid;
    assert_eq!(fs.of(2).link(f, ROOT, "theirs"), Err(FsError::NotFound));
    assert_eq!(fs.link(f, ROOT, "mine"), Ok(()));
    // Opens are told after transactions: the owner's word counts.
    let fs = Fs::new();
    fs.world.run(fs.mds.remember_client(ClientId(1), Rpc::MdtOpen, || false)).unwrap();
    let dir = fs.mkdir(ROOT, "d").unwrap();
    fs.chmod(dir, 0o777).unwrap();
    let [roots, own] = [0, 1000].map(|uid| {
        let fid = fs.of(2).open(ROOT, "", 0o20_200_002, 0o600).unwrap().entry.attr.fid;
        fs.setattr(fid, SetBits::UID, |q| q.uid = uid).unwrap();
        fid
    });
    fs.sync();
    let (fs, transno) = (fs.crash(), (1 << 40) + 900);
    let replay = |fid| {
        let link = LinkRequest { fid, parent: dir, name: "n".into(), ..LinkRequest::default() };
        limited(&fs, transno, &link, |tx, q| tx.link(q))
    };
    assert_eq!((replay(roots), replay(own)), (Err(FsError::NotFound), Ok(())));
}

#[test]
fn set_id_bits_and_times_of_others_files_are_not_taken_or_set_without_the_right_to_write() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    fs.chmod(f, 0o6777).unwrap();
    let handle = fs.by(user(1000)).open(f, "", 1, 0).unwrap().handle;
    fs.chmod(f, 0o6755).unwrap();
    fs.pass(1);
    let before = fs.getattr(f).unwrap();
    let kill = SetattrRequest { fid: f, valid: SetBits::KILL_PRIV, ..SetattrRequest::default() };
    let set = |q: &SetattrRequest| asked(&fs, q, |tx, q| tx.setattr(q));
    assert_eq!(set(&kill), Err(FsError::Access));
    assert_eq!(set(&SetattrRequest { valid: 0, ..kill.clone() }), Ok(()));
    assert_eq!(fs.getattr(f).unwrap(), before);
    // Whoever has it open for writing writes, whatever the mode has become.
    assert_eq!(set(&SetattrRequest { handle, ..kill }), Ok(()));
    assert_eq!(fs.getattr(f).unwrap().mode & 0o7777, 0o755);
}

#[test]
fn a_limited_client_tells_when_it_read_only_of_what_it_can_have_open_and_no_later_time_than_now() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let before = fs.getattr(f).unwrap().atime;
    let later = types::WallTime(i64::MAX / 2);
    let close = Close { fid: f, valid: SetBits::ATIME, atime: later, ..Close::default() };
    let closes = CloseRequest { closes: vec![close] };
    let close = || asked(&fs, &closes, |tx, q| tx.close(q));
    fs.pass(1);
    assert_eq!(close(), Ok(()));
    assert_eq!(fs.getattr(f).unwrap().atime, before);
    let handle = fs.by(user(1000)).open(f, "", 0, 0).unwrap().handle;
    assert_eq!((close(), fs.getattr(f).unwrap().atime), (Ok(()), before), "of an open that is asked for it names that");
    let closes = CloseRequest { closes: vec![Close { handle, ..closes.closes[0].clone() }] };
    assert_eq!(asked(&fs, &closes, |tx, q| tx.close(q)), Ok(()));
    let told = fs.getattr(f).unwrap().atime;
    assert!(before < told && told <= fs.mds.clock(), "{told:?}");
}

#[test]
fn a_replay_of_what_no_server_of_before_can_have_answered_is_refused() {
    let r = recovering();
    let name = CreateRequest { parent: ROOT, name: "n".into(), mode: 0o755, ..CreateRequest::default() };
    for transno in [u64::MAX, u64::MAX - 1, r.fs.mds.boot << 40, (r.fs.mds.boot << 40) + 1, 1 << 32] {
        let answer = r.fs.call_as::<_, EntryReply>(Some(transno), Rpc::MdtCreate, &name);
        assert_eq!(answer.unwrap_err(), FsError::Invalid, "{transno:#x}");
    }
    for handle in [u64::MAX, r.fs.mds.boot << 40 | 1] {
        let request = OpenRequest { fid: r.dir, handle: HandleId(handle), ..r.fs.open_request(r.dir, "", 0, 0) };
        let answer = r.fs.call_as::<_, OpenReply>(Some(0), Rpc::MdtOpen, &request);
        assert_eq!(answer.unwrap_err(), FsError::Invalid, "{handle:#x}");
    }
    ptlrpc::Service::recovered(&*r.fs.mds);
    r.fs.create(ROOT, "goes on").unwrap();
}

#[test]
fn a_replay_makes_nothing_in_the_place_of_what_is_there() {
    let r = recovering();
    let of_secret = (r.secret.seq - Fid::MDT_SEQ_FIRST) << 32 | u64::from(r.secret.oid);
    let name = CreateRequest { parent: ROOT, name: "n".into(), mode: 0o777, ..CreateRequest::default() };
    let answer = r.fs.call_as::<_, EntryReply>(Some(of_secret), Rpc::MdtCreate, &name);
    assert_eq!(answer.unwrap_err(), FsError::Exists);
    assert_eq!(r.fs.getattr(r.secret).unwrap().mode & 0o7777, 0o600);
}

#[test]
fn a_replayed_layout_takes_no_file_away_that_it_names_as_its_object() {
    let r = recovering();
    let (mut request, transno) = r.lost.clone();
    let object = StripeObject { object: types::ObjectId(r.secret), ..r.object };
    let forged = layout::Layout::new(layout::StripeSize::DEFAULT, layout::Pattern::Raid0, None, vec![object]);
    if let Ok(forged) = forged {
        request.layout = layout::xattr::encode_layout(&forged, request.fid, layout::xattr::Form::Stored).into();
        drop(r.fs.call_as::<_, OpenReply>(Some(transno), Rpc::MdtOpen, &request));
    }
    assert_eq!(r.fs.lookup(r.dir, "secret").unwrap().fid, r.secret);
}

#[test]
fn a_limited_client_gets_only_objects_by_a_replay_that_were_given_to_a_file_that_is_missing() {
    let r = recovering();
    let (mut request, transno) = r.lost.clone();
    let forged =
        layout::Layout::new(layout::StripeSize::DEFAULT, layout::Pattern::Raid0, None, vec![r.object]).unwrap();
    let layout = layout::xattr::encode_layout(&forged, request.fid, layout::xattr::Form::Stored);
    let proof = |client, layout: &[u8]| proof_of(&r.fs, client, request.fid, layout);
    let (own, of_stolen, others) = (proof(1, &request.layout), proof(1, &layout), proof(2, &request.layout));
    let stolen = OpenRequest { layout: layout.into(), proof: of_stolen, ..request.clone() };
    let open = |tx: &mut Tx<'_>, q: &OpenRequest| tx.open(q);
    assert_eq!(limited(&r.fs, transno, &stolen, open), Err(FsError::NotPermitted));
    // Its objects are those of a file that is missing, and nothing says that it was this client's.
    for proof in [Bytes::default(), others, stolen.proof.clone()] {
        let claimed = OpenRequest { proof, ..request.clone() };
        assert_eq!(limited(&r.fs, transno, &claimed, open), Err(FsError::NotPermitted));
    }
    assert_eq!(r.fs.lookup(r.dir, "lost"), Err(FsError::NotFound));
    request.proof = own;
    // The true one is carried out, also for a mode that would not let it be opened again.
    assert_eq!(limited(&r.fs, transno, &request, open), Ok(()));
    assert_eq!(r.fs.lookup(r.dir, "lost").unwrap().fid, request.fid);
    assert_eq!(
        limited(&r.fs, 0, &OpenRequest { parent: request.fid, name: Default::default(), ..request }, open),
        Ok(())
    );
}

#[test]
fn an_open_that_a_limited_client_tells_is_believed_where_its_user_may_open_or_owns_the_file() {
    let r = recovering();
    let told = |fid, flags| {
        let open = OpenRequest { fid, ..r.fs.open_request(fid, "", flags, 0) };
        limited(&r.fs, 0, &open, |tx, q| tx.open(q))
    };
    assert_eq!((told(r.secret, 0), told(r.secret, 2)), (Err(FsError::Access), Err(FsError::Access)));
    r.fs.chmod(r.secret, 0o644).unwrap();
    assert_eq!((told(r.secret, 0), told(r.secret, 1)), (Ok(()), Err(FsError::Access)));
    r.fs.setattr(r.secret, SetBits::UID, |q| q.uid = 1000).unwrap();
    assert_eq!(told(r.secret, 2), Ok(()));
    r.fs.chmod(r.secret, 0o000).unwrap();
    assert_eq!(told(r.secret, 2), Ok(()), "whoever owns it may have opened it before");
}

#[test]
fn a_limited_client_may_no_more_in_a_replay_than_otherwise() {
    let r = recovering();
    let transno = r.lost.1 + 1;
    let chmod = SetattrRequest { fid: r.secret, valid: SetBits::MODE, mode: 0o777, ..SetattrRequest::default() };
    let answer = limited(&r.fs, transno, &chmod, |tx, q| tx.setattr(q));
    assert_eq!(answer, Err(FsError::NotPermitted));
    let mkdir = CreateRequest { parent: ROOT, name: "n".into(), mode: 0o755, ..CreateRequest::default() };
    assert_eq!(limited(&r.fs, transno, &mkdir, |tx, q| tx.create(q)), Err(FsError::Access));
    let open = OpenRequest { fid: r.secret, ..r.fs.open_request(r.secret, "", 0o1002, 0) };
    assert_eq!(limited(&r.fs, transno, &open, |tx, q| tx.open(q)), Err(FsError::Access));
    let proof = proof_of(&r.fs, 1, fid_of(transno), &[]);
    let mkdir = CreateRequest { parent: r.dir, proof, ..mkdir };
    assert_eq!(limited(&r.fs, transno, &mkdir, |tx, q| tx.create(q)), Ok(()), "it may");
    let before = r.fs.getattr(r.secret).unwrap();
    let kill = SetattrRequest { fid: r.secret, valid: SetBits::KILL_PRIV, handle: HandleId(1), ..chmod };
    let cut = SetattrRequest { valid: SetBits::SIZE, ..kill.clone() };
    for forged in [kill, cut] {
        assert_eq!(limited(&r.fs, transno, &forged, |tx, q| tx.setattr(q)), Err(FsError::Access));
    }
    assert_eq!(r.fs.getattr(r.secret).unwrap(), before);
    r.fs.setattr(r.secret, SetBits::UID, |q| q.uid = 1000).unwrap();
    let cut = SetattrRequest {
        fid: r.secret,
        valid: SetBits::SIZE,
        handle: HandleId(1),
        size: 7,
        cred: user(1000),
        ..SetattrRequest::default()
    };
    r.fs.chmod(r.secret, 0o400).unwrap();
    assert_eq!(
        limited(&r.fs, transno + 1, &cut, |tx, q| tx.setattr(q)),
        Ok(()),
        "its owner's descriptor outlives the mode"
    );
}

#[test]
fn a_limited_clients_replay_of_an_end_that_nobody_vouches_for_has_the_osts_asked_and_sets_nothing() {
    let r = recovering();
    let time = types::WallTime(5);
    let valid = SetBits::SIZE | SetBits::BLOCKS | SetBits::MTIME | SetBits::CTIME | SetBits::ATIME;
    let told =
        Close { fid: r.secret, handle: HandleId(77), valid, size: 9, blocks: 1, mtime: time, ..Close::default() };
    let close = |transno, close: &Close| {
        limited(&r.fs, transno, &CloseRequest { closes: vec![close.clone()] }, |tx, q| tx.close(q))
    };
    let known = |attr: &Attr| attr.flags & AttrFlags::SIZE_KNOWN != 0;
    let atime = types::WallTime(i64::MAX / 2);
    let handle = r.fs.open(r.secret, "", 1, 0).unwrap().handle;
    r.fs.close(handle, r.secret, SetBits::SIZE, 4096).unwrap();
    let before = r.fs.getattr(r.secret).unwrap();
    assert!(known(&before) && before.size == 4096);
    let forged = Close { ctime: atime, atime, ..told.clone() };
    for (n, forged) in [forged.clone(), Close { handle: HandleId(0), ..forged }].iter().enumerate() {
        assert_eq!(close(r.lost.1 + 1 + n as u64, forged), Ok(()));
    }
    let after = r.fs.getattr(r.secret).unwrap();
    assert!(!known(&after), "whatever was written, the OSTs say how much there is");
    let flags = before.flags & !AttrFlags::SIZE_KNOWN | after.flags & AttrFlags::UNSETTLED;
    assert_eq!(after, Attr { flags, ..before });
    // Of files of its users it is the one who knows.
    r.fs.setattr(r.secret, SetBits::UID, |q| q.uid = 1001).unwrap();
    assert_eq!(close(r.lost.1 + 3, &told), Ok(()));
    let after = r.fs.getattr(r.secret).unwrap();
    assert_eq!((after.size, after.mtime, known(&after)), (9, time, true));
}
