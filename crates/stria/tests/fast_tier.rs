//! OSTs with a fast tier as real processes: settings that cannot be meant stop the start and change nothing, a device that is not there does
//! not; what is advised is on the tier and said to be there, a scan takes nothing of it away, and a restart brings it back. Needs root
//! and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{can_mount, good, refused, text};

const MIB: usize = 1 << 20;

struct Up {
    dir: tempfile::TempDir,
}
impl Up {
    fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name)).into()
    }
    fn words(&self, sets: &[String]) -> Vec<String> {
        let mut words: Vec<String> =
            ["up", "--dir", &self.path("c"), "--mount", &self.path("m"), "--osts", "1", "--background"]
                .map(String::from)
                .into();
        sets.iter().for_each(|s| words.extend(["--set".to_string(), s.clone()]));
        words
    }
    fn start(&self, sets: &[String]) {
        let words = self.words(sets);
        good(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    fn refused(&self, sets: &[String]) -> String {
        let words = self.words(sets);
        let (code, said) = refused(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, libc::EINVAL, "{said}");
        said
    }
    fn stop(&self) {
        good(&["umount", &self.path("m")]);
    }
    fn fast(&self) -> String {
        good(&["get_param", "-n", "--at", &self.path("m"), "obdfilter.*.fast_stats"])
    }
}
impl Drop for Up {
    fn drop(&mut self) {
        support::stria(&["umount", &self.path("m")]);
    }
}

/// The range that is advised of a file, once it is all there.
fn settled(file: &Path) -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let said: Value = serde_json::from_str(&good(&["advice", "--json", text(file)])).unwrap();
        let row = said["ranges"][0].clone();
        if row["fetched"] == row["to_fetch"] && row["fast_resident"].as_u64() > Some(0) {
            return row;
        }
        assert!(Instant::now() < end, "{row}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn a_fast_tier_takes_what_memory_has_no_room_for_and_comes_back_with_what_was_advised() {
    if !can_mount() {
        return;
    }
    let up = Up { dir: tempfile::tempdir().unwrap() };
    fs::create_dir(up.path("m")).unwrap();
    fs::create_dir(up.path("fast")).unwrap();
    let set = |dir: &str, size: &str| vec![format!("store.fast.dir={dir}"), format!("store.fast.size={size}")];
    let fast = up.path("fast");
    let ready = [set(&fast, "64M"), vec!["oss.cache_bytes=8M".into(), "store.fast.profile=ssd".into()]].concat();

    // What cannot be meant.
    up.start(&ready);
    up.stop();
    let inside = up.path("c/ost0");
    for (sets, why) in [
        (set(&inside, "64M"), "the cluster's own directory"),
        (set(&fast, "1M"), "at least 16 MiB"),
        (vec![format!("store.fast.dir={fast}")], "needs both"),
        (vec!["store.fast.size=64M".to_string()], "needs both"),
        ([set(&fast, "64M"), vec!["store.fast.profile=tape".into()]].concat(), "store.fast.profile"),
        ([set(&fast, "64M"), vec!["store.fast.admission=often".into()]].concat(), "store.fast.admission"),
    ] {
        let said = up.refused(&sets);
        assert!(said.contains(why), "{sets:?}: {said}");
    }
    let thesis = format!("{fast}/stria-OST0000/thesis.tex");
    fs::write(&thesis, "words").unwrap();
    assert!(up.refused(&ready).contains("holds 'thesis.tex'"));
    assert_eq!(fs::read_to_string(&thesis).unwrap(), "words");
    fs::remove_file(&thesis).unwrap();
    let slots = format!("{fast}/stria-OST0000/slots");
    let ours = fs::read(&slots).unwrap();
    // A damaged head: the OST serves without its tier, says why, and touches nothing.
    fs::write(&slots, vec![b'x'; MIB]).unwrap();
    up.start(&ready);
    fs::write(Path::new(&up.path("m")).join("without"), "a tier").unwrap();
    let said = up.fast();
    assert!(said.contains("not a fast tier of Stria") && said.contains("remove the file"), "{said}");
    up.stop();
    assert_eq!(fs::read(&slots).unwrap(), vec![b'x'; MIB]);
    fs::write(&slots, ours).unwrap();

    // A device that is not mounted: the OST serves without, and its place is not made.
    up.start(&set(&up.path("gone"), "64M"));
    assert!(up.fast().starts_with("state: off: store.fast.dir"), "{}", up.fast());
    assert!(!Path::new(&up.path("gone")).exists());
    let file = up.dir.path().join("m/file");
    fs::write(&file, vec![7u8; 24 * MIB]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    up.stop();

    // One that is there.
    up.start(&ready);
    good(&["fadvise", "-a", "high", text(&file)]);
    let whole = 24 * MIB as u64;
    let row = settled(&file);
    let placed = (row["tier"].as_str().unwrap(), row["fast_placed"].as_u64(), row["fast_resident"].as_u64());
    assert_eq!(placed, ("fast", Some(whole), Some(whole)), "{row}");
    let other = up.dir.path().join("m/other");
    fs::write(&other, vec![8u8; 96 * MIB]).unwrap();
    fs::File::open(&other).unwrap().sync_all().unwrap();
    good(&["ladvise", "-a", "dontneed", text(&other)]);
    assert!(fs::read(&other).unwrap().iter().all(|b| *b == 8));
    assert_eq!(settled(&file)["fast_resident"].as_u64(), Some(whole));
    up.stop();
    up.start(&ready);
    assert_eq!(settled(&file)["fast_resident"].as_u64(), Some(whole), "it is copied anew after a restart");
    let before = settled(&file)["hits"].as_u64().unwrap();
    assert!(fs::read(&file).unwrap() == vec![7u8; 24 * MIB]);
    assert!(settled(&file)["hits"].as_u64().unwrap() > before, "{}", up.fast());
    // Given up by an administrator: nothing is lost, and memory takes what it can.
    good(&["set_param", "--at", &up.path("m"), "obdfilter.*.fast_enable=0"]);
    assert!(fs::read(&file).unwrap() == vec![7u8; 24 * MIB]);
    assert!(up.fast().starts_with("state: off: an administrator"), "{}", up.fast());
}
