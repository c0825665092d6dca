//! `stria`: one binary for every role of the file system and for the tools that go with it. Called through a link named
//! `lfs` or `lctl` it takes the verbs of those names.
#[macro_use]
mod out;
mod advice;
mod cli;
mod config;
mod control;
mod credential;
mod daemon;
mod demo;
mod failure;
mod fsck;
mod helper;
mod http;
mod kernels;
mod lfs;
mod log;
mod metrics;
mod ost;
mod parameters;
mod requests;
mod status;
mod survey;
mod top;
mod torture;
mod trouble;
mod tune;
mod upkeep;
mod web;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tracing::level_filters::LevelFilter;

/// Tests of formats account for memory.
#[cfg(test)]
#[global_allocator]
static MEMORY: formats::memory::Counting = formats::memory::Counting;

use crate::cli::{Arguments, ConfigVerb, Verb};
use crate::config::Config;
use crate::failure::{Failure, Outcome};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Servers that are simulated under faults have much to warn of, at times that nobody knows.
    let simulates = arguments.get(1).is_some_and(|verb| verb == "sim" || verb == "report");
    let _logging = log::start(if simulates { LevelFilter::OFF } else { LevelFilter::WARN });
    let name =
        arguments.first().and_then(|a| Path::new(a).file_stem()).unwrap_or_default().to_string_lossy().into_owned();
    // The whole name: a type of file systems may have a dot.
    let whole = arguments.first().and_then(|a| Path::new(a).file_name()).unwrap_or_default().to_string_lossy();
    if helper::is_helper(&whole) {
        return helper::run(&whole, &arguments[1..]);
    }
    let done = plant().and_then(|()| match name.as_str() {
        "lfs" | "lctl" => borrowed_name(&name, &arguments[1..]),
        _ => run(Arguments::parse_from(arguments).verb),
    });
    match done {
        Ok(code) => code,
        Err(failure) => {
            let told = std::env::var_os(daemon::ANNOUNCE).is_some();
            if told {
                note!("failed {} {}", failure.code(), failure.to_string().replace('\n', " "));
            }
            failure.report("stria")
        }
    }
}

/// Environment variable with the name of the planted bug that is on in a process and in those that it starts.
const PLANTED: &str = "STRIA_PLANTED";

/// Switches the planted bug on that the environment names; products have none.
fn plant() -> Outcome {
    use types::planted::{BUGS, COMPILED_IN};
    let Some(name) = std::env::var_os(PLANTED) else { return Ok(()) };
    let shown = name.to_string_lossy();
    if !COMPILED_IN {
        return Err(Failure::usage(format!("{PLANTED}={shown}: this build has no planted bugs: unset it")));
    }
    let Some(bug) = BUGS.iter().find(|b| b.name == shown) else {
        let all: Vec<&str> = BUGS.iter().map(|b| b.name).collect();
        return Err(Failure::usage(format!("{PLANTED}={shown}: there are {}", all.join(", "))));
    };
    types::planted::plant(Some(bug.name));
    Ok(())
}

fn run(verb: Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Up(a) => daemon::up(&a)?,
        Verb::Demo(a) => demo::demo(&a)?,
        Verb::Mkfs(a) => daemon::mkfs(&a)?,
        Verb::Mds(a) => daemon::mds(&a)?,
        Verb::Oss(a) => daemon::oss(&a)?,
        Verb::Ost(v) => ost::ost(&v)?,
        Verb::Credential(v) => credential::credential(&v)?,
        Verb::Mount(a) => daemon::mount(&a)?,
        Verb::Umount(a) => daemon::umount(&a)?,
        Verb::Stop(a) => daemon::stop(&a)?,
        Verb::Sync(a) => status::sync(a.path.as_deref())?,
        Verb::AbortRecovery(a) => status::abort_recovery(a.path.as_deref())?,
        Verb::Status(a) => status::status(&a)?,
        Verb::Top(a) => top::top(&a)?,
        Verb::Web(a) => web::web(&a)?,
        Verb::Fsck(a) => return fsck::fsck(&a),
        Verb::Scrub(a) => return upkeep::scrub(&a),
        Verb::Mdt(v) => upkeep::mdt(&v)?,
        Verb::Torture(a) => return torture::torture(&a),
        Verb::Bench(a) => bench::cli::bench(&a, &|text| out::print(format_args!("{text}")))?,
        Verb::Survey(a) => survey::survey(&a)?,
        Verb::Trace(v) => requests::trace(&v)?,
        Verb::Why(a) => requests::why(&a)?,
        Verb::Tune(a) => tune::tune(&a)?,
        Verb::Config(v) => explain(&v)?,
        Verb::Man(a) => man(&a)?,
        Verb::Completions(a) => completions(&a),
        Verb::Metrics(a) if a.markdown => out::print(format_args!("{}", metrics::reference_markdown())),
        Verb::Metrics(_) => out::print(format_args!("{}", metrics::list())),
        Verb::Setstripe(a) => lfs::setstripe(&a.arguments)?,
        Verb::Migrate(a) => lfs::migrate(&a.arguments)?,
        Verb::Getstripe(a) => lfs::getstripe(&a.arguments)?,
        Verb::Df(a) => lfs::df(&a.arguments)?,
        Verb::Path2fid(a) => lfs::path2fid(&a.arguments)?,
        Verb::Fid2path(a) => lfs::fid2path(&a.arguments)?,
        Verb::Rmfid(a) => lfs::rmfid(&a.arguments)?,
        Verb::Fadvise(a) => lfs::fadvise(&a.arguments)?,
        Verb::Ladvise(a) => lfs::ladvise(&a.arguments)?,
        Verb::Advice(a) => advice::advice(&a)?,
        Verb::Find(a) => lfs::find(&a.arguments)?,
        Verb::Pool(v) => lfs::pool(v.parts())?,
        Verb::Quota(a) => lfs::quota(&a.arguments)?,
        Verb::Project(a) => lfs::project(&a.arguments)?,
        Verb::Setquota(a) => lfs::setquota(&a.arguments)?,
        Verb::Changelog(v) => lfs::changelog(v.parts())?,
        Verb::Osts(a) => lfs::osts(&a.arguments)?,
        Verb::Mdts(a) => lfs::mdts(&a.arguments)?,
        Verb::Check(a) => lfs::check(&a.arguments)?,
        Verb::Getname(a) => lfs::getname(&a.arguments)?,
        Verb::Ping(a) => status::ping(&a.arguments)?,
        Verb::GetParam(a) => parameters::get(&a.arguments)?,
        Verb::SetParam(a) => parameters::set(&a.arguments)?,
        Verb::ListParam(a) => parameters::list(&a.arguments)?,
        Verb::Sim(a) => return simulate(a.verb),
        Verb::Report(a) => return Ok(sim::cli::main(sim::cli::Arguments { verb: sim::cli::Verb::Report(a) })),
    }
    Ok(ExitCode::SUCCESS)
}

fn simulate(verb: cli::SimVerb) -> Result<ExitCode, Failure> {
    match verb {
        cli::SimVerb::Simulator(verb) => {
            let ended =
                matches!(verb, sim::cli::Verb::Torture(_) | sim::cli::Verb::Sequences(_)).then(kernels::end_at_signal);
            let code = sim::cli::main(sim::cli::Arguments { verb });
            Ok(ended.and_then(|e| e.code()).unwrap_or(code))
        }
        cli::SimVerb::Kernels(a) => {
            let ended = kernels::end_at_signal();
            kernels::kernels(&a)?;
            Ok(ended.code().unwrap_or(ExitCode::SUCCESS))
        }
    }
}

fn man(a: &cli::Man) -> Outcome {
    use clap::CommandFactory;
    clap_mangen::generate_to(Arguments::command(), &a.dir)
        .map_err(|e| Failure::io("writing manual pages to", &a.dir, &e))
}

fn completions(a: &cli::Completions) {
    use clap::CommandFactory;
    let mut text = Vec::new();
    clap_complete::generate(a.shell, &mut Arguments::command(), "stria", &mut text);
    out::print(format_args!("{}", String::from_utf8_lossy(&text)));
}

/// A verb of `lfs` or `lctl`: whose it is, its names, what it does with the tool's name and its arguments.
type Borrowed = (&'static [&'static str], &'static [&'static str], fn(&str, &[OsString]) -> Outcome);

const LFS: &[&str] = &["lfs"];
const LCTL: &[&str] = &["lctl"];
const BOTH: &[&str] = &["lfs", "lctl"];

/// The verbs of `lfs` and `lctl`.
const BORROWED: &[Borrowed] = &[
    (LFS, &["setstripe"], |_, rest| lfs::setstripe(rest)),
    (LFS, &["migrate"], |_, rest| lfs::migrate(rest)),
    (LFS, &["getstripe"], |_, rest| lfs::getstripe(rest)),
    (LFS, &["df"], |_, rest| lfs::df(rest)),
    (LFS, &["find"], |_, rest| lfs::find(rest)),
    (BOTH, &["pool_list"], |_, rest| lfs::pool(("pool_list", rest))),
    (LCTL, &["pool_new"], |_, rest| lfs::pool(("pool_new", rest))),
    (LCTL, &["pool_add"], |_, rest| lfs::pool(("pool_add", rest))),
    (LCTL, &["pool_remove", "pool_del"], |_, rest| lfs::pool(("pool_remove", rest))),
    (LCTL, &["pool_destroy"], |_, rest| lfs::pool(("pool_destroy", rest))),
    (LFS, &["quota"], |_, rest| lfs::quota(rest)),
    (LFS, &["project"], |_, rest| lfs::project(rest)),
    (LFS, &["setquota"], |_, rest| lfs::setquota(rest)),
    (LFS, &["changelog"], |_, rest| lfs::changelog(("changelog", rest))),
    (LFS, &["changelog_clear"], |_, rest| lfs::changelog(("changelog_clear", rest))),
    (LCTL, &["changelog_register"], |_, rest| lfs::changelog(("changelog_register", rest))),
    (LCTL, &["changelog_deregister"], |_, rest| lfs::changelog(("changelog_deregister", rest))),
    (LFS, &["path2fid"], |_, rest| lfs::path2fid(rest)),
    (LFS, &["fid2path"], |_, rest| lfs::fid2path(rest)),
    (LFS, &["rmfid"], |_, rest| lfs::rmfid(rest)),
    (LFS, &["fadvise"], |_, rest| lfs::fadvise(rest)),
    (LFS, &["ladvise"], |_, rest| lfs::ladvise(rest)),
    (LFS, &["osts"], |_, rest| lfs::osts(rest)),
    (LFS, &["mdts"], |_, rest| lfs::mdts(rest)),
    (LFS, &["check"], |_, rest| lfs::check(rest)),
    (LFS, &["getname"], |_, rest| lfs::getname(rest)),
    (BOTH, &["get_param"], |_, rest| parameters::get(rest)),
    (BOTH, &["set_param"], |_, rest| parameters::set(rest)),
    (BOTH, &["list_param"], |_, rest| parameters::list(rest)),
    (LCTL, &["dl", "device_list"], |_, _| status::device_list()),
    (LCTL, &["ping"], |_, rest| status::ping(rest)),
    (LCTL, &["abort_recovery"], |_, rest| status::abort_recovery(rest.first().map(Path::new))),
    (BOTH, &["help", "--help", "-h", "--list-commands"], |tool, _| {
        say!("{}", known_verbs(tool));
        Ok(())
    }),
    (BOTH, &["version", "--version"], |tool, _| {
        say!("{tool} {} (stria)", env!("CARGO_PKG_VERSION"));
        Ok(())
    }),
];

/// `lctl --device NAME VERB ...` as `lctl VERB --device NAME ...`.
fn device_behind(arguments: &[OsString]) -> Vec<OsString> {
    match arguments {
        [option, device, verb, rest @ ..] if option == "--device" => {
            [&[verb.clone(), option.clone(), device.clone()], rest].concat()
        }
        [device, verb, rest @ ..] if device.to_string_lossy().starts_with("--device=") => {
            [&[verb.clone(), device.clone()], rest].concat()
        }
        _ => arguments.to_vec(),
    }
}

fn borrowed_name(tool: &str, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let arguments = device_behind(arguments);
    let Some((verb, rest)) = arguments.split_first() else {
        return Err(Failure::usage(format!("usage: {tool} VERB ...; there are: {}", known_verbs(tool))));
    };
    let verb = &*verb.to_string_lossy();
    let found = BORROWED.iter().find(|(of, names, _)| of.contains(&tool) && names.contains(&verb));
    let Some((_, _, run)) = found else {
        let known = known_verbs(tool);
        return Err(Failure::with_errno(
            format!("{tool}: '{verb}' is not there; there are: {known}"),
            libc::EOPNOTSUPP,
        ));
    };
    run(tool, rest)?;
    Ok(ExitCode::SUCCESS)
}

fn known_verbs(tool: &str) -> String {
    let of_tool = BORROWED.iter().filter(|(of, ..)| of.contains(&tool));
    let names = of_tool.flat_map(|(_, names, _)| names.iter()).filter(|n| !n.starts_with('-'));
    names.copied().collect::<Vec<_>>().join(", ")
}

fn explain(verb: &ConfigVerb) -> Outcome {
    match verb {
        ConfigVerb::Explain { markdown: true, .. } => out::print(format_args!("{}", config::reference_markdown())),
        ConfigVerb::Explain { part, settings, .. } => {
            let text = config::explain(&daemon::load(settings)?, part);
            if text.is_empty() {
                return Err(Failure::usage(format!(
                    "no key's name contains '{part}': 'stria config explain' lists all"
                )));
            }
            out::print(format_args!("{text}"));
        }
        ConfigVerb::Check { file } => {
            Config::load(file).map_err(Failure::usage)?;
            say!("{}: fine", file.display());
        }
        ConfigVerb::Show { settings } => out::print(format_args!("{}", daemon::load(settings)?.to_toml())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn arguments_that_cannot_be_are_refused() {
        let wrong = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap_err().to_string();
        assert!(wrong("stria up --dir d").contains("--mount"));
        assert!(wrong("stria up --dir d --mount m --osts 0").contains("1..=512"));
        assert!(wrong("stria mount /m").contains("--mds"));
        assert!(wrong("stria demo --large lots").contains("lots"));
        assert!(wrong("stria frobnicate").contains("frobnicate"));
        let line = "stria setstripe -c -1 -S 4M file";
        let Verb::Setstripe(rest) = Arguments::try_parse_from(line.split(' ')).unwrap().verb else { panic!() };
        assert_eq!(rest.arguments, ["-c", "-1", "-S", "4M", "file"]);
    }

    #[test]
    fn borrowed_names_say_what_they_can() {
        let e = borrowed_name("lfs", &["frobnicate".into()]).unwrap_err();
        assert!(e.to_string().contains("setstripe, migrate, getstripe, df, find"), "{e}");
        let e = borrowed_name("lctl", &[]).unwrap_err();
        assert!(e.to_string().contains("dl, device_list, ping, abort_recovery, help, version"), "{e}");
        let e = borrowed_name("lctl", &["setstripe".into()]).unwrap_err();
        assert!(e.to_string().contains("'setstripe' is not there"), "{e}");
    }
}
