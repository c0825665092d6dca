//! `posix DIR [FILTER] [--list]`: runs the cases on a directory, a line each, and a closing line.
//! `posix pairs DIR SECOND_DIR`: the cases on two paths of one file system.
//! `posix random SEED OPS DIR [SECOND_DIR]`: the random-operation test.
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "random") {
        return random(&args[1..]);
    }
    if args.first().is_some_and(|a| a == "pairs") && args.len() == 3 {
        return pairs(Path::new(&args[1]), Path::new(&args[2]));
    }
    let words: Vec<&String> = args.iter().filter(|a| !a.starts_with("--")).collect();
    let filter = words.get(1).map_or("", |s| s.as_str());
    if args.iter().any(|a| a == "--list") {
        for case in posix::cases::all() {
            println!("{}/{}", case.group, case.name);
        }
        return ExitCode::SUCCESS;
    }
    let Some(dir) = words.first() else {
        eprintln!(
            "usage: posix DIR [FILTER] [--list]\n       posix pairs DIR SECOND_DIR\n       posix random SEED OPS DIR [SECOND_DIR]"
        );
        return ExitCode::from(2);
    };
    let base = Path::new(dir).join(format!("posix.{}", std::process::id()));
    if let Err(e) = std::fs::create_dir(&base) {
        eprintln!("{}: {e}", base.display());
        return ExitCode::from(2);
    }
    let summary = posix::run::run_all(&base, filter, Duration::from_secs(60), &mut |line| println!("{line}"));
    let _ = std::fs::remove_dir(&base);
    println!("{} passed, {} failed, {} skipped", summary.passed, summary.failed.len(), summary.skipped);
    if summary.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn random(args: &[String]) -> ExitCode {
    let numbers = (args.first().and_then(|s| s.parse().ok()), args.get(1).and_then(|s| s.parse().ok()));
    let (Some(seed), Some(ops)) = numbers else {
        eprintln!("usage: posix random SEED OPS DIR [SECOND_DIR]");
        return ExitCode::from(2);
    };
    let dirs: Vec<&Path> = args[2..].iter().map(Path::new).collect();
    match posix::random::run(seed, ops, &dirs) {
        Ok(()) => {
            println!("{ops} operations of seed {seed} as the model has them");
            ExitCode::SUCCESS
        }
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn pairs(a: &Path, b: &Path) -> ExitCode {
    let mut failed = 0;
    for case in posix::pair::all() {
        match posix::pair::run_within(case, a, b, Duration::from_secs(60)) {
            Ok(()) => println!("ok    pair/{}", case.name),
            Err(e) => {
                failed += 1;
                println!("FAIL  pair/{}: {e}", case.name);
            }
        }
    }
    println!("{failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
