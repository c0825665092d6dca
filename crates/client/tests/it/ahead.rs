//! What is fetched ahead for programs that are killed: neither the pages nor the names keep those of others back.
use crate::cancel::amid::{When, dropped_after};
use crate::world::*;
use client::NewNode;
use wire::mdt::NodeKind;

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

#[test]
fn a_look_up_that_is_dropped_while_it_fetches_names_ahead_leaves_that_to_the_next() {
    const NAMES: usize = 300;
    let name = |i: usize| format!("a-name-{i}").into_bytes();
    let world = World::new(5, 1, OstConfig::default());
    let ((one, _), (two, _)) = (world.client(|_| {}), world.client(|_| {}));
    world.run(LIMIT, async {
        let node = |kind, mode| NewNode { kind, mode, ..NewNode::default() };
        let dir = node(NodeKind::Directory, 0o040_755);
        let dir = one.create(&root(), Fid::ROOT, b"d", dir).await.unwrap().attr.fid;
        for i in 0..NAMES {
            one.create(&root(), dir, &name(i), node(NodeKind::Node, 0o010_644)).await.unwrap();
        }
        one.drop_caches().await;
        two.meta().readdir(&root(), dir, 0, 64 << 10, false).await.unwrap();
        let look = async |i: usize| two.lookup(&root(), dir, &name(i)).await.unwrap();
        for i in 0..3 {
            look(i).await;
        }
        let dropped = dropped_after(1, When::Asleep, look(3)).await;
        assert!(dropped.is_none(), "it waits for the directory's entries");
        let sent = || two.sessions().mdc().counters().1;
        let before = sent();
        for i in 4..NAMES {
            assert!(!look(i).await.attr.fid.is_zero());
        }
        let asked = sent() - before;
        assert!(asked < NAMES as u64 / 4, "{asked} requests for {NAMES} names of a directory that was listed");
    });
}
