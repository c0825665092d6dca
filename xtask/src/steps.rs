//! The steps of `check` and `ci`: each a command that anyone can type.
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::{Findings, deny, judged, layers, tidy};

/// Crates whose tests mount.
const MOUNTING: &[&str] = &["stria-fuse", "stria-mount", "stria-cluster", "stria"];

/// How long one step may take before it counts as hanging: all tests take a sixth of it, and so does the build of everything; both are
/// several times as slow on a busy machine.
const STEP_MAX: Duration = Duration::from_secs(2 * 3600);
/// How often a step that runs is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Everything that needs no mount. All steps run; what fails is listed at the end.
pub fn check(root: &Path) -> Findings {
    let mut without: Vec<&str> = vec!["test", "--workspace"];
    for name in MOUNTING {
        without.extend(["--exclude", name]);
    }
    let mut lib: Vec<&str> = vec!["test", "--lib", "--bins"];
    for name in MOUNTING {
        lib.extend(["-p", name]);
    }
    all(vec![
        ("format", cargo(root, &["fmt", "--all", "--check"])),
        ("tidy", tidy::tidy(root)),
        ("layers", layers::layers(root, false)),
        ("deny", deny::deny(root)),
        ("clippy", cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("tests", cargo(root, &without)),
        ("tests of what mounts, without mounting", cargo(root, &lib)),
        ("scenarios", smoke(root)),
    ])
}

/// [`check`], and the tests that mount.
pub fn ci(root: &Path) -> Findings {
    all(vec![
        ("format", cargo(root, &["fmt", "--all", "--check"])),
        ("tidy", tidy::tidy(root)),
        ("layers", layers::layers(root, false)),
        ("deny", deny::deny(root)),
        ("clippy", cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("build of tests", cargo(root, &["test", "--workspace", "--no-run"])),
        ("tests", cargo(root, &["xtask", "test"])),
        // The README's first command has to find the program.
        ("run", cargo(root, &["run", "--", "--version"])),
        ("scenarios", smoke(root)),
        ("torture", torture(root)),
    ])
}

fn all(steps: Vec<(&str, Findings)>) -> Findings {
    let faults = steps.into_iter().filter_map(|(name, done)| {
        let lines = done.err()?;
        Some(format!("== {name} ==\n{}", lines.join("\n")))
    });
    judged(faults.collect())
}

/// Cargo, as somebody types it. What `cargo run` tells this program of its own package goes: build scripts look at such variables, and
/// everything behind one that saw others is built anew.
pub fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(arguments);
    let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)) {
        command.env_remove(name);
    }
    command
}

/// Runs cargo.
pub fn cargo(root: &Path, arguments: &[&str]) -> Findings {
    eprintln!("+ cargo {}", arguments.join(" "));
    let begun = Instant::now();
    let status = status(&mut command(root, arguments));
    eprintln!("  {:.0} s", begun.elapsed().as_secs_f64());
    match status {
        Ok(Some(s)) if s.success() => Ok(()),
        Ok(Some(s)) => Err(vec![format!("cargo {}: {s}", arguments.join(" "))]),
        Ok(None) => Err(vec![format!(
            "cargo {}: not ended after {} minutes, so it was killed: a test named above without a result hangs",
            arguments.join(" "),
            STEP_MAX.as_secs() / 60
        )]),
        Err(e) => Err(vec![format!("cargo: {e}")]),
    }
}

/// Runs a command to its end; where nobody sits in front, one that hangs is killed with all that it started (`None`).
fn status(command: &mut Command) -> std::io::Result<Option<ExitStatus>> {
    if std::env::var_os("CI").is_none_or(|v| v != "true") {
        return command.status().map(Some);
    }
    let mut child = command.process_group(0).spawn()?;
    let begun = Instant::now();
    while begun.elapsed() < STEP_MAX {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
    child.wait()?;
    Ok(None)
}

/// Real processes under every fault for two minutes. What is left of a run that fails stays below the target directory.
fn torture(root: &Path) -> Findings {
    cargo(root, &["build", "-p", "stria"])?;
    let target = target(root);
    let place = target.join(format!("torture-{}", std::process::id()));
    let program = target.join("debug/stria");
    eprintln!("+ {} torture --minutes 2 {}", program.display(), place.display());
    match status(Command::new(&program).args(["torture", "--minutes", "2"]).arg(&place)) {
        Ok(Some(s)) if s.success() => Ok(()),
        Ok(s) => {
            let how = s.map_or_else(|| "it hung and was killed".into(), |s| s.to_string());
            Err(vec![format!(
                "stria torture: {how}; its words are above, what is left of it is in {}",
                place.display()
            )])
        }
        Err(e) => Err(vec![format!("{}: {e}", program.display())]),
    }
}

/// Where builds go.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

/// Every scenario in its small form; misses that the scenarios themselves name as known are reported, not refused.
pub fn smoke(root: &Path) -> Findings {
    cargo(root, &["build", "-p", "stria"])?;
    let target = target(root);
    let (program, page) = (target.join("debug/stria"), target.join("sim-smoke.html"));
    let mut command = Command::new(&program);
    command.current_dir(root).args(["sim", "report", "--smoke", "--strict", "--out"]).arg(&page);
    match command.output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(vec![format!(
            "stria sim report --smoke --strict: {}\n{}{}",
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        )]),
        Err(e) => Err(vec![format!("{}: {e}", program.display())]),
    }
}
