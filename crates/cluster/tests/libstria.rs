//! libstria: a C program, compiled against its header, on a real mount.
mod roles;

use std::path::Path;
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
    let _up = RoleProcess::start(&["up", &stores, "2", transports()[0], at.to_str().expect("a plain path")]);
    let libstria = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libstria");
    let libraries = std::env::current_exe().expect("the path of the test binary");
    let libraries = libraries.parent().expect("a directory");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o", &program])
        .arg(libstria.join("examples/copy.c"))
        .arg("-I")
        .arg(libstria.join("include"))
        .arg(libraries.join("libstria.so"))
        .output()
        .expect("cc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).arg(at.join("f")).env("LD_LIBRARY_PATH", libraries).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "well\n", "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(std::fs::read(at.join("f")).expect("the file"), b"\0\0\0\0\x000123456789abc");
}
