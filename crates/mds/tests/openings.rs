//! Which stores of an OST are let in: the one that the cluster saw last and what comes from it, however it ended; no older copies.
#![allow(clippy::unwrap_used)]
use mds::config_service::{ClusterMap, ConfigService, RegisterError};
use mds::openings::Stable;
use types::{OstIndex, Transno};
use wire::connect::{Opening, OstEntry, RegisterRequest};

/// A store, as it is copied: its openings and what it has on stable storage.
#[derive(Clone, Default)]
struct Store {
    openings: Vec<Opening>,
    has: Stable,
}

impl Store {
    fn open(&mut self, mark: u64) {
        let boot = self.openings.last().map_or(0, |o| o.boot) + 1;
        self.openings.push(Opening { boot, mark, committed: self.has.committed });
    }
    fn ask(&self) -> RegisterRequest {
        let entry = OstEntry { nid: "a:1".into(), target: "fs-OST0001".into(), uuid: 10, ..OstEntry::default() };
        let (entry, openings) = (OstEntry { ost: OST, ..entry }, self.openings.clone());
        RegisterRequest { entry, cluster: 7, openings, last_object: self.has.object }
    }
}

const OST: OstIndex = OstIndex(1);

fn service() -> ConfigService {
    ConfigService::new("fs", 7, "mdt", ClusterMap::default())
}
/// The same after a restart of the metadata server.
fn restarted(c: &ConfigService) -> ConfigService {
    ConfigService::new("fs", 7, "mdt", wire::decode(&wire::encode(&c.map())).unwrap())
}
fn comes(c: &ConfigService, store: &Store, had: Stable) -> Result<(), String> {
    match c.register(&store.ask(), had) {
        Ok(_) => Ok(()),
        Err(e @ RegisterError::Older { .. }) => Err(e.to_string()),
        Err(e) => panic!("{e}"),
    }
}

/// The cluster, the store that it let in last, and a copy of before.
fn copied_before_the_last_opening() -> (ConfigService, Store, Store) {
    let (c, mut store) = (service(), Store::default());
    store.open(11);
    comes(&c, &store, Stable::default()).unwrap();
    let copy = store.clone();
    store.open(12);
    comes(&c, &store, Stable::default()).unwrap();
    (c, store, copy)
}

#[test]
fn a_copy_of_before_the_last_opening_is_refused_however_often_it_is_opened() {
    let (c, mut store, mut copy) = copied_before_the_last_opening();
    let c = restarted(&c);
    for again in 0..20 {
        copy.open(100 + again);
        let why = comes(&c, &copy, Stable::default()).unwrap_err();
        let opened = format!("has seen the store opened 2 times, and this copy, opened {} times", copy.openings.len());
        assert!(why.contains("older copy") && why.contains(&opened) && why.contains("stria ost accept 1"), "{why}");
    }
    store.open(13);
    comes(&c, &store, Stable::default()).unwrap();
}

#[test]
fn a_store_that_was_opened_unseen_or_asks_again_or_moves_is_let_in() {
    let (c, mut store) = (service(), Store::default());
    store.open(11);
    assert!(c.register(&store.ask(), Stable::default()).unwrap());
    assert!(!c.register(&store.ask(), Stable::default()).unwrap());
    // A question that is read late: more was made since it was written.
    let had = Stable { object: 64, committed: Transno(9) };
    assert!(!c.register(&store.ask(), had).unwrap());
    let mut q = store.ask();
    q.entry.nid = "b:1".into();
    assert!(c.register(&q, had).unwrap());
    store.has = had;
    // It dies twice before anybody hears of it.
    store.open(12);
    store.open(13);
    store.open(14);
    comes(&restarted(&c), &store, had).unwrap();
}

#[test]
fn a_copy_of_the_last_opening_is_known_by_what_it_lacks() {
    let (c, mut store) = (service(), Store::default());
    store.open(11);
    comes(&c, &store, Stable::default()).unwrap();
    store.has = Stable { object: 64, committed: Transno(5) };
    let copy = |mark| {
        let mut copy = store.clone();
        copy.open(mark);
        copy
    };
    let why = comes(&c, &copy(12), Stable { object: 128, committed: Transno(5) }).unwrap_err();
    assert!(why.contains("up to number 128 were given out of the store, this copy has made 64"), "{why}");
    let why = comes(&c, &copy(13), Stable { object: 64, committed: Transno(6) }).unwrap_err();
    assert!(why.contains("had kept transaction t6") && why.contains("ends with t5"), "{why}");
    comes(&c, &copy(14), store.has).unwrap();
}

#[test]
fn stores_of_earlier_programs_and_such_as_lost_their_marks_are_let_in() {
    let (c, mut store) = (service(), Store::default());
    comes(&c, &store, Stable::default()).unwrap();
    comes(&c, &store, Stable { object: 9, committed: Transno(9) }).unwrap();
    store.has = Stable { object: 9, committed: Transno(9) };
    store.open(11);
    store.open(12);
    comes(&c, &store, store.has).unwrap();
    // An earlier program in between, and a repair after damage.
    comes(&c, &Store { openings: Vec::new(), ..store.clone() }, store.has).unwrap();
    store.openings = vec![Opening { boot: 4, mark: 14, committed: store.has.committed }];
    comes(&c, &store, store.has).unwrap();
}

#[test]
fn where_everything_is_put_back_together_or_the_metadata_store_alone_nothing_is_refused() {
    let (c, mut store) = (service(), Store::default());
    store.open(11);
    comes(&c, &store, Stable::default()).unwrap();
    let (map, mut copy) = (c.map(), store.clone());
    store.open(12);
    comes(&c, &store, Stable::default()).unwrap();
    let of_before = || ConfigService::new("fs", 7, "mdt", map.clone());
    store.open(13);
    comes(&of_before(), &store, Stable::default()).unwrap();
    copy.open(21);
    comes(&of_before(), &copy, Stable::default()).unwrap();
}

#[test]
fn these_tests_find_a_copy_that_is_let_in() {
    let (c, _, mut copy) = copied_before_the_last_opening();
    copy.open(21);
    types::planted::plant(Some("older-copy-let-in"));
    let planted = comes(&c, &copy, Stable::default());
    types::planted::plant(None);
    assert!(planted.is_ok() && comes(&c, &copy, Stable::default()).is_err());
}
