//! libstria: a C program, compiled against its header, on a real mount.
mod roles;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use roles::{RoleProcess, World, can_mount, transports};

/// What the other test starts in a process of its own; without being told a role there is nothing to serve.
#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

#[test]
fn a_program_in_c_reads_and_writes_past_the_kernel() {
    if !can_mount() {
        return;
    }
    if Command::new("cc").arg("--version").output().is_err() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no C compiler");
        println!("not run: no C compiler");
        return;
    }
    let mut world = World::new();
    let (at, stores, program) = (world.point("mnt"), world.path("stores"), world.path("program"));
    let other = world.point("other");
    let points = [&at, &other].map(|p| p.to_str().expect("a plain path"));
    let _up = RoleProcess::start(&[&["up", &stores, "2", transports()[0]][..], &points].concat());
    // The library as it is installed: its name, and its symbols' versions.
    let libraries = world.path("lib");
    std::fs::create_dir(&libraries).expect("a directory");
    let archive = beside("libstria.a");
    let linked =
        Command::new("sh").arg(libstria().join("link.sh")).arg(archive).arg(&libraries).output().expect("sh runs");
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o", &program])
        .arg(libstria().join("examples/copy.c"))
        .arg("-I")
        .arg(libstria().join("include"))
        .args(["-L", &libraries, "-lstria"])
        .output()
        .expect("cc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let wants = Command::new("readelf").args(["-dV", &program]).output().expect("readelf comes with cc");
    let wants = String::from_utf8_lossy(&wants.stdout).into_owned();
    assert!(wants.contains("[libstria.so.0]") && wants.contains("STRIA_0.1"), "{wants}");
    let mut command = Command::new(&program);
    command.args([at.join("f"), other.join("g")]).env("LD_LIBRARY_PATH", libraries);
    let ran = command.output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "well\n", "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(std::fs::read(at.join("f")).expect("the file"), b"\0\0\0\0\x000123456789abc");
}

fn libstria() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../libstria")
}

fn beside(name: &str) -> PathBuf {
    let at = std::env::current_exe().expect("the path of the test binary").with_file_name(name);
    assert!(at.exists(), "{} is built along with this test", at.display());
    at
}

/// Words of a text that begin with `stria_`, before what `follows`.
fn functions(text: &str, follows: char) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = text.match_indices("stria_").filter(|(i, _)| !text[..*i].ends_with(word));
    let words = starts.map(|(i, _)| (i, text[i..].find(|c| !word(c)).map_or(text.len(), |n| i + n)));
    words.filter(|(_, end)| text[*end..].starts_with(follows)).map(|(i, end)| text[i..end].to_string()).collect()
}

#[test]
fn header_versions_exports_and_manual_name_the_same_functions() {
    let read = |name: &str| std::fs::read_to_string(libstria().join(name)).expect("a file of the library");
    let header = functions(&read("include/stria.h"), '(');
    assert!(header.len() > 15, "{header:?}");
    assert_eq!(functions(&read("stria.map"), ';'), header, "stria.map");
    let code = read("src/lib.rs") + &read("src/queue.rs");
    let exported = code.match_indices("extern \"C\" fn ").map(|(i, m)| &code[i + m.len()..]);
    let exported: BTreeSet<String> = exported.map(|c| c[..c.find('(').expect("arguments")].to_string()).collect();
    assert_eq!(exported, header, "what the crate exports");
    let manual = read("../../docs/man/libstria.3");
    for name in &header {
        assert!(
            manual.contains(&format!(".Fn {name}")) || manual.contains(&format!(".Fo {name}")),
            "{name} is not in the manual"
        );
    }
}

#[test]
fn the_manual_is_well_formed() {
    let manual = libstria().join("../../docs/man/libstria.3");
    match Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&manual).output() {
        Ok(said) => assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout)),
        Err(_) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "no mandoc");
            println!("not run: no mandoc");
        }
    }
}

/// Runs a program to its end; what it said.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// A Python of its own with what the wheel's users have, kept for the next time. `None`: it cannot be had here.
fn python() -> Option<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheel-python");
    let python = place.join("bin/python");
    let good = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    let has = || good(Command::new(&python).args(["-c", "import pip, numpy, pyarrow, fsspec"]));
    let made = has()
        || good(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))
            && good(Command::new(&python).args([
                "-m",
                "pip",
                "install",
                "-q",
                "--retries",
                "10",
                "--timeout",
                "60",
                "numpy",
                "pyarrow",
                "fsspec",
            ]))
            && has();
    if !made {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no Python with pip, numpy, pyarrow and fsspec");
        println!("not run: no Python with pip, numpy, pyarrow and fsspec, and they cannot be had here");
    }
    made.then_some(python)
}

#[test]
fn programs_in_python_read_and_write_past_the_kernel() {
    if !can_mount() {
        return;
    }
    let Some(python) = python() else { return };
    let mut world = World::new();
    let (at, stores, wheels, elsewhere) = (world.point("mnt"), world.path("stores"), world.path("w"), world.path("e"));
    for dir in [&wheels, &elsewhere] {
        std::fs::create_dir(dir).expect("a directory");
    }
    let _up = RoleProcess::start(&["up", &stores, "2", transports()[0], at.to_str().expect("a plain path")]);
    let pip = |words: &[&str]| {
        let mut command = Command::new(&python);
        run(command
            .args(["-m", "pip", "--disable-pip-version-check"])
            .args(words)
            .env("STRIA_ARCHIVE", beside("libstria.a")))
    };
    let package = libstria().join("python");
    pip(&["wheel", "-q", "--no-deps", "-w", &wheels, package.to_str().expect("a plain path")]);
    let wheel = std::fs::read_dir(&wheels).expect("wheels").flatten().next().expect("a wheel").path();
    pip(&["install", "-q", "--no-deps", "--no-index", "--force-reinstall", wheel.to_str().expect("a plain path")]);
    let said = run(Command::new(&python).arg(package.join("tests/check.py")).arg(&at).arg(&elsewhere));
    assert_eq!(said, "well\n");
}
