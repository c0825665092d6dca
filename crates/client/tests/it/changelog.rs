//! The changelog beside several clients, replays, and a client that does not come back: records carried out in order give the names.
use std::collections::BTreeSet;

use crate::world::*;
use client::NewNode;
use wire::Op;
use wire::changelog::*;
use wire::mdt::NodeKind;

const LIMIT: Duration = Duration::from_secs(3600);

async fn register(c: &Rc<Client>) -> u32 {
    let q = ChangelogUserRequest { id: 1, ..ChangelogUserRequest::default() };
    let r: ChangelogUserReply = c.sessions().mdc().ask(Op::ChangelogUser, &q).await.unwrap();
    r.user
}

/// A program that follows the log.
#[derive(Default)]
struct Follower {
    names: Names,
    taken_in: u64,
}
impl Follower {
    /// Takes a page in. Whether there was one.
    async fn go_on(&mut self, c: &Rc<Client>) -> bool {
        let q = ChangelogRequest { from: self.taken_in + 1 };
        // The server may be away.
        let Ok(page) = c.sessions().mdc().ask::<_, ChangelogReply>(Op::Changelog, &q).await else { return true };
        for r in &page.records {
            assert_eq!(r.index, self.taken_in + 1, "no record is left out, and none comes twice");
            r.carry_out(&mut self.names).unwrap();
            self.taken_in += 1;
        }
        !page.records.is_empty()
    }
}

/// Changes names at random, here and there, whether or not that succeeds.
async fn change(c: &Rc<Client>, dirs: &RefCell<Vec<Fid>>, rng: &mut Rng) {
    let dir = |rng: &mut Rng| dirs.borrow()[rng.below(dirs.borrow().len() as u64) as usize];
    let word = |rng: &mut Rng| format!("n{}", rng.below(6)).into_bytes();
    let (d, n, e, m) = (dir(rng), word(rng), dir(rng), word(rng));
    let cred = root();
    match rng.below(8) {
        0 | 1 => {
            let node = NewNode { kind: NodeKind::Directory, mode: 0o755, ..NewNode::default() };
            if let Ok(made) = c.create(&cred, d, &n, node).await {
                dirs.borrow_mut().push(made.attr.fid);
            }
        }
        2 | 3 => {
            let new = NewFile { flags: 0o302, mode: 0o644, ..NewFile::default() };
            if let Ok((_, file)) = c.create_open(&cred, d, &n, new).await {
                let _ = c.release(&file).await;
            }
        }
        4 => _ = c.meta().unlink(&cred, d, &n, rng.below(3) == 0).await,
        5 => _ = c.meta().rename(&cred, (d, &n), (e, &m), 2 * (rng.below(2) as u32)).await,
        6 => _ = c.meta().rename(&cred, (d, &n), (e, &m), 0).await,
        _ => {
            if let Ok(entry) = c.lookup(&cred, d, &n).await {
                let _ = c.link(&cred, entry.attr.fid, e, &m).await;
            }
        }
    }
}

type Task<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One run: what works, who dies, who follows.
struct Run {
    seed: u64,
    world: World,
    clients: Vec<(Rc<Client>, Host)>,
    dirs: RefCell<Vec<Fid>>,
    /// Programs of clients that live which are done.
    over: Cell<usize>,
    follower: RefCell<Follower>,
}
/// Clients that live.
const LIVE: usize = 3;

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::new(seed, 1, OstConfig::default());
        world.set_mds_window(Duration::from_secs(5));
        let clients = (0..=LIVE).map(|_| world.client(|_| {})).collect();
        let (dirs, over) = (RefCell::new(vec![Fid::ROOT]), Cell::new(0));
        Run { seed, world, clients, dirs, over, follower: RefCell::default() }
    }
    fn is_over(&self) -> bool {
        self.over.get() == LIVE
    }
    async fn work(&self, i: usize) {
        let mut rng = Rng::new(self.seed * 10 + i as u64);
        for _ in 0..120 {
            change(&self.clients[i].0, &self.dirs, &mut rng).await;
            self.world.sim.sleep(Duration::from_millis(rng.below(12))).await;
        }
        self.over.set(self.over.get() + usize::from(i < LIVE));
    }
    /// As [`Run::work`], of the client that may die: then its operations wait for ever.
    async fn work_of_the_last(&self) {
        let over = async {
            while !self.is_over() {
                self.world.sim.sleep(Duration::from_millis(100)).await;
            }
        };
        _ = rt::sync::race(self.work(LIVE), over).await;
    }
    /// The metadata server dies four times; in half of the runs the last client dies for good with it.
    async fn deaths(&self) {
        let mut rng = Rng::new(self.seed + 77);
        for n in 0..4 {
            self.world.sim.sleep(Duration::from_millis(100 + rng.below(250))).await;
            self.world.kill_mds();
            if self.seed.is_multiple_of(2) && n == 1 {
                self.clients[LIVE].1.kill();
                self.clients[LIVE].0.abandon();
            }
            self.world.restart_mds().await;
        }
    }
    async fn follow(&self, user: u32) {
        let (mut rng, first) = (Rng::new(self.seed + 99), &self.clients[0].0);
        while !self.is_over() {
            let mut f = self.follower.take();
            f.go_on(first).await;
            if f.taken_in > 0 && rng.below(4) == 0 {
                let q = ChangelogUserRequest { act: ChangelogAct::Clear, user, index: f.taken_in, id: 0 };
                // The server may be away.
                _ = first.sessions().mdc().ask::<_, ChangelogUserReply>(Op::ChangelogUser, &q).await;
            }
            self.follower.replace(f);
            self.world.sim.sleep(Duration::from_millis(30)).await;
        }
    }
}

#[test]
fn records_carried_out_give_the_names_whoever_dies_and_replays() {
    for seed in 0..12 {
        let run = Run::new(seed);
        let (world, first) = (&run.world, &run.clients[0].0);
        let user = world.run(LIMIT, register(first));
        let inodes = world.mds_inodes();
        let mut tasks: Vec<Task<'_>> = (0..LIVE).map(|i| Box::pin(run.work(i)) as Task<'_>).collect();
        tasks.push(Box::pin(run.work_of_the_last()));
        tasks.push(Box::pin(run.deaths()));
        tasks.push(Box::pin(run.follow(user)));
        world.run(LIMIT, async { drop(rt::sync::join_all(tasks).await) });
        let mut follower = run.follower.take();
        world.run(LIMIT, async {
            // What the dead client left goes with it.
            world.sim.sleep(Duration::from_secs(120)).await;
            while follower.go_on(first).await {}
            for ((dir, name), fid) in &follower.names {
                let found = first.lookup(&root(), *dir, name).await.unwrap().attr.fid;
                assert_eq!(found, *fid, "seed {seed}: {dir} {}", String::from_utf8_lossy(name));
            }
            // Nameless inodes stay as long as a client may open them.
            for (c, _) in run.clients.iter().take(LIVE) {
                c.drop_caches().await;
            }
            world.sim.sleep(Duration::from_secs(120)).await;
        });
        let named: BTreeSet<Fid> = follower.names.values().copied().collect();
        assert_eq!(world.mds_inodes(), inodes + named.len() as u64, "seed {seed}: there are no other names");
        assert!(follower.taken_in > 60, "seed {seed}: {}", follower.taken_in);
    }
}
