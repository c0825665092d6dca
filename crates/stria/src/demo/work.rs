//! The steps of the demonstration.
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use indicatif::ProgressBar;
use types::{MIB, format_size};

use super::report::{Done, Report};
use super::tree::{self, Source};
use super::{Cluster, Stop};
use crate::cli;
use crate::failure::{Failure, Outcome};

/// Bytes written and read at a time in the large file.
const CHUNK: usize = 4 << 20;

/// Does everything, in order; the first failure ends it.
pub fn all(cluster: &Cluster, arguments: &cli::Demo, stop: &Stop, report: &mut Report) -> Outcome {
    let (one, two) = (cluster.mounts[0].at.as_path(), cluster.mounts[1].at.as_path());
    let (checkout, own) = tree::own_sources();
    if !own.is_empty() {
        copy_and_verify("the project's source tree", "source", &own, (one, two), stop, report)?;
    }
    let crates = tree::crates(arguments.crates);
    if !crates.is_empty() {
        copy_and_verify("crates of its build", "crates", &crates, (one, two), stop, report)?;
    }
    git(&checkout, one, two, stop, report)?;
    build(one, stop, report)?;
    large_file(cluster, arguments, stop, report)?;
    report.step("remove what was copied", 2, |bar| {
        let mut operations = 0;
        for (name, files) in [("source", own.len()), ("crates", crates.len())] {
            stop.check()?;
            let dir = one.join(name);
            if dir.exists() {
                fs::remove_dir_all(&dir).map_err(|e| Failure::io("removing", &dir, &e))?;
                operations += files as u64;
            }
            bar.inc(1);
        }
        Ok(Done { count: format!("{operations} files"), bytes: 0, operations })
    })
}

fn copy_and_verify(
    what: &str,
    name: &str,
    files: &[Source],
    (one, two): (&Path, &Path),
    stop: &Stop,
    report: &mut Report,
) -> Outcome {
    let shown = |bytes: u64| format!("{} files, {}", files.len(), format_size(bytes));
    let length = files.len() as u64;
    report.step(&format!("copy {what}"), length, |bar| {
        let bytes = tree::copy(files, &one.join(name), bar, stop)?;
        Ok(Done { count: shown(bytes), bytes, operations: length })
    })?;
    report.step("  verify it through the second mount", length, |bar| {
        let bytes = tree::verify(files, &two.join(name), bar, stop)?;
        Ok(Done { count: shown(bytes), bytes, operations: length })
    })?;
    report.step("  read it again", length, |bar| {
        let bytes = tree::verify(files, &two.join(name), bar, stop)?;
        Ok(Done { count: shown(bytes), bytes, operations: length })
    })
}

/// Runs a program quietly; what it says is told when it fails.
fn run(command: &mut Command, stop: &Stop) -> Outcome {
    stop.check()?;
    // SAFETY: changes the signal mask of the child only; async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            crate::control::unblock_signals();
            Ok(())
        })
    };
    let shown = format!("{command:?}");
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|e| Failure::with_errno(format!("{shown}: {e}"), e.raw_os_error().unwrap_or(libc::EIO)))?;
    stop.check()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(Failure::from(format!("{shown}: {}\n{said}", done.status)))
}

fn git(checkout: &Path, one: &Path, two: &Path, stop: &Stop, report: &mut Report) -> Outcome {
    if checkout.as_os_str().is_empty() || Command::new("git").arg("--version").output().is_err() {
        note!("(no git, or not run from a checkout: clone and fsck are left out)");
        return Ok(());
    }
    let (clone, seen) = (one.join("clone"), two.join("clone"));
    report.step("git clone into the mount", 1, |_| {
        let mut command = Command::new("git");
        run(command.args(["clone", "--quiet", "--no-hardlinks"]).arg(checkout).arg(&clone), stop)?;
        Ok(Done { count: String::new(), bytes: 0, operations: 0 })
    })?;
    report.step("git fsck and status in the second mount", 2, |bar| {
        // Another owner's repository is not trusted by git without being told.
        let trust = format!("safe.directory={}", seen.display());
        run(Command::new("git").args(["-c", &trust, "-C"]).arg(&seen).args(["fsck", "--full", "--strict"]), stop)?;
        bar.inc(1);
        run(Command::new("git").args(["-c", &trust, "-C"]).arg(&seen).args(["diff", "--exit-code", "--stat"]), stop)?;
        Ok(Done { count: String::new(), bytes: 0, operations: 0 })
    })
}

fn build(one: &Path, stop: &Stop, report: &mut Report) -> Outcome {
    if Command::new("cargo").arg("--version").output().is_err() {
        note!("(no cargo: the build in the mount is left out)");
        return Ok(());
    }
    let dir = one.join("hello");
    report.step("cargo build and run in the mount", 2, |bar| {
        let put = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&dir))
                .and_then(|()| fs::write(&path, text))
                .map_err(|e| Failure::io("writing", &path, &e))
        };
        put("Cargo.toml", "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n")?;
        put("src/lib.rs", "pub fn sum(n: u64) -> u64 { (1..=n).sum() }\n")?;
        put(
            "src/main.rs",
            "fn main() { assert_eq!(hello::sum(1000), 500500); println!(\"built and run in Stria\"); }\n",
        )?;
        let target = dir.join("target");
        let mut command = Command::new("cargo");
        command.args(["build", "--offline", "--quiet"]).current_dir(&dir).env("CARGO_TARGET_DIR", &target);
        run(&mut command, stop)?;
        bar.inc(1);
        run(&mut Command::new(target.join("debug/hello")), stop)?;
        Ok(Done { count: String::new(), bytes: 0, operations: 0 })
    })
}

/// A chunk of the large file: every 8 bytes say where they belong.
fn fill(chunk: &mut [u8], number: u64) {
    for (i, word) in chunk.chunks_exact_mut(8).enumerate() {
        let at = number * (CHUNK as u64 / 8) + i as u64;
        word.copy_from_slice(&at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
}

fn large_file(cluster: &Cluster, arguments: &cli::Demo, stop: &Stop, report: &mut Report) -> Outcome {
    let chunks = arguments.large.div_ceil(CHUNK as u64).max(1);
    let (one, two) = (&cluster.mounts[0].at, &cluster.mounts[1].at);
    let (path, seen) = (one.join("large"), two.join("large"));
    crate::lfs::setstripe(&["-c".into(), "-1".into(), "-S".into(), "4M".into(), path.clone().into()])?;
    let bytes = chunks * CHUNK as u64;
    let count = || format_size(bytes);
    let victim = format!("ost{}", arguments.osts / 2);
    report.step(&format!("write a file over all OSTs, kill {victim}"), chunks, |bar| {
        write_large(&path, chunks, bar, stop, &mut || cluster.servers.kill(&victim))?;
        Ok(Done { count: count(), bytes, operations: 0 })
    })?;
    report.step("  read it through the second mount", chunks, |bar| {
        read_large(&seen, chunks, bar, stop)?;
        Ok(Done { count: count(), bytes, operations: 0 })
    })?;
    let (part, part_bytes) = (chunks.min(32), chunks.min(32) * CHUNK as u64);
    report.step("  read its beginning again, from the cache", part, |bar| {
        read_large(&seen, part, bar, stop)?;
        read_large(&seen, part, bar, stop)?;
        Ok(Done { count: format!("2 x {}", format_size(part_bytes)), bytes: 2 * part_bytes, operations: 0 })
    })
}

fn write_large(path: &Path, chunks: u64, bar: &ProgressBar, stop: &Stop, kill: &mut dyn FnMut() -> bool) -> Outcome {
    let io = |e: std::io::Error| Failure::io("writing", path, &e);
    let mut file = fs::OpenOptions::new().write(true).open(path).map_err(io)?;
    let mut chunk = vec![0; CHUNK];
    for n in 0..chunks {
        stop.check()?;
        if n == chunks / 2 && !kill() {
            return Err(Failure::from("the server that was to be killed does not run".to_string()));
        }
        fill(&mut chunk, n);
        file.write_all(&chunk).map_err(io)?;
        bar.inc(1);
    }
    file.sync_all().map_err(io)
}

fn read_large(path: &Path, chunks: u64, bar: &ProgressBar, stop: &Stop) -> Outcome {
    let io = |e: std::io::Error| Failure::io("reading", path, &e);
    let mut file = File::open(path).map_err(io)?;
    let (mut want, mut found) = (vec![0; CHUNK], vec![0; CHUNK]);
    for n in 0..chunks {
        stop.check()?;
        fill(&mut want, n);
        file.read_exact(&mut found).map_err(io)?;
        if let Some(at) = want.iter().zip(&found).position(|(w, f)| w != f) {
            let offset = n * CHUNK as u64 + at as u64;
            return Err(Failure::with_errno(
                format!("{}: wrong byte at {offset} ({} MiB)", path.display(), offset / MIB),
                libc::EBADMSG,
            ));
        }
        bar.inc(1);
    }
    Ok(())
}
