//! Clusters whose metadata are in a database: what was promised is there whatever is killed, stores move between engines, and what is
//! wrong is said. Needs root, `/dev/fuse` and PostgreSQL.
#![allow(clippy::unwrap_used)]
#[path = "../../store-pg/tests/support/postgres.rs"]
mod postgres;
mod support;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use postgres::{Postgres, is_there};
use support::promises::{check_all, promise, wait_for_more};
use support::{Cluster, Daemon, can_mount, good, in_log, refused, stria, text, write_secret};

fn restart(c: &mut Cluster) {
    c.start_mds();
    (0..c.oss.len()).for_each(|i| c.start_oss(i));
}

#[test]
fn everything_promised_is_there_after_server_and_database_were_killed() {
    if !can_mount() || !is_there() {
        return;
    }
    let mut database = Postgres::start();
    let url = database.database("fs");
    let mut c = Cluster::with(2, &[&format!("mdt.store={url}")]);
    let at = c.mount("m", &[]);
    let (promised, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| promise(&at, &promised, &end));
        for round in 0..6 {
            wait_for_more(&promised, 7 + 5 * round);
            if round % 3 != 0 {
                database.kill(if round < 3 { libc::SIGKILL } else { libc::SIGQUIT });
            }
            if round % 3 != 1 {
                // Dropping it is kill -9.
                c.mds = None;
            }
            if round % 3 != 0 {
                database.start_again();
            }
            if c.mds.is_none() {
                c.start_mds();
            }
        }
        wait_for_more(&promised, 5);
        end.store(true, SeqCst);
    });
    let promised = promised.into_inner();
    check_all(&at, promised);
    let other = c.mount("other", &[]);
    check_all(&other, promised);
    c.stop();
    let checked = good(&["fsck", "--dir", &c.path("c"), "--data"]);
    assert!(checked.contains("MDT: its records are in a database") && checked.ends_with("0 fault(s)\n"), "{checked}");
    restart(&mut c);
    let at = c.mount("m", &[]);
    check_all(&at, promised);
    c.stop();
}

#[test]
fn a_file_system_moves_between_engines_and_stays_what_it_is() {
    if !can_mount() || !is_there() {
        return;
    }
    let database = Postgres::start();
    let (first, second) = (database.database("first"), database.database("second"));
    let mut c = Cluster::new(1);
    let (dir, mdt) = (c.path("c"), c.path("c/mdt0"));
    let at = c.mount("m", &[]);
    let (promised, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| promise(&at, &promised, &end));
        wait_for_more(&promised, 120);
        let (code, said) = refused(&["mdt", "export", "--dir", &dir, &c.path("early")]);
        assert!(code == libc::EBUSY && said.contains("in use"), "{said}");
        end.store(true, SeqCst);
    });
    let promised = promised.into_inner();
    c.stop();
    let to = |url: &str| format!("mdt.store={url}");
    for (n, place) in [Some(&first), Some(&second), None].into_iter().enumerate() {
        let (file, old) = (c.path(&format!("export{n}")), c.path(&format!("old{n}")));
        let exported = good(&["mdt", "export", "--dir", &dir, &file]);
        let records = exported.split(' ').nth(1).unwrap().to_string();
        fs::rename(&mdt, &old).unwrap();
        let setting = place.map(|url| to(url));
        let mut line = vec!["mdt", "import", "--dir", &dir, &file];
        setting.iter().for_each(|s| line.extend(["--set", s]));
        let imported = good(&line);
        assert!(imported.contains(&format!(": {records} records")), "{exported} {imported}");
        let (code, said) = refused(&line);
        assert!(code == libc::ENOTEMPTY && said.contains("move what is there away"), "{said}");
        restart(&mut c);
        let at = c.mount("m", &[]);
        check_all(&at, promised);
        fs::write(at.join(format!("after{n}")), b"more").unwrap();
        c.stop();
        let checked = good(&["fsck", "--dir", &dir]);
        assert!(checked.ends_with("0 fault(s)\n"), "{checked}");
    }
    fs::rename(&mdt, c.path("last")).unwrap();
    let into_first = to(&first);
    let refill = ["mdt", "import", "--dir", &dir, &c.path("export1"), "--set", &into_first];
    let (_, said) = refused(&refill);
    assert!(said.contains("holds file system 'stria'"), "{said}");
    let (_, said) = refused(&["mdt", "restore", "--dir", &dir, &c.path("export1")]);
    assert!(said.contains("it is an export: make a store of it with 'stria mdt import'"), "{said}");
}

#[test]
fn a_database_that_lost_commits_is_not_served_again_until_that_is_accepted() {
    if !can_mount() || !is_there() {
        return;
    }
    let database = Postgres::start();
    let url = database.database("fs");
    let mut c = Cluster::with(1, &[&format!("mdt.store={url}")]);
    let (dir, log) = (c.path("c"), std::path::PathBuf::from(c.path("log")));
    let at = c.mount("m", &[]);
    fs::write(at.join("before"), "kept").unwrap();
    fs::File::open(at.join("before")).unwrap().sync_all().unwrap();
    // As a replica has it that was behind when it became the primary.
    database.sql("fs", "UPDATE stria_mdt SET commit_number = commit_number - 1");
    let name = at.join("after");
    let waiting = std::thread::spawn(move || drop(fs::File::create(name).and_then(|f| f.sync_all())));
    let said = in_log(&log, "its medium is not well");
    assert!(said.contains("gone back from commit") && said.contains("'stria mdt accept --dir DIR'"), "{said}");
    let (code, said) = refused(&["mdt", "accept", "--dir", &dir]);
    assert!(code == libc::EBUSY && said.contains("'stria stop --dir"), "{said}");
    // The database that has them is back: it goes on by itself.
    database.sql("fs", "UPDATE stria_mdt SET commit_number = commit_number + 1");
    in_log(&log, "its store was opened again");
    waiting.join().unwrap();
    fs::File::create(at.join("again")).unwrap().sync_all().unwrap();
    // Gone for good; a server that is started anew knows as much as this one.
    c.stop();
    database.sql("fs", "UPDATE stria_mdt SET commit_number = commit_number - 1");
    let (_, said) = refused(&["mds", "--dir", &dir]);
    assert!(said.contains("but this server has seen epoch"), "{said}");
    let accepted = good(&["mdt", "accept", "--dir", &dir]);
    assert!(accepted.contains("is taken as it is, at epoch"), "{accepted}");
    good(&["fsck", "--repair", "--dir", &dir]);
    c.start_mds();
}

#[test]
fn what_is_wrong_with_a_database_is_said_before_anything_is_made() {
    if !is_there() {
        return;
    }
    let database = Postgres::start();
    let url = database.database("fs");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_string();
    let mkfs = |name: &str, settings: &[&str]| {
        let place = at(name);
        let mut line = vec!["mkfs", "--dir", &place, "--osts", "1"];
        settings.iter().for_each(|s| line.extend(["--set", s]));
        stria(&line)
    };
    let said = |out: std::process::Output| {
        assert!(!out.status.success());
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let secret = said(mkfs("a", &["mdt.store=postgres://stria:secret@db/fs"]));
    assert!(
        secret.contains("put it into a file (mdt.passfile, PGPASSFILE)") && !secret.contains("secret@"),
        "{secret}"
    );
    let nowhere = said(mkfs("b", &[&format!("mdt.store={}", database.url("nowhere"))]));
    assert!(nowhere.contains("database \"nowhere\" does not exist"), "{nowhere}");
    let pass = dir.path().join("pass");
    write_secret(&pass, "*:*:*:*:word");
    let with_pass = format!("mdt.passfile={}", pass.display());
    let store = format!("mdt.store={url}");
    assert!(mkfs("c", &[&store, &with_pass]).status.success());
    let taken = said(mkfs("d", &[&store]));
    assert!(taken.contains("holds file system 'stria' of cluster") && taken.contains("drop its tables"), "{taken}");
    let (_, elsewhere) = refused(&["mds", "--dir", &at("c"), "--set", "mdt.store=postgres://x@y/z"]);
    assert!(elsewhere.contains("but the metadata store is in 'postgres://stria@/fs"), "{elsewhere}");
    let log = dir.path().join("log");
    let first = Daemon::start(&["mds", "--dir", &at("c")], &log);
    let copy = Path::new(&at("c2")).to_path_buf();
    let copied = std::process::Command::new("cp").args(["-a", &at("c"), text(&copy)]).status().unwrap();
    assert!(copied.success());
    let (_, in_use) = refused(&["mds", "--dir", text(&copy), "--listen", "127.0.0.1:0"]);
    assert!(in_use.contains(&format!("in use by process {} on", first.child.id())), "{in_use}");
    let (_, checked) = refused(&["fsck", "--dir", &at("c")]);
    assert!(checked.contains("in use by process"), "{checked}");
}
