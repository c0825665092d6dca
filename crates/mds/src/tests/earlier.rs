//! A store as format 1 had it opens, serves, and is of the present format afterwards.
//!
//! `tests/golden/mdt-1.txt` holds its pairs as they lay in the engine, with their seals: a key and a value in hexadecimal a line.
//! It is never changed. `STRIA_GOLDEN=add` writes it where it is missing: the present store of [`made`], with the records as
//! format 1 knew them.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::rc::Rc;

use types::Fid;
use wire::mdt::SetBits;

use super::harness::Fs;
use super::model::findings;
use crate::keys;
use crate::kv::{MemoryKv, seal, unseal};
use crate::record::{FORMAT_VERSION, Inode, SessionRow, Superblock};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bytes that a length-prefixed record of format 1 had, by its key's first byte; others are as they were.
fn bytes_then(key: &[u8]) -> Option<usize> {
    match key[0] {
        b'c' => Some(16),
        keys::SESSION => Some(1),
        keys::PRECREATE => Some(8),
        _ => None,
    }
}

fn made() -> Map {
    let fs = Fs::new();
    let d = fs.mkdir(Fid::ROOT, "d").unwrap();
    let open = fs.open(d, "file", 0o302, 0o640).unwrap();
    fs.close(open.handle, open.entry.attr.fid, SetBits::SIZE, 5000).unwrap();
    fs.link(open.entry.attr.fid, Fid::ROOT, "link").unwrap();
    fs.symlink(d, "target", "../link").unwrap();
    fs.setxattr(open.entry.attr.fid, "user.x", Some(b"value"), 0).unwrap();
    fs.world.run(fs.mds.remember_client(types::ClientId(1), wire::Op::MdtLookup, || false)).unwrap();
    fs.sync();
    let mut map = Map::new();
    fs.kv.tamper(|now| map = now.clone());
    let mut then = Map::new();
    for (key, sealed) in map {
        let mut value = unseal(&key, sealed).unwrap();
        if key == keys::SUPERBLOCK {
            let now: Superblock = wire::decode(&value).unwrap();
            value = wire::encode(&Superblock { version: 1, ..now });
        } else if key[0] == keys::INODE {
            let fid = keys::fid_of(&key).unwrap();
            value = Inode { sized: 0, ..Inode::decode(fid, &value).unwrap() }.encode();
        } else if let Some(len) = bytes_then(&key) {
            value.truncate(4 + len);
            value[..4].copy_from_slice(&(len as u32).to_le_bytes());
        }
        let mut sealed = Vec::new();
        seal(&key, &value, &mut sealed);
        then.insert(key, sealed);
    }
    then.remove(keys::HORIZON);
    then
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

fn golden() -> Map {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mdt-1.txt");
    if !path.exists() && std::env::var("STRIA_GOLDEN").as_deref() == Ok("add") {
        let lines = made().iter().fold(String::new(), |out, (k, v)| out + &format!("{} {}\n", hex(k), hex(v)));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, lines).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    text.lines().map(|l| l.split_once(' ').unwrap()).map(|(k, v)| (bytes(k), bytes(v))).collect()
}

#[test]
fn a_store_of_format_1_opens_serves_and_becomes_one_of_this_format() {
    let kv = MemoryKv::new();
    kv.tamper(|map| *map = golden());
    let fs = Fs::new().on(kv.clone());
    // Its client is expected, and comes back with nothing.
    let known: Vec<_> = ptlrpc::Service::sessions(&*fs.mds).into_iter().map(|s| s.client.0).collect();
    assert_eq!(known, [1]);
    assert!(!ptlrpc::Service::replays_are_independent(&*fs.mds), "that build answered before it committed");
    ptlrpc::Service::recovered(&*fs.mds);
    let file = fs.walk("d/file").unwrap();
    assert_eq!(fs.walk("link").unwrap(), file);
    let attr = fs.getattr(file).unwrap();
    assert_eq!((attr.size, attr.mode & 0o7777, attr.nlink), (5000, 0o640, 2));
    assert_eq!(fs.getxattr(file, "user.x").unwrap(), b"value");
    assert_eq!(fs.names(fs.walk("d").unwrap()).len(), 2);
    let first = layout::xattr::decode_layout(&fs.getxattr(file, "lustre.lov").unwrap()).unwrap().1;
    let new = fs.create(Fid::ROOT, "new").unwrap();
    let second = layout::xattr::decode_layout(&fs.getxattr(new, "lustre.lov").unwrap()).unwrap().1;
    assert!(first.objects().iter().all(|o| !second.objects().contains(o)), "objects are not given out twice");
    fs.unlink(Fid::ROOT, "link").unwrap();
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
    let mut superblock = Vec::new();
    let kv: Rc<MemoryKv> = fs.kv.clone();
    kv.tamper(|map| superblock = map[keys::SUPERBLOCK].clone());
    let superblock: Superblock = wire::decode(&unseal(keys::SUPERBLOCK, superblock).unwrap()).unwrap();
    assert_eq!(superblock.version, FORMAT_VERSION);
    let fs = fs.crash();
    ptlrpc::Service::recovered(&*fs.mds);
    assert!(fs.walk("new").is_ok() && fs.walk("d/file").is_ok());
}

#[test]
fn what_the_golden_store_was_made_of_is_of_format_1() {
    let map = golden();
    let value = |key: &[u8]| unseal(key, map[key].clone()).unwrap();
    let superblock: Superblock = wire::decode(&value(keys::SUPERBLOCK)).unwrap();
    assert_eq!(superblock.version, 1);
    let session = map.keys().find(|k| k[0] == keys::SESSION).unwrap();
    assert_eq!(value(session), [1, 0, 0, 0, 1], "nothing of the client's identity");
    assert_eq!(wire::decode::<SessionRow>(&value(session)).unwrap().version, 1);
    for (key, sealed) in map.iter().filter(|(k, _)| k[0] == keys::INODE) {
        let inode = Inode::decode(keys::fid_of(key).unwrap(), &unseal(key, sealed.clone()).unwrap()).unwrap();
        assert_eq!(inode.sized, 0);
    }
}
