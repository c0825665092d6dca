//! Simulated clusters and kernels as a user runs them: what is printed, what is refused, exit codes. No mounts.
#![allow(clippy::unwrap_used)]
use std::process::Command;

/// Exit code, standard output, standard error.
fn sim(arguments: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_stria")).arg("sim").args(arguments).env_remove("STRIA_LOG").output();
    let out = out.unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn kernels_run_by_seed_and_nothing_is_said_but_what_came_out() {
    let (code, out, err) = sim(&["kernels", "--seeds", "2", "--class", "calls_on_one_mount,servers_that_die_hang"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("4 runs, 0 failed; "), "{out}");
    let (code, out, err) = sim(&["torture", "--seeds", "3", "--from", "3", "--seconds", "5"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("3 seeds, 0 failed; "), "{out}");
}

#[test]
fn a_planted_bug_of_the_kernels_side_is_found_and_told_with_its_run() {
    let (code, out, err) = sim(&["kernels", "--seeds", "20", "--planted", "names-kept"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("names-kept ") && out.contains(" runs, seed "), "{out}");
}

#[test]
fn names_that_there_are_none_of_are_refused_with_those_that_there_are() {
    let (code, _, err) = sim(&["kernels", "--class", "calls"]);
    assert!(code == Some(22) && err.contains("--class calls: write some of calls_on_one_mount, "), "{code:?} {err}");
    let last = u64::MAX.to_string();
    let (code, out, _) = sim(&["kernels", "--from", &last, "--seeds", "2", "--class", "counts_by_calls"]);
    assert!(code == Some(0) && out.starts_with("2 runs, 0 failed"), "seeds go round: {code:?} {out}");
    let (code, _, err) = sim(&["kernels", "--planted", "nmes-kept"]);
    assert!(code == Some(22) && err.contains("--planted nmes-kept: ") && err.contains("names-kept"), "{code:?} {err}");
    for verb in ["kernels", "torture"] {
        for minutes in ["--minutes=-1", "--minutes=NaN", "--minutes=1e300"] {
            let (code, _, err) = sim(&[verb, minutes]);
            let said = err.contains("write a time of 0 or more minutes") && !err.contains("panicked");
            assert!(matches!(code, Some(2 | 22)) && said, "{verb} {minutes}: {code:?} {err}");
        }
    }
}

#[test]
fn short_sequences_run_by_number() {
    let (code, out, err) = sim(&["sequences", "--only", "5", "--stripes", "2"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("1 sequences, ") && out.contains(" cases, 0 of them wrong"), "{out}");
    for (arguments, why) in
        [(["--only", "2352"], "--only 2352: sequences have numbers 0 to 2351"), (["--stripes", "3"], "use 1 or 2")]
    {
        let (code, _, err) = sim(&[["sequences"].as_slice(), &arguments].concat());
        assert!(code == Some(2) && err.contains(why), "{code:?} {err}");
    }
}

/// Whether a process keeps SIGINT for itself: it is set up to be told of it.
fn keeps_signals(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (libc::SIGINT - 1) & 1 == 1
}

#[test]
fn runs_that_are_interrupted_tell_what_was_done_before() {
    for verb in ["torture", "kernels", "sequences"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
        let many: &[&str] = if verb == "sequences" { &[] } else { &["--seeds", "1000000000"] };
        command.args(["sim", verb, "--jobs", "1"]).args(many).env_remove("STRIA_LOG");
        let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        while !keeps_signals(child.id()) {
            std::thread::yield_now();
        }
        let pid = i32::try_from(child.id()).unwrap();
        // SAFETY: a signal to a process of this test that was not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
        let out = child.wait_with_output().unwrap();
        let (text, notes) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert_eq!(out.status.code(), Some(128 + libc::SIGINT), "{verb}: {text} {notes}");
        assert!(
            (text.contains(" failed; ") || text.contains(" of them wrong")) && text.contains("SIGINT came"),
            "{verb}: {text} {notes}"
        );
    }
}
