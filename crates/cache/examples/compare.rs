//! All policies side by side on the workloads of paper 000, as the trace-driven model of the tests sees them.
//!
//! `cargo run --release -p stria-cache --example compare`. The discrete simulation of the same experiments, with
//! queues and clients, lives in the simulator.
#[path = "../tests/simulator/mod.rs"]
mod simulator;

use cache::{Grain, registry};
use simulator::{Case, Outcome, Request, System, coarse_reuse, mixed};

fn table(title: &str, trace: &[Request], warm: usize) {
    println!(
        "\n## {title}\n\n| policy | MB/s | vs lru | fine ms | fine hits | coarse hits |\n|---|---|---|---|---|---|"
    );
    let mut base = None;
    for entry in registry() {
        let out: Outcome = System::new(entry.name).run(trace, warm);
        let base = *base.get_or_insert(out.bandwidth_mb_per_s);
        let percent = |grain| out.client.hit_ratio(grain).unwrap_or(0.0) * 100.0;
        println!(
            "| {} | {:.1} | {:+.1} % | {:.2} | {:.1} % | {:.1} % |",
            entry.name,
            out.bandwidth_mb_per_s,
            (out.bandwidth_mb_per_s / base - 1.0) * 100.0,
            out.fine_ms,
            percent(Grain::Fine),
            percent(Grain::Coarse)
        );
    }
}

fn main() {
    for case in [Case::A, Case::B] {
        for p in [0.9, 0.5, 0.1] {
            let n = if p > 0.8 { 20_000 } else { 6_000 };
            table(&format!("Case {case:?}, p = {p}"), &mixed(case, p, n, 1), n / 4);
        }
    }
    let trace = coarse_reuse(20);
    table("Re-used coarse data beside a fine stream", &trace, 60_000);
}
