//! `stria sim` as a program of its own: `cargo run --release -p stria-sim --example sim -- run R3`.
//!
//! `STRIA_SIM_LOG=warn,sim=debug` tells what happens in a run of the cluster simulation, in virtual time (`RUST_LOG` syntax).
use clap::Parser;
use std::process::ExitCode;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

struct VirtualTime;
impl FormatTime for VirtualTime {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "{:.6}", simworld::time_here().0 as f64 / 1e9)
    }
}

fn main() -> ExitCode {
    if let Ok(filter) = std::env::var("STRIA_SIM_LOG") {
        let filter: Targets = filter.parse().expect("STRIA_SIM_LOG says levels: warn,sim=debug");
        let lines =
            tracing_subscriber::fmt::layer().with_ansi(false).with_timer(VirtualTime).with_writer(std::io::stderr);
        let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    }
    sim::cli::main(sim::cli::Arguments::parse())
}
