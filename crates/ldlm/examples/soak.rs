//! Runs the protocol model over a range of seeds in several shapes until one fails; prints the seed that did.
//!
//! `cargo run --release -p stria-ldlm --example soak -- 0 10000`
use std::process::ExitCode;

use ldlm::conformance::{Model, ModelConfig};

fn shape(seed: u64) -> ModelConfig {
    let base = ModelConfig { seed, ..ModelConfig::default() };
    match seed % 5 {
        0 => base,
        1 => {
            let storm = ModelConfig { clients: 8, resources: 1, wants: 40, duplicate: 0.4, straggle: 0.3, ..base };
            ModelConfig { give_up: 0.2, lru_max: 2, ..storm }
        }
        2 => ModelConfig { clients: 3, resources: 1, wants: 100, programs: 6, restarts: 4, ..base },
        3 => ModelConfig { clients: 6, deaths: 3, restarts: 2, give_up: 0.3, ..base },
        _ => ModelConfig { clients: 5, deaths: 0, cuts: 6, restarts: 2, ..base },
    }
}

fn main() -> ExitCode {
    let seeds: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [from, to] = seeds[..] else {
        eprintln!("usage: soak FIRST_SEED END_SEED");
        return ExitCode::from(2);
    };
    let (mut events, mut evictions) = (0, 0);
    for seed in from..to {
        match Model::new(shape(seed)).run() {
            Ok(report) => {
                events += report.events;
                evictions += report.evictions;
            }
            Err(what) => {
                eprintln!("{what}\nrepeat with: soak {seed} {}", seed + 1);
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} runs, {events} events, {evictions} evictions: no failure", to - from);
    ExitCode::SUCCESS
}
