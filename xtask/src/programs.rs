//! All tests of the workspace, a few programs of them at a time: most wait for servers, leases and kills more than they compute.
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::steps::{cargo, command, target};
use crate::{Findings, judged};

/// Programs at a time. Each runs as many of its tests at a time as there are CPUs.
const PROGRAMS: usize = 2;
/// How long one program may take: some ten times what the longest does.
const PROGRAM_MAX: Duration = Duration::from_secs(25 * 60);
/// How often a program that runs is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A test program.
struct Program {
    /// Package and target.
    name: String,
    executable: PathBuf,
    /// Directory of its package, where it runs.
    dir: PathBuf,
}

/// Builds and runs all tests, or those of what `of` chooses in cargo's words (`-p stria-oss`), those in documentation too. What a program
/// says is shown when it ends; who fails is listed.
pub fn tests(root: &Path, of: &[String]) -> Findings {
    let begun = Instant::now();
    let of: Vec<&str> = if of.is_empty() { vec!["--workspace"] } else { of.iter().map(String::as_str).collect() };
    let mut programs = built(root, &of)?;
    let (count, logs) = (programs.len(), target(root).join("tests"));
    std::fs::create_dir_all(&logs).map_err(|e| vec![format!("{}: {e}", logs.display())])?;
    eprintln!("+ {count} test programs, {PROGRAMS} at a time");
    programs.reverse();
    let (waiting, faults) = (Mutex::new(programs), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("nobody panics under it").pop();
    let work = || {
        while let Some(program) = next() {
            let began = Instant::now();
            let log = logs.join(program.name.replace('/', "-"));
            let outcome = run(&program, &log);
            let mut faults = faults.lock().expect("nobody panics under it");
            let said = std::fs::read(&log).unwrap_or_default();
            eprintln!(
                "== {}: {:.0} s\n{}",
                program.name,
                began.elapsed().as_secs_f64(),
                String::from_utf8_lossy(&said)
            );
            faults.extend(outcome.err().map(|why| format!("{}: {why}; its words: {}", program.name, log.display())));
        }
    };
    std::thread::scope(|scope| (0..PROGRAMS).for_each(|_| drop(scope.spawn(work))));
    eprintln!("  {:.0} s", begun.elapsed().as_secs_f64());
    let mut faults = faults.into_inner().expect("nobody panics under it");
    let documentation = [&["test", "--doc", "--no-fail-fast"], &of[..]].concat();
    faults.extend(cargo(root, &documentation).err().into_iter().flatten());
    judged(faults)
}

/// The test programs of what is chosen, built.
fn built(root: &Path, of: &[&str]) -> Result<Vec<Program>, Vec<String>> {
    let arguments = [&["test", "--no-run", "--message-format=json-render-diagnostics"], of].concat();
    let output = command(root, &arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| vec![format!("cargo: {e}")])?;
    if !output.status.success() {
        return Err(vec![format!("cargo {}: {}", arguments.join(" "), output.status)]);
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| program(&serde_json::from_str(line).ok()?)).collect())
}

/// The test program that one of cargo's messages tells of.
fn program(message: &Value) -> Option<Program> {
    let executable = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
    let target = &message["target"];
    let name = format!("{}/{}", dir.file_name()?.to_str()?, target["name"].as_str()?);
    let unit = if target["kind"][0] == "test" { "" } else { " (unit)" };
    Some(Program { name: name + unit, executable: executable.into(), dir: dir.into() })
}

/// Runs one to its end, or until its time is over; it is killed then, with all that it started.
fn run(program: &Program, log: &Path) -> Result<(), String> {
    let file = File::create(log).and_then(|f| Ok((f.try_clone()?, f)));
    let (out, err) = file.map_err(|e| format!("{}: {e}", log.display()))?;
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.dir).env("CARGO_MANIFEST_DIR", &program.dir);
    let command = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", program.executable.display()))?;
    let begun = Instant::now();
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(status.to_string()),
            None if begun.elapsed() < PROGRAM_MAX => std::thread::sleep(LOOK_EVERY),
            None => break,
        }
    }
    let killed = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
    killed.and_then(|_| child.wait()).map_err(|e| e.to_string())?;
    Err(format!(
        "not ended after {} minutes, so it was killed: a test without a result hangs",
        PROGRAM_MAX.as_secs() / 60
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_told_from_what_else_is_built() {
        let message = |executable: &str, test: bool, kind: &str| {
            let text = format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/oss/Cargo.toml","target":{{"kind":["{kind}"],"name":"urgent"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            );
            program(&serde_json::from_str(&text).expect("it is JSON"))
        };
        let found = message(r#""/t/urgent-1""#, true, "test").expect("it is one");
        assert_eq!((found.name.as_str(), found.dir.as_path()), ("oss/urgent", Path::new("/w/crates/oss")));
        assert_eq!(message(r#""/t/oss-1""#, true, "lib").expect("it is one").name, "oss/urgent (unit)");
        assert!(message("null", true, "lib").is_none() && message(r#""/t/example""#, false, "example").is_none());
    }

    #[test]
    fn what_a_program_says_and_how_it_ends_is_kept() {
        let dir = std::env::temp_dir();
        let log = dir.join(format!("xtask-tests-{}", std::process::id()));
        let program = |executable: &str| Program { name: "x".into(), executable: executable.into(), dir: dir.clone() };
        assert_eq!(run(&program("true"), &log), Ok(()));
        assert!(run(&program("false"), &log).unwrap_err().contains("exit status: 1"));
        assert!(run(&program("/nowhere/x"), &log).unwrap_err().starts_with("/nowhere/x: "));
        assert_eq!(run(&program("pwd"), &log), Ok(()));
        assert_eq!(std::fs::read_to_string(&log).unwrap().trim(), dir.to_str().unwrap());
        std::fs::remove_file(&log).unwrap();
    }
}
