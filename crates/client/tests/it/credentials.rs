//! Clients with credentials of their own, beside one without limits: servers hold them to it whatever they ask, over restarts, and end
//! their sessions when a credential ends or is revoked.
use crate::world::*;
use client::NewNode;
use ptlrpc::{ClusterKey, Limits};
use types::{ObjectId, WallTime};
use wire::Op;
use wire::credential::{Credential, CredentialAct, CredentialFlags, CredentialsReply, CredentialsRequest, IdRange};
use wire::lock::{EnqueueRequest, Kind, LockSpec, Mode};
use wire::mdt::{GetattrRequest, LookupRequest, NodeKind, OpenRequest, SetBits, SetattrRequest};
use wire::ost::{AllocateRequest, PromiseRequest, PunchRequest, ReadRequest, WriteRequest};

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
