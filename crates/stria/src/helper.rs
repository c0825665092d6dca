//! `mount.stria` and `umount.stria`: what mount(8) and umount(8) call for `mount -t stria`, lines of /etc/fstab and `umount`.
//!
//! The binary under these names. What is mounted is an address of the metadata server (`192.0.2.1:7988`) or a cluster's directory
//! on this host. Options that are for others are dropped, `key=FILE`, `config=FILE` and keys of the configuration
//! (`client.cache_bytes=1G`) become settings, and the rest is a mount option, checked before anything starts.
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::{Settings, Umount};
use crate::daemon::{self, Daemon};
use crate::failure::Failure;

/// mount(8): wrong invocation, or not permitted.
const USAGE: u8 = 1;
/// mount(8): no memory, no process.
const SYSTEM: u8 = 2;
/// mount(8): the mount failed.
const FAILED: u8 = 32;

const USAGE_MOUNT: &str = "usage: mount.stria ADDRESS:PORT|DIRECTORY MOUNTPOINT [-fnsv] [-o OPTIONS]; -f only checks, -s drops options that nobody knows";

/// Names under which the binary is a helper.
#[must_use]
pub fn is_helper(name: &str) -> bool {
    ["mount.", "umount."].iter().any(|p| name.strip_prefix(p).is_some_and(|t| ["stria", "fuse.stria"].contains(&t)))
}

/// Runs as the helper `name`.
#[must_use]
pub fn run(name: &str, arguments: &[OsString]) -> ExitCode {
    let done = if name.starts_with("umount.") { unmount(arguments) } else { mount(arguments) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(name),
    }
}

/// What mount(8) said.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    what: String,
    at: PathBuf,
    options: String,
    fake: bool,
    sloppy: bool,
    verbose: bool,
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::usage(text).exiting(USAGE)
}

/// Reads the command line that mount(8) writes for helpers.
fn read(arguments: &[OsString]) -> Result<Asked, Failure> {
    let (mut asked, mut operands) = (Asked::default(), Vec::new());
    let mut rest = arguments.iter();
    let value = |option: &str, rest: &mut std::slice::Iter<'_, OsString>| {
        let value = rest.next().ok_or_else(|| wrong(format!("{option} needs a value; {USAGE_MOUNT}")))?;
        Ok::<String, Failure>(value.to_string_lossy().into_owned())
    };
    while let Some(argument) = rest.next() {
        match argument.to_string_lossy().as_ref() {
            "-o" => {
                let more = value("-o", &mut rest)?;
                asked.options = [std::mem::take(&mut asked.options), more].join(",");
            }
            // The type has done its work: it is how mount(8) came here.
            "-t" => drop(value("-t", &mut rest)?),
            "-N" => return Err(wrong("-N: the daemon serves the mount namespace that it is started in: use nsenter")),
            flags if flags.starts_with('-') && flags.len() > 1 => {
                for flag in flags[1..].chars() {
                    match flag {
                        'f' => asked.fake = true,
                        's' => asked.sloppy = true,
                        'v' => asked.verbose = true,
                        'n' => {}
                        'r' => asked.options += ",ro",
                        'w' => asked.options += ",rw",
                        _ => return Err(wrong(format!("unknown option -{flag}; {USAGE_MOUNT}"))),
                    }
                }
            }
            _ => operands.push(argument.clone()),
        }
    }
    let [what, at] = &operands[..] else { return Err(wrong(USAGE_MOUNT)) };
    (asked.what, asked.at) = (what.to_string_lossy().into_owned(), at.into());
    Ok(asked)
}

/// Options, each where it belongs.
#[derive(Debug, Default, PartialEq)]
struct Sorted {
    mount: Vec<String>,
    settings: Vec<String>,
    config: Option<PathBuf>,
    log: Option<PathBuf>,
}

/// Whether an option is for mount(8), init systems or the kernel's own file systems only.
fn is_foreign(name: &str, has_value: bool) -> bool {
    let words = [
        "auto",
        "noauto",
        "nofail",
        "_netdev",
        "defaults",
        "user",
        "users",
        "nouser",
        "owner",
        "group",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "lazytime",
        "nolazytime",
        "silent",
        "loud",
        "_rnetdev",
        "uhelper",
        "helper",
    ];
    name.starts_with("x-")
        || name.starts_with("X-")
        || name == "comment"
        || (words.contains(&name) && !has_value)
        || (has_value && ["user", "uhelper", "helper"].contains(&name))
}

fn sort(options: &str) -> Result<Sorted, Failure> {
    let mut sorted = Sorted::default();
    let items: Vec<&str> = options.split(',').map(str::trim).filter(|o| !o.is_empty()).collect();
    let names = || items.iter().map(|i| i.split('=').next().unwrap_or_default());
    // What any user may mount gives nobody the rights of others, unless root says so behind it (mount(8)).
    let any = |wanted: &[&str]| names().any(|n| wanted.contains(&n));
    let by_anybody = any(&["user", "users"]);
    for (safe, opposite) in [("nosuid", "suid"), ("nodev", "dev"), ("noexec", "exec")] {
        let meant = by_anybody || (safe != "noexec" && any(&["owner", "group"]));
        if meant && !any(&[opposite]) {
            sorted.mount.push(safe.into());
        }
    }
    for item in &items {
        let (name, value) = item.split_once('=').map_or((*item, None), |(n, v)| (n, Some(v)));
        let path = |value: Option<&str>| {
            let full = value.filter(|v| v.starts_with('/'));
            full.map(PathBuf::from)
                .ok_or_else(|| wrong(format!("mount option '{item}': write {name}=/PATH, from / on")))
        };
        match name {
            "key" => sorted.settings.push(format!("cluster.key_file={}", path(value)?.display())),
            "config" => sorted.config = Some(path(value)?),
            "log" => sorted.log = Some(path(value)?),
            _ if is_foreign(name, value.is_some()) => {}
            _ if crate::config::rows().any(|r| r.key == name) => match value {
                Some(_) => sorted.settings.push((*item).to_string()),
                None => return Err(wrong(format!("mount option '{name}' needs a value: {name}=..."))),
            },
            _ if name.contains('.') => return Err(wrong(format!("mount option: {}", crate::config::unknown(name)))),
            _ => sorted.mount.push((*item).to_string()),
        }
    }
    Ok(sorted)
}

/// The options that there are; with `sloppy` the others are dropped, else the first of them is refused.
fn known(sorted: &mut Sorted, settings: &Settings, sloppy: bool) -> Result<(), Failure> {
    let config = daemon::load(settings).map_err(|e| e.exiting(USAGE))?;
    let check = |options: &str| daemon::check_options(&config, options);
    if sloppy {
        sorted.mount.retain(|o| check(o).is_ok());
    }
    check(&sorted.mount.join(",")).map_err(|e| e.exiting(USAGE))
}

fn mount(arguments: &[OsString]) -> Result<(), Failure> {
    let asked = read(arguments)?;
    let mut sorted = sort(&asked.options)?;
    let settings = Settings { config: sorted.config.clone(), set: sorted.settings.clone() };
    known(&mut sorted, &settings, asked.sloppy)?;
    let mut command = vec![OsString::from("mount")];
    if Path::new(&asked.what).is_absolute() {
        command.extend(["--dir".into(), (&asked.what).into()]);
    } else if rt::Nid::parse(&asked.what).is_ok_and(|n| n.places().iter().all(|n| matches!(n, rt::Nid::Tcp(_)))) {
        command.extend(["--mds".into(), (&asked.what).into()]);
    } else {
        let why = format!(
            "'{}' is neither an address of a metadata server, like 192.0.2.1:7988, nor a cluster's directory, from / on",
            asked.what
        );
        return Err(wrong(why));
    }
    // The name by which libmount notes options like _netdev: by that a service manager knows that the mount needs the network.
    if !asked.what.contains(',') && !sorted.mount.iter().any(|o| o.starts_with("fsname=")) {
        sorted.mount.push(format!("fsname={}", asked.what));
    }
    if !sorted.mount.is_empty() {
        command.extend(["-o".into(), sorted.mount.join(",").into()]);
    }
    command.extend(daemon::settings_arguments(&settings));
    command.extend(["--".into(), asked.at.clone().into()]);
    if asked.verbose {
        let words: Vec<_> = command.iter().map(|c| c.to_string_lossy()).collect();
        say!("stria {}", words.join(" "));
    }
    if asked.fake {
        return Ok(());
    }
    start(&command, sorted.log.as_deref()).map_err(|e| {
        let code = match i32::from(e.code()) {
            // 1 is also what has no number of its own.
            libc::EACCES | libc::EINVAL => USAGE,
            libc::ENOMEM | libc::EAGAIN => SYSTEM,
            _ => FAILED,
        };
        e.exiting(code)
    })
}

/// Starts the daemon; its messages go to a file, else to the journal where there is one, else nowhere.
fn start(command: &[OsString], log: Option<&Path>) -> Result<(), Failure> {
    let daemon = match (log, journal()) {
        (Some(log), _) => Daemon::start_logging(command, log)?,
        (None, Some(journal)) => Daemon::start_session(command, journal.into())?,
        (None, None) => Daemon::start(command, None, true, None)?,
    };
    // It stays when this process has gone.
    drop(daemon);
    Ok(())
}

/// A stream into the journal, as systemd-cat(1) opens it: what is written there is a message, line by line.
fn journal() -> Option<OwnedFd> {
    use std::io::Write;
    let mut stream = UnixStream::connect("/run/systemd/journal/stdout").ok()?;
    // Name; no unit; priority info; no prefix of levels; not to syslog, the kernel's log or the console.
    stream.write_all(b"stria\n\n6\n0\n0\n0\n0\n").ok()?;
    Some(stream.into())
}

fn unmount(arguments: &[OsString]) -> Result<(), Failure> {
    const USAGE_UMOUNT: &str = "usage: umount.stria MOUNTPOINT [-flnrv]";
    let (mut lazy, mut force, mut at, mut rest) = (false, false, None, arguments.iter());
    while let Some(argument) = rest.next() {
        match argument.to_string_lossy().as_ref() {
            "-t" | "-N" => drop(rest.next()),
            flags if flags.starts_with('-') && flags.len() > 1 => {
                if let Some(unknown) = flags[1..].chars().find(|f| !"flnrvi".contains(*f)) {
                    return Err(wrong(format!("unknown option -{unknown}; {USAGE_UMOUNT}")));
                }
                lazy |= flags.contains('l');
                force |= flags.contains('f');
            }
            _ => at = Some(PathBuf::from(argument)),
        }
    }
    let mount = at.ok_or_else(|| wrong(USAGE_UMOUNT))?;
    daemon::umount(&Umount { mount, lazy, force: force && !lazy }).map_err(|e| {
        let code = if i32::from(e.code()) == libc::EPERM { USAGE } else { FAILED };
        e.exiting(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_line_is_the_one_of_mount() {
        let asked = read(&arguments("192.0.2.1:7988 /mnt -sfv -o rw,nosuid -t stria -o key=/k")).unwrap();
        assert_eq!((asked.what.as_str(), asked.at.as_path()), ("192.0.2.1:7988", Path::new("/mnt")));
        assert!(asked.fake && asked.sloppy && asked.verbose && asked.options == ",rw,nosuid,key=/k", "{asked:?}");
        for (line, why) in [
            ("192.0.2.1:7988", "usage:"),
            ("a b c", "usage:"),
            ("a b -o", "-o needs a value"),
            ("a b -x", "unknown option -x"),
            ("a b -N /proc/1/ns/mnt", "nsenter"),
        ] {
            let e = read(&arguments(line)).unwrap_err();
            assert!(e.to_string().contains(why) && e.code() == USAGE, "{line}: {e}");
        }
    }

    #[test]
    fn options_go_where_they_belong() {
        let sorted = sort(
            "rw,_netdev,nofail,x-systemd.automount,key=/etc/stria/k,client.cache_bytes=1G,noatime,user=joe,comment=a",
        );
        let sorted = sorted.unwrap();
        assert_eq!(sorted.mount, ["nosuid", "nodev", "noexec", "rw", "noatime"]);
        assert_eq!(sorted.settings, ["cluster.key_file=/etc/stria/k", "client.cache_bytes=1G"]);
        let sorted = sort("user,exec,suid,config=/etc/stria/c.toml,log=/var/log/stria/m").unwrap();
        assert_eq!(sorted.mount, ["nodev", "exec", "suid"]);
        assert_eq!(sorted.config, Some("/etc/stria/c.toml".into()));
        assert_eq!(sorted.log, Some("/var/log/stria/m".into()));
        assert_eq!(sort("owner").unwrap().mount, ["nosuid", "nodev"]);
        for (options, why) in [
            ("key=relative", "write key=/PATH"),
            ("key", "write key=/PATH"),
            ("client.cache_bytes", "needs a value"),
            ("client.cash_bytes=1", "did you mean 'client.cache_bytes'"),
        ] {
            let e = sort(options).unwrap_err();
            assert!(e.to_string().contains(why) && e.code() == USAGE, "{options}: {e}");
        }
    }

    #[test]
    fn unknown_options_are_refused_or_with_s_dropped() {
        let of = |text: &str| Sorted { mount: text.split(',').map(String::from).collect(), ..Sorted::default() };
        let mut sorted = of("ro,frobnicate");
        let e = known(&mut sorted, &Settings::default(), false).unwrap_err();
        assert!(e.to_string().contains("'frobnicate'") && e.code() == USAGE, "{e}");
        known(&mut sorted, &Settings::default(), true).unwrap();
        assert_eq!(sorted.mount, ["ro"]);
    }

    #[test]
    fn helpers_have_four_names() {
        for name in ["mount.stria", "mount.fuse.stria", "umount.stria", "umount.fuse.stria"] {
            assert!(is_helper(name), "{name}");
        }
        assert!(!is_helper("mount.nfs") && !is_helper("stria"));
    }
}
