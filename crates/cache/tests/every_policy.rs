//! What holds for every policy of the registry: conformance, replay, size, names, misuse.
use cache::record::replay;
use cache::{
    CacheConfig, FrameId, PageAccess, ReclaimPolicy, Reclaimer, block_id, build, reference_markdown, registry,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use types::Rng;
use types::record::{HEAD, ReplayError};

#[test]
fn every_policy_keeps_its_promises_under_random_operations() {
    for entry in registry() {
        for seed in 0..60 {
            cache::conformance::check(&|c| (entry.make)(c), seed, 4_000);
        }
    }
}

#[test]
fn every_policy_honours_the_order_of_advice() {
    for entry in registry() {
        for seed in 100..130 {
            cache::conformance::check_advice(&|c| (entry.make)(c), seed, 4_000);
        }
    }
}

#[test]
fn the_duel_and_the_batch_keep_their_promises_in_every_configuration() {
    for (policy, key, value) in [
        ("adaptive", "duel_sample_one_in", "8"),
        ("fgf_lru", "batch_pages", "1"),
        ("fgf_lru+ring", "batch_pages", "2"),
        ("fgf_lru+ring", "coarse_ring_pages", "5"),
        ("fgf_lru+ring", "coarse_ring_pages", "4000000"),
        ("s3fifo", "small_queue_percent", "50"),
        ("bypass", "bypass_bytes", "4K"),
    ] {
        for seed in 200..220 {
            let configured = |c: &CacheConfig| {
                let mut c = c.clone();
                c.set(key, value).unwrap();
                build(policy, &c).unwrap()
            };
            cache::conformance::check_advice(&configured, seed, 3_000);
        }
    }
}

/// A policy that forgets to ask, to show that the model notices.
struct Careless {
    resident: Vec<FrameId>,
    fault: u8,
}
impl ReclaimPolicy for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }
    fn insert(&mut self, frame: FrameId, _: PageAccess) {
        self.resident.push(frame);
    }
    fn touch(&mut self, _: FrameId, _: PageAccess) {}
    fn remove(&mut self, frame: FrameId) {
        if self.fault != 0 {
            self.resident.retain(|&f| f != frame);
        }
    }
    fn reclaim(&mut self, want: u32, can_evict: &mut dyn FnMut(FrameId) -> bool, victims: &mut Vec<FrameId>) {
        let goal = victims.len() + want as usize;
        let fault = self.fault;
        self.resident.retain(|&f| {
            if victims.len() == goal || (fault != 1 && !can_evict(f)) {
                return true;
            }
            victims.push(f);
            if fault == 2 {
                victims.push(f);
            }
            fault == 3
        });
    }
    fn resident(&self) -> u32 {
        self.resident.len() as u32
    }
    fn metadata_bytes_per_page(&self) -> u32 {
        if self.fault == 4 { 33 } else { 4 }
    }
}

#[test]
fn the_model_finds_policies_that_are_wrong_and_passes_a_plain_fifo() {
    let run = |fault| {
        catch_unwind(AssertUnwindSafe(|| {
            for seed in 0..8 {
                cache::conformance::check(&|_| Box::new(Careless { resident: Vec::new(), fault }), seed, 2_000);
            }
        }))
    };
    for fault in 0..5 {
        assert!(run(fault).is_err(), "fault {fault} was not found");
    }
    assert!(run(5).is_ok());
}

/// A recording of a random workload in a cache of 500 pages.
fn recording(policy: &str, seed: u64) -> String {
    let mut p = Reclaimer::new(policy, CacheConfig::new(500)).expect("it is registered");
    p.record(8 << 20, &mut |_| 0).expect("it is registered");
    let mut rng = Rng::new(seed);
    let mut block_in = vec![None; 500];
    let mut free: Vec<FrameId> = (0..500).map(FrameId).collect();
    for _ in 0..20_000 {
        let range = if rng.chance(0.5) { 300 } else { 5_000 };
        let block = block_id(1, rng.below(range));
        let mut access =
            if block.is_multiple_of(3) { PageAccess::coarse(block, 1 << 20) } else { PageAccess::fine(block) };
        access.readahead = rng.chance(0.1);
        if let Some(f) = block_in.iter().position(|&b| b == Some(block)) {
            p.touch(FrameId(f as u32), access);
            if rng.chance(0.01) {
                p.remove(FrameId(f as u32));
                block_in[f] = None;
                free.push(FrameId(f as u32));
            }
            continue;
        }
        if free.is_empty() {
            p.reclaim(16, &mut |f| f.0 % 11 != 0, &mut free);
            free.iter().for_each(|f| block_in[f.0 as usize] = None);
        }
        let f = free.pop().expect("reclaim freed pages");
        p.insert(f, access);
        p.on_fetched(&access, 1, Duration::from_micros(rng.below(9_000)));
        block_in[f.0 as usize] = Some(block);
    }
    let log = p.take_record().expect("it was recorded");
    assert_eq!(log.left_out(), 0);
    log.text().to_string()
}

#[test]
fn a_recorded_log_replays_to_identical_answers() {
    for entry in registry() {
        let log = recording(entry.name, 5);
        assert!(log.lines().any(|l| l.starts_with("e 16 ") && !l.ends_with('=')), "victims are answers");
        assert_eq!(replay(&log, build), Ok(log.lines().count() - 1), "{}", entry.name);
    }
}

#[test]
fn replay_into_another_policy_diverges() {
    let log = recording("lru", 6);
    for other in ["fgf_lru", "sieve", "s3fifo"] {
        let other_log = log.replacen("policy=lru ", &format!("policy={other} "), 1);
        assert!(matches!(replay(&other_log, build), Err(ReplayError::Diverged { .. })), "{other} answers like lru");
    }
}

#[test]
fn a_damaged_log_is_refused_with_its_line() {
    let text = recording("lru", 7);
    for head in [("log 1", "log 2"), ("capacity_pages=500", "capacity_pages=0"), ("policy=lru ", "policy=lru x=1 ")] {
        assert_eq!(replay(&text.replacen(head.0, head.1, 1), build), Err(HEAD));
    }
    assert_eq!(replay("", build), Err(HEAD));
    for bad in [
        "i 5",
        "t x 0:0:f0",
        "i 1 0:0:g0",
        "i 1 0:0:f9",
        "i 1 0:0:f0z",
        "e 5 3",
        "e 5 3* =",
        "q 1",
        "r 1 2",
        "p fgf",
        "i 500 0:0:f0",
        "r 500",
        "a 0:0:f0 ?",
    ] {
        let error = replay(&format!("{text}{bad}\n"), build).unwrap_err();
        assert_eq!(error, ReplayError::Syntax { line: text.lines().count() + 1 }, "{bad}");
    }
}

#[test]
fn metadata_stays_within_32_bytes_a_page_at_every_size() {
    for entry in registry() {
        for pages in [1, 100, 1 << 10, 1 << 16, 1 << 20] {
            let bytes = (entry.make)(&CacheConfig::new(pages)).metadata_bytes_per_page();
            assert!((12..=32).contains(&bytes), "{}: {bytes} bytes a page at {pages} pages", entry.name);
        }
    }
}

#[test]
fn a_policy_answers_to_the_name_it_is_registered_under_and_names_are_unique() {
    for (i, entry) in registry().iter().enumerate() {
        assert_eq!((entry.make)(&CacheConfig::new(4)).name(), entry.name);
        assert!(registry()[..i].iter().all(|e| e.name != entry.name));
    }
    let error = build("fgf", &CacheConfig::new(4)).err().unwrap();
    assert!(error.contains("'fgf'") && error.contains("fgf_lru+ring"), "{error}");
}

#[test]
fn misuse_by_the_mechanism_is_caught_at_once() {
    for entry in registry() {
        let misuse = |f: &dyn Fn(&mut dyn ReclaimPolicy)| {
            let mut p = (entry.make)(&CacheConfig::new(4));
            p.insert(FrameId(1), PageAccess::fine(1));
            catch_unwind(AssertUnwindSafe(|| f(&mut *p))).is_err()
        };
        assert!(misuse(&|p| p.insert(FrameId(1), PageAccess::fine(2))), "{}: inserted twice", entry.name);
        assert!(misuse(&|p| p.insert(FrameId(4), PageAccess::fine(2))), "{}: beyond capacity", entry.name);
        assert!(misuse(&|p| p.touch(FrameId(2), PageAccess::fine(2))), "{}: touched a stranger", entry.name);
        assert!(misuse(&|p| p.remove(FrameId(2))), "{}: removed a stranger", entry.name);
        assert!(!misuse(&|p| p.remove(FrameId(1))));
    }
}

#[test]
fn the_reference_names_every_policy_and_every_key() {
    let page = reference_markdown();
    for entry in registry() {
        assert!(page.contains(&format!("| `{}` | {} | ", entry.name, entry.summary)));
    }
    for key in CacheConfig::KEYS {
        assert!(page.contains(&format!("| `{key}` | ")), "{key}");
    }
}

#[test]
fn configuration_refuses_what_is_out_of_range_and_changes_nothing() {
    let mut c = CacheConfig::new(1000);
    for (key, value, part) in [
        ("stripe_bytes", "63K", "65536"),
        ("stripe_bytes", "abc", "not a size"),
        ("batch_pages", "0", "1 to 15"),
        ("batch_pages", "99999999999", "1 to 15"),
        ("small_queue_percent", "51", "1 to 50"),
        ("duel_sample_one_in", "x", "not a whole number"),
        ("ring", "1", "coarse_ring_pages"),
    ] {
        let error = c.set(key, value).unwrap_err();
        assert!(error.contains(key) && error.contains(part), "{error}");
    }
    assert_eq!(c, CacheConfig::new(1000));
    c.set("bypass_bytes", "16M").unwrap();
    assert_eq!(c.bypass_bytes, 16 << 20);
    assert_eq!(c.get("bypass_bytes").as_deref(), Some("16777216"));
}
