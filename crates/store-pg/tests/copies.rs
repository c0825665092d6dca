//! Databases that are older copies of themselves: which of several servers is used, and what a metadata target's directory refuses.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#[path = "support/postgres.rs"]
mod postgres;

use std::path::Path;
use std::rc::Rc;

use mds::kv::conformance::{batch, count};
use mds::kv::{KvError, MetaKv};
use postgres::{Postgres, is_there};
use rt::Rt;
use store_pg::{Identity, OpenError, Patience, PgKv, Place};

const WHOSE: Option<(u64, u64)> = Some((0x77, 0x1234));

fn on_shard<F: Future>(main: impl FnOnce(Rt) -> F) -> F::Output {
    rt::real::run(frames::FramePool::new(1 << 20), main).unwrap()
}

/// A store with one commit, at `url`.
async fn begin(rt: &Rt, url: &str) {
    let whose = Identity { fsname: "fs".into(), cluster: 0x77, uuid: 0x1234 };
    let kv = store_pg::create(rt, &Place::parse(url, None).unwrap(), &whose).await.unwrap();
    kv.commit(batch(1)).await.unwrap();
}

async fn open_at(rt: &Rt, place: &Place) -> Result<Rc<PgKv>, String> {
    store_pg::open(rt, place, WHOSE, 1 << 20, Patience::Lease).await.map_err(|e: OpenError| e.to_string())
}

async fn open(rt: &Rt, url: &str) -> Result<Rc<PgKv>, String> {
    open_at(rt, &Place::parse(url, None).unwrap()).await
}

/// Both servers of a pair, the first one first.
fn both(a: &Postgres, b: &Postgres) -> String {
    let dir = |server: &Postgres| server.socket_dir().to_str().unwrap().replace('/', "%2F");
    format!("postgres://stria@{},{}/fs", dir(a), dir(b))
}

fn holder_of(server: &Postgres) -> String {
    server.sql("fs", "SELECT holder_process FROM stria_mdt")
}

fn commit_of(server: &Postgres) -> String {
    server.sql("fs", "SELECT commit_number FROM stria_mdt")
}

#[test]
fn of_servers_that_take_changes_the_newest_is_used_and_stays_so_when_connections_end() {
    if !is_there() {
        return;
    }
    let mut a = Postgres::start();
    let url = a.database("fs");
    on_shard(|rt| async move {
        begin(&rt, &url).await;
        let b = a.copy();
        let kv = open(&rt, &b.url("fs")).await.unwrap();
        kv.commit(batch(2)).await.unwrap();
        drop(kv);
        let kv = open(&rt, &both(&a, &b)).await.unwrap();
        assert_eq!(count(&*kv).await, 2, "the copy that is older comes first in the list");
        for n in 3..6 {
            b.sql("fs", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stria mds'");
            kv.commit(batch(n)).await.unwrap();
        }
        drop(kv);
        assert_eq!((commit_of(&a), commit_of(&b)), ("1".into(), "5".into()));
    });
}

#[test]
fn a_server_that_stands_still_is_given_up_for_one_that_has_all() {
    if !is_there() {
        return;
    }
    let mut a = Postgres::start();
    let url = a.database("fs");
    on_shard(|rt| async move {
        begin(&rt, &url).await;
        let b = a.copy();
        let kv = open(&rt, &both(&a, &b)).await.unwrap();
        // Where it was opened is where both were the same: it may be either.
        let (used, other) = if a.sql("fs", "SELECT epoch FROM stria_mdt") == "2" { (&a, &b) } else { (&b, &a) };
        other.sql("fs", &format!("UPDATE stria_mdt SET epoch = 2, holder_process = '{}'", holder_of(used)));
        let still = used.stand_still();
        kv.commit(batch(2)).await.unwrap();
        kv.commit(batch(3)).await.unwrap();
        assert_eq!((commit_of(other), count(&*kv).await), ("3".into(), 3));
        drop(still);
        assert_eq!(commit_of(used), "1");
        drop(kv);
    });
}

#[test]
fn a_commit_that_takes_long_is_waited_for_as_long_as_the_server_answers_others() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    on_shard(|rt| async move {
        begin(&rt, &url).await;
        let kv = open(&rt, &url).await.unwrap();
        kv.commit(batch(2)).await.unwrap();
        let connections =
            "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'stria mds'";
        let before = server.sql("fs", connections);
        // As a replica that is away does, whose word a commit needs.
        let mut other = server.session("fs");
        other.run("BEGIN; SELECT 1 FROM stria_mdt FOR UPDATE");
        let released = rt.clone();
        rt.spawn(async move {
            released.sleep(types::Duration::from_secs(12)).await;
            other.run("COMMIT");
        });
        kv.commit(batch(3)).await.unwrap();
        assert_eq!((server.sql("fs", connections), count(&*kv).await), (before, 3));
    });
}

#[test]
fn servers_that_have_gone_apart_are_refused_and_both_are_named() {
    if !is_there() {
        return;
    }
    let mut a = Postgres::start();
    let url = a.database("fs");
    on_shard(|rt| async move {
        begin(&rt, &url).await;
        let b = a.copy();
        // As another process left it that took the older copy: of the same epoch, and of a later one with fewer commits.
        for server in [&a, &b] {
            let kv = open(&rt, &server.url("fs")).await.unwrap();
            kv.commit(batch(2)).await.unwrap();
        }
        b.sql("fs", "UPDATE stria_mdt SET commit_number = 9");
        for (epoch, process) in [(2, "another"), (3, "another")] {
            a.sql("fs", &format!("UPDATE stria_mdt SET epoch = {epoch}, holder_process = '{process}'"));
            let why = open(&rt, &both(&a, &b)).await.map(drop).unwrap_err();
            assert!(why.contains("both take changes and have gone apart"), "{why}");
            for (server, state) in [(&a, format!("(epoch {epoch}, commit 2)")), (&b, "(epoch 2, commit 9)".into())] {
                let name = format!("{}:5432 {state}", server.socket_dir().display());
                assert!(why.contains(&name), "{why}");
            }
            assert_eq!((commit_of(&a), commit_of(&b)), ("2".into(), "9".into()));
        }
    });
}

/// A metadata target's directory of the store at `url`.
fn directory(dir: &Path, url: &str) -> Place {
    Place::parse(url, None).unwrap().write_to(dir).unwrap();
    Place::of_dir(dir).unwrap().unwrap()
}

#[test]
fn a_directory_that_has_seen_more_refuses_the_database_until_that_is_accepted() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    let dir = tempfile::tempdir().unwrap();
    on_shard(|rt| async move {
        begin(&rt, &url).await;
        let place = directory(dir.path(), &url);
        let kv = open_at(&rt, &place).await.unwrap();
        for n in 2..5 {
            kv.commit(batch(n)).await.unwrap();
        }
        drop(kv);
        server.sql("fs", "UPDATE stria_mdt SET commit_number = 3");
        // Whoever starts anew has the file alone.
        let place = Place::of_dir(dir.path()).unwrap().unwrap();
        for _ in 0..2 {
            let why = open_at(&rt, &place).await.map(drop).unwrap_err();
            assert!(why.contains("the database is at epoch 2, commit 3"), "{why}");
            assert!(why.contains("this server has seen epoch 2, commit 4"), "{why}");
            let looked = store_pg::look(&rt, &place, WHOSE).await.unwrap_err().to_string();
            assert_eq!(looked, why);
        }
        let accepted = store_pg::accept(&rt, &place, WHOSE).await.unwrap().unwrap();
        assert_eq!((accepted.seen.unwrap().commit, accepted.found.commit), (4, 3));
        assert_eq!(store_pg::accept(&rt, &place, WHOSE).await.unwrap(), None);
        open_at(&rt, &place).await.unwrap();
    });
}

#[test]
fn a_server_that_sees_commits_gone_remembers_the_last_of_them() {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let url = server.database("fs");
    let dir = tempfile::tempdir().unwrap();
    on_shard(|rt| async move {
        begin(&rt, &url).await;
        let place = directory(dir.path(), &url);
        let kv = open_at(&rt, &place).await.unwrap();
        for n in 2..5 {
            kv.commit(batch(n)).await.unwrap();
        }
        // As a replica has it that was behind when it became the primary.
        server.sql("fs", "UPDATE stria_mdt SET commit_number = 3");
        let lost = kv.commit(batch(5)).await.unwrap_err();
        assert!(lost.to_string().contains("gone back from commit 4 to 3"), "{lost}");
        assert!(matches!(kv.commit(batch(5)).await, Err(KvError::Latched(_))));
        // The server did not end: nothing but what it wrote then tells.
        let fresh = Place::of_dir(dir.path()).unwrap().unwrap();
        let why = store_pg::look(&rt, &fresh, WHOSE).await.unwrap_err().to_string();
        assert!(why.contains("seen epoch 2, commit 4"), "{why}");
        server.sql("fs", "UPDATE stria_mdt SET commit_number = 4");
        store_pg::look(&rt, &fresh, WHOSE).await.unwrap();
    });
}
