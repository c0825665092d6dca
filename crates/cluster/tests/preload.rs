//! libstria_posix.so on real mounts: the POSIX suite and random operations under it, a program in C that does to descriptors what
//! programs do, and programs that everybody has.
mod roles;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use roles::{RoleProcess, World, can_mount, transports};

/// What the other tests start in a process of its own; without being told a role there is nothing to serve.
#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

const LIMIT: Duration = Duration::from_secs(600);
const CASE_LIMIT: Duration = Duration::from_secs(60);
/// Names a directory of the mount to a copy of this program.
const DIR: &str = "STRIA_TEST_DIR";
/// Records in the file of `hazards.c`.
const RECORDS: u64 = 4096;

fn beside(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the path of the test binary");
    let at = program.with_file_name(name);
    assert!(at.exists(), "{} is built along with this test", at.display());
    at
}

fn up(n: usize) -> (RoleProcess, Vec<PathBuf>, World) {
    let mut world = World::new();
    let points: Vec<PathBuf> = (0..n).map(|i| world.point(&format!("mnt{i}"))).collect();
    let stores = world.path("stores");
    let mut words = vec!["up", &stores, "2", transports()[0]];
    words.extend(points.iter().map(|p| p.to_str().expect("a plain path")));
    let up = RoleProcess::start(&words);
    (up, points, world)
}

/// Runs a program under the library to its end, in time: a hang is the program's group's end, and a failure.
fn run(at: &[PathBuf], command: &mut Command) -> Output {
    command.env("LD_PRELOAD", beside("libstria_posix.so")).env("STRIA_POSIX_AFTER", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let what = format!("{command:?}");
    let child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
    let (pid, begun) = (child.id() as i32, Instant::now());
    let output = std::thread::spawn(move || child.wait_with_output());
    while !output.is_finished() {
        if begun.elapsed() > LIMIT {
            roles::abort(at);
            // SAFETY: the group of our own child.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
            let said = output.join().ok().and_then(Result::ok);
            panic!("{what}: no end within {LIMIT:?}: {said:?}");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    output.join().expect("a thread").expect("its output")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A copy of this program that runs one of the tests below under the library.
fn under_the_library(at: &[PathBuf], test: &str) {
    let mut command = Command::new(std::env::current_exe().expect("the path of the test binary"));
    command.args(["--ignored", "--exact", test, "--nocapture"]).env(DIR, &at[0]);
    let output = run(at, &mut command);
    assert!(output.status.success() && text(&output).contains("1 passed"), "{test}: {}", text(&output));
}

/// Calls of this process, and those that it forked, that went through the rings.
fn calls() -> u64 {
    // SAFETY: the name ends with a zero; a function of this name has this type.
    unsafe {
        let at = libc::dlsym(libc::RTLD_DEFAULT, c"stria_posix_calls".as_ptr());
        assert!(!at.is_null(), "the library is there");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u64>(at)()
    }
}

fn dir() -> PathBuf {
    std::env::var_os(DIR).expect("a directory of the mount").into()
}

#[test]
#[ignore = "a program that a test below runs"]
fn program_that_runs_the_suite() {
    let summary = posix::run::run_all(&dir(), "", CASE_LIMIT, &mut |line| println!("{line}"));
    assert_eq!(summary.failed, []);
    assert!(summary.passed > 300, "{} cases passed", summary.passed);
    assert!(calls() > 300, "{} calls went through the rings", calls());
}

#[test]
#[ignore = "a program that a test below runs"]
fn program_that_does_random_operations() {
    for seed in 21..=23 {
        posix::random::run(seed, 1500, &[&dir()]).expect("as the model has it");
    }
    assert!(calls() > 100, "{} calls went through the rings", calls());
}

#[test]
fn the_posix_suite_passes_under_the_library() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(1);
    under_the_library(&at, "program_that_runs_the_suite");
}

#[test]
fn random_operations_under_the_library_give_what_the_model_gives() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(1);
    under_the_library(&at, "program_that_does_random_operations");
}

/// Whether a program is there; where tests must run, it has to be.
fn has(program: &str) -> bool {
    if Command::new(program).arg("--version").output().is_ok() {
        return true;
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "no {program}");
    println!("not run: no {program}");
    false
}

#[test]
fn programs_do_to_descriptors_what_they_like() {
    if !can_mount() || !has("cc") {
        return;
    }
    let (_up, at, world) = up(1);
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/hazards.c"), world.path("hazards"));
    let library = world.path("libjumps.so");
    let build = |words: &[&str]| {
        let compiled = Command::new("cc").args(["-Wall", "-Wextra", "-Werror", "-pthread"]).args(words).output();
        let compiled = compiled.expect("cc runs");
        assert!(compiled.status.success(), "{}", text(&compiled));
    };
    let source = source.to_str().expect("a plain path");
    build(&["-shared", "-fPIC", "-DLIBRARY", "-o", &library, source]);
    build(&["-o", &program, source, "-Wl,--no-as-needed", &library]);
    let records: Vec<u8> = (0..RECORDS).flat_map(u64::to_ne_bytes).collect();
    let steps = [
        "plain",
        "duplicated",
        "forked",
        "threads",
        "together",
        "executed",
        "closed",
        "appended",
        "signalled",
        "closed_amid",
        "sought",
        "jumped",
        "returned",
        "stepped",
        "taken",
        "replaced",
        "sent",
        "mixed",
        "cancelled",
        "wide",
    ];
    let mut failed = Vec::new();
    for step in steps {
        let file = at[0].join(step);
        std::fs::write(&file, &records).expect("the file");
        let output = run(&at, Command::new(&program).arg(step).arg(&file));
        if !output.status.success() || text(&output) != "well\n" {
            failed.push(format!("{step}: {}: {}", output.status, text(&output)));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// What the programs below do in a directory; what they print and leave there must be the same everywhere.
const WORK: &str = r#"
set -e
cd "$1"
seq 1 200000 > lines
dd if=lines of=copy bs=1000 status=none
dd if=copy of=copy bs=777 count=50 skip=3 seek=9 conv=notrunc status=none
sort -r copy > sorted; tail -c 100000 sorted > tail; cat lines copy sorted > all; cp all again; wc -c *; sed -i s/7/seven/ tail
mkdir tree; cp lines copy tail tree; tar cf tree.tar --sort=name --mtime=@0 tree; rm -r tree; tar xf tree.tar; gzip -nk tree.tar; gunzip -c tree.tar.gz | cmp - tree.tar
sha256sum all again tail tree/* tree.tar.gz
"#;
const GIT: &str = r#"
set -e
cd "$1"
export HOME="$1" GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z
git init -q -b main repository; cd repository
for i in 1 2 3 4 5; do seq $i 20000 > f$i; git add .; git commit -qm $i; done
git gc -q; git fsck --strict; git clone -q . ../clone; git -C ../clone log --oneline --stat; git -C ../clone rev-parse HEAD
"#;
const SQLITE: &str = r#"
set -e
cd "$1"
for mode in delete wal; do
sqlite3 $mode.db "PRAGMA journal_mode=$mode; CREATE TABLE t(i INTEGER PRIMARY KEY, s TEXT);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<20000) INSERT INTO t SELECT i, 'row '||i FROM c;
DELETE FROM t WHERE i%3=0; UPDATE t SET s=s||'!' WHERE i%5=0; VACUUM;"
sqlite3 $mode.db "PRAGMA integrity_check; SELECT count(*), sum(length(s)) FROM t;"
done
"#;
const PYTHON: &str = r#"
set -e
cd "$1"
python3 - <<'END'
import os, subprocess, threading, mmap, multiprocessing, hashlib, io
data = bytes(i * 7 % 251 for i in range(300000))
with open("f", "w+b") as f:
    for i in range(0, len(data), 1000): f.write(data[i:i + 1000])
    f.flush()
    f.seek(0); assert f.read() == data
    assert os.pread(f.fileno(), 1000, 5000) == data[5000:6000]
    f.seek(1234); f.write(b"x" * 10); f.flush()
    m = mmap.mmap(f.fileno(), 0); assert m[1234:1244] == b"x" * 10; m[0:4] = b"abcd"
    assert os.pread(f.fileno(), 4, 0) == b"abcd"; m.close()
fd = os.open("f", os.O_RDWR)
for i in range(20): os.read(fd, 10)
assert subprocess.run(["head", "-c", "10"], stdin=fd, stdout=subprocess.PIPE).stdout[:10] == open("f", "rb").read()[200:210]
os.lseek(fd, 0, os.SEEK_SET)
got, lock = [], threading.Lock()
def take():
    while part := os.read(fd, 100):
        with lock: got.append(part)
all = [threading.Thread(target=take) for _ in range(4)]
[t.start() for t in all]; [t.join() for t in all]
assert sorted(got) == sorted(open("f", "rb").read()[i:i + 100] for i in range(0, 300000, 100))
def child(n): return hashlib.sha256(os.pread(fd, 1000, n * 1000)).hexdigest()
with multiprocessing.get_context("fork").Pool(3) as pool: print(*pool.map(child, range(5)))
with open("out", "wb") as f: subprocess.run(["sh", "-c", "echo one; echo two"], stdout=f); f.write(b"three\n")
print(open("out").read())
END
sha256sum f
"#;

/// Runs a script in a directory of a mount under the library, and without it in one of a local file system.
fn as_elsewhere(programs: &[&str], name: &str, script: &str) {
    if !can_mount() || !programs.iter().all(|p| has(p)) {
        return;
    }
    let (_up, at, world) = up(1);
    let (there, here, report) = (at[0].join(name), world.dir.path().join(name), world.path("report"));
    for dir in [&there, &here] {
        std::fs::create_dir(dir).expect("a directory");
    }
    let local = Command::new("sh").args(["-c", script, "sh"]).arg(&here).output().expect("sh runs");
    assert!(local.status.success(), "{name}, elsewhere: {}", text(&local));
    let mut command = Command::new("sh");
    let output = run(&at, command.args(["-c", script, "sh"]).arg(&there).env("STRIA_POSIX_REPORT", &report));
    assert!(output.status.success(), "{name}: {}", text(&output));
    let path = |o: &Output, dir: &Path| text(o).replace(dir.to_str().expect("plain"), "DIR");
    assert_eq!(path(&output, &there), path(&local, &here), "{name}");
    let report = std::fs::read_to_string(&report).expect("programs said how they did");
    let calls: u64 = report.lines().filter_map(|l| l.split(' ').next()?.parse::<u64>().ok()).sum();
    println!("{report}");
    assert!(calls > 50, "{name}: {calls} calls went through the rings:\n{report}");
}

#[test]
fn dd_sort_tar_and_others_do_what_they_do_elsewhere() {
    as_elsewhere(&["dd", "sort", "tar", "gzip"], "work", WORK);
}

#[test]
fn git_does_what_it_does_elsewhere() {
    as_elsewhere(&["git"], "git", GIT);
}

#[test]
fn sqlite_does_what_it_does_elsewhere() {
    as_elsewhere(&["sqlite3"], "sqlite", SQLITE);
}

#[test]
fn python_does_what_it_does_elsewhere() {
    as_elsewhere(&["python3"], "python", PYTHON);
}
