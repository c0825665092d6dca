//! Servers whose lock tables are full: the oldest locks are called back, and no program hears of it.
use crate::world::*;
use mds::MdsConfig;

const FILES: u64 = 24;

/// Lock tables of so many entries.
fn world(seed: u64, mds_locks: usize, ost_locks: usize) -> World {
    let mut mds = MdsConfig::default();
    mds.locks.locks_max = mds_locks;
    let ost = OstConfig { locks_max: ost_locks, ..OstConfig::default() };
    World::with_mds(SimConfig::new(seed), 1, ost, 1 << 30, mds)
}

async fn works(c: Rc<Client>, salt: u64) {
    for n in 0..FILES {
        let file = create(&c, &format!("f{salt}-{n}")).await;
        c.data().write(&file, 0, &pattern(0, 20_000, salt + n)).await.unwrap();
        assert_eq!(c.data().fsync(&file, false).await, Ok(()));
        c.release(&file).await.unwrap();
    }
}
async fn looks(c: &Rc<Client>, salt: u64) {
    for n in 0..FILES {
        let file = open(c, &format!("f{salt}-{n}"), O_RDWR).await;
        assert!(read_all(c, &file, MIB).await == pattern(0, 20_000, salt + n), "file {n} of {salt}");
        c.data().write(&file, 20_000, &[1; 5000]).await.unwrap();
        let attr = c.getattr(&root(), file.fid(), None).await.unwrap().attr;
        assert_eq!(attr.size, 25_000);
        assert_eq!(c.data().fsync(&file, false).await, Ok(()));
        c.release(&file).await.unwrap();
    }
}

#[test]
fn programs_read_and_write_at_an_ost_whose_lock_table_is_full() {
    for (seed, locks) in [(1, 3), (2, 5), (3, 9)] {
        let world = world(seed, 4 << 20, locks);
        let (one, _) = world.client(|_| {});
        let (two, _) = world.client(|_| {});
        world.run(Duration::from_secs(900), async {
            rt::sync::join_all(vec![works(one.clone(), 10), works(two.clone(), 50)]).await;
            looks(&one, 50).await;
            looks(&two, 10).await;
            let refused: u64 = [&one, &two].iter().map(|c| c.osts().all()[0].import().unwrap().refusals()).sum();
            assert!(refused > 0, "{locks} locks: the table was never full");
            assert_eq!(one.osts().all()[0].import().unwrap().evictions(), 0);
            assert_eq!(one.losses().text() + &two.losses().text(), "");
        });
    }
}

#[test]
fn programs_make_and_look_at_files_at_a_metadata_server_whose_lock_table_is_full() {
    for (seed, locks) in [(1, 4), (2, 10)] {
        let world = world(seed, locks, 4 << 20);
        let (one, _) = world.client(|_| {});
        let (two, _) = world.client(|_| {});
        world.run(Duration::from_secs(900), async {
            rt::sync::join_all(vec![works(one.clone(), 10), works(two.clone(), 50)]).await;
            looks(&one, 50).await;
            looks(&two, 10).await;
            assert_eq!(one.sessions().mdc().evictions() + two.sessions().mdc().evictions(), 0);
        });
    }
}

/// A change finds no room for the lock that keeps others from what they remember: they give it up all the same.
#[test]
fn a_change_at_a_metadata_server_whose_lock_table_is_full_is_seen_by_those_who_remember_what_was() {
    use wire::mdt::{SetBits, SetattrRequest};
    for more in 0..14 {
        let world = world(more, 10, 4 << 20);
        let ((changes, _), (sees, _)) = (world.client(|_| {}), world.client(|_| {}));
        world.run(Duration::from_secs(900), async {
            let mut fids = Vec::new();
            for n in 0..3 + more {
                let file = create(&changes, &format!("f{n}")).await;
                changes.release(&file).await.unwrap();
                fids.push(file.fid());
            }
            changes.drop_caches().await;
            let mode = async |fid| sees.getattr(&root(), fid, None).await.unwrap().attr.mode & 0o777;
            // Neither its lock is the first to be called back, nor the last that came.
            for fid in &fids {
                assert_eq!(mode(*fid).await, 0o644);
            }
            let fid = fids[2];
            let request = SetattrRequest { valid: SetBits::MODE, mode: 0o600, ..SetattrRequest::default() };
            changes.setattr(&root(), &changes.meta().inode(fid), request, None).await.unwrap();
            assert_eq!(mode(fid).await, 0o600, "{more} more: the one who looks remembers what was");
        });
    }
}
