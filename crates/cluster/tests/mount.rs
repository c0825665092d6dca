//! Whole clusters behind real mounts: the POSIX suite over both transports, random operations against a model,
//! coherence of two mounts, and roles that are killed and started again under load.
mod roles;

use roles::{RoleProcess, World, can_mount, transports};

/// What the other tests start in processes of its own; without being told a role there is nothing to serve.
#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

#[test]
fn the_posix_suite_passes_over_every_transport() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let mut world = World::new();
        let at = world.point("mnt");
        let _up = RoleProcess::start(&["up", &world.path("stores"), "4", transport, at.to_str().unwrap()]);
        let summary = posix::run::run_all(&at, "", std::time::Duration::from_secs(60), &mut |line| println!("{transport} {line}"));
        assert_eq!(summary.failed, [], "over {transport}");
        assert!(summary.passed > 300, "{} cases passed over {transport}", summary.passed);
    }
}
