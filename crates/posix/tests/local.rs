//! The expectations, checked on the local file system that temporary files are on: what fails here is a wrong
//! expectation, not a wrong file system.
use std::time::Duration;

#[test]
fn a_local_file_system_meets_every_expectation() {
    let dir = tempfile::tempdir().unwrap();
    let summary = posix::run::run_all(dir.path(), "", Duration::from_secs(60), &mut |line| {
        if !line.starts_with("ok") {
            println!("{line}");
        }
    });
    assert_eq!(summary.failed, []);
    assert!(summary.passed > 250, "{} cases passed", summary.passed);
}

#[test]
fn a_local_file_system_behaves_as_the_model_through_one_path_and_through_two() {
    let dir = tempfile::tempdir().unwrap();
    posix::random::run(1, 1000, &[dir.path()]).unwrap();
    posix::random::run(2, 1000, &[dir.path(), dir.path()]).unwrap();
}

#[test]
fn a_directory_agrees_with_itself_in_every_case_on_two_paths() {
    let dir = tempfile::tempdir().unwrap();
    for case in posix::pair::all() {
        if let Err(e) = posix::pair::run_within(case, dir.path(), dir.path(), Duration::from_secs(60)) {
            panic!("{}: {e}", case.name);
        }
    }
}

#[test]
fn names_of_cases_are_unique() {
    let mut names: Vec<String> = posix::cases::all().map(|c| format!("{}/{}", c.group, c.name)).collect();
    let n = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), n);
}
