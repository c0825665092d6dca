//! The engine over a real server: the contract, and every fault that a server, a network or an operator makes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#[path = "support/postgres.rs"]
mod postgres;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use mds::kv::conformance::{self, batch, count};
use mds::kv::{Answer, KvError, MetaKv};
use postgres::{Postgres, is_there};
use rt::Rt;
use store_pg::{Identity, Patience, PgKv, Place};
use types::Rng;

const CACHE_BYTES: usize = 1 << 20;

fn on_shard<F: Future>(main: impl FnOnce(Rt) -> F) -> F::Output {
    rt::real::run(frames::FramePool::new(1 << 20), main).unwrap()
}

fn whose() -> Identity {
    Identity { fsname: "fs".into(), cluster: 0x77, uuid: 0x1234 }
}

fn place(url: &str) -> Place {
    Place::parse(url, None).unwrap()
}

async fn new_store(rt: &Rt, url: &str) -> Rc<PgKv> {
    store_pg::create(rt, &place(url), &whose()).await.unwrap()
}

/// Opens what [`new_store`] has made.
async fn open(rt: &Rt, url: &str, cache_bytes: usize) -> Result<Rc<PgKv>, String> {
    let opened = store_pg::open(rt, &place(url), Some((0x77, 0x1234)), cache_bytes, Patience::Lease).await;
    opened.map_err(|e| e.to_string())
}

async fn get(kv: &PgKv, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
    match kv.snapshot().await.unwrap().get(key) {
        Answer::Now(value) => value,
        Answer::Later(value) => value.await,
    }
}

#[test]
fn it_does_what_every_engine_must() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let urls: Vec<String> = ["a", "b", "c", "d", "e"].iter().map(|name| server.database(name)).collect();
    on_shard(|rt| async move {
        conformance::failed_expectations_change_nothing(&*new_store(&rt, &urls[0]).await).await;
        conformance::snapshots_hold_still(&*new_store(&rt, &urls[1]).await).await;
        conformance::holds_what_its_limits_say(&*new_store(&rt, &urls[2]).await).await;
        conformance::agrees_with_a_model(&*new_store(&rt, &urls[3]).await, 1, 150).await;
        // Nothing stays in memory: every read is the database's.
        drop(new_store(&rt, &urls[4]).await);
        conformance::agrees_with_a_model(&*open(&rt, &urls[4], 0).await.unwrap(), 2, 150).await;
    });
}

/// Commits the series until told to end, while `faults` happen, and reads on the way.
fn under_faults(url: &str, faults: impl FnOnce(&AtomicU64)) -> u64 {
    let (end, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (url, told, to_end) = (url.to_string(), acknowledged.clone(), end.clone());
    let work = std::thread::spawn(move || {
        on_shard(|rt| async move {
            let kv = new_store(&rt, &url).await;
            let mut before = kv.snapshot().await.unwrap();
            for n in 1.. {
                kv.commit(batch(n)).await.unwrap();
                told.store(n, SeqCst);
                assert_eq!(conformance::counted_in(&*before).await, n - 1, "the snapshot of before");
                before = kv.snapshot().await.unwrap();
                if n % 16 == 0 {
                    assert_eq!(count(&*kv).await, n);
                }
                if to_end.load(SeqCst) {
                    return n;
                }
            }
            unreachable!("it counts for ever")
        })
    });
    faults(&acknowledged);
    end.store(true, SeqCst);
    work.join().unwrap()
}

/// Waits until some more commits were acknowledged.
fn wait_for_more(acknowledged: &AtomicU64, more: u64) {
    let until = acknowledged.load(SeqCst) + more;
    while acknowledged.load(SeqCst) < until {
        std::thread::yield_now();
    }
}

/// What the store has after the server that changed it is gone.
fn left(server: &Postgres, url: &str) -> (u64, u64) {
    let commits = server.sql("fs", "SELECT commit_number FROM stria_mdt").parse().unwrap();
    let url = url.to_string();
    (on_shard(|rt| async move { count(&*open(&rt, &url, CACHE_BYTES).await.unwrap()).await }), commits)
}

#[test]
fn a_server_that_is_killed_again_and_again_loses_nothing_acknowledged_and_does_nothing_twice() {
    if !is_there() {
        return;
    }
    let mut server = Postgres::start();
    let url = server.database("fs");
    let mut rng = Rng::new(3);
    let done = under_faults(&url, |acknowledged| {
        for round in 0..8 {
            wait_for_more(acknowledged, 1 + rng.below(60));
            server.kill(if round % 2 == 0 { libc::SIGKILL } else { libc::SIGQUIT });
            server.start_again();
        }
        wait_for_more(acknowledged, 5);
    });
    assert_eq!(left(&server, &url), (done, done), "batches of the series, commits of the store");
}

#[test]
fn connections_that_end_at_any_moment_lose_nothing_and_do_nothing_twice() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    let mut operator = server.session("fs");
    let done = under_faults(&url, |acknowledged| {
        wait_for_more(acknowledged, 1);
        for _ in 0..300 {
            operator.run(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'stria mds'",
            );
        }
        wait_for_more(acknowledged, 5);
    });
    drop(operator);
    assert_eq!(left(&server, &url), (done, done), "batches of the series, commits of the store");
}

#[test]
fn a_transaction_in_the_way_delays_a_commit_and_fails_none() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    let mut other = server.session("fs");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    on_shard(|rt| async move {
        let kv = new_store(&rt, &url).await;
        for n in 1..=5 {
            other.run("BEGIN; UPDATE stria_mdt SET fsname = fsname");
            let commit = kv.commit(batch(n));
            let done = Rc::new(std::cell::Cell::new(false));
            let told = done.clone();
            rt.spawn(async move {
                commit.await.unwrap();
                told.set(true);
            });
            while server.sql("fs", waiting) == "0" {
                rt.sleep(types::Duration::from_millis(1)).await;
            }
            assert!(!done.get(), "it waits for the other transaction");
            other.run("COMMIT");
            while !done.get() {
                rt.sleep(types::Duration::from_millis(1)).await;
            }
            assert_eq!(count(&*kv).await, n);
        }
    });
}

#[test]
fn a_store_has_one_server_and_the_one_before_is_fenced() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    on_shard(|rt| async move {
        let first = new_store(&rt, &url).await;
        first.commit(batch(1)).await.unwrap();
        let refused = open(&rt, &url, CACHE_BYTES).await.map(drop).unwrap_err();
        assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
        first.commit(batch(2)).await.unwrap();
        let old = first.snapshot().await.unwrap();
        // As if the first had been stopped for longer than its lease: nobody but the database's clock knows.
        server.sql("fs", "UPDATE stria_mdt SET lease_until = lease_until - interval '1 hour'");
        let second = open(&rt, &url, CACHE_BYTES).await.unwrap();
        assert_eq!(count(&*second).await, 2);
        second.commit(batch(3)).await.unwrap();
        let fenced = first.commit(batch(3)).await.unwrap_err();
        assert!(
            matches!(&fenced, KvError::Fenced(why) if why.contains("its epoch is 2, this server's is 1")),
            "{fenced}"
        );
        assert!(matches!(first.commit(batch(3)).await, Err(KvError::Fenced(_))), "and stays so");
        assert!(matches!(first.failure(), Some(KvError::Fenced(_))));
        assert!(matches!(get(&first, b"unread").await, Err(KvError::Fenced(_))), "it answers no reads either");
        let Answer::Later(read) = old.get(b"n") else { panic!("what is in memory counts no more") };
        assert!(matches!(read.await, Err(KvError::Fenced(_))));
        assert_eq!(count(&*second).await, 3);
        drop((first, old));
        second.commit(batch(4)).await.unwrap();
        drop(second);
        let third = open(&rt, &url, CACHE_BYTES).await.unwrap();
        assert_eq!(count(&*third).await, 4, "one that ends gives the store back at once");
    });
}

/// Lets the taking of the store of "fs" fail so often: `how` is what its transaction does.
fn takes_fail(server: &Postgres, times: u32, how: &str) {
    server.sql("fs", "CREATE SEQUENCE tries");
    server.sql(
        "fs",
        &format!(
            "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('tries') <= {times} THEN {how}; END IF; RETURN NEW; END $$"
        ),
    );
    let when = "BEFORE UPDATE ON stria_mdt FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch)";
    server.sql("fs", &format!("CREATE TRIGGER fails {when} EXECUTE FUNCTION fails()"));
}

#[test]
fn a_store_is_taken_although_others_are_in_the_way_and_connections_end() {
    if !is_there() {
        return;
    }
    for how in ["RAISE 'in the way' USING ERRCODE = '40001'", "PERFORM pg_terminate_backend(pg_backend_pid())"] {
        let server = Postgres::start();
        let url = server.database("fs");
        on_shard(|rt| async move {
            drop(new_store(&rt, &url).await);
            takes_fail(&server, 2, how);
            let kv = open(&rt, &url, CACHE_BYTES).await.unwrap();
            kv.commit(batch(1)).await.unwrap();
            assert_eq!(server.sql("fs", "SELECT epoch FROM stria_mdt"), "2", "{how}");
            assert_eq!(server.sql("fs", "SELECT last_value FROM tries"), "3", "{how}");
        });
    }
}

/// Passes bytes on; false when this is the last: `cut` came by.
fn pass(from: &mut UnixStream, to: &mut UnixStream, cut: &AtomicBool) -> bool {
    let mut bytes = [0; 65_536];
    let Ok(n @ 1..) = from.read(&mut bytes) else { return false };
    // How a server says that it has changed a row, once that is committed.
    let changed = bytes[..n].windows(8).any(|w| w == b"UPDATE 1");
    let is_cut = changed && cut.swap(false, SeqCst);
    !is_cut && to.write_all(&bytes[..n]).is_ok()
}

/// A socket before that of a server which loses the first answer that a change was made. Its directory.
fn losing_an_answer(server: &Postgres) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (name, to) = (".s.PGSQL.5432", server.socket_dir().join(".s.PGSQL.5432"));
    let listener = UnixListener::bind(dir.path().join(name)).unwrap();
    let cut = Arc::new(AtomicBool::new(true));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(behind) = UnixStream::connect(&to) else { return };
            let ends = [(client.try_clone(), behind.try_clone()), (Ok(behind), Ok(client))];
            for (n, (from, to)) in ends.into_iter().enumerate() {
                let (mut from, mut to, cut) = (from.unwrap(), to.unwrap(), cut.clone());
                let never = Arc::new(AtomicBool::new(false));
                std::thread::spawn(move || {
                    while pass(&mut from, &mut to, if n == 1 { &cut } else { &never }) {}
                    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
                });
            }
        }
    });
    dir
}

#[test]
fn a_store_that_was_taken_and_did_not_say_so_is_taken_again_when_that_lease_is_over() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    let between = losing_an_answer(&server);
    on_shard(|rt| async move {
        drop(new_store(&rt, &url).await);
        let by_way = format!("postgres://stria@/fs?host={}", between.path().display());
        let kv = open(&rt, &by_way, CACHE_BYTES).await.unwrap();
        kv.commit(batch(1)).await.unwrap();
        assert_eq!(server.sql("fs", "SELECT epoch FROM stria_mdt"), "3", "the second time that it was taken counts");
        assert!(open(&rt, &url, CACHE_BYTES).await.is_err_and(|e| e.contains("in use by")));
    });
}

#[test]
fn an_idle_server_hears_that_it_is_fenced() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    on_shard(|rt| async move {
        let kv = new_store(&rt, &url).await;
        server.sql("fs", "UPDATE stria_mdt SET epoch = epoch + 1");
        while kv.failure().is_none() {
            rt.sleep(types::Duration::from_millis(10)).await;
        }
        assert!(matches!(kv.failure(), Some(KvError::Fenced(_))));
    });
}

#[test]
fn a_database_that_lost_commits_is_told_from_one_that_has_them() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    on_shard(|rt| async move {
        let kv = new_store(&rt, &url).await;
        for n in 1..=3 {
            kv.commit(batch(n)).await.unwrap();
        }
        // As a replica has it that was behind when it became the primary.
        server.sql("fs", "UPDATE stria_mdt SET commit_number = 2");
        let lost = kv.commit(batch(4)).await.unwrap_err().to_string();
        assert!(lost.contains("gone back from commit 3 to 2"), "{lost}");
        assert!(matches!(kv.commit(batch(4)).await, Err(KvError::Latched(_))));
    });
}

#[test]
fn a_database_that_is_no_store_of_ours_is_refused_with_its_reason() {
    if !is_there() {
        return;
    }
    let mut server = Postgres::start();
    let url = server.database("fs");
    on_shard(|rt| async move {
        let missing = open(&rt, &url, CACHE_BYTES).await.map(drop).unwrap_err();
        assert!(missing.contains("holds none: make one with 'stria mkfs' first"), "{missing}");
        let absent = open(&rt, &server.url("nowhere"), CACHE_BYTES).await.map(drop).unwrap_err();
        assert!(absent.contains("database \"nowhere\" does not exist"), "{absent}");
        let kv = new_store(&rt, &url).await;
        kv.commit(batch(1)).await.unwrap();
        let wanted = Some((0x99, 1));
        let foreign = store_pg::open(&rt, &place(&url), wanted, CACHE_BYTES, Patience::Lease).await;
        let foreign = foreign.map(drop).unwrap_err().to_string();
        assert!(foreign.contains("cluster 0000000000000077; this is store 0000000000000001"), "{foreign}");
        kv.commit(batch(2)).await.expect("whoever asked for another store has not taken this one");
        let again = store_pg::create(&rt, &place(&url), &whose()).await.map(drop).unwrap_err().to_string();
        assert!(again.contains("holds file system 'fs' of cluster 0000000000000077 already"), "{again}");
        drop(kv);
        server.sql("fs", "UPDATE stria_mdt SET schema_version = 9");
        let version = open(&rt, &url, CACHE_BYTES).await.map(drop).unwrap_err();
        assert!(version.contains("of version 9, this build reads version 1"), "{version}");
        server.sql("fs", "UPDATE stria_mdt SET schema_version = 1");
        server.sql("postgres", "ALTER DATABASE fs SET default_transaction_read_only = on");
        let read_only = open(&rt, &url, CACHE_BYTES).await.map(drop).unwrap_err();
        assert!(read_only.contains("takes no changes (a read-only replica"), "{read_only}");
        server.kill(libc::SIGQUIT);
        let unreachable = open(&rt, &url, CACHE_BYTES).await.map(drop).unwrap_err();
        assert!(unreachable.contains(&url) && unreachable.contains("connect"), "{unreachable}");
    });
}
