//! Clients with credentials of their own, beside one without limits: servers hold them to it whatever they ask, over restarts, and end
//! their sessions when a credential ends or is revoked.
use crate::world::*;
use client::NewNode;
use ptlrpc::{ClusterKey, Limits};
use types::{ObjectId, WallTime};
use wire::Op;
use wire::credential::{Credential, CredentialAct, CredentialFlags, CredentialsReply, CredentialsRequest, IdRange};
use wire::lock::{EnqueueRequest, Kind, LockSpec, Mode};
use wire::mdt::{CreateRequest, GetattrRequest, LookupRequest, NodeKind, OpenRequest, SetBits, SetattrRequest};
use wire::ost::{AllocateRequest, PromiseRequest, PunchRequest, ReadRequest, WriteRequest};

/// The flag of renameat2(2).
const RENAME_WHITEOUT: u32 = 4;
const LIMIT: Duration = Duration::from_secs(3600);

/// Asks the metadata server about credentials, as the administrator's command does.
fn ask(world: &World, what: CredentialAct, credential: Credential) -> CredentialsReply {
    let rt = world.sim.host("admin").boot();
    let (mds, key) = (world.mds_nid().clone(), world.key());
    let q = CredentialsRequest { what, credential };
    let asked = async { roles::ask_mds(&rt, (&mds, &key), Op::Credentials, &q, Duration::from_secs(60)).await };
    let reply: CredentialsReply = world.run(LIMIT, asked).unwrap();
    assert_eq!(reply.errno, 0, "{}", String::from_utf8_lossy(&reply.why));
    reply
}

fn issue(world: &World, id: u64, credential: Credential) -> ClusterKey {
    let name = format!("c{id}");
    let credential = Credential { id, name: name.as_str().into(), ..credential };
    let row = ask(world, CredentialAct::Issue, credential).rows.remove(0);
    let issued = world.key().credential_of(Limits::new(row.credential).unwrap()).unwrap();
    // As it comes out of its file.
    ClusterKey::from_text(issued.credential_text().unwrap().as_bytes()).unwrap()
}

fn revoke(world: &World, name: &str) -> CredentialsReply {
    ask(world, CredentialAct::Revoke, Credential { name: name.into(), ..Credential::default() })
}

fn read_only() -> Credential {
    Credential { flags: CredentialFlags::READ_ONLY, ..Credential::default() }
}

async fn mkdir(c: &Rc<Client>, parent: Fid, name: &str) -> Fid {
    let node = NewNode { kind: NodeKind::Directory, mode: 0o755, umask: 0, rdev: 0, target: Vec::new() };
    c.create(&root(), parent, name.as_bytes(), node).await.unwrap().attr.fid
}

async fn make(c: &Rc<Client>, parent: Fid, name: &str, bytes: &[u8]) -> Fid {
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
    let file = c.create_open(&root(), parent, name.as_bytes(), new).await.unwrap().1;
    c.data().write(&file, 0, bytes).await.unwrap();
    c.data().fsync(&file, false).await.unwrap();
    c.release(&file).await.unwrap();
    file.fid()
}

/// The first object of a file.
async fn object(c: &Rc<Client>, fid: Fid) -> ObjectId {
    let bytes = c.getxattr(&root(), fid, b"lustre.lov.stored").await.unwrap();
    layout::xattr::decode_layout(&bytes).unwrap().1.objects()[0].object
}

/// What an OST answers whoever changes an object, asked in every way.
async fn changes_of(c: &Rc<Client>, object: ObjectId) -> Vec<Option<FsError>> {
    let ost = c.osts().all()[0].import().unwrap();
    let extent = Extent::new(0, 4096);
    let write = WriteRequest { object, extents: vec![extent], ..WriteRequest::default() };
    let mut bulk = Bulk::alloc(c.rt().frames(), 4096).unwrap();
    bulk.copy_in(0, &[9; 4096]);
    let written = ost.call(Op::OstWrite, wire::encode(&write), bulk, Default::default()).await.map(drop);
    let punch = PunchRequest { object, extent, ..PunchRequest::default() };
    let allocate = AllocateRequest { object, extent, ..AllocateRequest::default() };
    let promise = PromiseRequest { object, number: 1, ..PromiseRequest::default() };
    let set = wire::ost::SetattrRequest { object, valid: 2, mtime: WallTime(5), ..Default::default() };
    let lock = LockSpec { fid: object.0, kind: Kind::Extent, mode: Mode::Pw, extent, ..LockSpec::default() };
    let enqueue = EnqueueRequest { lock, cookie: 4242, ..EnqueueRequest::default() };
    let read = ReadRequest { object, extents: vec![extent], enqueue: Some(enqueue.clone()), ..ReadRequest::default() };
    let answers = [
        written,
        asked(&ost, Op::OstPunch, &punch).await,
        asked(&ost, Op::OstAllocate, &allocate).await,
        asked(&ost, Op::OstPromise, &promise).await,
        asked(&ost, Op::OstSetattr, &set).await,
        asked(&ost, Op::LockEnqueue, &enqueue).await,
        asked(&ost, Op::OstRead, &read).await,
    ];
    answers.into_iter().map(Result::err).collect()
}

async fn asked<Q: wire::Encode>(import: &ptlrpc::Import, op: Op, q: &Q) -> Result<(), FsError> {
    import.call(op, wire::encode(q), Bulk::new(), Default::default()).await.map(drop)
}

#[test]
fn who_may_only_read_reads_and_changes_nothing_at_any_server() {
    let world = World::new(1, 1, OstConfig::default());
    let key = issue(&world, 9, read_only());
    let ((all, _), (ro, _)) = (world.client(|_| {}), world.client(|c| (c.key, c.noatime) = (key, true)));
    world.run(LIMIT, async {
        let bytes = pattern(0, 100_000, 3);
        let fid = make(&all, Fid::ROOT, "f", &bytes).await;
        let file = open(&ro, "f", 0).await;
        assert_eq!(read_all(&ro, &file, MIB).await, bytes);
        ro.release(&file).await.unwrap();
        let refused = Some(FsError::ReadOnly);
        assert_eq!(ro.open(&root(), fid, O_RDWR).await.err(), refused);
        assert_eq!(ro.meta().unlink(&root(), Fid::ROOT, b"f", false).await.err(), refused);
        let chmod = SetattrRequest { fid, valid: SetBits::MODE, mode: 0o777, cred: root(), ..Default::default() };
        assert_eq!(asked(&ro.sessions().mdc(), Op::MdtSetattr, &chmod).await.err(), refused);
        let of_file = object(&ro, fid).await;
        assert_eq!(changes_of(&ro, of_file).await, vec![refused; 7]);
        let file = open(&all, "f", 0).await;
        assert_eq!(read_all(&all, &file, MIB).await, bytes, "nothing was changed");
        let attr = all.getattr(&root(), fid, None).await.unwrap().attr;
        assert_eq!((attr.mode & 0o777, attr.size), (0o644, 100_000));
        // It follows what others write.
        make(&all, Fid::ROOT, "g", b"later").await;
        let later = open(&ro, "g", 0).await;
        assert_eq!(read_all(&ro, &later, MIB).await, b"later");
    });
}

#[test]
fn a_revoked_credential_ends_with_its_locks_at_every_server_and_stays_ended() {
    let world = World::new(2, 2, OstConfig::default());
    let key = issue(&world, 9, Credential::default());
    let ((all, _), (lab, _)) = (world.client(|_| {}), world.client(|c| c.key = key.clone()));
    let id = lab.sessions().id();
    world.run(LIMIT, async {
        let file = create_striped(&lab, "f").await;
        lab.data().write(&file, 0, &pattern(0, 300_000, 1)).await.unwrap();
        assert_eq!(world.knows(id), 3);
    });
    assert_eq!(revoke(&world, "c9").untold, Vec::new());
    world.run(LIMIT, async {
        assert_eq!(world.knows(id), 0, "every server had ended its session when the revocation was answered");
        // What it had not written out is lost, and its locks are in nobody's way.
        let file = open(&all, "f", O_RDWR).await;
        all.data().write(&file, 0, &[1; 1000]).await.unwrap();
        all.data().fsync(&file, false).await.unwrap();
        let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
        assert!(lab.create_open(&root(), Fid::ROOT, b"g", new).await.is_err(), "it hears of it, and does not hang");
        for _ in 0..2 {
            world.sim.sleep(Duration::from_secs(100)).await;
            assert_eq!(world.knows(id), 0);
            world.kill_mds();
            world.lose_power(0);
            world.restart_mds().await;
            world.restart_oss(0).await;
        }
        world.sim.sleep(Duration::from_secs(100)).await;
        assert_eq!(world.knows(id), 0, "after restarts, too");
        all.data().write(&file, 0, &[2; 1000]).await.unwrap();
        all.data().fsync(&file, false).await.unwrap();
    });
}

#[test]
fn an_ost_that_was_restarted_without_a_metadata_server_knows_what_was_revoked() {
    let world = World::new(3, 1, OstConfig::default());
    let key = issue(&world, 9, Credential::default());
    let (lab, _) = world.client(|c| c.key = key);
    revoke(&world, "c9");
    world.run(LIMIT, async {
        world.kill_mds();
        world.lose_power(0);
        world.restart_oss(0).await;
        world.sim.sleep(Duration::from_secs(100)).await;
        assert!(!world.ost_knows(0, lab.sessions().id()));
    });
}

#[test]
fn a_session_ends_when_its_credential_does_whether_it_asks_for_anything_or_not() {
    let world = World::new(4, 1, OstConfig::default());
    let now = world.sim.host("clock").boot().wall();
    let expires = WallTime(now.0 + 300_000_000_000);
    let key = issue(&world, 9, Credential { expires, ..Credential::default() });
    let (lab, _) = world.client(|c| c.key = key.clone());
    let id = lab.sessions().id();
    world.run(LIMIT, async {
        make(&lab, Fid::ROOT, "f", b"in time").await;
        world.sim.sleep(Duration::from_secs(200)).await;
        assert_eq!(world.knows(id), 2);
        world.sim.sleep(Duration::from_secs(110)).await;
        assert_eq!(world.knows(id), 0);
        world.sim.sleep(Duration::from_secs(60)).await;
        let why = lab.sessions().mdc().failure().unwrap();
        assert!(why.contains("credential 'c9' has expired"), "{why}");
        assert_eq!(lab.sessions().mdc().state(), ptlrpc::ImportState::Connecting);
    });
}

/// The FIDs and objects of a tree with a file inside a directory and one outside.
struct Tree {
    dir: Fid,
    inside: Fid,
    outside: Fid,
    other_dir: Fid,
}

async fn tree(all: &Rc<Client>) -> Tree {
    let dir = mkdir(all, Fid::ROOT, "dir").await;
    let other_dir = mkdir(all, Fid::ROOT, "other").await;
    let inside = make(all, dir, "inside", b"inside").await;
    let outside = make(all, other_dir, "outside", b"outside").await;
    Tree { dir, inside, outside, other_dir }
}

#[test]
fn a_client_of_a_subtree_sees_and_reaches_nothing_else_by_name_by_fid_or_by_object() {
    let world = World::new(5, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let t = world.run(LIMIT, tree(&all));
    let key = issue(&world, 9, Credential { path: "dir".into(), ..Credential::default() });
    let (sub, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        let (mdc, cred) = (sub.sessions().mdc(), root());
        let file = open(&sub, "inside", O_RDWR).await;
        assert_eq!(read_all(&sub, &file, MIB).await, b"inside");
        sub.data().write(&file, 0, b"INSIDE").await.unwrap();
        sub.data().fsync(&file, false).await.unwrap();
        assert_eq!(sub.getattr(&root(), Fid::ROOT, None).await.unwrap().attr.fid, Fid::ROOT);
        let up = LookupRequest { cred: root(), parent: Fid::ROOT, name: "..".into(), ..Default::default() };
        let up: wire::mdt::EntryReply = mdc.ask(Op::MdtLookup, &up).await.unwrap();
        assert_eq!(up.attr.fid, Fid::ROOT, "nothing is above its root");

        let stale = Some(FsError::Stale);
        let get = GetattrRequest { cred: cred.clone(), fid: t.outside, ..Default::default() };
        assert_eq!(asked(&mdc, Op::MdtGetattr, &get).await.err(), stale);
        let look =
            LookupRequest { cred: cred.clone(), parent: t.other_dir, name: "outside".into(), ..Default::default() };
        assert_eq!(asked(&mdc, Op::MdtLookup, &look).await.err(), stale);
        let by_fid = OpenRequest { cred: cred.clone(), parent: t.outside, ..Default::default() };
        assert_eq!(asked(&mdc, Op::MdtOpen, &by_fid).await.err(), stale);
        let (from, to) = ((Fid::ROOT, &b"inside"[..]), (t.other_dir, &b"taken"[..]));
        assert_eq!(sub.meta().rename(&root(), from, to, 0).await.err(), stale);
        assert_eq!(sub.meta().rename(&root(), (t.other_dir, b"outside"), (Fid::ROOT, b"x"), 0).await.err(), stale);
        assert_eq!(sub.link(&root(), t.outside, Fid::ROOT, b"x").await.err(), stale);
        assert_eq!(sub.meta().unlink(&root(), t.other_dir, b"outside", false).await.err(), stale);
        let flock =
            LockSpec { fid: t.outside, kind: Kind::Flock, mode: Mode::Pw, extent: Extent::ALL, ..Default::default() };
        let enqueue = EnqueueRequest { lock: flock, cookie: 7, ..EnqueueRequest::default() };
        assert_eq!(asked(&mdc, Op::LockEnqueue, &enqueue).await.err(), stale);

        let (theirs, ours) = (object(&all, t.outside).await, object(&all, t.inside).await);
        assert_eq!(changes_of(&sub, theirs).await, vec![Some(FsError::Access); 7]);
        let read = |object| ReadRequest { object, extents: vec![Extent::new(0, 6)], ..ReadRequest::default() };
        let ost = sub.osts().all()[0].import().unwrap();
        assert_eq!(asked(&ost, Op::OstRead, &read(theirs)).await.err(), Some(FsError::Access));
        assert_eq!(asked(&ost, Op::OstRead, &read(ours)).await.err(), None);
        let file = all.open(&root(), t.outside, 0).await.unwrap();
        assert_eq!(read_all(&all, &file, MIB).await, b"outside");
    });
}

#[test]
fn names_outside_that_lead_in_make_a_file_part_of_the_subtree_and_an_unlinked_one_stays_its_openers() {
    let world = World::new(6, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let t = world.run(LIMIT, tree(&all));
    let key = issue(&world, 9, Credential { path: "dir".into(), ..Credential::default() });
    let (sub, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        all.link(&root(), t.outside, t.dir, b"linked").await.unwrap();
        let file = open(&sub, "linked", O_RDWR).await;
        assert_eq!(read_all(&sub, &file, MIB).await, b"outside");
        // Without a name it is nowhere, and still open.
        all.meta().unlink(&root(), t.dir, b"linked", false).await.unwrap();
        all.meta().unlink(&root(), t.other_dir, b"outside", false).await.unwrap();
        sub.data().write(&file, 0, b"still").await.unwrap();
        sub.data().fsync(&file, false).await.unwrap();
        assert_eq!(sub.getattr(&root(), file.fid(), Some(&file)).await.unwrap().attr.nlink, 0);
        sub.release(&file).await.unwrap();
        // The subtree follows its directory, and goes with it.
        all.meta().rename(&root(), (Fid::ROOT, b"dir"), (t.other_dir, b"moved"), 0).await.unwrap();
        let file = open(&sub, "inside", 0).await;
        assert_eq!(read_all(&sub, &file, MIB).await, b"inside");
    });
}

#[test]
fn limits_hold_for_what_is_replayed_and_after_it_when_servers_were_restarted() {
    for seed in 0..4 {
        let world = World::new(seed, 1, OstConfig::default());
        let (all, _) = world.client(|_| {});
        let t = world.run(LIMIT, tree(&all));
        let uids = vec![IdRange { client: 0, server: 1000, count: 100 }];
        let key =
            issue(&world, 9, Credential { path: "dir".into(), uids: uids.clone(), gids: uids, ..Default::default() });
        let (sub, _) = world.client(|c| c.key = key);
        world.run(LIMIT, async {
            let chown =
                SetattrRequest { valid: SetBits::UID | SetBits::GID, uid: 1000, gid: 1000, ..Default::default() };
            let dir = all.open(&root(), t.dir, 0).await.unwrap();
            all.setattr(&root(), dir.inode(), chown, None).await.unwrap();
            let file = create(&sub, "made").await;
            sub.data().write(&file, 0, &pattern(0, 200_000, 5)).await.unwrap();
            // Answered, and on nobody's stable storage.
            world.kill_mds();
            world.lose_power(0);
            world.restart_mds().await;
            world.restart_oss(0).await;
            sub.data().fsync(&file, false).await.unwrap();
            assert_eq!(read_all(&sub, &file, MIB).await, pattern(0, 200_000, 5), "seed {seed}");
            let made = all.lookup(&root(), t.dir, b"made").await.unwrap().attr;
            assert_eq!((made.uid, made.gid), (1000, 1000), "seed {seed}");
            let shown = sub.getattr(&root(), made.fid, Some(&file)).await.unwrap().attr;
            assert_eq!((shown.uid, shown.gid), (0, 0));
            let get = GetattrRequest { cred: root(), fid: t.outside, ..Default::default() };
            assert_eq!(asked(&sub.sessions().mdc(), Op::MdtGetattr, &get).await.err(), Some(FsError::Stale));
            let theirs = object(&all, t.outside).await;
            assert_eq!(changes_of(&sub, theirs).await, vec![Some(FsError::Access); 7], "seed {seed}");
        });
    }
}

#[test]
fn whose_an_object_is_no_client_says_whatever_its_credential_allows() {
    let world = World::new(7, 1, OstConfig::default());
    let uids = vec![IdRange { client: 0, server: 1000, count: 100 }];
    let mapped = issue(&world, 9, Credential { uids: uids.clone(), gids: uids, ..Credential::default() });
    let (all, _) = world.client(|_| {});
    let clients = ClusterKey::from_text(world.key().client_text().as_bytes()).unwrap();
    let ((mapped, _), (plain, _)) = (world.client(|c| c.key = mapped), world.client(|c| c.key = clients));
    world.run(LIMIT, async {
        let fid = make(&all, Fid::ROOT, "f", &pattern(0, 100_000, 3)).await;
        let of_file = object(&all, fid).await;
        let chown = SetattrRequest { valid: SetBits::UID, uid: 1000, ..Default::default() };
        let file = open(&all, "f", O_RDWR).await;
        all.setattr(&root(), file.inode(), chown, None).await.unwrap();
        world.sim.sleep(Duration::from_secs(60)).await;
        let owner = || world.ost(0).store().usage((wire::quota::QuotaKind::User, 1000));
        let before = owner();
        assert!(before > 0, "the metadata server said whose it is");
        for (c, who) in [(&mapped, "mapped"), (&plain, "client.key")] {
            let ost = c.osts().all()[0].import().unwrap();
            for (valid, refused) in [(1, true), (3, true), (2, false), (0, false)] {
                let victim = wire::ost::IoOwner { uid: 77, gid: 77, ..Default::default() };
                let set = wire::ost::SetattrRequest { object: of_file, owner: victim, valid, ..Default::default() };
                let answer = asked(&ost, Op::OstSetattr, &set).await.err();
                assert_eq!(answer, refused.then_some(FsError::NotPermitted), "{who}, {valid}");
            }
            assert_eq!(owner(), before, "{who}: its space counts for whom it did");
        }
    });
}

#[test]
fn who_writes_takes_a_capability_away_and_is_not_refused_where_the_clients_root_is_squashed() {
    let world = World::new(3, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let flags = CredentialFlags::SQUASH_ROOT;
    let squash = Credential { flags, squash_uid: 65_534, squash_gid: 65_534, ..Credential::default() };
    let key = issue(&world, 4, squash);
    let (limited, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        const CAPABILITY: &[u8] = b"security.capability";
        for (name, has) in [("with", true), ("without", false)] {
            let fid = make(&all, Fid::ROOT, name, b"a program").await;
            let opened = all.open(&root(), fid, 0).await.unwrap();
            let ahead = WallTime(all.rt().wall().0 + 3_600_000_000_000);
            let valid = SetBits::MODE | SetBits::MTIME;
            let set = SetattrRequest { valid, mode: 0o666, mtime: ahead, ..SetattrRequest::default() };
            all.setattr(&root(), opened.inode(), set, None).await.unwrap();
            all.setxattr(&root(), fid, b"user.other", Some(b"x"), 0, false).await.unwrap();
            if has {
                all.setxattr(&root(), fid, CAPABILITY, Some(&[1; 20]), 0, false).await.unwrap();
            }
            all.release(&opened).await.unwrap();
            let user = Cred { uid: 1000, gid: 1000, ..Cred::default() };
            let file = limited.open(&user, fid, O_RDWR).await.unwrap();
            assert!(limited.has_privileges(&file, true), "{name}");
            limited.drop_privileges(&file, &user, true).await.unwrap();
            limited.data().write(&file, 0, b"A PROGRAM").await.unwrap();
            limited.data().fsync(&file, false).await.unwrap();
            assert_eq!(all.getxattr(&root(), fid, CAPABILITY).await, Err(FsError::NoData), "{name}");
            assert_eq!(read_all(&all, &open(&all, name, 0).await, MIB).await, b"A PROGRAM");
            limited.release(&file).await.unwrap();
        }
    });
}

fn user(id: u32) -> Cred {
    Cred { uid: id, gid: id, ..Cred::default() }
}

#[test]
fn what_a_user_may_open_the_servers_say_where_ids_are_mapped_or_squashed() {
    let world = World::new(11, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let uids = vec![IdRange { client: 1000, server: 2000, count: 10 }];
    let (squash_uid, squash_gid) = (65_534, 65_534);
    let squash = |flags| Credential { flags, squash_uid, squash_gid, ..Credential::default() };
    let map = Credential { uids: uids.clone(), gids: uids, ..squash(CredentialFlags::SQUASH_ROOT) };
    let map = issue(&world, 9, map);
    let squashed = issue(&world, 10, squash(CredentialFlags::SQUASH_ALL));
    let ((mapped, _), (squashed, _)) = (world.client(|c| c.key = map), world.client(|c| c.key = squashed));
    world.run(LIMIT, async {
        let mut fids = Vec::new();
        for (name, owner) in [("of root", 0), ("of 5000", 5000), ("of 2000", 2000), ("of 1000", 1000)] {
            let fid = make(&all, Fid::ROOT, name, name.as_bytes()).await;
            let valid = SetBits::UID | SetBits::GID | SetBits::MODE;
            let own = SetattrRequest { valid, uid: owner, gid: owner, mode: 0o600, ..Default::default() };
            let file = all.open(&root(), fid, 0).await.unwrap();
            all.setattr(&root(), file.inode(), own, None).await.unwrap();
            all.release(&file).await.unwrap();
            fids.push(fid);
        }
        for client in [&mapped, &squashed] {
            for (fid, name) in fids.iter().zip(["of root", "of 5000", "of 2000", "of 1000"]) {
                // Its attributes are known here, under a lock that keeps it.
                client.lookup(&user(7), Fid::ROOT, name.as_bytes()).await.unwrap();
                let shown = client.getattr(&user(7), *fid, None).await.unwrap().attr;
                let may = Rc::ptr_eq(client, &mapped) && name == "of 2000";
                assert_eq!(shown.uid, if may { 1000 } else { shown.uid }, "{name}");
                for who in [user(65_534), root(), user(1000), user(5000)] {
                    let opened = client.open(&who, *fid, 0).await;
                    let expected = (!may || who.uid != 1000).then_some(FsError::Access);
                    assert_eq!(opened.as_ref().err().copied(), expected, "{name} by {}", who.uid);
                    if let Ok(file) = opened {
                        assert_eq!(read_all(client, &file, MIB).await, name.as_bytes());
                        client.release(&file).await.unwrap();
                    }
                }
            }
        }
    });
}

#[test]
fn who_is_squashed_locks_only_what_it_has_open() {
    let world = World::new(16, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let flags = CredentialFlags::SQUASH_ROOT;
    let squash = Credential { flags, squash_uid: 65_534, squash_gid: 65_534, ..Credential::default() };
    let key = issue(&world, 9, squash);
    let (limited, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        let fid = make(&all, Fid::ROOT, "f", b"what others lock").await;
        let (mode, extent, owner) = (client::FlockMode::Exclusive, types::Extent::ALL, 1);
        for whole in [false, true] {
            let call = client::LockCall { fid, whole, mode, extent, owner, pid: 7 };
            let lock = |call| limited.flocks().set_lock(call, false, std::future::pending());
            assert_eq!(lock(call).await, Err(FsError::Access));
            assert_eq!(limited.flocks().test_lock(call).await, Err(FsError::Access));
            let file = limited.open(&user(1000), fid, 0).await.unwrap();
            assert_eq!(lock(call).await, Ok(()));
            limited.release(&file).await.unwrap();
            // The end of an open and of its locks may come in any order.
            assert_eq!(lock(client::LockCall { mode: client::FlockMode::Unlock, ..call }).await, Ok(()));
            assert_eq!(all.flocks().set_lock(call, false, std::future::pending()).await, Ok(()));
            let unlock = client::LockCall { mode: client::FlockMode::Unlock, ..call };
            all.flocks().set_lock(unlock, false, std::future::pending()).await.unwrap();
        }
    });
}

#[test]
fn who_is_squashed_lists_and_learns_no_names_below_directories_that_are_closed_to_it() {
    let world = World::new(12, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let flags = CredentialFlags::SQUASH_ROOT;
    let squash = Credential { flags, squash_uid: 65_534, squash_gid: 65_534, ..Credential::default() };
    let key = issue(&world, 9, squash);
    let (limited, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        const PATH: u32 = 0o10_000_000;
        let t = tree(&all).await;
        let dir = all.open(&root(), t.dir, 0).await.unwrap();
        let close = SetattrRequest { valid: SetBits::MODE, mode: 0o700, ..SetattrRequest::default() };
        all.setattr(&root(), dir.inode(), close, None).await.unwrap();
        let mdc = limited.sessions().mdc();
        let by_path = OpenRequest { cred: root(), parent: t.dir, flags: PATH, ..OpenRequest::default() };
        assert_eq!(asked(&mdc, Op::MdtOpen, &by_path).await, Ok(()), "it says nothing of what is in it");
        let listed = limited.meta().readdir(&root(), t.dir, 0, 65_536, false).await;
        assert_eq!(listed.err(), Some(FsError::Access));
        assert!(limited.meta().readdir(&root(), t.other_dir, 0, 65_536, true).await.is_ok(), "it may read that one");
        for fid in [t.inside, t.outside] {
            let path = wire::mdt::Fid2pathRequest { fid, link: 0 };
            assert_eq!(asked(&mdc, Op::MdtFid2path, &path).await, Err(FsError::NotPermitted));
        }
        let path = wire::mdt::Fid2pathRequest { fid: t.inside, link: 0 };
        let told: wire::mdt::BytesReply = all.sessions().mdc().ask(Op::MdtFid2path, &path).await.unwrap();
        assert_eq!(&told.value[..], b"dir/inside");
    });
}

#[test]
fn a_client_of_a_subtree_locks_nothing_before_it_is_there() {
    let world = World::new(13, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let t = world.run(LIMIT, tree(&all));
    let key = issue(&world, 9, Credential { path: "dir".into(), ..Credential::default() });
    let (sub, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        let mdc = sub.sessions().mdc();
        let lock = |fid, cookie, flags| {
            let bits = wire::mdt::LockBits::OPEN;
            let lock = LockSpec { fid, kind: Kind::Inodebits, mode: Mode::Pr, bits, ..LockSpec::default() };
            EnqueueRequest { lock, cookie, flags, ..EnqueueRequest::default() }
        };
        // Numbers of inodes follow those of transactions.
        for flags in [0, wire::lock::EnqueueFlags::REPLAY] {
            for n in 1..100 {
                let next = Fid { oid: t.outside.oid + n, ..t.outside };
                let cookie = u64::from(flags * 100 + n + 1000);
                let answer = asked(&mdc, Op::LockEnqueue, &lock(next, cookie, flags)).await;
                assert_eq!(answer, Err(FsError::Stale), "{n}");
            }
        }
        assert_eq!(asked(&mdc, Op::LockEnqueue, &lock(t.inside, 999, 0)).await, Ok(()));
        let new = make(&all, t.other_dir, "later", b"a secret").await;
        assert!(new.oid > t.outside.oid && new.oid < t.outside.oid + 100, "one of those");
        let file = all.open(&root(), new, O_RDWR).await.unwrap();
        all.meta().unlink(&root(), t.other_dir, b"later", false).await.unwrap();
        assert_eq!(sub.open(&root(), new, 0).await.err(), Some(FsError::Stale));
        all.release(&file).await.unwrap();
    });
}

#[test]
fn ends_of_opens_tell_a_client_of_a_subtree_nothing_of_inodes_outside_and_do_not_keep_each_other_from_their_end() {
    let world = World::new(15, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let t = world.run(LIMIT, tree(&all));
    let key = issue(&world, 9, Credential { path: "dir".into(), ..Credential::default() });
    let (sub, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        let mdc = sub.sessions().mdc();
        let end = |fid, valid| wire::mdt::Close { fid, valid, ..Default::default() };
        let ends = vec![end(t.outside, 0), end(t.inside, 0), end(t.other_dir, SetBits::ATIME), end(Fid::ROOT, 0)];
        let ends = wire::mdt::CloseRequest { closes: ends };
        let told: wire::mdt::CloseReply = mdc.ask(Op::MdtClose, &ends).await.unwrap();
        let told: Vec<_> = told.closes.iter().map(|c| (c.status, c.attr.fid)).collect();
        let stale = (FsError::Stale.errno() as u16, Fid::ZERO);
        assert_eq!(told, [stale, (0, t.inside), stale, (0, Fid::ROOT)]);
    });
}

#[test]
fn replays_that_a_client_of_a_subtree_made_itself_reach_no_inode_and_no_object_outside() {
    let world = World::new(14, 1, OstConfig::default());
    let (all, _) = world.client(|_| {});
    let t = world.run(LIMIT, tree(&all));
    let key = issue(&world, 9, Credential { path: "dir".into(), ..Credential::default() });
    let (sub, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        sub.getattr(&root(), Fid::ROOT, None).await.unwrap();
        let theirs = all.getxattr(&root(), t.outside, b"lustre.lov.stored").await.unwrap();
        let layout = layout::xattr::decode_layout(&theirs).unwrap().1.objects().to_vec();
        world.kill_mds();
        world.restart_mds().await;
        all.getattr(&root(), t.outside, None).await.unwrap();
        sub.getattr(&root(), t.inside, None).await.unwrap();
        // The transaction that made a file is its number.
        let of = |fid: Fid| types::Transno((fid.seq - Fid::MDT_SEQ_FIRST) << 32 | u64::from(fid.oid));
        let caller = |transno, n: u64| {
            let slot = Some((0, types::Xid(1_000_000 + n)));
            mds::Caller { client: sub.sessions().id(), replay: Some(transno), basis: 0, slot }
        };
        let told = types::Transno(0);
        let open = |parent, fid| OpenRequest { cred: root(), parent, fid, ..OpenRequest::default() };
        let stale = Err(FsError::Stale);
        for (n, q, transno) in [
            (1, open(t.inside, t.outside), told),
            (2, open(t.inside, t.outside), of(t.outside)),
            (3, open(Fid::ROOT, Fid::ZERO), of(t.outside)),
            (4, open(t.outside, t.inside), told),
        ] {
            assert_eq!(world.ask_mds_as(caller(transno, n), Op::MdtOpen, &q).await, stale, "{n}");
        }
        assert_eq!(world.ask_mds_as(caller(told, 5), Op::MdtOpen, &open(t.inside, t.inside)).await, Ok(()));
        let value = Some(wire::Bytes(theirs));
        let name = b"lustre.lov.stored"[..].into();
        let set = wire::mdt::SetxattrRequest { cred: root(), fid: t.inside, name, value, ..Default::default() };
        let transno = types::Transno(of(t.outside).0 + 1000);
        let taken = world.ask_mds_as(caller(transno, 6), Op::MdtSetxattr, &set).await;
        assert_eq!(taken, Err(FsError::NotPermitted), "objects {layout:?} are another file's");
        let file = all.open(&root(), t.outside, 0).await.unwrap();
        assert_eq!(read_all(&all, &file, MIB).await, b"outside");
    });
}

/// How a metadata server that commits when it is asked to does so.
fn committing_when_asked() -> mds::MdsConfig {
    let never = Duration::from_secs(36_000);
    let commit = CommitConfig { interval: never, idle: never, ..CommitConfig::default() };
    mds::MdsConfig { commit, ..mds::MdsConfig::default() }
}

/// The transaction that made an inode.
fn number_of(fid: Fid) -> u64 {
    (fid.seq - Fid::MDT_SEQ_FIRST) << 32 | u64::from(fid.oid)
}

async fn objects_of(c: &Rc<Client>, files: &[Fid]) -> Vec<ObjectId> {
    let mut objects = Vec::new();
    for fid in files {
        objects.push(object(c, *fid).await);
    }
    objects
}

async fn until_well(c: &Client, asked: impl AsyncFn() -> Result<(), FsError>) {
    while asked().await.is_err() {
        c.rt().sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_replay_that_a_client_of_a_subtree_made_itself_gets_no_object_of_a_create_that_is_not_told_again_yet() {
    let world = World::with_mds(SimConfig::new(21), 1, OstConfig::default(), 1 << 30, committing_when_asked());
    let (all, all_host) = world.client(|_| {});
    let t = world.run(LIMIT, tree(&all));
    let key = issue(&world, 9, Credential { path: "dir".into(), ..Credential::default() });
    let (sub, _) = world.client(|c| c.key = key);
    world.run(LIMIT, async {
        sub.getattr(&root(), Fid::ROOT, None).await.unwrap();
        all.sync_all().await.unwrap();
        let new = || NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
        let theirs = all.create_open(&root(), t.other_dir, b"theirs", new()).await.unwrap().1;
        let layout = all.getxattr(&root(), theirs.fid(), b"lustre.lov.stored").await.unwrap();
        // Objects given by a create, by the first open, and by setting a layout.
        let own = sub.create_open(&root(), Fid::ROOT, b"own", new()).await.unwrap().1;
        let node = || NewNode { kind: NodeKind::Node, mode: 0o644, umask: 0, rdev: 0, target: Vec::new() };
        let opened = sub.create(&root(), Fid::ROOT, b"opened", node()).await.unwrap().attr.fid;
        let opened = sub.open(&root(), opened, O_RDWR).await.unwrap();
        let set = sub.create(&root(), Fid::ROOT, b"set", node()).await.unwrap().attr.fid;
        let wish = layout::xattr::encode_spec(&layout::LayoutSpec::default());
        sub.setxattr(&root(), set, b"lustre.lov", Some(&wish), 0, false).await.unwrap();
        let given = [own.fid(), opened.fid(), set];
        let objects = objects_of(&sub, &given).await;
        // What has no objects is its own all the same: a directory, and what a rename leaves behind.
        let made = mkdir(&sub, Fid::ROOT, "made").await;
        sub.meta().rename(&root(), (Fid::ROOT, b"set"), (made, b"moved"), RENAME_WHITEOUT).await.unwrap();
        let whiteout = sub.lookup(&root(), Fid::ROOT, b"set").await.unwrap().attr.fid;
        mkdir(&sub, made, "last").await;
        world.kill_mds();
        world.cut_off(&all_host, true);
        world.restart_mds().await;
        let caller = |replay, n: u64| {
            let slot = Some((0, types::Xid(1_000_000 + n)));
            mds::Caller { client: sub.sessions().id(), replay, basis: 0, slot }
        };
        let last = LookupRequest { cred: root(), parent: Fid::ROOT, name: "made".into(), ..Default::default() };
        until_well(&sub, async || world.ask_mds_as(caller(None, 0), Op::MdtLookup, &last).await).await;
        // Its own are told again; the other client is still waited for.
        let layout = layout::xattr::decode_layout(&layout).unwrap().1;
        let fid = Fid { oid: theirs.fid().oid + 1000, ..theirs.fid() };
        let transno = number_of(fid);
        let stored = layout::xattr::encode_layout(&layout, fid, layout::xattr::Form::Stored);
        let handle = types::HandleId((transno >> 40) << 40 | 0xffff);
        let flags = O_RDWR | O_CREAT;
        let open = OpenRequest { cred: root(), parent: Fid::ROOT, flags, mode: 0o644, ..OpenRequest::default() };
        let open = OpenRequest { name: "mine".into(), fid, handle, layout: stored.into(), ..open };
        let claimed = world.ask_mds_as(caller(Some(types::Transno(transno)), 1), Op::MdtOpen, &open).await;
        assert_eq!(claimed, Err(FsError::NotPermitted));
        // Nor does it make a file of its own in the place of theirs.
        let number = number_of(theirs.fid());
        let (name, kind, mode) = ("mine".into(), NodeKind::Node, 0o100_666);
        let place = CreateRequest { cred: root(), parent: Fid::ROOT, name, kind, mode, ..CreateRequest::default() };
        let taken = world.ask_mds_as(caller(Some(types::Transno(number)), 2), Op::MdtCreate, &place).await;
        assert_eq!(taken, Err(FsError::NotPermitted));
        world.cut_off(&all_host, false);
        all.data().write(&theirs, 0, b"theirs").await.unwrap();
        all.data().fsync(&theirs, false).await.unwrap();
        for (file, name) in [(&own, "own"), (&opened, "opened")] {
            sub.data().write(file, 0, name.as_bytes()).await.unwrap();
            sub.data().fsync(file, false).await.unwrap();
        }
        assert_eq!(objects_of(&sub, &given).await, objects, "what it was given it has");
        for (parent, name, fid) in
            [(Fid::ROOT, &b"made"[..], made), (made, b"moved", set), (Fid::ROOT, b"set", whiteout)]
        {
            assert_eq!(sub.lookup(&root(), parent, name).await.unwrap().attr.fid, fid, "what it made it has");
        }
        assert_eq!(all.losses().changes_text() + &sub.losses().changes_text(), "");
        assert!(sub.lookup(&root(), Fid::ROOT, b"mine").await.is_ok_and(|e| e.attr.fid.is_zero()));
        assert_eq!(read_all(&all, &theirs, MIB).await, b"theirs");
    });
}

/// Two days.
const BEHIND_NS: i64 = -2 * 86_400 * 1_000_000_000;

async fn until(c: &Rc<Client>, what: impl Fn() -> bool) {
    while !what() {
        c.rt().sleep(Duration::from_millis(10)).await;
    }
}

/// A server whose clock was wrong has it right again, and lets the client in.
async fn until_let_in(c: &Rc<Client>, host: &Host, import: &ptlrpc::Import) {
    host.set_clock(0);
    until(c, || import.state() == ptlrpc::ImportState::Full).await;
}

/// What is on stable storage when an OST's power goes is its first bytes.
#[test]
fn bytes_that_went_with_an_ost_whose_clock_did_not_take_the_credential_for_a_while_are_told_as_lost() {
    for seed in 31..35 {
        let world = World::new(seed, 1, OstConfig::default());
        let key = issue(&world, 9, Credential::default());
        world.set_ost_commits(LIMIT);
        world.lose_power(0);
        world.start_oss(0);
        let ((all, _), (lab, _)) = (world.client(|_| {}), world.client(|c| c.key = key));
        world.run(LIMIT, async {
            let (closed, opened) =
                (make(&lab, Fid::ROOT, "closed", &[1; 8192]).await, make(&lab, Fid::ROOT, "opened", &[1; 8192]).await);
            let file = lab.open(&root(), opened, O_RDWR | O_DIRECT).await.unwrap();
            let other = lab.open(&root(), closed, O_RDWR | O_DIRECT).await.unwrap();
            for f in [&file, &other] {
                lab.data().write(f, 0, &[2; 8192]).await.unwrap();
            }
            lab.release(&other).await.unwrap();
            world.oss[0].host.set_clock(BEHIND_NS);
            world.lose_power(0);
            world.restart_oss(0).await;
            let import = lab.osts().all()[0].import().unwrap();
            until(&lab, || import.is_out_of_service()).await;
            assert_eq!(lab.data().fsync(&file, false).await, Err(FsError::Io));
            // Another client has the locks on its name: nothing but what may be lost keeps it here.
            all.meta().rename(&root(), (Fid::ROOT, b"closed"), (Fid::ROOT, b"moved"), 0).await.unwrap();
            until_let_in(&lab, &world.oss[0].host, &import).await;
            assert_eq!(lab.data().fsync(&file, false).await, Err(FsError::Io), "seed {seed}");
            assert_eq!(lab.data().fsync(&file, false).await, Ok(()), "it is said once");
            assert_eq!(read_all(&lab, &file, MIB).await, [1; 8192]);
            for fid in [opened, closed] {
                assert!(lab.losses().may_have_lost(fid), "seed {seed}: {fid} of {}", lab.losses().text());
            }
            lab.data().write(&file, 0, &[3; 8192]).await.unwrap();
            assert_eq!(lab.data().fsync(&file, false).await, Ok(()));
        });
    }
}

#[test]
fn names_that_went_with_a_metadata_server_whose_clock_did_not_take_the_credential_for_a_while_are_told_as_lost() {
    for seed in 41..45 {
        let world = World::with_mds(SimConfig::new(seed), 1, OstConfig::default(), 1 << 30, committing_when_asked());
        let key = issue(&world, 9, Credential::default());
        let (lab, _) = world.client(|c| c.key = key);
        world.run(LIMIT, async {
            let dir = mkdir(&lab, Fid::ROOT, "dir").await;
            lab.sync_all().await.unwrap();
            mkdir(&lab, dir, "lost").await;
            world.mds_host.set_clock(BEHIND_NS);
            world.kill_mds();
            world.restart_mds().await;
            let mdc = lab.sessions().mdc();
            until(&lab, || mdc.is_out_of_service()).await;
            until_let_in(&lab, &world.mds_host, &mdc).await;
            assert!(lab.lookup(&root(), dir, b"lost").await.is_ok_and(|e| e.attr.fid.is_zero()));
            let inode = lab.open(&root(), dir, 0).await.unwrap().inode().clone();
            let mark = Cell::new(lab.meta().losses_of(&inode));
            assert_eq!(lab.meta().sync_dir(&inode, &mark).await, Err(FsError::Io), "seed {seed}");
            assert_eq!(lab.meta().sync_dir(&inode, &mark).await, Ok(()), "it is said once");
            assert!(lab.losses().changes_text().contains("lost"), "seed {seed}: {}", lab.losses().changes_text());
        });
    }
}

#[test]
fn a_metadata_server_whose_clock_did_not_take_the_credential_for_a_while_knows_what_its_client_has_open_and_keeps_no_lock()
 {
    for seed in 51..55 {
        let world = World::new(seed, 1, OstConfig::default());
        let key = issue(&world, 9, Credential::default());
        let ((all, _), (lab, host)) = (world.client(|_| {}), world.client(|c| c.key = key));
        world.run(LIMIT, async {
            let fid = make(&all, Fid::ROOT, "f", b"bytes").await;
            let unlinked = make(&all, Fid::ROOT, "unlinked", b"still there").await;
            let reader = lab.open(&root(), unlinked, 0).await.unwrap();
            let (ends, stays) = (lab.open(&root(), fid, O_RDWR).await, lab.open(&root(), fid, O_RDWR).await);
            let (ends, stays) = (ends.unwrap(), stays.unwrap());
            let (extent, pid) = (types::Extent::ALL, 7);
            let exclusive =
                client::LockCall { fid, whole: true, mode: client::FlockMode::Exclusive, extent, owner: 1, pid };
            lab.flocks().set_lock(exclusive, false, std::future::pending()).await.unwrap();
            world.mds_host.set_clock(BEHIND_NS);
            world.cut_off(&host, true);
            let mdc = lab.sessions().mdc();
            until(&lab, || mdc.state() != ptlrpc::ImportState::Full).await;
            world.cut_off(&host, false);
            until(&lab, || mdc.is_out_of_service()).await;
            assert_eq!(lab.release(&ends).await, Err(FsError::Io), "nobody can be told");
            until_let_in(&lab, &world.mds_host, &mdc).await;
            let granted = all.flocks().set_lock(exclusive, false, std::future::pending()).await;
            assert_eq!(granted, Ok(()), "seed {seed}: nobody has it");
            world.sim.sleep(Duration::from_secs(5)).await;
            assert_eq!(world.mds_opens_of(lab.sessions().id()), 2, "seed {seed}: one reads and one writes");
            all.meta().unlink(&root(), Fid::ROOT, b"unlinked", false).await.unwrap();
            world.sim.sleep(Duration::from_secs(100)).await;
            assert_eq!(read_all(&lab, &reader, MIB).await, b"still there", "seed {seed}");
            for file in [&reader, &stays] {
                lab.release(file).await.unwrap();
            }
            world.sim.sleep(Duration::from_secs(5)).await;
            assert_eq!(world.mds_opens_of(lab.sessions().id()), 0, "seed {seed}");
        });
    }
}
