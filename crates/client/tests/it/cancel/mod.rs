//! An operation whose future is dropped, wherever it waits: what was promised holds, nothing stays in hand, and everybody goes on.
//!
//! Each operation of a client is dropped after its first poll, after its second, and so on until it comes to its end before, once
//! as soon as it waits and once when what it waited for has come. `STRIA_CANCEL=all` drops long ones after each poll, too, where
//! otherwise a few are looked at; `STRIA_CANCEL=NAME` has the one operation of that name only.
pub mod amid;
mod operations;
mod place;

use crate::world::*;
use amid::{When, dropped_after};
use client::{FlockMode, LockCall};
use operations::{Operation, lock_call};
use place::{Node, Place, differ, look_at, nothing_more, quiet};
use wire::mdt::{SetBits, SetattrRequest};

const LIMIT: Duration = Duration::from_secs(36_000);
/// How long anything takes at most that follows.
const FOLLOWS_MAX: Duration = Duration::from_secs(30);
/// Polls up to which each one is looked at.
const EACH_MAX: u32 = 24;

fn asked() -> String {
    std::env::var("STRIA_CANCEL").unwrap_or_default()
}

fn is_asked_for(op: &Operation) -> bool {
    let asked = asked();
    asked.is_empty() || asked == "all" || asked == op.name
}

/// How many polls after `polls` are looked at next.
fn next(polls: u32) -> u32 {
    if polls < EACH_MAX || asked() == "all" { polls + 1 } else { polls + polls / 4 }
}

/// What else happens when an operation is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strike {
    /// Nothing.
    None,
    /// The other client is there, with bytes that it has not written out, and locks on everything.
    Other,
    /// An OST loses its power and comes back.
    Ost,
    /// The metadata server dies and comes back.
    Mds,
}

/// A drop: after so many polls.
#[derive(Clone, Copy, Debug)]
struct Drop {
    polls: u32,
    when: When,
    strike: Strike,
}

/// Two clients of a cluster.
struct Pair {
    world: World,
    one: Rc<Client>,
    two: Rc<Client>,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let world = World::new(seed, 2, OstConfig::default());
        let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
        Pair { world, one, two }
    }
    /// Fails when `steps` do not come to their end.
    async fn ends<T>(&self, what: &str, steps: impl Future<Output = T>) -> T {
        let pause = self.world.sim.sleep(FOLLOWS_MAX);
        match rt::sync::race(steps, pause).await {
            Ok(done) => done,
            Err(()) => {
                let locks = |c: &Rc<Client>| c.osts().all().iter().map(|o| o.lock_count()).collect::<Vec<_>>();
                let held = [&self.one, &self.two].map(|c| (c.in_use(), locks(c)));
                panic!("{what}: it does not end; in use, and locks at OSTs: {held:?}")
            }
        }
    }
    fn evictions(&self) -> u64 {
        let at_osts = |c: &Rc<Client>| -> u64 {
            c.osts().all().iter().filter_map(|o| o.import_if_any()).map(|i| i.evictions()).sum()
        };
        [&self.one, &self.two].iter().map(|c| at_osts(c) + c.sessions().mdc().evictions()).sum()
    }
    /// A place where the operation may begin.
    async fn place(&self, op: &Operation, number: u32, held: bool) -> Rc<Place> {
        let place = Place::new(&self.one, &self.two, &format!("d{number}")).await;
        (op.before)(place.clone()).await.unwrap();
        if held {
            place.held_by_two().await;
        }
        place
    }
    /// What everybody sees: the same.
    async fn seen(&self, place: &Place, what: &str) -> Node {
        let look = async |c: &Rc<Client>| self.ends(what, look_at(c.clone(), place.dir)).await;
        let here = look(&self.one).await;
        let there = look(&self.two).await;
        assert!(here == there, "{what}: as the one and the other client see it{}", differ(&here, &there));
        self.ends(what, self.one.drop_caches()).await;
        let anew = look(&self.one).await;
        assert!(here == anew, "{what}: as it was known and as servers have it{}", differ(&here, &anew));
        here
    }
    /// Whatever programs do next on both clients goes on.
    async fn goes_on(&self, place: &Place, what: &str) {
        for (c, n) in [(&self.two, 2u8), (&self.one, 1)] {
            self.ends(what, works(c, place, n)).await;
        }
    }

    async fn strikes(&self, strike: Strike) {
        match strike {
            Strike::None | Strike::Other => {}
            Strike::Ost => {
                self.world.lose_power(0);
                self.world.restart_oss(0).await;
            }
            Strike::Mds => {
                self.world.kill_mds();
                self.world.restart_mds().await;
            }
        }
    }
    /// No program of the first client has a lock: the other one gets each.
    async fn nobody_has_a_lock(&self, place: &Place, what: &str) {
        for whole in [false, true] {
            for mode in [FlockMode::Exclusive, FlockMode::Unlock] {
                let call = lock_call(place, whole, mode, 9);
                let got = self.ends(what, self.two.flocks().set_lock(call, false, std::future::pending())).await;
                assert_eq!(got, Ok(()), "{what}: locks of programs");
            }
        }
    }

    /// Drops one operation. False: it came to its end before.
    async fn drops(&self, op: &Operation, number: u32, drop: Drop, views: &(Node, Node)) -> bool {
        let what = format!("{}, {drop:?}", op.name);
        let place = self.place(op, number, drop.strike == Strike::Other).await;
        let (before, opens) = (quiet(&self.world, &self.one).await, place.opened.borrow().len());
        let done = dropped_after(drop.polls, drop.when, (op.run)(place.clone())).await;
        let is_done = done.is_some();
        if let Some(done) = done {
            done.unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        self.strikes(drop.strike).await;
        // What goes on has its turn.
        self.world.sim.sleep(Duration::from_millis(1)).await;
        if opens == place.opened.borrow().len() {
            nothing_more(&self.world, &self.one, &before, &what).await;
        }
        if is_done || drop.polls == 0 {
            self.ends(&what, place.gives_locks_back()).await;
        }
        self.ends(&what, place.two_gives_locks_back()).await;
        self.nobody_has_a_lock(&place, &what).await;
        let now = self.seen(&place, &what).await.timeless();
        let (was, is) = views;
        assert!(
            operations::keeps(op.promise, was, is, &now),
            "{what}: neither as it was{}\nnor as it was to be{}",
            differ(was, &now),
            differ(is, &now)
        );
        self.goes_on(&place, &what).await;
        self.ends(&what, place.end_opens()).await;
        self.ends(&what, self.one.drop_caches()).await;
        nothing_more(&self.world, &self.one, &client::InUse::default(), &what).await;
        let opens = self.world.mds_opens_of(self.one.sessions().id());
        assert_eq!(opens, 0, "{what}: opens at the metadata server");
        assert_eq!(self.evictions(), 0, "{what}: evictions");
        !is_done
    }

    /// What is seen before an operation and behind it.
    async fn views(&self, op: &Operation, held: bool) -> (Node, Node) {
        let what = format!("{}, not dropped", op.name);
        let place = self.place(op, 0, held).await;
        let before = self.seen(&place, &what).await.timeless();
        self.ends(&what, place.end_opens()).await;
        let place = self.place(op, 1, held).await;
        self.ends(&what, (op.run)(place.clone())).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        let done = self.seen(&place, &what).await.timeless();
        self.ends(&what, place.end_opens()).await;
        (before, done)
    }

    /// Everybody leaves, and nothing is left.
    async fn leave(&self, what: &str) {
        assert!(self.ends(what, self.one.leave()).await, "{what}: the first client leaves with everything told");
        assert!(self.ends(what, self.two.leave()).await, "{what}: the second client leaves with everything told");
        self.world.fsck(what).await;
    }
}

/// A program's usual steps in the place.
async fn works(c: &Rc<Client>, place: &Place, n: u8) {
    let (cred, name) = (root(), [b'w', n]);
    for entry in c.meta().readdir(&cred, place.dir, 0, 64 << 10, true).await.unwrap().entries {
        if entry.name.0[..] == *b"." || entry.name.0[..] == *b".." {
            continue;
        }
        let attr = c.getattr(&cred, entry.fid, None).await.unwrap().attr;
        if attr.mode & 0o170_000 != 0o100_000 {
            continue;
        }
        let file = c.open(&cred, entry.fid, O_RDWR).await.unwrap();
        let bytes = read_all(c, &file, 16 * MIB).await;
        assert_eq!(bytes.len() as u64, attr.size);
        c.data().write(&file, 0, &[n; 10]).await.unwrap();
        c.data().write(&file, attr.size, &[n; 5000]).await.unwrap();
        cut(c, &file, attr.size + 100).await.unwrap();
        c.data().fallocate(&file, 3, 10, 10).await.unwrap();
        c.data().fsync(&file, false).await.unwrap();
        assert_eq!(c.data().read(&file, 0, 10).await.unwrap().to_vec(), [n; 10]);
        c.release(&file).await.unwrap();
    }
    let mode = SetattrRequest { valid: SetBits::MODE, mode: 0o100_640, ..SetattrRequest::default() };
    c.setattr(&cred, &c.meta().inode(place.file.fid()), mode, None).await.unwrap();
    for whole in [false, true] {
        for mode in [FlockMode::Exclusive, FlockMode::Unlock] {
            let call = LockCall { mode, ..lock_call(place, whole, mode, 100 + u64::from(n)) };
            c.flocks().set_lock(call, true, std::future::pending()).await.unwrap();
        }
    }
    let new = NewFile { flags: O_RDWR | O_CREAT, mode: 0o644, ..NewFile::default() };
    let (_, file) = c.create_open(&cred, place.dir, &name, new).await.unwrap();
    c.data().write(&file, 0, &[n; 100]).await.unwrap();
    c.release(&file).await.unwrap();
    c.meta().rename(&cred, (place.dir, &name), (place.dir, b"moved"), 0).await.unwrap();
    c.meta().unlink(&cred, place.dir, b"moved", false).await.unwrap();
}

/// Drops each operation after each of these polls, until it comes to its end before.
fn drops_each(strike: Strike, whens: &[When], first: u32, next: impl Fn(u32) -> u32) {
    for op in operations::all().into_iter().filter(is_asked_for) {
        let pair = Pair::new(7);
        pair.world.run(LIMIT, async {
            let views = pair.views(&op, strike == Strike::Other).await;
            let mut number = 1;
            for when in whens {
                let mut polls = if *when == When::Asleep { first.max(1) } else { first };
                loop {
                    number += 1;
                    let drop = Drop { polls, when: *when, strike };
                    if !pair.drops(&op, number, drop, &views).await {
                        break;
                    }
                    polls = next(polls);
                }
            }
            pair.leave(op.name).await;
        });
    }
}

#[test]
fn an_operation_that_is_dropped_anywhere_leaves_nothing_half_done() {
    drops_each(Strike::None, &[When::Asleep, When::Woken], 0, next);
}

#[test]
fn nor_does_one_that_meets_another_client() {
    drops_each(Strike::Other, &[When::Asleep, When::Woken], 0, next);
}

/// After the first poll, the second, the fourth and so on.
fn rarely(polls: u32) -> u32 {
    if asked() == "all" { polls + 1 } else { polls * 2 }
}

#[test]
fn nor_does_one_whose_ost_loses_its_power_then() {
    drops_each(Strike::Ost, &[When::Asleep], 1, rarely);
}

#[test]
fn nor_does_one_whose_metadata_server_dies_then() {
    drops_each(Strike::Mds, &[When::Asleep], 1, rarely);
}

#[test]
fn a_client_whose_join_is_dropped_is_forgotten() {
    const SERVERS_FORGET_MAX: u32 = 600;
    let world = World::new(3, 1, OstConfig::default());
    world.run(LIMIT, async {
        let mut polls = 1;
        loop {
            let host = world.sim.host("visitor");
            let id = types::ClientId(1000 + u64::from(polls));
            let (rt, config) = world.program_on(&host, |c| c.client = id);
            let joined = dropped_after(polls, When::Asleep, roles::join(&rt, config, 1, Duration::from_secs(60))).await;
            if let Some(client) = joined {
                client.unwrap().leave().await;
                break;
            }
            polls += 1;
        }
        assert!(polls > 3, "a join asks several servers: {polls}");
        let known = || (1..polls).map(|n| world.knows(types::ClientId(1000 + u64::from(n)))).sum::<usize>();
        for _ in 0..SERVERS_FORGET_MAX {
            if known() == 0 {
                return;
            }
            world.sim.sleep(Duration::from_secs(1)).await;
        }
        panic!("clients that nobody waits for live on: {}", known());
    });
}

/// Writes that wait for room, or for space at the OST because there is no grant.
#[test]
fn a_write_that_waits_for_room_takes_nothing_along() {
    for dirty_max in [MIB / 4, MIB] {
        let world = World::new(5, 2, OstConfig::default());
        let tune = |c: &mut ClientConfig| c.dirty_bytes_max = dirty_max;
        let ((one, _), (two, _)) = (world.client(tune), world.client(tune));
        let pair = Pair { world, one, two };
        pair.world.run(LIMIT, async {
            let (mut polls, bytes) = (1, vec![9; 8 * MIB as usize]);
            loop {
                let place = Place::new(&pair.one, &pair.two, &format!("d{polls}")).await;
                let before = quiet(&pair.world, &pair.one).await;
                let what = format!("a write with room for {dirty_max}, dropped after {polls} polls");
                let written = pair.one.data().write(&place.file, 100, &bytes);
                let done = dropped_after(polls, When::Woken, written).await;
                pair.ends(&what, pair.one.data().write_out(place.file.inode())).await;
                nothing_more(&pair.world, &pair.one, &before, &what).await;
                pair.ends(&what, pair.one.data().fsync(&place.file, false)).await.unwrap();
                pair.goes_on(&place, &what).await;
                pair.ends(&what, place.end_opens()).await;
                pair.ends(&what, pair.one.drop_caches()).await;
                nothing_more(&pair.world, &pair.one, &client::InUse::default(), &what).await;
                if done.is_some() {
                    break;
                }
                polls = next(polls);
            }
            assert!(polls > 2, "it waits for room: {polls}");
            pair.leave("a write that waits for room").await;
        });
    }
}
