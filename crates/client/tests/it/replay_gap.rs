//! A client dies for good together with the metadata server: what others had done is there again and nobody else loses a session
//! or waits for it, unless the server was an earlier build's: then what rested on the dead client's is told as lost.
use crate::world::*;
use client::NewNode;
use mds::MdsConfig;
use wire::mdt::NodeKind;

/// A metadata server that commits when it is asked to, and before it answers what rests on another client's change or not.
fn world(seed: u64, commit_on_sharing: bool) -> World {
    let never = Duration::from_secs(3600);
    let commit = CommitConfig { interval: never, idle: never, ..CommitConfig::default() };
    let config = MdsConfig { commit, commit_on_sharing, ..MdsConfig::default() };
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
        let world = world(seed, false);
        let (dies, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        world.run(limit, async {
            let old = create(&dies, "x").await;
            dies.data().write(&old, 0, b"precious").await.unwrap();
            dies.data().fsync(&old, false).await.unwrap();
            dies.release(&old).await.unwrap();
            mkdir(&lives, "known").await.unwrap();
            lives.sync_all().await.unwrap();
        });
        let dir = lives.meta().inode(Fid::ROOT);
        let mark = Cell::new(lives.meta().losses_of(&dir));
        let (evictions, new) = world.run(limit, async {
            dies.meta().rename(&root(), (Fid::ROOT, b"x"), (Fid::ROOT, b"safe"), 0).await.unwrap();
            let new = create(&lives, "x").await;
            lives.data().write(&new, 0, b"other").await.unwrap();
            mkdir(&lives, "own").await.unwrap();
            lives.meta().rename(&root(), (Fid::ROOT, b"known"), (Fid::ROOT, b"renamed"), 0).await.unwrap();
            lives.meta().unlink(&root(), Fid::ROOT, b"x", false).await.unwrap();
            (lives.sessions().mdc().evictions(), new)
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
            assert_eq!(lives.sessions().mdc().evictions(), evictions, "seed {seed}");
            assert_eq!(lives.data().fsync(&new, false).await, Err(FsError::Io), "seed {seed}: the file is lost");
            assert_eq!(lives.meta().sync_dir(&dir, &mark).await, Err(FsError::Io), "seed {seed}");
            assert_eq!(lives.meta().sync_dir(&dir, &mark).await, Ok(()), "seed {seed}: it is said once");
            let told = lives.losses().changes_text();
            let ops: Vec<&str> = told.lines().filter_map(|l| l.split(' ').next()).collect();
            assert_eq!(ops, ["open", "unlink"], "seed {seed}: {told}");
            assert!(mkdir(&lives, "later").await.is_ok());
        });
    }
}

#[test]
fn a_directory_that_is_opened_after_a_loss_tells_it_too_if_nobody_was_told() {
    let world = world(7, false);
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
        let root = lives.meta().inode(Fid::ROOT);
        assert_eq!(
            lives.meta().sync_dir(&root, &Cell::new(lives.meta().losses_of(&root))).await,
            Ok(()),
            "nothing was lost there"
        );
    });
}

#[test]
fn with_everybody_back_nothing_is_refused() {
    for seed in 0..4 {
        let world = world(seed, seed % 2 == 0);
        let (a, _) = world.client(|_| {});
        let (b, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        world.run(limit, async {
            assert!(!is_there(&b, "d").await);
            mkdir(&a, "d").await.unwrap();
            assert!(is_there(&b, "d").await);
            b.meta().rename(&root(), (Fid::ROOT, b"d"), (Fid::ROOT, b"e"), 0).await.unwrap();
            let x = create(&a, "x").await;
            a.release(&x).await.unwrap();
            b.meta().unlink(&root(), Fid::ROOT, b"x", false).await.unwrap();
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
            c.meta().unlink(&root(), Fid::ROOT, &name(at), true).await.unwrap();
            Did::Remove(at, fid)
        }
        Some(fid) => {
            c.meta().rename(&root(), (Fid::ROOT, &name(at)), (Fid::ROOT, &name(to)), 0).await.unwrap();
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
        let (world, mut rng) = (world(seed, false), Rng::new(seed));
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

/// Names after the first `whole` changes and those of later ones that survive; `None` when one of these would not find what it found.
fn with_survivors(committed: Names, after: &[(bool, Did)], whole: usize) -> Option<Names> {
    let mut names = committed;
    let kept = after.iter().enumerate().filter(|(n, (survives, _))| *n < whole || *survives);
    kept.map(|(_, (_, did))| *did).all(|did| again(&mut names, did)).then_some(names)
}

#[test]
fn whatever_two_clients_did_all_of_the_survivors_part_is_there_where_what_is_shared_is_committed() {
    let mut rested = 0;
    for seed in 0..60 {
        let (world, mut rng) = (world(seed, true), Rng::new(seed));
        let (dies, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(600);
        let (mut names, mut after): (Names, Vec<(bool, Did)>) = ([None; 4], Vec::new());
        world.run(limit, async {
            for c in [&dies, &lives] {
                assert!(!is_there(c, "n0").await);
            }
            for _ in 0..1 + rng.below(12) {
                let survives = rng.chance(0.5);
                let c = if survives { &lives } else { &dies };
                after.extend(change(c, &mut names, &mut rng).await.map(|did| (survives, did)));
            }
        });
        host.kill();
        dies.abandon();
        world.kill_mds();
        rested += u32::from(with_survivors([None; 4], &after, 0).is_none());
        world.run(limit, async {
            world.restart_mds().await;
            let mut found = [None; 4];
            for (n, found) in found.iter_mut().enumerate() {
                let entry = lives.lookup(&root(), Fid::ROOT, &format!("n{n}").into_bytes()).await;
                *found = entry.ok().map(|e| e.attr.fid).filter(|fid| !fid.is_zero());
            }
            let fits = (0..=after.len()).any(|whole| with_survivors([None; 4], &after, whole) == Some(found));
            assert!(fits, "seed {seed}: {found:?} after {after:?}");
            assert_eq!(lives.losses().changes_text(), "", "seed {seed}: {after:?}");
        });
    }
    assert!(rested > 20, "in {rested} seeds only the survivor rested on the other one: they show nothing");
}

#[test]
fn a_second_death_before_the_end_of_such_a_recovery_changes_nothing_about_it() {
    for seed in 0..4 {
        let world = world(seed, false);
        let (dies, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        world.run(limit, async {
            let precious = create(&dies, "x").await;
            dies.data().write(&precious, 0, b"precious").await.unwrap();
            dies.release(&precious).await.unwrap();
            dies.sync_all().await.unwrap();
            assert!(is_there(&lives, "x").await);
        });
        world.run(limit, async {
            dies.meta().rename(&root(), (Fid::ROOT, b"x"), (Fid::ROOT, b"safe"), 0).await.unwrap();
            mkdir(&lives, "x").await.unwrap();
            lives.meta().rename(&root(), (Fid::ROOT, b"x"), (Fid::ROOT, b"moved"), 0).await.unwrap();
        });
        host.kill();
        dies.abandon();
        world.kill_mds();
        world.run(limit, async {
            world.restart_mds().await;
            // The next one dies as soon as the store has forgotten who is missing.
            while world.mds_knows(dies.sessions().id()) {
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
    let world = world(5, true);
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
        let connects = lives.sessions().mdc().counters().0;
        world.restart_mds().await;
        assert!(ended.1.await.unwrap().is_ok());
        assert_eq!(lives.sessions().mdc().counters().0, connects + 1, "the server is busy, not dead");
        assert!(is_there(&lives, "before").await);
    });
}

async fn mkdir_in(c: &Rc<Client>, dir: Fid, name: &str) -> Result<Fid, FsError> {
    let node = NewNode { kind: NodeKind::Directory, mode: 0o755, umask: 0, rdev: 0, target: Vec::new() };
    c.create(&root(), dir, name.as_bytes(), node).await.map(|e| e.attr.fid)
}

#[test]
fn nothing_that_a_client_was_answered_is_refused_because_another_died() {
    for seed in 0..6 {
        let world = world(seed, true);
        let (dies, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        let new = world.run(limit, async {
            let old = create(&dies, "x").await;
            dies.release(&old).await.unwrap();
            let dir = mkdir(&dies, "d").await.unwrap();
            dies.meta().rename(&root(), (Fid::ROOT, b"x"), (Fid::ROOT, b"safe"), 0).await.unwrap();
            mkdir_in(&lives, dir, "below").await.unwrap();
            let new = create(&lives, "x").await;
            lives.data().write(&new, 0, b"other").await.unwrap();
            lives.meta().unlink(&root(), Fid::ROOT, b"safe", false).await.unwrap();
            new
        });
        host.kill();
        dies.abandon();
        world.kill_mds();
        world.run(limit, async {
            world.restart_mds().await;
            assert_eq!(lives.data().fsync(&new, false).await, Ok(()), "seed {seed}");
            assert!(is_there(&lives, "d").await && !is_there(&lives, "safe").await, "seed {seed}");
            assert_eq!(bytes_of(&lives, "x").await, b"other", "seed {seed}");
            assert_eq!(lives.losses().changes_text(), "", "seed {seed}");
        });
    }
}

#[test]
fn whoever_is_missing_and_was_quiet_is_waited_for_only_where_it_may_hold_something() {
    let mut longest = Duration::ZERO;
    for seed in 0..6 {
        let world = World::new(seed, 1, OstConfig::default());
        let (away, host) = world.client(|_| {});
        let (lives, _) = world.client(|_| {});
        let limit = Duration::from_secs(300);
        let (own, shared, file) = world.run(limit, async {
            let own = mkdir(&lives, "own").await.unwrap();
            let shared = mkdir(&lives, "shared").await.unwrap();
            let file = create(&away, "file").await;
            away.data().write(&file, 0, b"before").await.unwrap();
            assert!(is_there(&away, "shared").await);
            // Longer than a client is quiet, and shorter than one is evicted that is silent.
            world.sim.sleep(Duration::from_secs(12)).await;
            world.cut_off(&host, true);
            world.sim.sleep(Duration::from_secs(12)).await;
            (own, shared, file)
        });
        world.kill_mds();
        world.run(limit, async {
            world.restart_mds().await;
            let restarted = world.sim.now();
            assert!(mkdir_in(&lives, own, "soon").await.is_ok(), "seed {seed}");
            let first = world.sim.now().since(restarted);
            assert!(first < Duration::from_secs(5), "seed {seed}: {first:?} of 10 s");
            longest = longest.max(first);
            // What is made before the one that is missing is back stays when it is.
            let new = NewFile { flags: 0o102, mode: 0o644, ..NewFile::default() };
            let (_, fresh) = lives.create_open(&root(), own, b"fresh", new).await.unwrap();
            lives.data().write(&fresh, 0, b"kept").await.unwrap();
            assert_eq!(lives.data().fsync(&fresh, false).await, Ok(()), "seed {seed}");
            let (waits, ended) = (lives.clone(), rt::sync::oneshot());
            lives.rt().spawn(async move {
                let made = mkdir_in(&waits, shared, "two").await.is_ok();
                ended.0.send((made, waits.rt().now()));
            });
            world.sim.sleep(Duration::from_secs(2)).await;
            let reachable = world.sim.now();
            world.cut_off(&host, false);
            let (made, at) = ended.1.await.unwrap();
            assert!(made && at > reachable, "seed {seed}: {:?}: the other one had a lock", reachable.since(at));
            away.data().write(&file, 0, b"after").await.unwrap();
            assert_eq!(away.data().fsync(&file, false).await, Ok(()), "seed {seed}");
            assert_eq!((away.sessions().mdc().evictions(), lives.sessions().mdc().evictions()), (0, 0), "seed {seed}");
            assert!(is_there(&away, "own").await, "seed {seed}");
            world.sim.sleep(Duration::from_secs(2)).await;
            let found = away.open(&root(), fresh.fid(), 0).await.unwrap();
            assert_eq!(read_all(&away, &found, 1 << 20).await, b"kept", "seed {seed}");
        });
    }
    println!("the first change of a client that is back, while another is missing: after {longest:?} at most");
}

#[test]
fn a_client_that_died_is_evicted_when_the_window_ends_and_what_it_held_is_free() {
    let world = World::new(3, 1, OstConfig::default());
    let (dies, host) = world.client(|_| {});
    let (lives, _) = world.client(|_| {});
    let limit = Duration::from_secs(300);
    let shared = world.run(limit, async {
        let shared = mkdir(&dies, "shared").await.unwrap();
        let file = create(&dies, "gone").await;
        dies.meta().unlink(&root(), Fid::ROOT, b"gone", false).await.unwrap();
        let _open = file;
        world.sim.sleep(Duration::from_secs(12)).await;
        assert!(is_there(&lives, "shared").await);
        shared
    });
    host.kill();
    dies.abandon();
    world.kill_mds();
    world.run(limit, async {
        world.restart_mds().await;
        let restarted = world.sim.now();
        assert!(mkdir_in(&lives, shared, "late").await.is_ok());
        let waited = world.sim.now().since(restarted);
        assert!(waited >= Duration::from_secs(7) && waited < Duration::from_secs(20), "{waited:?}");
        assert!(!world.mds_knows(dies.sessions().id()) && lives.sessions().mdc().evictions() == 0);
    });
}

#[test]
fn who_stood_still_amid_its_replays_is_not_taken_for_quiet() {
    let every = |pause| CommitConfig { interval: pause, idle: pause, ..CommitConfig::default() };
    let (seldom, often) = (every(Duration::from_secs(60)), every(Duration::from_micros(500)));
    let mut amid = 0;
    for seed in 0..8 {
        let config = MdsConfig { commit: seldom, ..MdsConfig::default() };
        let world = World::with_mds(SimConfig::new(seed), 1, OstConfig::default(), 1 << 30, config);
        let (stands, host) = world.client(|_| {});
        let (goes_on, _) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            for c in [&stands, &goes_on] {
                assert!(!is_there(c, "nothing").await);
            }
            for n in 0..300 {
                mkdir(&stands, &format!("d{n}")).await.unwrap();
            }
            world.set_mds_commits(often);
            world.set_mds_window(Duration::from_secs(60));
            world.kill_mds();
            world.restart_mds().await;
            let before = world.mds_inodes();
            while world.mds_inodes() <= before + 30 * seed {
                world.sim.sleep(Duration::from_micros(100)).await;
            }
            host.stop_process();
            amid += u32::from(world.mds_inodes() < before + 290);
            // Longer than a client that asks for nothing is watched before it is written down as quiet.
            world.sim.sleep(Duration::from_secs(12)).await;
            world.kill_mds();
            world.restart_mds().await;
            let made = Cell::new(Ok(Fid::ZERO));
            let both: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
                Box::pin(async { made.set(mkdir(&goes_on, "d299").await) }),
                Box::pin(async {
                    world.sim.sleep(Duration::from_secs(5)).await;
                    host.continue_process();
                }),
            ];
            rt::sync::join_all(both).await;
            assert_eq!(made.get(), Err(FsError::Exists), "seed {seed}: it was made, and answered, before");
            for n in 0..300 {
                assert!(is_there(&goes_on, &format!("d{n}")).await, "seed {seed}: d{n} is lost");
            }
            assert_eq!(stands.losses().changes_text(), "", "seed {seed}");
            assert_eq!(stands.sessions().mdc().evictions(), 0, "seed {seed}");
        });
    }
    assert_eq!(amid, 8, "who had replayed everything shows nothing");
}

#[test]
fn a_server_that_dies_again_and_again_while_clients_replay_loses_nothing_of_theirs() {
    let every = |pause| CommitConfig { interval: pause, idle: pause, ..CommitConfig::default() };
    let (seldom, often) = (every(Duration::from_millis(50)), every(Duration::from_micros(500)));
    for seed in 0..12 {
        let config = MdsConfig { commit: seldom, ..MdsConfig::default() };
        let world = World::with_mds(SimConfig::new(seed), 1, OstConfig::default(), 1 << 30, config);
        let mut rng = Rng::new(seed);
        let clients: Vec<_> = (0..3).map(|_| world.client(|_| {}).0).collect();
        world.run(Duration::from_secs(600), async {
            let stop = Cell::new(false);
            let made = RefCell::new(Vec::new());
            let works = clients.iter().enumerate().map(|(i, c)| {
                let (stop, made) = (&stop, &made);
                let mut rng = Rng::new(seed << 8 | i as u64);
                async move {
                    for n in 0.. {
                        if stop.get() {
                            return;
                        }
                        let name = format!("c{i}n{n}");
                        mkdir(c, &name).await.unwrap();
                        made.borrow_mut().push(name);
                        // Some ask more often than others, so that their transactions lie between each other.
                        c.rt().sleep(Duration::from_micros(rng.below(100 << i))).await;
                    }
                }
            });
            let faults = async {
                for _ in 0..3 {
                    world.sim.sleep(Duration::from_micros(20_000 + rng.below(60_000))).await;
                    // Commits come between the replays: what is on stable storage of one client says nothing of another one's.
                    world.set_mds_commits(often);
                    for _ in 0..rng.below(3) {
                        world.kill_mds();
                        world.restart_mds().await;
                        world.sim.sleep(Duration::from_micros(rng.below(60_000))).await;
                    }
                    world.set_mds_commits(seldom);
                    world.kill_mds();
                    world.restart_mds().await;
                    world.sim.sleep(Duration::from_millis(300)).await;
                }
                stop.set(true);
            };
            let all: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> =
                vec![Box::pin(async { drop(rt::sync::join_all(works.collect()).await) }), Box::pin(faults)];
            rt::sync::join_all(all).await;
            let told: String = clients.iter().map(|c| c.losses().changes_text()).collect();
            assert_eq!(told, "", "seed {seed}");
            let (looks, _) = world.client(|_| {});
            let made = made.borrow().clone();
            assert!(made.len() > 100, "seed {seed}: {} directories show nothing", made.len());
            for name in made {
                assert!(is_there(&looks, &name).await, "seed {seed}: {name} is lost");
            }
            assert_eq!(clients.iter().map(|c| c.sessions().mdc().evictions()).sum::<u64>(), 0, "seed {seed}");
        });
    }
}
