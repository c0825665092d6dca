//! What is fetched ahead for programs that are killed: it keeps nothing of others back.
use crate::world::*;

const LIMIT: Duration = Duration::from_secs(3600);

#[test]
fn a_copy_that_goes_on_after_its_program_keeps_nothing_of_what_readahead_may_hold() {
    const BYTES: u64 = 24 * MIB;
    // What is fetched ahead of the copy's end nobody reads.
    const COPIED: u64 = BYTES / 2;
    let world = World::new(3, 2, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(LIMIT, async {
        let file = create_striped(&c, "from").await;
        for at in (0..BYTES).step_by(MIB as usize) {
            c.data().write(&file, at, &pattern(at, MIB as usize, 3)).await.unwrap();
        }
        c.release(&file).await.unwrap();
        for round in 0..3 {
            c.drop_caches().await;
            let (from, to) = (open(&c, "from", 0).await, create(&c, &format!("to{round}")).await);
            let copied: Rc<Cell<Option<u64>>> = Rc::default();
            let (me, source, end) = (c.clone(), from.clone(), copied.clone());
            c.rt().spawn(async move {
                end.set(me.data().copy_range(&source, 0, &to, 0, COPIED).await.ok());
                me.release(&to).await.unwrap();
            });
            while c.data().readahead().held_bytes() == 0 {
                world.sim.sleep(Duration::from_micros(100)).await;
                assert!(copied.get().is_none(), "it is read in order, and not ahead");
            }
            // The program is gone, and with it its descriptors; what it asked for goes on.
            c.release(&from).await.unwrap();
            drop(from);
            assert!(copied.get().is_none(), "the copy goes on");
            while copied.get().is_none() {
                world.sim.sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(copied.get(), Some(COPIED));
            world.sim.sleep(Duration::from_secs(1)).await;
            assert_eq!(c.data().readahead().held_bytes(), 0, "round {round}");
        }
    });
}
