//! Directory pages: every entry once, whatever comes and goes meanwhile.
use std::collections::BTreeSet;

use proptest::prelude::*;
use types::{Fid, FsError};
use wire::mdt::*;

use super::harness::{Fs, user};

const ROOT: Fid = Fid::ROOT;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn entries_that_stay_are_seen_once_while_others_come_and_go(mask in prop_oneof![Just(3u64), Just(u64::MAX)], churn in prop::collection::vec((any::<bool>(), 0u32..300), 0..60), sync_at in 0usize..6) {
        let fs = Fs::with_hash(mask);
        let stay: BTreeSet<String> = (0..120).map(|i| format!("stay{i}")).collect();
        for n in &stay {
            fs.symlink(ROOT, n, "x").unwrap();
        }
        let mut churn = churn.into_iter();
        let (mut seen, mut cookie, mut pages) = (Vec::new(), 0, 0);
        loop {
            if pages == sync_at {
                fs.sync();
            }
            let page = fs.readdir_from(ROOT, cookie, 1).unwrap();
            seen.extend(page.entries.iter().map(|e| String::from_utf8(e.name.0.clone()).unwrap()));
            for (make, i) in churn.by_ref().take(12) {
                let n = format!("churn{i}");
                let _ = if make { fs.symlink(ROOT, &n, "x").map(|_| ()) } else { fs.unlink(ROOT, &n) };
            }
            if page.eof {
                break;
            }
            cookie = page.entries.last().unwrap().cookie;
            pages += 1;
        }
        let staying: Vec<&String> = seen.iter().filter(|n| stay.contains(*n)).collect();
        prop_assert_eq!(staying.len(), stay.len(), "each exactly once");
        prop_assert_eq!(staying.into_iter().collect::<BTreeSet<_>>().len(), stay.len());
    }
}

#[test]
fn cookies_leave_room_for_dots_and_grow() {
    let fs = Fs::new();
    for i in 0..50 {
        fs.symlink(ROOT, &format!("n{i}"), "x").unwrap();
    }
    let page = fs.readdir_from(ROOT, 0, 1 << 20).unwrap();
    assert!(page.eof && page.entries.len() == 50 && page.parent == ROOT);
    assert!(page.entries[0].cookie >= crate::dirent::COOKIE_MIN);
    assert!(page.entries.windows(2).all(|w| w[0].cookie < w[1].cookie));
    assert!(page.entries.iter().all(|e| e.dtype == 10 && e.cookie >> 63 == 0));
}

#[test]
fn a_page_with_attributes_carries_locks_that_others_operations_wait_for() {
    let fs = Fs::new();
    fs.create(ROOT, "a").unwrap();
    let q = ReaddirRequest {
        cred: user(0),
        fid: ROOT,
        bytes_max: 4096,
        plus: true,
        lock_cookie: 5,
        entry_cookie: 10,
        ..Default::default()
    };
    let r: ReaddirReply = fs.call(wire::Op::MdtReaddir, &q).unwrap();
    assert!(r.lock.unwrap().granted && r.entries[0].lock.0 != 0);
    assert_eq!(r.entries[0].attr.as_ref().unwrap().nlink, 1);
}

#[test]
fn only_a_reader_may_list_unless_it_has_the_directory_open() {
    let fs = Fs::new();
    let d = fs.mkdir_mode(ROOT, "d", 0o755).unwrap();
    let bob = fs.by(user(10));
    let o = bob.open(d, "", 0o200_000, 0).unwrap();
    fs.chmod(d, 0o711).unwrap();
    assert!(bob.readdir_from(d, 0, 4096).is_ok());
    bob.close(o.handle, d, 0, 0).unwrap();
    assert_eq!(bob.readdir_from(d, 0, 4096).unwrap_err(), FsError::Access);
    let f = fs.create(ROOT, "f").unwrap();
    assert_eq!(fs.readdir_from(f, 0, 4096).unwrap_err(), FsError::NotDirectory);
}
