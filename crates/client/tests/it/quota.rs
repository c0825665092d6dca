//! Quotas against whole clusters: clients that write for one user near its limit, with servers that die meanwhile.
use crate::world::*;
use wire::Op;
use wire::mdt::{SetBits, SetattrRequest};
use wire::ost::{FileOwner, IoOwner, WriteReply, WriteRequest};
use wire::quota::{QuotaBits, QuotaKind, QuotaLimits, QuotaReply, QuotaRequest, SetQuotaReply, SetQuotaRequest};

const UID: u32 = 1000;
const LIMIT: u64 = 96 * MIB;
/// What each client may have dirty for each OST, and so may bring after the limit was reached.
const DIRTY: u64 = 4 * MIB;
const OSTS: usize = 2;
const STEP: usize = 128 << 10;

fn user() -> Cred {
    Cred { uid: UID, gid: UID, ..Cred::default() }
}

async fn set_limit(world: &World, bytes: u64) {
    let limits = QuotaLimits { block_hard: bytes, ..QuotaLimits::default() };
    let q =
        SetQuotaRequest { kind: QuotaKind::User, id: UID, set: QuotaBits::BLOCK_HARD, limits, ..Default::default() };
    let r: SetQuotaReply = world.ask_mds(Op::MdtSetQuota, &q).await;
    assert_eq!(r.errno, 0);
}

async fn told(world: &World) -> QuotaReply {
    world.ask_mds(Op::MdtQuota, &QuotaRequest { kind: QuotaKind::User, id: UID }).await
}

/// Bytes of the user, as the OSTs have them.
async fn used(world: &World) -> u64 {
    told(world).await.osts.iter().map(|o| o.used).sum()
}

/// A file over all OSTs that is the user's.
async fn file_of_user(c: &Rc<Client>, name: &str) -> Rc<OpenFile> {
    let file = create_striped(c, name).await;
    let own = SetattrRequest { valid: SetBits::UID | SetBits::GID, uid: UID, gid: UID, ..SetattrRequest::default() };
    c.setattr(&root(), file.inode(), own, None).await.unwrap();
    c.release(&file).await.unwrap();
    c.open(&user(), file.fid(), O_RDWR).await.unwrap()
}

/// Writes until the user may not have more; where that was.
async fn fill(c: &Rc<Client>, file: &Rc<OpenFile>, mut at: u64, most: u64) -> u64 {
    while at < most {
        match c.data().write(file, at, &pattern(at, STEP, 3)).await {
            Ok(_) => at += STEP as u64,
            Err(FsError::Quota | FsError::NoSpace) => break,
            Err(e) => panic!("{e} at {at}"),
        }
    }
    at
}

fn tuned(c: &mut ClientConfig) {
    c.dirty_bytes_max = DIRTY;
}

fn two_clients(seed: u64) {
    let world = World::new(seed, OSTS as u16, OstConfig::default());
    let ((a, _), (b, _)) = (world.client(tuned), world.client(tuned));
    world.run(Duration::from_secs(3600), async {
        set_limit(&world, LIMIT).await;
        let (mine, yours) = (file_of_user(&a, "a").await, file_of_user(&b, "b").await);
        rt::sync::join_all(vec![fill(&a, &mine, 0, 2 * LIMIT), fill(&b, &yours, 0, 2 * LIMIT)]).await;
        assert_eq!(a.data().fsync(&mine, false).await, Ok(()), "seed {seed}: what was answered is kept");
        assert_eq!(b.data().fsync(&yours, false).await, Ok(()), "seed {seed}");
        let used = used(&world).await;
        let slack = 2 * OSTS as u64 * DIRTY;
        // Each OST may keep a unit that was not used in the end.
        let unused = OSTS as u64 * MIB + 4 * STEP as u64;
        assert!((LIMIT - unused..=LIMIT + slack).contains(&used), "seed {seed}: {used} of {LIMIT}");
        let again = a.data().write(&mine, 1 << 40, &pattern(0, 2 * MIB as usize, 1)).await;
        assert!(matches!(again, Err(FsError::Quota | FsError::NoSpace)), "seed {seed}: {again:?}");
        // Root is not limited, and a file that goes makes room.
        let by_root = a.open(&root(), mine.fid(), O_RDWR).await.unwrap();
        a.data().write(&by_root, 0, &pattern(0, STEP, 3)).await.unwrap();
        cut(&b, &yours, 0).await.unwrap();
        assert!(fill(&a, &mine, 1 << 41, (1 << 41) + 8 * MIB).await > 1 << 41, "seed {seed}: there is room again");
        for (c, file) in [(&a, &mine), (&a, &by_root), (&b, &yours)] {
            c.release(file).await.unwrap();
        }
        a.leave().await;
        b.leave().await;
        world.fsck(&format!("seed {seed}")).await;
    });
}

#[test]
fn two_clients_of_one_user_reach_its_limit_and_stay_within_what_both_may_have_dirty() {
    (0..4).for_each(two_clients);
}

#[test]
fn a_limit_holds_over_deaths_of_the_metadata_server_and_of_an_ost() {
    for seed in 0..4 {
        let world = World::new(seed + 50, OSTS as u16, OstConfig::default());
        let ((a, _), (b, _)) = (world.client(tuned), world.client(tuned));
        world.run(Duration::from_secs(3600), async {
            set_limit(&world, LIMIT).await;
            let (mine, yours) = (file_of_user(&a, "a").await, file_of_user(&b, "b").await);
            let (c, file, wrote) = (b.clone(), yours.clone(), rt::sync::oneshot());
            let (tx, rx) = wrote;
            b.rt().spawn(async move { tx.send(fill(&c, &file, 0, 2 * LIMIT).await) });
            fill(&a, &mine, 0, 16 * MIB).await;
            world.kill_mds();
            fill(&a, &mine, 16 * MIB, 20 * MIB).await;
            world.restart_mds().await;
            fill(&a, &mine, 20 * MIB, 32 * MIB).await;
            world.lose_power((seed % 2) as usize);
            world.restart_oss((seed % 2) as usize).await;
            fill(&a, &mine, 32 * MIB, 2 * LIMIT).await;
            rx.await.unwrap();
            assert_eq!(a.data().fsync(&mine, false).await, Ok(()), "seed {seed}");
            assert_eq!(b.data().fsync(&yours, false).await, Ok(()), "seed {seed}");
            let used = used(&world).await;
            let (slack, unused) = (2 * OSTS as u64 * DIRTY, OSTS as u64 * MIB + 4 * STEP as u64);
            assert!((LIMIT - unused..=LIMIT + slack).contains(&used), "seed {seed}: {used} of {LIMIT}");
            a.release(&mine).await.unwrap();
            b.release(&yours).await.unwrap();
            a.leave().await;
            b.leave().await;
            world.fsck(&format!("seed {seed}")).await;
        });
    }
}

fn chown(seed: u64) {
    let world = World::new(seed + 100, OSTS as u16, OstConfig::default());
    let (a, _) = world.client(tuned);
    world.run(Duration::from_secs(3600), async {
        let file = create_striped(&a, "f").await;
        a.data().write(&file, 0, &pattern(0, 2 * MIB as usize, 3)).await.unwrap();
        a.data().fsync(&file, false).await.unwrap();
        assert_eq!(used(&world).await, 0);
        let own = SetattrRequest { valid: SetBits::UID, uid: UID, ..SetattrRequest::default() };
        a.setattr(&root(), file.inode(), own, None).await.unwrap();
        if seed % 3 == 1 {
            world.kill_mds();
            world.restart_mds().await;
        }
        if seed % 3 == 2 {
            world.lose_power(1);
            world.restart_oss(1).await;
        }
        a.data().write(&file, 2 * MIB, &pattern(0, MIB as usize, 3)).await.unwrap();
        a.data().fsync(&file, false).await.unwrap();
        a.rt().sleep(Duration::from_secs(20)).await;
        assert_eq!(used(&world).await, 3 * MIB, "seed {seed}");
        a.release(&file).await.unwrap();
        a.leave().await;
        world.fsck(&format!("seed {seed}")).await;
    });
}

#[test]
fn chown_takes_the_space_of_a_file_along_on_every_ost_whoever_dies() {
    (0..6).for_each(chown);
}

#[test]
fn limits_that_are_not_looked_at_and_owners_that_are_not_told_are_found() {
    for (fault, test) in [("quota-ignored", two_clients as fn(u64)), ("owner-not-told", chown)] {
        types::planted::plant(Some(fault));
        let found = std::panic::catch_unwind(|| test(0)).is_err();
        types::planted::plant(None);
        assert!(found, "{fault}");
    }
}

/// Who moves files for a site (a drain of an OST, say) moves those of users, too, who have no room for a second copy: root is not limited,
/// and what it copies counts for the user once it is the file's.
#[test]
fn root_migrates_what_a_user_at_the_limit_has_and_the_user_has_no_room_for_a_copy() {
    let world = World::new(9, OSTS as u16, OstConfig::default());
    let (a, _) = world.client(tuned);
    world.run(Duration::from_secs(3600), async {
        let file = file_of_user(&a, "a").await;
        a.data().write(&file, 0, &pattern(0, 40 * MIB as usize, 3)).await.unwrap();
        a.data().fsync(&file, false).await.unwrap();
        let limits = QuotaLimits { block_hard: 41 * MIB, inode_hard: 1, ..QuotaLimits::default() };
        let set = QuotaBits::BLOCK_HARD | QuotaBits::INODE_HARD;
        let q = SetQuotaRequest { kind: QuotaKind::User, id: UID, set, limits, ..Default::default() };
        assert_eq!(world.ask_mds::<_, SetQuotaReply>(Op::MdtSetQuota, &q).await.errno, 0);
        let how = client::Migrate::default();
        let by_user = a.migrate(&user(), file.inode(), &how, &|| false).await;
        assert_eq!(by_user, Err(FsError::Quota));
        let by_root = a.migrate(&root(), file.inode(), &how, &|| false).await;
        assert_eq!(by_root, Ok(40 * MIB));
        let bytes = read_all(&a, &file, 64 * MIB).await;
        assert!(bytes == pattern(0, 40 * MIB as usize, 3));
        // The old objects go, and the new ones are the user's.
        for _ in 0..100 {
            world.sim.sleep(Duration::from_secs(1)).await;
            if used(&world).await == 40 * MIB {
                break;
            }
        }
        assert_eq!((used(&world).await, told(&world).await.inodes), (40 * MIB, 1));
    });
}

/// Writes to an object as no honest client does: as `grant` says, without a page in any cache. Gives the grant that came back.
async fn write_raw(c: &Rc<Client>, object: types::ObjectId, at: u64, len: u64, grant: u64) -> Result<u64, FsError> {
    let ost = c.osts().all()[0].import().unwrap();
    let ask = WriteRequest {
        object,
        extents: vec![Extent::at(at, len)],
        owner: IoOwner { uid: UID, gid: UID, ..IoOwner::default() },
        file: Some(FileOwner { uid: UID, gid: UID, project: 0 }),
        grant_used: grant,
        grant_wanted: 64 * MIB,
        ..WriteRequest::default()
    };
    let bulk = Bulk::alloc(c.rt().frames(), len as usize).unwrap();
    let reply = ost.call(Op::OstWrite, wire::encode(&ask), bulk, Default::default()).await?;
    reply.decode::<WriteReply>().map(|r| r.grant)
}

#[test]
fn grant_that_a_client_only_says_it_has_lets_nothing_in_past_a_limit_nor_does_it_get_more_there() {
    const FEW: u64 = 8 * MIB;
    let world = World::new(7, 1, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(Duration::from_secs(3600), async {
        set_limit(&world, FEW).await;
        let file = file_of_user(&c, "f").await;
        let bytes = c.getxattr(&root(), file.fid(), b"lustre.lov.stored").await.unwrap();
        let object = layout::xattr::decode_layout(&bytes).unwrap().1.objects()[0].object;
        // A byte of grant, and a page of it, for a mebibyte.
        let (mut at, mut last) = (0, Ok(0));
        while last.is_ok() && at < 4 * FEW {
            last = write_raw(&c, object, at, MIB, if at % (2 * MIB) == 0 { 1 } else { 4096 }).await;
            at += MIB;
        }
        assert_eq!((last, used(&world).await <= FEW), (Err(FsError::Quota), true), "{at}");
        // What it really has is taken, as what it had cached would be; who may not have more gets no more of it.
        let (mut taken, before) = (0, used(&world).await);
        while let Ok(more) = write_raw(&c, object, at, MIB, MIB).await {
            assert_eq!(more, 0, "{taken}");
            (taken, at) = (taken + MIB, at + MIB);
            assert!(taken <= 64 * MIB, "it is let in for ever");
        }
        assert!(taken > 0, "what a program was answered");
        assert_eq!(used(&world).await, before + taken);
        // Overwriting needs nothing, and brings nothing.
        assert_eq!(write_raw(&c, object, 0, MIB, 0).await, Ok(0));
    });
}
