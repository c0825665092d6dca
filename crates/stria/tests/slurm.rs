//! `#STRIA` lines with a real Slurm, by prolog and epilog and as a burst buffer (`contrib/slurm/test.py`). Needs root, `/dev/fuse` and Debian's
//! slurmctld, slurmd, slurm-client and munge; without Slurm it says so.
#![allow(clippy::unwrap_used)]
mod support;

use std::process::Command;

#[test]
fn jobs_advise_what_they_read_and_release_it_however_they_end() {
    if !support::can_mount() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/slurm/test.py");
    let done = Command::new("python3").args([script, env!("CARGO_BIN_EXE_stria")]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    match done.status.code() {
        Some(0) => assert!(said.contains("ok: prolog and epilog") && said.contains("ok: burst_buffer.lua"), "{said}"),
        Some(77) => eprintln!("{said}"),
        code => panic!("{code:?}\n{said}"),
    }
}
