//! A store of before the tables for answers and promises, and before the file `epoch`, opens and serves.
//!
//! `tests/golden/ost-1.txt` holds its rows (table, key, value in hexadecimal) and the blocks of its data file (`data`, place,
//! length, and the block's bytes up to the last that is not 0). It is never changed; `STRIA_GOLDEN=add` writes it where it is
//! missing.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::fmt::Write;
use std::path::{Path, PathBuf};

use frames::Bulk;
use oss::store::{BlockRange, BlockRun, ObjectStore, SizeRule, StoreIdentity, Update};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use rt::Rt;
use simworld::TestWorld;
use store_file::{FileStore, FileStoreConfig, MkfsOptions, check_files, mkfs};
use types::{ClientId, ObjectId, Origin, OstIndex};

const PAGE: usize = 4096;
const SUPER: TableDefinition<&str, &[u8]> = TableDefinition::new("super");
const STATE: TableDefinition<&str, u64> = TableDefinition::new("state");
const OBJECTS: TableDefinition<&[u8; 16], &[u8]> = TableDefinition::new("objects");
const EXTENTS: TableDefinition<&[u8; 24], &[u8]> = TableDefinition::new("extents");
const SEQUENCES: TableDefinition<u64, u32> = TableDefinition::new("sequences");
const SESSIONS: TableDefinition<u64, u64> = TableDefinition::new("sessions");

fn config() -> FileStoreConfig {
    FileStoreConfig { grow_bytes: 1 << 18, db_cache_bytes: 1 << 20, ..FileStoreConfig::default() }
}
fn object(i: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), i)
}

async fn put(rt: &Rt, store: &FileStore, i: u32, first: u64, byte: u8) {
    let mut bulk: Bulk = rt.bulk(PAGE).await;
    bulk.copy_in(0, &[byte; PAGE]);
    let crcs = bulk.slices().flat_map(|s| s.chunks_exact(PAGE)).map(wire::crc32c).collect();
    let puts = vec![BlockRun { first, bulk, crcs }];
    let size = SizeRule::AtLeast((first + 1) * PAGE as u64);
    store.update(object(i), Update { puts, size, ..Update::default() }).await.unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        write!(out, "{b:02x}").unwrap();
        out
    })
}
fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// The present store, without what came later.
async fn made(rt: Rt) -> String {
    let dir = Path::new("/ost0");
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    mkfs(&rt, dir, &MkfsOptions { identity, capacity_bytes: 0, lost_through: 0 }).await.unwrap();
    let store = FileStore::open(rt.clone(), dir, Some(7), config(), None).await.unwrap();
    store.create(ObjectId::seq_of(OstIndex(0)), 4).await.unwrap();
    store.session_open(ClientId(3), 5, Origin::default()).await.unwrap();
    for i in 1..=2u8 {
        put(&rt, &store, i.into(), 0, i).await;
        put(&rt, &store, i.into(), 3, 16 + i).await;
    }
    store.close().await.unwrap();
    drop(store);
    let mut out = String::new();
    let data = rt.open_blocking(&dir.join("data"), false).unwrap();
    let mut page = [0; PAGE];
    for at in (0..data.len().unwrap()).step_by(PAGE) {
        data.read(at, &mut page).unwrap();
        let used = page.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        if page[..used].iter().all(|b| *b == page[0]) {
            writeln!(out, "data {at} {used} {:02x}", page[0]).unwrap();
        } else {
            writeln!(out, "data {at} {used} {}", hex(&page[..used])).unwrap();
        }
    }
    let real = tempfile::tempdir().unwrap();
    let file = rt.open_blocking(&dir.join("meta.redb"), false).unwrap();
    let mut meta = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read(0, &mut meta).unwrap();
    std::fs::write(real.path().join("meta.redb"), meta).unwrap();
    let database = Database::open(real.path().join("meta.redb")).unwrap();
    let read = database.begin_read().unwrap();
    for row in read.open_table(SUPER).unwrap().iter().unwrap().map(Result::unwrap) {
        writeln!(out, "super {} {}", row.0.value(), hex(row.1.value())).unwrap();
    }
    for row in read.open_table(STATE).unwrap().iter().unwrap().map(Result::unwrap) {
        writeln!(out, "state {} {}", row.0.value(), row.1.value()).unwrap();
    }
    for row in read.open_table(OBJECTS).unwrap().iter().unwrap().map(Result::unwrap) {
        writeln!(out, "objects {} {}", hex(row.0.value()), hex(row.1.value())).unwrap();
    }
    for row in read.open_table(EXTENTS).unwrap().iter().unwrap().map(Result::unwrap) {
        writeln!(out, "extents {} {}", hex(row.0.value()), hex(row.1.value())).unwrap();
    }
    for row in read.open_table(SEQUENCES).unwrap().iter().unwrap().map(Result::unwrap) {
        writeln!(out, "sequences {} {}", row.0.value(), row.1.value()).unwrap();
    }
    for row in read.open_table(SESSIONS).unwrap().iter().unwrap().map(Result::unwrap) {
        writeln!(out, "sessions {} {}", row.0.value(), row.1.value()).unwrap();
    }
    out
}

/// Puts the golden store into `dir`.
fn golden(rt: &Rt, dir: &Path, text: &str) {
    let real = tempfile::tempdir().unwrap();
    let path = real.path().join("meta.redb");
    let data = rt.open_blocking(&dir.join("data"), true).unwrap();
    let database = Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["data", at, used, content] => {
                let (at, used): (u64, usize) = (at.parse().unwrap(), used.parse().unwrap());
                let content = bytes(content);
                let mut page = if content.len() == 1 { vec![content[0]; used] } else { content };
                page.resize(PAGE, 0);
                data.set_len(at + PAGE as u64).unwrap();
                data.write(at, &page).unwrap();
            }
            ["super", key, value] => drop(write.open_table(SUPER).unwrap().insert(key, &*bytes(value)).unwrap()),
            ["state", key, value] => drop(write.open_table(STATE).unwrap().insert(key, value.parse::<u64>().unwrap())),
            ["objects", key, value] => {
                let key: [u8; 16] = bytes(key).try_into().unwrap();
                drop(write.open_table(OBJECTS).unwrap().insert(&key, &*bytes(value)).unwrap());
            }
            ["extents", key, value] => {
                let key: [u8; 24] = bytes(key).try_into().unwrap();
                drop(write.open_table(EXTENTS).unwrap().insert(&key, &*bytes(value)).unwrap());
            }
            ["sequences", key, value] => {
                let (key, value) = (key.parse::<u64>().unwrap(), value.parse::<u32>().unwrap());
                drop(write.open_table(SEQUENCES).unwrap().insert(key, value).unwrap());
            }
            ["sessions", key, value] => {
                let (key, value) = (key.parse::<u64>().unwrap(), value.parse::<u64>().unwrap());
                drop(write.open_table(SESSIONS).unwrap().insert(key, value).unwrap());
            }
            _ => panic!("{line}"),
        }
    }
    write.commit().unwrap();
    drop(database);
    let meta = rt.open_blocking(&dir.join("meta.redb"), true).unwrap();
    let content = std::fs::read(&path).unwrap();
    meta.set_len(content.len() as u64).unwrap();
    meta.write(0, &content).unwrap();
}

#[test]
fn a_store_of_before_answers_promises_and_epochs_opens_and_serves() {
    let at = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ost-1.txt");
    if !at.exists() && std::env::var("STRIA_GOLDEN").as_deref() == Ok("add") {
        let world = TestWorld::new(1, 32 << 20);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(&at, world.run(made(world.rt()))).unwrap();
    }
    let text = std::fs::read_to_string(&at).unwrap();
    let world = TestWorld::new(2, 32 << 20);
    let rt = world.rt();
    let dir = Path::new("/ost0");
    golden(&rt, dir, &text);
    world.run(async {
        let store = FileStore::open(rt.clone(), dir, Some(7), config(), None).await.unwrap();
        assert!(store.sessions().iter().any(|(client, _)| *client == ClientId(3)), "its client is expected");
        assert!(store.promises().is_empty() && store.failure().is_none());
        for (i, first, byte) in [(1, 0, 1), (1, 3, 17), (2, 0, 2), (2, 3, 18)] {
            let blocks = store.read(object(i), BlockRange { first, count: 1 }).await.unwrap();
            assert!(blocks.bulk.to_vec() == vec![byte; PAGE], "object {i}, block {first}");
            assert_eq!(store.attr(object(i)).await.unwrap().size, 4 * PAGE as u64);
        }
        put(&rt, &store, 2, 1, 9).await;
        put(&rt, &store, 3, 0, 8).await;
        store.close().await.unwrap();
    });
    let file = |name: &str| rt.open_blocking(&dir.join(name), false).unwrap();
    let (found, _) = check_files(&*file("data"), file("meta.redb"), None, true, 1 << 20).unwrap();
    assert_eq!(found.faults, Vec::<String>::new());
    assert!(rt.open_blocking(&dir.join("epoch"), false).is_ok(), "from now on a later server is seen");
    world.run(async {
        let store = FileStore::open(rt.clone(), dir, Some(7), config(), None).await.unwrap();
        assert!(store.read(object(3), BlockRange { first: 0, count: 1 }).await.unwrap().bulk.to_vec() == vec![8; PAGE]);
    });
}
