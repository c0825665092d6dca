//! The store's keys and values: their golden bytes, and that no other bytes make a decoder panic or take much memory.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::golden::Folder;
use formats::memory::Counting;
use mds::acl::Acl;
use mds::record::{Inode, InodeFlags, S_IFDIR, S_IFLNK, S_IFREG};
use mds::{config_service, dirent, keys, openings, record};
use types::{ClientId, Fid, OstIndex, WallTime};
use wire::Body;

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn rows() -> impl Iterator<Item = &'static Body> {
    record::BODIES.iter().chain(config_service::BODIES).chain(openings::BODIES)
}

fn file() -> Inode {
    Inode {
        fid: Fid::new(0x2_0000_0401, 5),
        flags: InodeFlags::HAS_LAYOUT | InodeFlags::SIZE_UNKNOWN,
        mode: S_IFREG | 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        project: 7,
        rdev: 0x0801,
        size: 0x1122_3344_5566_7788,
        blocks: 8,
        atime: WallTime(1),
        mtime: WallTime(-2),
        ctime: WallTime(3),
        btime: WallTime(4),
        layout_gen: 9,
        parent: Fid::ROOT,
        place: 0x0102_0304_0506_0780,
        entries: 3,
        sized: 0x6162_6364_6566_6768,
        tail: b"tail".to_vec(),
    }
}

fn inodes() -> [(&'static str, Inode); 3] {
    let directory = Inode { mode: S_IFDIR | 0o755, nlink: 2, tail: Vec::new(), flags: 0, ..file() };
    let symlink = Inode { mode: S_IFLNK | 0o777, tail: b"../target".to_vec(), flags: 0, ..file() };
    [("file", file()), ("directory", directory), ("symlink", symlink)]
}

fn bucket() -> Vec<u8> {
    let (one, _) = dirent::with(b"", b"first", Fid::new(0x2_0000_0401, 1), 8).unwrap();
    dirent::with(&one, "zweiter name".as_bytes(), Fid::new(0x2_0000_0401, 2), 4).unwrap().0
}

/// user::rw-, user:1000:r--, group::r--, mask::r--, other::---.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

#[test]
fn keys_and_values_have_their_golden_bytes() {
    let folder = Folder::of(ROOT);
    for body in rows() {
        let bytes = (body.example)();
        folder.check(&format!("row.{}", body.name), &bytes);
        for old in folder.earlier(&format!("row.{}", body.name)) {
            let now = (body.recode)(&old).unwrap();
            // A map of before has rows within it that have grown since, each at its end and with its length in front.
            let within = body.name == "ClusterMap" && (body.recode)(&now).as_deref() == Ok(&now[..]);
            assert!(within || now[4..].starts_with(&old[4..]), "{}: a record only grows at its end", body.name);
        }
        assert_eq!((body.recode)(&bytes).as_deref(), Ok(&bytes[..]), "{}", body.name);
    }
    for (name, inode) in inodes() {
        let bytes = inode.encode();
        folder.check(&format!("inode.{name}"), &bytes);
        for old in folder.earlier(&format!("inode.{name}")) {
            // Bytes that were 0 and are the transaction of the size: 0 is older than all.
            assert_eq!(Inode::decode(inode.fid, &old), Some(Inode { sized: 0, ..inode.clone() }));
        }
        assert_eq!(Inode::decode(inode.fid, &bytes), Some(inode));
    }
    folder.check("bucket", &bucket());
    folder.check("acl", &acl());
    assert_eq!(Acl::parse(&acl()).unwrap().encode(), acl());
    let (fid, parent) = (Fid { seq: 0x0102_0304_0506_0708, oid: 0x090a_0b0c, ver: 0 }, Fid::ROOT);
    let (client, ost) = (ClientId(0x1112_1314_1516_1718), OstIndex(0x0203));
    let id = (wire::quota::QuotaKind::Group, 0x8182_8384);
    let all: [(&str, &[u8]); 22] = [
        ("superblock", keys::SUPERBLOCK),
        ("boot", keys::BOOT),
        ("counters", keys::COUNTERS),
        ("cluster_map", keys::CLUSTER_MAP),
        ("changelog", keys::CHANGELOG),
        ("horizon", keys::HORIZON),
        ("inode", &keys::inode(fid)),
        ("entry", &keys::entry(fid, 0x21_2223_2425_2627)),
        ("link", &keys::link(fid, parent, 0x3132_3334_3536_3738)),
        ("xattr", &keys::xattr(fid, b"user.name")),
        ("layout", &keys::layout(fid)),
        ("orphan", &keys::orphan(fid)),
        ("destroy", &keys::destroy(fid, 0x4142_4344_4546_4748)),
        ("precreate", &keys::precreate(ost)),
        ("session", &keys::session(client)),
        ("reply", &keys::reply(client, 0x5152)),
        ("change", &keys::change(0x7172_7374_7576_7778)),
        ("cut", &keys::cut(client, 0x6162_6364_6566_6768)),
        ("grace", keys::GRACE),
        ("usage", &keys::usage(id)),
        ("quota", &keys::quota(id)),
        ("own", &keys::own(fid, 0x9192_9394_9596_9798)),
    ];
    for (name, key) in all {
        folder.check(&format!("key.{name}"), key);
    }
    folder.finish();
}

#[test]
fn no_row_panics_or_takes_much_memory() {
    for body in rows() {
        let target = Target {
            name: &format!("row.{}", body.name),
            root: ROOT,
            seeds: vec![(body.example)()],
            words: &[&[1, 0, 0, 0], &[0xff, 0xff, 0xff, 0xff]],
            mend: None,
            memory: (4 << 10, 256),
        };
        target.run(|input| match (body.recode)(input) {
            Ok(once) => {
                assert_eq!((body.recode)(&once).as_deref(), Ok(&once[..]), "{}", body.name);
                once.len() as u64
            }
            Err(e) => outcome_of(&e.to_string()[..8]),
        });
    }
}

#[test]
fn no_inode_bucket_or_acl_panics_and_what_is_read_is_written_the_same() {
    let mut seeds: Vec<Vec<u8>> = inodes().iter().map(|(_, i)| i.encode()).collect();
    seeds.extend([bucket(), acl(), vec![2, 0, 0, 0]]);
    let target = Target {
        name: "inode-bucket-acl",
        root: ROOT,
        seeds,
        words: &[&[2, 0, 0, 0], &[1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff], &[0; 20]],
        mend: None,
        memory: (4 << 10, 16),
    };
    target.run(|input| {
        let inode = Inode::decode(Fid::ROOT, input);
        if let Some(inode) = &inode {
            assert_eq!(inode.encode(), input);
            let _ = inode.attr();
        }
        let legal = dirent::is_legal(input);
        let n = dirent::entries(input).count();
        if legal {
            let first = dirent::entries(input).next().unwrap();
            assert_eq!(dirent::find(input, first.name).map(|e| e.slot), Some(first.slot));
            assert!(dirent::without(input, first.slot).is_none_or(|b| dirent::is_legal(&b)));
        }
        let acl = Acl::parse(input);
        if let Some(acl) = &acl {
            assert_eq!(Acl::parse(&acl.encode()).map(|a| a.encode()), Some(acl.encode()));
            let _ = (acl.mode_bits(), acl.is_trivial());
        }
        u64::from(inode.is_some()) | u64::from(legal) << 1 | u64::from(acl.is_some()) << 2 | (n.min(40) as u64) << 3
    });
}

#[test]
fn no_key_panics() {
    let fid = Fid::new(0x2_0000_0401, 5);
    let target = Target {
        name: "key",
        root: ROOT,
        seeds: vec![
            keys::inode(fid).to_vec(),
            keys::link(fid, Fid::ROOT, 7).to_vec(),
            keys::xattr(fid, b"user.a").to_vec(),
        ],
        words: &[&[0xff; 16]],
        mend: None,
        memory: (4 << 10, 64),
    };
    target.run(|input| {
        let _ = mds::kv::show_key(input);
        let prefix = &input[..input.len().min(30)];
        let end = keys::end_of(prefix);
        assert!(prefix.iter().all(|b| *b == 0xff) || &end[..] > prefix);
        u64::from(keys::fid_of(input).is_some()) * 2 + u64::from(keys::last_u64(input).is_some())
    });
}
