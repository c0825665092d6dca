//! `scrub` and the verbs of `mdt`: looking after stores. What a running server is to do it is told by a parameter,
//! through a mount of its cluster on this host.
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cluster::MdtError;
use mds::backup::{Header, Kind};
use serde_json::{Value, json};
use types::format_size;

use crate::cli;
use crate::control;
use crate::daemon::{ClusterDir, on_shard, refuse_inside};
use crate::failure::{Failure, Outcome};
use crate::out::word;

/// How often a server is asked how far it is.
const LOOK: Duration = Duration::from_millis(100);
/// How long daemons of mounts may take to say whose they are.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Exit code when damage was found, as fsck(8) has it.
const UNCORRECTED: u8 = 4;

/// A mount of the cluster on this host, made by root, by this user or by the owner of the cluster's directory: others' daemons may say that
/// they are of this cluster, too.
///
/// # Errors
/// None answers.
pub fn mount_of(dir: &ClusterDir) -> Result<u32, Failure> {
    let ours = json!(format!("{:016x}", dir.cluster));
    let owner = std::fs::metadata(dir.path()).map(|m| m.uid()).ok();
    let is_believed = |user: u32| crate::lfs::is_believed(user) || owner == Some(user);
    let mounts = fuse::mount::mounts().into_iter().filter(|m| m.kind == "fuse.stria" && is_believed(m.user));
    // All at the same time: a daemon that stands still keeps the others' answers from nobody.
    let until = Instant::now() + ANSWER_WITHIN;
    let asked: Vec<_> =
        mounts.map(|m| (m.minor, control::begin(m.minor, m.user, json!({"do": "status", "within_ms": 500})))).collect();
    let mut found = asked.into_iter().filter_map(|(minor, asked)| Some((minor, asked.answer(until).ok()?)));
    found.find(|(_, status)| status["cluster"] == ours).map(|(minor, _)| minor).ok_or_else(|| {
        let at = dir.path().display();
        let why =
            format!("no mount of {at} answers on this host: 'stria mount --dir {} MNT' makes one", word(dir.path()));
        Failure::with_errno(why, libc::ENOTCONN)
    })
}

fn set(connection: u32, pattern: &str, value: &str) -> Outcome {
    control::ask(connection, &json!({"do": "set_param", "pattern": pattern, "value": value})).map(drop)
}

/// Parameters with their values.
fn read(connection: u32, pattern: &str) -> Result<Vec<(String, String)>, Failure> {
    let answer = control::ask(connection, &json!({"do": "get_param", "pattern": pattern}))?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
    let all = answer["params"].as_array().cloned().unwrap_or_default();
    Ok(all.iter().map(|p| (text(&p["name"]), text(&p["value"]))).collect())
}

/// The verb `scrub`. Exit code 0: everything was read and nothing is wrong; 4: damage was found.
///
/// # Errors
/// No mount of the cluster answers; a target does not exist, is not served, or was not read to its end.
pub fn scrub(arguments: &cli::Scrub) -> Result<ExitCode, Failure> {
    let dir = ClusterDir::open(&arguments.dir)?;
    if let Some(wrong) = arguments.ost.iter().find(|i| !dir.has_ost(**i)) {
        let have = dir.osts();
        return Err(Failure::with_errno(
            format!("--ost {wrong}: {} has {have} OSTs", dir.path().display()),
            libc::ENOENT,
        ));
    }
    let connection = mount_of(&dir)?;
    let fs = &dir.fsname;
    // The patterns, and the targets that they are to reach.
    let ost = |i: &u16| format!("{fs}-OST{i:04x}");
    let (patterns, wanted): (Vec<String>, Vec<String>) = match &arguments.ost[..] {
        [] => {
            let mdt = format!("{fs}-MDT0000");
            let patterns = vec![format!("mdt.{mdt}.scrub"), format!("obdfilter.{fs}-OST*.scrub")];
            (patterns, [mdt].into_iter().chain(dir.ost_indices().iter().map(ost)).collect())
        }
        some => (some.iter().map(|i| format!("obdfilter.{}.scrub", ost(i))).collect(), some.iter().map(ost).collect()),
    };
    let value = if arguments.stop { "stop".to_string() } else { arguments.rate.to_string() };
    for pattern in &patterns {
        set(connection, pattern, &value)?;
    }
    if arguments.background || arguments.stop {
        return Ok(ExitCode::SUCCESS);
    }
    let mut read = Scrubbed::default();
    for pattern in &patterns {
        wait_for(connection, pattern, &mut read)?;
    }
    let away = wanted.iter().filter(|target| !read.targets.contains(target));
    read.failed.extend(away.map(|target| format!("{target} is not served: nothing of it was read, or not all")));
    if !read.failed.is_empty() {
        return Err(Failure::from(read.failed.join("; ")));
    }
    Ok(if read.faults == 0 { ExitCode::SUCCESS } else { ExitCode::from(UNCORRECTED) })
}

/// What a scrub of several targets came to.
#[derive(Default)]
struct Scrubbed {
    targets: Vec<String>,
    faults: u64,
    /// A sentence for each target that was not read to its end.
    failed: Vec<String>,
}

/// Waits until all targets of a pattern are through, and prints what each found.
fn wait_for(connection: u32, pattern: &str, read_all: &mut Scrubbed) -> Outcome {
    let all = loop {
        let all = read(connection, pattern)?;
        if !all.iter().any(|(_, text)| text.starts_with("status: running")) {
            break all;
        }
        std::thread::sleep(LOOK);
    };
    for (name, text) in all {
        let field = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(": ")).unwrap_or("?");
        let (target, status) = (name.split('.').nth(1).unwrap_or("?"), field("status"));
        let bytes = field("bytes").parse().map_or_else(|_| "?".into(), format_size);
        say!("{target}: {status}, {bytes} read, {} fault(s)", field("faults"));
        text.lines().filter_map(|l| l.strip_prefix("fault: ")).for_each(|l| say!("{target}: {l}"));
        read_all.faults += field("faults").parse().unwrap_or(0);
        read_all.targets.push(target.into());
        if status != "complete" {
            read_all.failed.push(format!("{target}: the scrub is {status}: its server's log says why"));
        }
    }
    Ok(())
}

/// The verbs of `mdt`.
///
/// # Errors
/// The store or the file cannot be used; each with the reason and what can be done.
pub fn mdt(verb: &cli::MdtVerb) -> Outcome {
    match verb {
        cli::MdtVerb::Backup(a) => backup(&ClusterDir::open(&a.dir)?, &refuse_inside(&a.file)?),
        cli::MdtVerb::Export(a) => export(&ClusterDir::open(&a.dir)?, &refuse_inside(&a.file)?),
        cli::MdtVerb::Restore(a) => {
            let (dir, header) = refill(a, Kind::Backup)?;
            say!(
                "{}: {} records as of transaction {}; what is newer on the OSTs stays there: 'stria fsck --repair' moves it to lost+found",
                dir.mdt().display(),
                header.records,
                header.transno
            );
            Ok(())
        }
        cli::MdtVerb::Accept(a) => accept(&ClusterDir::open(&a.dir)?),
        cli::MdtVerb::Import(a) => {
            let (dir, header) = refill(a, Kind::Export)?;
            let place = store_pg::Place::of_dir(&dir.mdt()).map_err(|e| Failure::from(e.to_string()))?;
            let place = place.map_or_else(|| dir.mdt().display().to_string(), |place| place.to_string());
            say!("{place}: {} records as of transaction {}, compared with the file", header.records, header.transno);
            Ok(())
        }
    }
}

/// Takes an older database in, as a backup that is put back.
fn accept(dir: &ClusterDir) -> Outcome {
    if let Some(p) = dir.processes().iter().find(|p| p.runs()) {
        let why = format!("{} (process {}) runs: 'stria stop --dir {}' first", p.name, p.pid, word(dir.path()));
        return Err(Failure::with_errno(why, libc::EBUSY));
    }
    let accepted = on_shard(frames::FramePool::new(1 << 20), async |rt| {
        let accepted = cluster::accept_mdt(&rt, &dir.mdt(), dir.mdt_identity()).await;
        accepted.map_err(|e| Failure::from(e.to_string()))
    })?;
    let fsname = &dir.fsname;
    let Some(accepted) = accepted else {
        say!("the metadata store of '{fsname}' lacks nothing that this directory knows of: nothing to accept");
        return Ok(());
    };
    let seen =
        accepted.seen.map_or_else(|| "nobody knows what was seen before".into(), |s| format!("{s} was seen before"));
    say!(
        "the metadata store of '{fsname}' is taken as it is, at {} ({seen}): what was changed since is lost",
        accepted.found
    );
    say!(
        "  what is newer on the OSTs stays there: 'stria fsck --repair --dir {}' moves it to lost+found",
        word(dir.path())
    );
    Ok(())
}

fn backup(dir: &ClusterDir, file: &Path) -> Outcome {
    dir.check_mdt()?;
    if file.exists() {
        let why = format!("{} is there already: a backup is a new file", file.display());
        return Err(Failure::with_errno(why, libc::EEXIST));
    }
    let offline = on_shard(frames::FramePool::new(16 << 20), async |rt| {
        let kv = match dir.try_open_mdt(&rt).await {
            Ok(kv) => kv,
            Err(MdtError::InUse(_)) => return Ok(None),
            Err(e) => return Err(Failure::from(e.to_string())),
        };
        let written = mds::backup::write(&rt, &kv, file, Kind::Backup, |_| {}).await;
        written.map(Some).map_err(|e| Failure::from(format!("{}: {e}", file.display())))
    })?;
    if let Some(header) = offline {
        say!("{}: {} records as of transaction {}", file.display(), header.records, header.transno);
        return Ok(());
    }
    let (connection, name) = (mount_of(dir)?, format!("mdt.{}-MDT0000.backup", dir.fsname));
    set(connection, &name, &file.display().to_string())?;
    let unknown = |e: Failure| {
        let why = format!("{}: whether it was written is not known, remove it and begin again: {e}", file.display());
        Failure::with_errno(why, i32::from(e.code()))
    };
    loop {
        let all = read(connection, &name).map_err(unknown)?;
        let text = all.first().map(|(_, text)| text.as_str()).unwrap_or_default();
        let Some(what) = written(text, file)? else {
            std::thread::sleep(LOOK);
            continue;
        };
        // The server writes where it finds the path, in its own name space of mounts.
        std::fs::File::open(file).and_then(|f| f.metadata()).map_err(|e| {
            let why = format!(
                "{}: the server says that it has written it ({what}), but here it cannot be read ({e}): the server sees \
                 other directories, as a unit with PrivateTmp= does: name a file that both see",
                file.display()
            );
            Failure::with_errno(why, e.raw_os_error().unwrap_or(libc::ENOENT))
        })?;
        say!("{what}");
        return Ok(());
    }
}

/// What a server says of a backup that it was told to write into `file`: what it wrote, or (`None`) that it writes.
///
/// # Errors
/// It failed; or the server speaks of no backup, or of another one, as a server does that was started again meanwhile: nobody goes on
/// with this one.
fn written<'a>(text: &'a str, file: &Path) -> Result<Option<&'a str>, Failure> {
    let shown = file.display().to_string();
    let (state, what) = text.split_once(' ').unwrap_or((text, ""));
    let is_ours = what.strip_prefix(&shown).is_some_and(|rest| rest.starts_with(": "));
    match state {
        "running" if is_ours => Ok(None),
        "done" if is_ours => Ok(Some(what)),
        "failed" if is_ours => Err(Failure::from(what.to_string())),
        _ => {
            let why = format!(
                "the metadata server was started again while it wrote {shown} (it says '{text}' now), which is not whole: remove it and begin again"
            );
            Err(Failure::with_errno(why, libc::EIO))
        }
    }
}

/// Writes the store of a server that has stopped into a file, from which it can go on elsewhere.
fn export(dir: &ClusterDir, file: &Path) -> Outcome {
    dir.check_mdt()?;
    if file.exists() {
        let why = format!("{} is there already: an export is a new file", file.display());
        return Err(Failure::with_errno(why, libc::EEXIST));
    }
    let (header, whole) = on_shard(frames::FramePool::new(16 << 20), async |rt| {
        let kv = dir.try_open_mdt(&rt).await.map_err(|e| match e {
            MdtError::InUse(why) => Failure::with_errno(format!("{why} ('stria stop')"), libc::EBUSY),
            e => Failure::from(e.to_string()),
        })?;
        let written = mds::backup::write(&rt, &kv, file, Kind::Export, |_| {}).await;
        let header = written.map_err(|e| Failure::from(format!("{}: {e}", file.display())))?;
        let whole = mds::backup::whole(&*kv).await.map_err(|e| Failure::from(e.to_string()))?;
        Ok((header, whole))
    })?;
    say!("{}: {whole} as of transaction {}", file.display(), header.transno);
    Ok(())
}

/// Makes the metadata store of a copy.
fn refill(arguments: &cli::MdtRefill, kind: Kind) -> Result<(ClusterDir, Header), Failure> {
    let ((dir, _lock), file) = (ClusterDir::open_locked(&arguments.dir)?, refuse_inside(&arguments.file)?);
    let config = crate::daemon::load_in(Some(&dir), &arguments.settings)?;
    let filled = async |rt: rt::Rt| dir.refill_mdt(&rt, &file, kind, &config).await;
    let header = on_shard(frames::FramePool::new(16 << 20), filled)?;
    Ok((dir, header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_waited_for_only_while_the_server_says_that_it_writes_it() {
        let file = Path::new("/srv/backup");
        assert_eq!(written("running /srv/backup: 4096 records", file).unwrap(), None);
        let done = written("done /srv/backup: 7 records as of transaction 9", file).unwrap();
        assert_eq!(done, Some("/srv/backup: 7 records as of transaction 9"));
        assert!(written("failed /srv/backup: full", file).unwrap_err().to_string().ends_with("full"));
        for text in ["none", "", "running /srv/backup2: 1 records", "done /srv/other: 7 records as of transaction 9"] {
            let why = written(text, file).unwrap_err().to_string();
            assert!(why.contains("was started again") && why.contains("/srv/backup ("), "{text}: {why}");
        }
    }
}
