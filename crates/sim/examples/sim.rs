//! `stria sim` as a program of its own: `cargo run --release -p stria-sim --example sim -- run R3`.
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    sim::cli::main(sim::cli::Arguments::parse())
}
