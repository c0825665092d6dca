//! Runs of the model: what a client and a server must never do, over many seeds.
use super::*;
use crate::record::replay;
use std::string::String;

fn run(config: ModelConfig) -> ModelReport {
    Model::new(config).run().unwrap_or_else(|e: String| panic!("{e}"))
}

#[test]
fn over_a_bad_network_every_read_is_fresh_and_every_want_is_met() {
    let mut total = ModelReport::default();
    for seed in 0..60 {
        let r = run(ModelConfig { seed, deaths: 0, cuts: 0, restarts: 0, ..ModelConfig::default() });
        total.granted += r.granted;
        total.hits += r.hits;
        total.narrowed += r.narrowed;
        total.converted += r.converted;
        total.reads += r.reads;
        assert_eq!(r.evictions, 0);
        assert_eq!(r.granted + r.refused, 4 * 60, "seed {seed}");
    }
    assert!(total.converted > 60, "write locks must meet readers: {total:?}");
    assert!(
        total.granted > 60 * 150 && total.hits > 60 * 10 && total.narrowed > 60,
        "the runs must be busy: {total:?}"
    );
}

#[test]
fn a_dead_client_is_evicted_and_nobody_waits_for_it() {
    let mut evictions = 0;
    for seed in 100..140 {
        let config = ModelConfig { seed, clients: 5, deaths: 2, cuts: 0, restarts: 0, ..ModelConfig::default() };
        evictions += run(config).evictions;
    }
    assert!(evictions > 20, "dead clients held locks that others wanted: {evictions}");
}

#[test]
fn locks_and_waiting_requests_survive_restarts_of_the_server() {
    for seed in 200..240 {
        run(ModelConfig { seed, deaths: 1, restarts: 3, ..ModelConfig::default() });
    }
}

#[test]
fn a_client_that_was_cut_off_and_evicted_starts_over() {
    let mut evictions = 0;
    for seed in 500..540 {
        let config = ModelConfig { seed, deaths: 0, cuts: 3, restarts: 1, ..ModelConfig::default() };
        evictions += run(config).evictions;
    }
    assert!(evictions > 20, "long cuts end in eviction: {evictions}");
}

#[test]
fn many_clients_on_one_resource_all_get_their_turn() {
    for seed in 300..306 {
        let config = ModelConfig {
            seed,
            clients: 16,
            resources: 1,
            wants: 25,
            deaths: 3,
            duplicate: 0.3,
            straggle: 0.2,
            check_every: 7,
            ..ModelConfig::default()
        };
        run(config);
    }
}

#[test]
fn a_recorded_server_replays_with_identical_answers() {
    for seed in 400..405 {
        let mut model = Model::new(ModelConfig { seed, ..ModelConfig::default() });
        model.run().unwrap_or_else(|e| panic!("{e}"));
        let log = model.server().log();
        assert!(log.len() > 100);
        let fresh = replay(model.server_config(), log).unwrap_or_else(|(i, ..)| panic!("line {i} differs"));
        assert_eq!(fresh.stats(), model.server().namespace().stats());
    }
}

#[test]
fn one_seed_is_one_run() {
    let config = || ModelConfig { seed: 77, ..ModelConfig::default() };
    assert_eq!(run(config()), run(config()));
}
