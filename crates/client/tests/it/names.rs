//! Names that programs of several clients move and look up at once: what an answer says late is not taken for what is.
use std::pin::Pin;

use crate::world::*;
use wire::mdt::{SetBits, SetattrRequest};

const FILES: u64 = 60;

/// What a program of the test does, and what it found wrong.
type Program<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + 'a>>;

/// Makes a file under a name of its own and moves it to `t`, again and again.
async fn moves(world: &World, c: &Rc<Client>, own: &str, mut rng: Rng) -> Result<(), String> {
    for i in 0..FILES {
        let file = create(c, own).await;
        c.data().write(&file, 0, b"full").await.unwrap();
        c.release(&file).await.unwrap();
        c.meta().rename(&root(), (Fid::ROOT, own.as_bytes()), (Fid::ROOT, b"t"), 0).await.unwrap();
        match c.lookup(&root(), Fid::ROOT, own.as_bytes()).await {
            Err(FsError::NotFound) => {}
            Ok(entry) if entry.attr.fid.is_zero() => {}
            said => return Err(format!("{own} was moved away for the {i}th time, and is {said:?}")),
        }
        world.sim.sleep(Duration::from_micros(rng.below(500))).await;
    }
    Ok(())
}

/// Looks up `t` until the others are done, and now and then reads it.
async fn looks(world: &World, c: &Rc<Client>, movers: &Cell<u32>, mut rng: Rng) -> Result<(), String> {
    while movers.get() > 0 {
        let entry = c.lookup(&root(), Fid::ROOT, b"t").await.map_err(|e| format!("t: {e}"))?;
        if rng.below(2) == 0 {
            // It takes what others know of the file; that may be gone by now.
            let mode = SetattrRequest { valid: SetBits::MODE, mode: 0o644, ..SetattrRequest::default() };
            _ = c.setattr(&root(), &c.meta().inode(entry.attr.fid), mode, None).await;
        }
        if rng.below(8) == 0 {
            let file = open(c, "t", 0).await;
            let found = read_all(c, &file, 10).await;
            c.release(&file).await.unwrap();
            if found != b"full" {
                return Err(format!("t holds {found:?}"));
            }
        }
        world.sim.sleep(Duration::from_micros(rng.below(500))).await;
    }
    Ok(())
}

#[test]
fn a_name_that_was_moved_away_is_gone_whoever_asked_for_the_new_one_meanwhile() {
    for seed in 0..20 {
        let sim = SimConfig { reorder: 0.3, ..SimConfig::new(seed) };
        let world = World::of(sim, 1, OstConfig::default());
        let clients = [(); 2].map(|()| world.client(|_| {}).0);
        let movers = Cell::new(2);
        let results = world.run(Duration::from_secs(3600), async {
            let file = create(&clients[0], "t").await;
            clients[0].data().write(&file, 0, b"full").await.unwrap();
            let mut all: Vec<Program<'_>> = Vec::new();
            for (k, c) in clients.iter().enumerate() {
                let (world, movers, own) = (&world, &movers, format!("n{k}"));
                let rng = move |n| Rng::new(seed * 100 + k as u64 * 10 + n);
                all.push(Box::pin(async move {
                    let moved = moves(world, c, &own, rng(0)).await;
                    movers.set(movers.get() - 1);
                    moved
                }));
                all.push(Box::pin(looks(world, c, movers, rng(1))));
            }
            rt::sync::join_all(all).await
        });
        assert_eq!(results.into_iter().collect::<Result<Vec<()>, String>>(), Ok(vec![(); 4]), "seed {seed}");
    }
}
