//! A program that makes files one after the other and is promised each, and whether all of them are there.
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

fn content(i: usize) -> Vec<u8> {
    (0..3000 + i).map(|n| ((n * 7 + i) ^ (n >> 8)) as u8).collect()
}

/// Makes files until told to end, each promised by fsync; how many are.
pub fn promise(at: &Path, promised: &AtomicUsize, end: &AtomicBool) {
    while !end.load(SeqCst) {
        let i = promised.load(SeqCst);
        let dir = at.join(format!("d{}", i / 50));
        if i.is_multiple_of(50) {
            fs::create_dir(&dir).unwrap();
        }
        let (new, kept) = (dir.join("new"), dir.join(format!("f{i}")));
        let mut file = fs::File::create(&new).unwrap();
        file.write_all(&content(i)).unwrap();
        fs::rename(&new, &kept).unwrap();
        file.sync_all().unwrap();
        promised.store(i + 1, SeqCst);
    }
}

pub fn wait_for_more(promised: &AtomicUsize, more: usize) {
    let until = promised.load(SeqCst) + more;
    while promised.load(SeqCst) < until {
        std::thread::yield_now();
    }
}

pub fn check_all(at: &Path, promised: usize) {
    for i in 0..promised {
        let file = at.join(format!("d{}/f{i}", i / 50));
        assert!(fs::read(&file).unwrap() == content(i), "{}", file.display());
    }
}
