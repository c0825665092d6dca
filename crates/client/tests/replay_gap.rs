//! A client dies for good together with the metadata server: what others had done without it is there again, what rested on
//! it is told as lost, and nobody else loses a session.
#![allow(clippy::unwrap_used)]
mod world;

use client::NewNode;
use mds::MdsConfig;
use mds::store::CommitConfig;
use wire::mdt::NodeKind;
use world::*;

/// A metadata server that commits when it is asked to.
fn world(seed: u64) -> World {
    let never = Duration::from_secs(3600);
    let commit = CommitConfig { interval: never, idle: never, ..CommitConfig::default() };
    let config = MdsConfig { commit, ..MdsConfig::default() };
    World::with_mds(SimConfig::new(seed), 1, OstConfig::default(), 1 << 30, config)
}

async fn mkdir(c: &Rc<Client>, name: &str) -> Result<Fid, FsError> {
    let node = NewNode { kind: NodeKind::Directory, mode: 0o755, umask: 0, rdev: 0, target: Vec::new() };
    c.create(&root(), Fid::ROOT, name.as_bytes(), node).await.map(|e| e.attr.fid)
}
async fn is_there(c: &Rc<Client>, name: &str) -> bool {
    match c.lookup(&root(), Fid::ROOT, name.as_bytes()).await {
        Ok(entry) => !entry.attr.fid.is_zero(),
        Err(FsError::NotFound) => false,
        Err(e) => panic!("{name}: {e}"),
    }
}
async fn bytes_of(c: &Rc<Client>, name: &str) -> Vec<u8> {
    let file = open(c, name, 0).await;
    read_all(c, &file, 1 << 20).await
}

#[test]
fn a_dead_client_stops_only_what_rested_on_it_and_the_program_is_told() {
    for seed in 0..6 {
        let world = world(seed);
        let (dies, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        world.run(limit, async {
            let old = create(&dies, "x").await;
            dies.write(&old, 0, b"precious").await.unwrap();
            dies.fsync(&old, false).await.unwrap();
            dies.release(&old).await.unwrap();
            mkdir(&lives, "known").await.unwrap();
            lives.sync_all().await.unwrap();
        });
        let dir = lives.inode_of(Fid::ROOT);
        let mark = Cell::new(lives.losses_of(&dir));
        let (evictions, new) = world.run(limit, async {
            dies.rename(&root(), (Fid::ROOT, b"x"), (Fid::ROOT, b"safe"), 0).await.unwrap();
            let new = create(&lives, "x").await;
            lives.write(&new, 0, b"other").await.unwrap();
            mkdir(&lives, "own").await.unwrap();
            lives.rename(&root(), (Fid::ROOT, b"known"), (Fid::ROOT, b"renamed"), 0).await.unwrap();
            lives.unlink(&root(), Fid::ROOT, b"x", false).await.unwrap();
            (lives.mdc().evictions(), new)
        });
        host.kill();
        dies.abandon();
        world.kill_mds();
        world.run(limit, async {
            world.restart_mds().await;
            // What is answered while others are waited for is what everybody knew before.
            lives.sync_all().await.unwrap();
            assert!(is_there(&lives, "own").await, "seed {seed}: it rested on nothing of the dead client's");
            assert!(is_there(&lives, "renamed").await && !is_there(&lives, "known").await, "seed {seed}");
            assert!(!is_there(&lives, "safe").await, "seed {seed}: the dead client's own change was lost with it");
            assert_eq!(bytes_of(&lives, "x").await, b"precious", "seed {seed}: another file's name was not removed");
            assert_eq!(lives.mdc().evictions(), evictions, "seed {seed}");
            assert_eq!(lives.fsync(&new, false).await, Err(FsError::Io), "seed {seed}: the file is lost");
            assert_eq!(lives.sync_dir(&dir, &mark).await, Err(FsError::Io), "seed {seed}");
            assert_eq!(lives.sync_dir(&dir, &mark).await, Ok(()), "seed {seed}: it is said once");
            let told = lives.losses().changes_text();
            let ops: Vec<&str> = told.lines().filter_map(|l| l.split(' ').next()).collect();
            assert_eq!(ops, ["open", "unlink"], "seed {seed}: {told}");
            assert!(mkdir(&lives, "later").await.is_ok());
        });
    }
}

#[test]
fn a_directory_that_is_opened_after_a_loss_tells_it_too_if_nobody_was_told() {
    let world = world(7);
    let (dies, host) = world.client(|_| {});
    let (lives, _) = world.client(|_| {});
    let limit = Duration::from_secs(300);
    world.run(limit, async {
        // What is asked first has the sessions, and all that there is, committed.
        for c in [&dies, &lives] {
            assert!(!is_there(c, "nothing").await);
        }
        let dir = mkdir(&dies, "d").await.unwrap();
        assert_eq!(lives.lookup(&root(), Fid::ROOT, b"d").await.unwrap().attr.fid, dir);
        let node = NewNode { kind: NodeKind::Directory, mode: 0o755, umask: 0, rdev: 0, target: Vec::new() };
        lives.create(&root(), dir, b"below", node).await.unwrap();
        mkdir(&lives, "beside").await.unwrap();
        mkdir(&dies, "seen").await.unwrap();
        assert!(is_there(&lives, "seen").await);
    });
    host.kill();
    dies.abandon();
    world.kill_mds();
    world.run(limit, async {
        world.restart_mds().await;
        lives.sync_all().await.unwrap();
        assert!(is_there(&lives, "beside").await);
        assert!(
            !is_there(&lives, "d").await && !is_there(&lives, "seen").await,
            "nobody believes what only the dead client's change made true"
        );
        let told = lives.losses().changes_text();
        assert!(told.starts_with("create ") && told.contains("/below "), "{told}");
        let root = lives.inode_of(Fid::ROOT);
        assert_eq!(lives.sync_dir(&root, &Cell::new(lives.losses_of(&root))).await, Ok(()), "nothing was lost there");
    });
}

#[test]
fn with_everybody_back_nothing_is_refused() {
    for seed in 0..4 {
        let world = world(seed);
        let (a, _) = world.client(|_| {});
        let (b, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        world.run(limit, async {
            assert!(!is_there(&b, "d").await);
            mkdir(&a, "d").await.unwrap();
            assert!(is_there(&b, "d").await);
            b.rename(&root(), (Fid::ROOT, b"d"), (Fid::ROOT, b"e"), 0).await.unwrap();
            let x = create(&a, "x").await;
            a.release(&x).await.unwrap();
            b.unlink(&root(), Fid::ROOT, b"x", false).await.unwrap();
            mkdir(&a, "x").await.unwrap();
        });
        world.kill_mds();
        world.run(limit, async {
            world.restart_mds().await;
            assert!(is_there(&a, "e").await && is_there(&b, "x").await && !is_there(&b, "d").await, "seed {seed}");
            assert_eq!(a.losses().changes_text() + &b.losses().changes_text(), "");
        });
    }
}

/// What one change did, and what it found: a name and what it stood for.
#[derive(Clone, Copy, Debug)]
enum Did {
    Make(usize, Fid),
    Remove(usize, Fid),
    Rename([usize; 2], Fid, Option<Fid>),
}
type Names = [Option<Fid>; 4];

/// Carries a change out on names where it finds what it found; whether it did.
fn again(names: &mut Names, did: Did) -> bool {
    let finds = match did {
        Did::Make(at, _) => names[at].is_none(),
        Did::Remove(at, fid) => names[at] == Some(fid),
        Did::Rename([from, to], fid, over) => names[from] == Some(fid) && names[to] == over,
    };
    match did {
        _ if !finds => {}
        Did::Make(at, fid) => names[at] = Some(fid),
        Did::Remove(at, _) => names[at] = None,
        Did::Rename([from, to], fid, _) => (names[from], names[to]) = (None, Some(fid)),
    }
    finds
}

/// A change of one of four names, drawn; `None`: nothing was to be done.
async fn change(c: &Rc<Client>, names: &mut Names, rng: &mut Rng) -> Option<Did> {
    let [at, to] = [rng.below(4), rng.below(4)].map(|n| n as usize);
    let name = |n: usize| format!("n{n}").into_bytes();
    let did = match names[at] {
        None => Did::Make(at, mkdir(c, &format!("n{at}")).await.unwrap()),
        Some(fid) if at == to || rng.chance(0.3) => {
            c.unlink(&root(), Fid::ROOT, &name(at), true).await.unwrap();
            Did::Remove(at, fid)
        }
        Some(fid) => {
            c.rename(&root(), (Fid::ROOT, &name(at)), (Fid::ROOT, &name(to)), 0).await.unwrap();
            Did::Rename([at, to], fid, names[to])
        }
    };
    assert!(again(names, did), "{did:?}");
    Some(did)
}

#[test]
fn whatever_two_clients_did_the_survivors_part_is_there_as_far_as_it_rested_on_nothing_lost() {
    let (mut kept, mut refused) = (0, 0);
    for seed in 0..60 {
        let (world, mut rng) = (world(seed), Rng::new(seed));
        let (dies, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(600);
        let (mut names, mut after): (Names, Vec<(bool, Did)>) = ([None; 4], Vec::new());
        let committed = world.run(limit, async {
            for c in [&dies, &lives] {
                assert!(!is_there(c, "n0").await);
            }
            for _ in 0..rng.below(6) {
                change(&dies, &mut names, &mut rng).await;
            }
            lives.sync_all().await.unwrap();
            let committed = names;
            for _ in 0..1 + rng.below(10) {
                let survives = rng.chance(0.5);
                let c = if survives { &lives } else { &dies };
                after.extend(change(c, &mut names, &mut rng).await.map(|did| (survives, did)));
            }
            committed
        });
        host.kill();
        dies.abandon();
        world.kill_mds();
        let mut want = committed;
        let mut lost = 0;
        for (_, did) in after.iter().filter(|(survives, _)| *survives) {
            let done = again(&mut want, *did);
            (kept, refused, lost) = (kept + u32::from(done), refused + u32::from(!done), lost + usize::from(!done));
        }
        world.run(limit, async {
            world.restart_mds().await;
            lives.sync_all().await.unwrap();
            for (n, fid) in want.iter().enumerate() {
                let name = format!("n{n}").into_bytes();
                let found = lives.lookup(&root(), Fid::ROOT, &name).await;
                let found = found.map_or(Fid::ZERO, |e| e.attr.fid);
                assert_eq!(found, fid.unwrap_or_default(), "seed {seed}, n{n}: {committed:?} {after:?}");
            }
            assert_eq!(lives.losses().changes_text().lines().count(), lost, "seed {seed}: {after:?}");
        });
    }
    assert!(kept > 50 && refused > 20, "{kept} kept, {refused} refused: the seeds show nothing");
}

#[test]
fn a_second_death_before_the_end_of_such_a_recovery_changes_nothing_about_it() {
    for seed in 0..4 {
        let world = world(seed);
        let (dies, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        world.run(limit, async {
            let precious = create(&dies, "x").await;
            dies.write(&precious, 0, b"precious").await.unwrap();
            dies.release(&precious).await.unwrap();
            dies.sync_all().await.unwrap();
            assert!(is_there(&lives, "x").await);
        });
        world.run(limit, async {
            dies.rename(&root(), (Fid::ROOT, b"x"), (Fid::ROOT, b"safe"), 0).await.unwrap();
            mkdir(&lives, "x").await.unwrap();
            lives.rename(&root(), (Fid::ROOT, b"x"), (Fid::ROOT, b"moved"), 0).await.unwrap();
        });
        host.kill();
        dies.abandon();
        world.kill_mds();
        world.run(limit, async {
            world.restart_mds().await;
            // The next one dies as soon as the store has forgotten who is missing.
            while world.mds_knows(dies.id()) {
                world.sim.sleep(Duration::from_micros(100)).await;
            }
        });
        world.kill_mds();
        world.run(limit, async {
            world.restart_mds().await;
            lives.sync_all().await.unwrap();
            assert_eq!(bytes_of(&lives, "x").await, b"precious", "seed {seed}: another file was not moved");
            assert!(!is_there(&lives, "moved").await && !is_there(&lives, "safe").await, "seed {seed}");
            let told = lives.losses().changes_text();
            assert!(told.contains("rename "), "seed {seed}: {told}");
        });
    }
}

#[test]
fn who_waits_for_a_missing_client_with_requests_of_its_own_keeps_its_connection() {
    let world = world(5);
    let (dies, host) = world.client(|_| {});
    let (lives, _) = world.client(|_| {});
    let limit = Duration::from_secs(300);
    world.run(limit, async {
        for c in [&dies, &lives] {
            assert!(!is_there(c, "nothing").await);
        }
        mkdir(&lives, "before").await.unwrap();
    });
    host.kill();
    dies.abandon();
    world.kill_mds();
    let (c, ended) = (lives.clone(), rt::sync::oneshot());
    lives.rt().spawn(async move { ended.0.send(mkdir(&c, "meanwhile").await) });
    world.run(limit, async {
        // It waits for the server first, and then for the missing client: longer than for any answer.
        world.sim.sleep(Duration::from_secs(20)).await;
        let connects = lives.mdc().counters().0;
        world.restart_mds().await;
        assert!(ended.1.await.unwrap().is_ok());
        assert_eq!(lives.mdc().counters().0, connects + 1, "the server is busy, not dead");
        assert!(is_there(&lives, "before").await);
    });
}
