//! Cuts of striped files whose client dies: they are done on all OSTs, or on none.
use std::pin::{Pin, pin};
use std::task::Poll;

use crate::world::*;

/// How long the file is at first, and after the cut: three OSTs lose bytes.
const LONG: u64 = 6 * STRIPE;
const SHORT: u64 = STRIPE / 2 + 100;

/// What `work` answers, if it does before `end`.
async fn within<T>(end: impl Future<Output = ()>, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut end = pin!(end);
    std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// What a survivor finds: the bytes of before, or those of after.
async fn found(c: &Rc<Client>, seed: u64, at: u64) -> u64 {
    let file = open(c, "f", O_RDWR).await;
    let size = c.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
    // What was cut must not come back when the file grows again.
    c.data().write(&file, LONG, &[9]).await.unwrap();
    let got = read_all(c, &file, 2 * LONG).await;
    let mut long = pattern(0, LONG as usize, 3);
    long.push(9);
    let mut short = long.clone();
    short[SHORT as usize..LONG as usize].fill(0);
    assert!(got == long || got == short, "seed {seed}, dead after {at} ns: half of the cut is done");
    assert_eq!(size, if got == long { LONG } else { SHORT }, "seed {seed}, dead after {at} ns");
    size
}

/// Waits until every server has given the client up.
async fn until_unknown(world: &World, c: &Client) {
    while world.knows(c.sessions().id()) > 0 {
        world.sim.sleep(Duration::from_secs(1)).await;
    }
}

/// One client dies `at` ns after it began to cut. Answers the size that is found; `None` when the cut was over by then.
fn death_amid_a_cut(seed: u64, at: u64) -> Option<u64> {
    death_beside_bad_reads(seed, at, 0)
}

/// The same, while so many reads of each OST's disk bring a flipped bit.
fn death_beside_bad_reads(seed: u64, at: u64, reads: u32) -> Option<u64> {
    let cache_bytes = if reads > 0 { 0 } else { OstConfig::default().cache_bytes };
    let world = World::new(seed, 3, OstConfig { cache_bytes, ..OstConfig::default() });
    let ((one, host), (two, _), (three, _)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        // Kept until the end: nothing takes back what a dead client had begun.
        let mut cutting = pin!(cut(&one, &file, SHORT));
        let over = within(world.sim.sleep(Duration::from_nanos(at)), cutting.as_mut()).await;
        host.kill();
        world.oss.iter().for_each(|o| o.host.set_bit_rot(reads));
        let file = open(&two, "f", 0).await;
        two.getattr(&root(), file.fid(), None).await.unwrap();
        world.oss.iter().for_each(|o| o.host.set_bit_rot(0));
        let size = found(&two, seed, at).await;
        if over.is_some() {
            assert_eq!(size, SHORT, "it was answered");
        }
        // What is written after it stays: a cut that comes late takes nothing away.
        let file = open(&two, "f", O_RDWR).await;
        let new = pattern(0, 2 * LONG as usize, 5);
        two.data().write(&file, 0, &new).await.unwrap();
        two.data().fsync(&file, false).await.unwrap();
        until_unknown(&world, &one).await;
        world.sim.sleep(Duration::from_secs(60)).await;
        let file = open(&three, "f", 0).await;
        assert!(read_all(&three, &file, 4 * LONG).await == new, "seed {seed}, dead after {at} ns: new bytes are gone");
        over.is_none().then_some(size)
    })
}

#[test]
fn a_cut_of_a_striped_file_is_done_on_all_osts_or_on_none_whenever_its_client_dies() {
    let (mut long, mut short) = (0, 0);
    for seed in 0..3 {
        for step in 0.. {
            match death_amid_a_cut(seed, 20_000 * step + 1) {
                Some(LONG) => long += 1,
                Some(_) => short += 1,
                None => break,
            }
        }
    }
    assert!(long > 0 && short > 0, "{long} cuts undone, {short} done");
}

/// A block that is whole on the disk is no reason to leave a cut half done.
#[test]
fn a_cut_is_finished_though_reads_of_its_new_end_fail_for_a_while() {
    let (mut long, mut short) = (0, 0);
    for step in 0.. {
        match death_beside_bad_reads(5, 20_000 * step + 1, 30) {
            Some(LONG) => long += 1,
            Some(_) => short += 1,
            None => break,
        }
    }
    assert!(long > 0 && short > 0, "{long} cuts undone, {short} done");
}

#[test]
fn a_cut_that_shortens_one_object_asks_nobody_else_and_one_of_three_asks_each_once() {
    let world = World::new(1, 3, OstConfig::default());
    let (one, _) = world.client(|_| {});
    world.run(Duration::from_secs(600), async {
        let file = create_striped(&one, "f").await;
        let promises = || (0..3).map(|i| asked(&world, i, "promise")).collect::<Vec<_>>();
        one.data().write(&file, 0, &pattern(0, STRIPE as usize, 3)).await.unwrap();
        for size in [SHORT, 0, LONG] {
            cut(&one, &file, size).await.unwrap();
        }
        assert_eq!(promises(), [0, 0, 0], "one object became shorter, or some longer");
        cut(&one, &file, SHORT).await.unwrap();
        assert_eq!(promises(), [1, 1, 1]);
    });
}

#[test]
fn an_open_that_empties_an_empty_file_changes_no_object() {
    const O_TRUNC: u32 = 0o1000;
    let world = World::new(1, 2, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(Duration::from_secs(600), async {
        c.release(&create_striped(&c, "f").await).await.unwrap();
        let asked = || (0..2).map(|i| asked(&world, i, "punch") + asked(&world, i, "promise")).sum::<u64>();
        let file = open(&c, "f", O_RDWR | O_TRUNC).await;
        assert_eq!(asked(), 0);
        c.data().write(&file, 0, b"bytes").await.unwrap();
        c.release(&file).await.unwrap();
        c.release(&open(&c, "f", O_RDWR | O_TRUNC).await).await.unwrap();
        assert_eq!(asked(), 1);
    });
}

/// Two clients cut the file, write to it and append, all at once: nobody waits for ever, and nobody is given up.
#[test]
fn clients_that_cut_and_write_the_same_file_at_once_keep_no_locks_from_each_other() {
    for seed in 0..4 {
        let world = World::new(seed, 3, OstConfig::default());
        let clients = [world.client(|_| {}).0, world.client(|_| {}).0, world.client(|_| {}).0];
        world.run(Duration::from_secs(600), async {
            let file = create_striped(&clients[0], "f").await;
            clients[0].release(&file).await.unwrap();
            let work = clients.iter().enumerate().map(async |(i, c)| {
                let file = open(c, "f", O_RDWR).await;
                let mut rng = Rng::new(seed * 10 + i as u64);
                for _ in 0..60 {
                    let at = rng.below(LONG);
                    match rng.below(3) {
                        0 => cut(c, &file, at).await.unwrap(),
                        1 => _ = c.data().write(&file, at, &pattern(at, 3 * STRIPE as usize, 7)).await.unwrap(),
                        _ => _ = c.data().read(&file, at, LONG as usize).await.unwrap(),
                    }
                }
                c.release(&file).await.unwrap();
            });
            rt::sync::join_all(work.collect::<Vec<_>>()).await;
        });
        for c in &clients {
            let imports =
                c.osts().all().iter().map(|o| o.import().unwrap()).chain([c.sessions().mdc()]).collect::<Vec<_>>();
            assert!(imports.iter().all(|i| i.evictions() == 0), "seed {seed}");
        }
    }
}

/// An OST gives up a client that cuts, and that lives on: the others' objects are cut, or none is.
#[test]
fn a_cut_is_done_on_all_osts_or_on_none_when_one_of_them_gives_its_client_up() {
    let (mut long, mut short) = (0, 0);
    for step in 0..40 {
        let at = 20_000 * step + 1;
        let world = World::new(step, 3, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create_striped(&one, "f").await;
            one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let lost = &world.oss[1].host;
            let mut cutting = pin!(cut(&one, &file, SHORT));
            let mut outcome = within(world.sim.sleep(Duration::from_nanos(at)), cutting.as_mut()).await;
            if outcome.is_some() {
                return;
            }
            world.sim.cut(&host, lost);
            while outcome.is_none() && world.knows(one.sessions().id()) == 4 {
                outcome = within(world.sim.sleep(Duration::from_secs(1)), cutting.as_mut()).await;
            }
            world.sim.heal(&host, lost);
            if outcome.is_none() {
                outcome = within(world.sim.sleep(Duration::from_secs(300)), cutting.as_mut()).await;
            }
            let outcome = outcome.expect("the cut does not end");
            let size = found(&two, step, at).await;
            assert!(outcome.is_err() || size == SHORT, "it was answered");
            *if size == LONG { &mut long } else { &mut short } += 1;
        });
    }
    assert!(long + short > 0, "no cut was under way");
}

/// A reservation makes an object as long as the cut beside it would: the promise of the cut is kept nevertheless, and nothing is left
/// of it that takes away what is written later.
#[test]
fn a_cut_that_finds_an_object_at_its_new_length_leaves_no_promise_behind() {
    for step in 0..30 {
        let world = World::new(step, 3, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let file = create_striped(&one, "f").await;
            one.data().write(&file, STRIPE, &pattern(STRIPE, STRIPE as usize, 3)).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let (c, f) = (one.clone(), file.clone());
            let (tell, told) = rt::sync::oneshot();
            one.rt().spawn(async move {
                c.rt().sleep(Duration::from_micros(40 * step)).await;
                tell.send(c.data().fallocate(&f, 0, 0, SHORT).await);
            });
            cut(&one, &file, SHORT).await.unwrap();
            told.await.unwrap().unwrap();
            let new = pattern(SHORT, 1000, 5);
            one.data().write(&file, SHORT, &new).await.unwrap();
            one.data().write(&file, STRIPE, &[7; 100]).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            cut(&one, &file, SHORT + 2000).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let file = open(&two, "f", 0).await;
            let found = read_all(&two, &file, LONG).await;
            assert_eq!(found.len() as u64, SHORT + 2000);
            assert!(found[SHORT as usize..][..1000] == new, "step {step}: what was written after the cut is gone");
        });
    }
}

/// Who asks what became of a cut has forgotten the file by then: what comes with the locks of that question is not forgotten.
#[test]
fn a_client_that_was_evicted_after_a_cut_finds_what_others_wrote_since() {
    let world = World::new(1, 3, OstConfig::default());
    let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
        cut(&one, &file, SHORT).await.unwrap();
        one.release(&file).await.unwrap();
        drop(file);
        world.cut_off(&host, true);
        until_unknown(&world, &one).await;
        let file = open(&two, "f", O_RDWR).await;
        let new = pattern(0, LONG as usize, 5);
        two.data().write(&file, 0, &new).await.unwrap();
        two.data().fsync(&file, false).await.unwrap();
        world.cut_off(&host, false);
        let fid = file.fid();
        one.meta().sync_meta(fid).await.unwrap();
        one.meta().forget(fid, 1);
        one.meta().set_inodes_max(1);
        world.sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(one.meta().remembered()[3], 0, "no object is known any more");
        // The next cut looks after those of before.
        let other = create_striped(&one, "g").await;
        one.data().write(&other, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
        cut(&one, &other, SHORT).await.unwrap();
        world.sim.sleep(Duration::from_secs(30)).await;
        let file = open(&one, "f", 0).await;
        assert!(read_all(&one, &file, 2 * LONG).await == new, "another file is found");
    });
}

/// The OST of the new end is cut off from a client that makes the file longer, which dies: the file has one of both lengths.
#[test]
fn a_file_that_grows_while_an_ost_is_away_has_its_old_or_its_new_length_when_its_client_dies() {
    const HALF: u64 = 2 * STRIPE + SHORT;
    let mut grown = 0;
    for (longer, away) in [(3 * STRIPE + SHORT, 0), (3 * STRIPE + SHORT, 1), (3 * STRIPE + SHORT, 2), (9 * STRIPE, 1)] {
        let world = World::new(longer, 3, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create_striped(&one, "f").await;
            one.data().write(&file, 0, &pattern(0, HALF as usize, 3)).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            world.sim.cut(&host, &world.oss[away].host);
            let mut growing = pin!(cut(&one, &file, longer));
            let over = within(world.sim.sleep(Duration::from_secs(20)), growing.as_mut()).await;
            host.kill();
            let size = two.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
            assert!(size == longer || size == HALF && over.is_none(), "{size} of {longer}, without OST {away}");
            grown += u32::from(size == longer);
        });
    }
    assert!((1..4).contains(&grown), "{grown} of 4: no OST of the new end was away, or all were");
}

/// Who dies together: the client that cuts, OSTs that lose their power, the metadata server.
#[derive(Clone, Copy, Debug)]
struct Deaths {
    client: bool,
    osts: &'static [usize],
    mds: bool,
}

/// They die `at` ns after a client began to cut, and servers come back. Answers the size that is found; `None` when the cut was
/// answered by then.
fn deaths_amid_a_cut(seed: u64, at: u64, deaths: Deaths) -> Option<u64> {
    let world = World::new(seed, 3, OstConfig::default());
    let ((one, host), (two, _), (three, _)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let file = create_striped(&one, "f").await;
        one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let mut cutting = pin!(cut(&one, &file, SHORT));
        let over = within(world.sim.sleep(Duration::from_nanos(at)), cutting.as_mut()).await;
        if deaths.client {
            host.kill();
        }
        deaths.osts.iter().for_each(|i| world.lose_power(*i));
        if deaths.mds {
            world.kill_mds();
        }
        world.sim.sleep(Duration::from_secs(1)).await;
        for i in deaths.osts {
            world.restart_oss(*i).await;
        }
        if deaths.mds {
            world.restart_mds().await;
        }
        let is_over = over.is_some();
        let done = match over {
            None if !deaths.client => within(world.sim.sleep(Duration::from_secs(300)), cutting.as_mut()).await,
            over => over,
        };
        let size = found(&two, seed, at).await;
        if !deaths.client {
            assert_eq!((done, size), (Some(Ok(())), SHORT), "seed {seed}, {deaths:?} after {at} ns");
        }
        // What is written after it stays: a cut that comes late takes nothing away.
        let file = open(&two, "f", O_RDWR).await;
        let new = pattern(0, 2 * LONG as usize, 5);
        two.data().write(&file, 0, &new).await.unwrap();
        two.data().fsync(&file, false).await.unwrap();
        world.sim.sleep(Duration::from_secs(120)).await;
        let file = open(&three, "f", 0).await;
        let got = read_all(&three, &file, 4 * LONG).await;
        assert!(got == new, "seed {seed}, {deaths:?} after {at} ns: new bytes are gone");
        (!is_over).then_some(size)
    })
}

/// The same at every step of a cut, and for a while behind it: what was answered is not committed yet. How many were undone and
/// done.
fn deaths_at_every_step(seed: u64, deaths: Deaths) -> (u64, u64) {
    let (mut long, mut short, mut behind) = (0, 0, 0);
    for step in 0.. {
        match deaths_amid_a_cut(seed, 100_000 * step + 1, deaths) {
            Some(LONG) => long += 1,
            Some(_) => short += 1,
            None if behind == 5 => break,
            None => behind += 1,
        }
    }
    (long, short)
}

#[test]
fn a_cut_is_done_on_all_osts_or_on_none_when_its_client_and_an_ost_die() {
    for (seed, osts) in [(0, &[0][..]), (1, &[1]), (2, &[2]), (3, &[0, 1, 2])] {
        let (long, short) = deaths_at_every_step(seed, Deaths { client: true, osts, mds: false });
        assert!(long > 0 && short > 0, "seed {seed}: {long} cuts undone, {short} done");
    }
}

#[test]
fn a_cut_is_done_on_all_osts_or_on_none_when_its_client_and_the_metadata_server_die() {
    for seed in 0..2 {
        let (long, short) = deaths_at_every_step(seed, Deaths { client: true, osts: &[], mds: true });
        assert!(long > 0 && short > 0, "seed {seed}: {long} cuts undone, {short} done");
    }
}

#[test]
fn a_cut_is_done_on_all_osts_or_on_none_when_everything_dies() {
    for seed in 0..2 {
        let (long, short) = deaths_at_every_step(seed, Deaths { client: true, osts: &[0, 1, 2], mds: true });
        assert!(long > 0 && short > 0, "seed {seed}: {long} cuts undone, {short} done");
    }
}

#[test]
fn a_cut_of_a_client_that_lives_is_done_whichever_servers_die() {
    for (seed, osts, mds) in [(0, &[1][..], false), (1, &[], true), (2, &[0, 1, 2], true)] {
        deaths_at_every_step(seed, Deaths { client: false, osts, mds });
    }
}

/// What was written behind a cut is not cut away when the OST has forgotten the cut, the writer brings its bytes back, and the
/// cutter does not come back.
#[test]
fn a_cut_that_an_ost_lost_takes_nothing_away_of_what_others_wrote_since() {
    for seed in 0..12 {
        let world = World::new(seed, 3, OstConfig::default());
        let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create_striped(&one, "f").await;
            one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let theirs = open(&two, "f", O_RDWR).await;
            cut(&one, &file, SHORT).await.unwrap();
            let new = pattern(0, 2 * LONG as usize, 5);
            two.data().write(&theirs, 0, &new).await.unwrap();
            let mut syncing = pin!(two.data().fsync(&theirs, false));
            let synced = within(world.sim.sleep(Duration::from_micros(300 * seed)), syncing.as_mut()).await;
            host.kill();
            (0..3).for_each(|i| world.lose_power(i));
            for i in 0..3 {
                world.restart_oss(i).await;
            }
            if synced.is_none() {
                syncing.await.unwrap();
            }
            world.sim.sleep(Duration::from_secs(120)).await;
            let got = read_all(&two, &theirs, 4 * LONG).await;
            assert!(got == new, "seed {seed}: new bytes are gone");
        });
    }
}

/// The metadata server is away for minutes when an OST wants to know: who wants the object waits, and nobody else.
#[test]
fn an_object_in_doubt_waits_for_the_metadata_server_however_long_and_holds_up_nothing_else() {
    let (mut long, mut short, mut waited) = (0, 0, 0);
    for step in 0..40 {
        let at = 150_000 * step + 1;
        let world = World::new(step, 3, OstConfig::default());
        let ((one, host), (two, _), (three, _)) = (world.client(|_| {}), world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create_striped(&one, "f").await;
            one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            let (theirs, other) = (open(&two, "f", O_RDWR).await, create_striped(&two, "other").await);
            let others = open(&three, "other", 0).await;
            let mut cutting = pin!(cut(&one, &file, SHORT));
            let over = within(world.sim.sleep(Duration::from_nanos(at)), cutting.as_mut()).await;
            host.kill();
            world.kill_mds();
            if over.is_some() {
                return;
            }
            let mut waiting = pin!(two.data().read(&theirs, 0, LONG as usize));
            let early = within(world.sim.sleep(Duration::from_secs(200)), waiting.as_mut()).await;
            two.data().write(&other, 0, &pattern(0, LONG as usize, 7)).await.unwrap();
            assert!(read_all(&three, &others, LONG).await == pattern(0, LONG as usize, 7));
            world.restart_mds().await;
            if early.is_none() {
                waited += 1;
                waiting.await.unwrap();
            }
            let size = found(&two, step, at).await;
            *if size == LONG { &mut long } else { &mut short } += 1;
        });
        let imports = two.osts().all().iter().map(|o| o.import().unwrap().evictions()).sum::<u64>();
        assert_eq!(imports, 0, "who waited was given up");
    }
    assert!(long > 0 && short > 0 && waited > 0, "{long} cuts undone, {short} done, {waited} waited for");
}

/// Nobody waits for the cut any more, which goes on by itself; who dies amid one has tests of its own.
#[test]
fn a_cut_that_is_given_up_half_way_goes_on_to_its_end_on_all_osts() {
    let (mut long, mut short) = (0, 0);
    for step in 0..60 {
        let at = 100_000 * step + 1;
        let world = World::new(step, 3, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(3600), async {
            let file = create_striped(&one, "f").await;
            one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
            one.data().fsync(&file, false).await.unwrap();
            {
                let mut cutting = pin!(cut(&one, &file, SHORT));
                if within(world.sim.sleep(Duration::from_nanos(at)), cutting.as_mut()).await.is_some() {
                    return;
                }
            }
            let size = found(&two, step, at).await;
            let ours = one.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
            assert_eq!(ours, LONG + 1, "step {step}: {size} was found");
            *if size == LONG { &mut long } else { &mut short } += 1;
        });
    }
    assert!(long == 0 && short > 0, "{long} cuts undone, {short} done");
}

/// Calls of one client share its locks, and an OST has one promise of an object.
#[test]
fn cuts_of_one_client_at_once_all_come_to_their_end() {
    for seed in 0..10 {
        let world = World::new(seed, 3, OstConfig::default());
        let (one, _) = world.client(|_| {});
        world.run(Duration::from_secs(600), async {
            let file = create_striped(&one, "f").await;
            for _ in 0..5 {
                one.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
                let cuts = [SHORT, STRIPE + SHORT, 0].map(|size| cut(&one, &file, size));
                for done in rt::sync::join_all(cuts.into()).await {
                    done.unwrap();
                }
                let size = one.getattr(&root(), file.fid(), None).await.unwrap().attr.size;
                assert!([SHORT, STRIPE + SHORT, 0].contains(&size), "{size}");
            }
        });
    }
}

type Change<'a> = Pin<Box<dyn Future<Output = Result<(), FsError>> + 'a>>;

/// Answers may come in another order than that in which an OST did what they are about.
#[test]
fn changes_of_the_size_by_one_client_at_once_leave_what_others_find() {
    for seed in 0..10 {
        let config = SimConfig { reorder: 0.5, shuffle: 0.5, ..SimConfig::new(seed) };
        let world = World::of(config, 1, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(600), async {
            let file = create(&one, "f").await;
            for round in 0..40 {
                one.data().write(&file, 0, &pattern(0, 20_000, 3)).await.unwrap();
                one.data().fsync(&file, false).await.unwrap();
                let later = async {
                    world.sim.sleep(Duration::from_micros(10 * round)).await;
                    one.data().fallocate(&file, 0, 3000, 10_500).await
                };
                let changes: Vec<Change<'_>> = vec![Box::pin(cut(&one, &file, 4500)), Box::pin(later)];
                for done in rt::sync::join_all(changes).await {
                    done.unwrap();
                }
                let mut sizes = Vec::new();
                for c in [&one, &two, &one] {
                    sizes.push(c.getattr(&root(), file.fid(), None).await.unwrap().attr.size);
                }
                let same = sizes.iter().all(|s| *s == sizes[1]);
                assert!(same && [4500, 13_500].contains(&sizes[1]), "seed {seed}, round {round}: {sizes:?}");
            }
        });
    }
}

/// The request for a lock waits until a cut is committed, and its client is given up meanwhile: the lock is nobody's, and nobody waits
/// for it.
#[test]
fn a_request_for_a_lock_that_outlives_its_session_leaves_no_lock_behind() {
    let world = World::new(1, 3, OstConfig::default());
    let ((one, host), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(Duration::from_secs(3600), async {
        let file = create_striped(&two, "f").await;
        two.data().write(&file, 0, &pattern(0, LONG as usize, 3)).await.unwrap();
        two.data().fsync(&file, false).await.unwrap();
        let of_one = open(&one, "f", O_RDWR).await;
        world.oss.iter().for_each(|o| o.host.set_disk_slowness(2000));
        cut(&two, &file, SHORT).await.unwrap();
        let c = one.clone();
        one.rt().spawn(async move {
            let _ = c.data().read(&of_one, 0, 4096).await;
        });
        world.sim.sleep(Duration::from_millis(1)).await;
        host.kill();
        for i in 0..3 {
            world.ost(i).set_params("obdfilter.*.evict_client", &format!("{:x}", one.sessions().id().0)).unwrap();
        }
        world.sim.sleep(Duration::from_millis(1)).await;
        world.oss.iter().for_each(|o| o.host.set_disk_slowness(1));
        world.sim.sleep(Duration::from_secs(10)).await;
        let begun = world.sim.now();
        two.data().write(&file, 0, &[3; 10_000]).await.unwrap();
        two.data().fsync(&file, false).await.unwrap();
        assert!(world.sim.now().since(begun) < Duration::from_secs(1), "a lock is waited for that nobody has");
    });
}
