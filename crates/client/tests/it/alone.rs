//! Changes go on alone when their programs are killed, and there is a limit: as long as so many do, no other one begins.
use crate::world::*;
use client::{Begins, NewNode};
use rt::sync::oneshot;
use wire::mdt::NodeKind;

const MAX: usize = 8;
const SOON: Duration = Duration::from_millis(20);

/// A program that makes a directory, and is killed after a while.
async fn makes(c: &Rc<Client>, begins: Begins, name: String, killed: impl Future<Output = ()>) -> Result<(), FsError> {
    let make = |c: Rc<Client>| async move {
        let node = NewNode { kind: NodeKind::Directory, mode: 0o755, ..NewNode::default() };
        c.create(&root(), Fid::ROOT, name.as_bytes(), node).await.map(drop)
    };
    c.carry_out(begins, make, |_, ()| (), killed).await
}

async fn is_there(c: &Rc<Client>, name: &str) -> bool {
    !c.lookup(&root(), Fid::ROOT, name.as_bytes()).await.unwrap().attr.fid.is_zero()
}

#[test]
fn as_many_go_on_alone_as_may_and_what_comes_behind_never_happens_or_waits() {
    let world = World::new(1, 1, OstConfig::default());
    let (c, _) = world.client(|c| c.changes_alone_max = MAX);
    world.run(Duration::from_secs(3600), async {
        let alone = c.sessions().alone();
        world.kill_mds();
        for i in 0..MAX + 100 {
            let done = makes(&c, Begins::InTurn, format!("d{i}"), c.rt().sleep(SOON)).await;
            assert_eq!(done, Err(FsError::Interrupted), "nobody hangs: {i}");
            assert_eq!(alone.count(), MAX.min(i + 1));
            assert!(c.in_use().of("requests") <= MAX as u64, "{:?}", c.in_use());
        }
        assert_eq!(alone.limit_hits(), 100);
        let never = std::future::pending;
        assert_eq!(makes(&c, Begins::NowOrNever, "never".into(), never()).await, Err(FsError::WouldBlock));
        // A program that is not killed waits for its turn, and what gives something back for none.
        let ((tell, told), waiting) = (oneshot(), c.clone());
        c.rt().spawn(async move { tell.send(makes(&waiting, Begins::InTurn, "waited".into(), never()).await) });
        let always = makes(&c, Begins::Always, "always".into(), c.rt().sleep(SOON)).await;
        assert_eq!((always, alone.count()), (Err(FsError::Interrupted), MAX + 1), "it has begun");
        world.restart_mds().await;
        assert_eq!(told.await.unwrap(), Ok(()));
        world.sim.sleep(Duration::from_secs(1)).await;
        assert_eq!((alone.count(), c.in_use().of("requests")), (0, 0));
        for i in 0..MAX + 100 {
            assert_eq!(is_there(&c, &format!("d{i}")).await, i < MAX, "d{i}");
        }
        for (name, there) in [("waited", true), ("always", true), ("never", false)] {
            assert_eq!(is_there(&c, name).await, there, "{name}");
        }
        assert_eq!(makes(&c, Begins::NowOrNever, "new".into(), never()).await, Ok(()));
    });
}

#[test]
fn what_a_change_brings_when_nobody_is_there_is_undone_and_a_dropped_one_counts_as_well() {
    let world = World::new(2, 1, OstConfig::default());
    let (c, _) = world.client(|_| {});
    world.run(Duration::from_secs(3600), async {
        let file = create(&c, "f").await;
        c.release(&file).await.unwrap();
        let alone = c.sessions().alone();
        world.kill_mds();
        let (fid, undone) = (file.fid(), Rc::new(Cell::new(0)));
        let undo = undone.clone();
        let opens = |c: Rc<Client>| async move { c.open(&root(), fid, O_RDWR).await };
        let undo = move |c: Rc<Client>, file: Rc<OpenFile>| {
            undo.set(undo.get() + 1);
            c.rt().clone().spawn(async move { c.release_soon(&file).await });
        };
        let opened = c.carry_out(Begins::InTurn, opens, undo, c.rt().sleep(SOON)).await;
        assert_eq!(opened.map(drop), Err(FsError::Interrupted));
        // The future itself is dropped.
        let made = makes(&c, Begins::InTurn, "d".into(), std::future::pending());
        assert!(c.rt().timeout(SOON, made).await.is_none());
        assert_eq!((alone.count(), undone.get()), (2, 0));
        world.restart_mds().await;
        world.sim.sleep(Duration::from_secs(1)).await;
        assert_eq!((alone.count(), undone.get()), (0, 1));
        assert!(is_there(&c, "d").await);
        assert_eq!((world.mds_opens_of(c.sessions().id()), c.in_use().of("opens")), (0, 0));
    });
}
