//! The store's records: their golden bytes, and that no other bytes make a decoder panic or take much memory.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::golden::Folder;
use formats::memory::Counting;
use oss::store::{ObjectAttr, Owner, Promise, ReplyRecord, StoreIdentity};
use store_file::format::{
    EXTENT_BLOCKS_MAX, Extent, SUPERBLOCK_BYTES, Superblock, advice_from_bytes, advice_to_bytes, answer_from_bytes,
    answer_key, answer_to_bytes, extent_from_bytes, extent_key, extent_of_key, extent_to_bytes, object_from_bytes,
    object_key, object_of_key, object_to_bytes, promise_from_bytes, promise_to_bytes,
};
use types::{ClientId, ObjectId, OstIndex, Transno, WallTime, Xid};
use wire::{crc32c, crc32c_append};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn object() -> ObjectId {
    ObjectId::new(OstIndex(1), 0x22)
}

fn superblock() -> Superblock {
    let identity = StoreIdentity {
        cluster: 0x0102_0304_0506_0708,
        fsname: "stria".into(),
        ost: OstIndex(3),
        uuid: 0x1112_1314_1516_1718,
    };
    Superblock { identity, capacity_bytes: 1 << 30, lost_through: 0 }
}

fn attr() -> ObjectAttr {
    ObjectAttr {
        size: 0x0102_0304,
        blocks: 5,
        mtime: WallTime(6),
        atime: WallTime(-1),
        ctime: WallTime(8),
        owner: Some(Owner { uid: 9, gid: 10, project: 11 }),
    }
}

fn answer() -> ReplyRecord {
    let (client, slot, xid, transno) = (ClientId(0x0102_0304_0506_0708), 0x090a, Xid(11), Transno(12));
    ReplyRecord { client, slot, xid, transno, status: 0, body: vec![13, 14, 15], basis: 0 }
}

fn promise() -> Promise {
    Promise { client: ClientId(0x0102_0304_0506_0708), number: 0x090a, size: 0x0b0c_0d0e }
}

fn extents() -> [(&'static str, Extent); 3] {
    [
        ("data", Extent { phys: 0x77, blocks: 2, crcs: Some(vec![0xdead_beef, 1]) }),
        ("longest", Extent { phys: 0x1234_5678, blocks: EXTENT_BLOCKS_MAX, crcs: Some((0..256).collect()) }),
        ("reserved", Extent { phys: 1, blocks: EXTENT_BLOCKS_MAX, crcs: None }),
    ]
}

#[test]
fn keys_and_records_have_their_golden_bytes() {
    let folder = Folder::of(ROOT);
    let bytes = superblock().to_bytes();
    folder.check("superblock", &bytes);
    assert_eq!(Superblock::from_bytes(&bytes), Ok(superblock()));
    folder.check("key.object", &object_key(object()));
    assert_eq!(object_of_key(&object_key(object())), object());
    let bytes = object_to_bytes(object(), &attr());
    folder.check("object", &bytes);
    assert_eq!(object_from_bytes(object(), &bytes), Ok(attr()));
    // Of before objects had owners: what stood in their place was nobody's.
    for old in folder.earlier("object") {
        assert_eq!(object_from_bytes(object(), &old), Ok(ObjectAttr { owner: None, ..attr() }));
    }
    let key = extent_key(object(), 0x0708);
    folder.check("key.extent", &key);
    assert_eq!(extent_of_key(&key), (object(), 0x0708));
    for (name, extent) in extents() {
        let bytes = extent_to_bytes(&key, &extent);
        folder.check(&format!("extent.{name}"), &bytes);
        assert_eq!(extent_from_bytes(&key, &bytes), Ok(extent));
    }
    let (key, bytes) = (answer_key(answer().client, answer().slot), answer_to_bytes(&answer()));
    folder.check("key.answer", &key);
    folder.check("answer", &bytes);
    assert_eq!(answer_from_bytes(&key, &bytes), Ok(answer()));
    let bytes = advice_to_bytes(object(), &[16, 17]);
    folder.check("advice", &bytes);
    assert_eq!(advice_from_bytes(object(), &bytes), Ok(vec![16, 17]));
    let other = ObjectId::new(OstIndex(1), 0x23);
    assert!(advice_from_bytes(other, &bytes).is_err(), "another object's");
    let bytes = promise_to_bytes(object(), &promise());
    folder.check("promise", &bytes);
    assert_eq!(promise_from_bytes(object(), &bytes), Ok(promise()));
    assert!(promise_from_bytes(other, &bytes).is_err(), "another object's");
    folder.finish();
}

/// Mends the superblock's checksum.
fn mend_superblock(input: &mut [u8]) {
    if let Some((block, _)) = input.split_first_chunk_mut::<SUPERBLOCK_BYTES>() {
        let crc = crc32c(&block[..SUPERBLOCK_BYTES - 4]);
        block[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn no_superblock_panics_and_what_is_read_is_written_the_same() {
    let target = Target {
        name: "superblock",
        root: ROOT,
        seeds: vec![superblock().to_bytes().to_vec()],
        words: &[b"STRIAOST", &[2, 0, 0, 0], b"a name of 16 byt"],
        mend: Some(mend_superblock),
        memory: (1 << 10, 0),
    };
    target.run(|input| match Superblock::from_bytes(input) {
        Ok(s) => {
            assert_eq!(Superblock::from_bytes(&s.to_bytes()), Ok(s));
            1
        }
        Err(e) => outcome_of(&format!("{e:?}")[..5]),
    });
}

const KEY_BYTES: usize = 24;

/// Mends the checksum of the record behind a key.
fn mend_record(input: &mut [u8]) {
    let Some((key, b)) = input.split_at_mut_checked(KEY_BYTES) else { return };
    if b.len() < 8 {
        return;
    }
    let object = b.len() == 64;
    let crc = crc32c_append(crc32c(if object { &key[..16] } else { key }), &b[..4]);
    let crc = crc32c_append(crc32c_append(crc, &[0; 4]), &b[8..]);
    b[4..8].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn no_record_of_an_object_or_extent_panics_and_what_is_read_is_written_the_same() {
    let key = extent_key(object(), 7);
    let mut seeds: Vec<Vec<u8>> =
        extents().iter().map(|(_, e)| [&key[..], &extent_to_bytes(&key, e)].concat()).collect();
    seeds.push([&key[..], &object_to_bytes(object(), &attr())].concat());
    let target = Target {
        name: "record",
        root: ROOT,
        seeds,
        words: &[&[1, 0, 0, 1], &[1, 1, 1, 0], &[0xff; 8]],
        mend: Some(mend_record),
        memory: (1 << 10, 8),
    };
    target.run(|input| {
        let Some((key, b)) = input.split_first_chunk::<KEY_BYTES>() else { return 0 };
        let extent = extent_from_bytes(key, b);
        if let Ok(e) = &extent {
            assert!((1..=EXTENT_BLOCKS_MAX).contains(&e.blocks) && e.phys != 0);
            assert_eq!(extent_from_bytes(key, &extent_to_bytes(key, e)).as_ref(), Ok(e));
        }
        let (object, _) = extent_of_key(key);
        let attr = object_from_bytes(object, b);
        if let Ok(a) = &attr {
            assert_eq!(object_from_bytes(object, &object_to_bytes(object, a)), Ok(*a));
        }
        outcome_of(&format!("{:?}{:?}", extent.map(|e| e.blocks), attr.map(|_| ())))
    });
}

/// Mends the checksum of an answer behind its key.
fn mend_answer(input: &mut [u8]) {
    let Some((key, b)) = input.split_at_mut_checked(10).filter(|(_, b)| b.len() >= 8) else { return };
    let crc = crc32c_append(crc32c_append(crc32c_append(crc32c(key), &b[..4]), &[0; 4]), &b[8..]);
    b[4..8].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn no_record_of_an_answer_panics_and_what_is_read_is_written_the_same() {
    let key = answer_key(answer().client, answer().slot);
    let target = Target {
        name: "answer",
        root: ROOT,
        seeds: vec![[&key[..], &answer_to_bytes(&answer())].concat()],
        words: &[&[1, 0, 0, 0], &[0xff; 8]],
        mend: Some(mend_answer),
        memory: (1 << 10, 8),
    };
    target.run(|input| {
        let Some((key, b)) = input.split_first_chunk::<10>() else { return 0 };
        match answer_from_bytes(key, b) {
            Ok(r) => {
                assert_eq!(answer_key(r.client, r.slot), *key);
                assert_eq!(answer_from_bytes(key, &answer_to_bytes(&r)), Ok(r));
                1
            }
            Err(e) => outcome_of(&format!("{e:?}")[..5]),
        }
    });
}

#[test]
fn no_record_of_advice_panics_and_what_is_read_is_written_the_same() {
    /// Mends the checksum of advice behind its key.
    fn mend(input: &mut [u8]) {
        let Some((key, b)) = input.split_at_mut_checked(16).filter(|(_, b)| b.len() >= 8) else { return };
        let crc = crc32c_append(crc32c_append(crc32c_append(crc32c(key), &b[..4]), &[0; 4]), &b[8..]);
        b[4..8].copy_from_slice(&crc.to_le_bytes());
    }
    let key = object_key(object());
    let target = Target {
        name: "advice",
        root: ROOT,
        seeds: vec![[&key[..], &advice_to_bytes(object(), &[1, 2, 3])].concat()],
        words: &[&[1, 0, 0, 0], &[0xff; 8]],
        mend: Some(mend),
        memory: (1 << 10, 8),
    };
    target.run(|input| {
        let Some((key, b)) = input.split_first_chunk::<16>() else { return 0 };
        let object = object_of_key(key);
        match advice_from_bytes(object, b) {
            Ok(body) => {
                assert_eq!(advice_from_bytes(object, &advice_to_bytes(object, &body)), Ok(body));
                1
            }
            Err(e) => outcome_of(&format!("{e:?}")[..5]),
        }
    });
}

#[test]
fn no_record_of_a_promise_panics_and_what_is_read_is_written_the_same() {
    /// Mends the checksum of a promise behind its key.
    fn mend(input: &mut [u8]) {
        let Some((key, b)) = input.split_at_mut_checked(16).filter(|(_, b)| b.len() >= 8) else { return };
        let crc = crc32c_append(crc32c_append(crc32c_append(crc32c(key), &b[..4]), &[0; 4]), &b[8..]);
        b[4..8].copy_from_slice(&crc.to_le_bytes());
    }
    let key = object_key(object());
    let target = Target {
        name: "promise",
        root: ROOT,
        seeds: vec![[&key[..], &promise_to_bytes(object(), &promise())].concat()],
        words: &[&[1, 0, 0, 0], &[0xff; 8]],
        mend: Some(mend),
        memory: (1 << 10, 8),
    };
    target.run(|input| {
        let Some((key, b)) = input.split_first_chunk::<16>() else { return 0 };
        let object = object_of_key(key);
        match promise_from_bytes(object, b) {
            Ok(promise) => {
                assert_eq!(promise_from_bytes(object, &promise_to_bytes(object, &promise)), Ok(promise));
                1
            }
            Err(e) => outcome_of(&format!("{e:?}")[..5]),
        }
    });
}
