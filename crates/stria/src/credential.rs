//! `credential issue`, `list`, `revoke`: what single client hosts mount with, limited in what they may do.
//!
//! The metadata server keeps what was issued and what was revoked (`mds/src/credentials.rs`); the key of a credential is made here, from
//! the administrator's key and from what the credential says.
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cluster::ask_mds;
use ptlrpc::{CLIENT_KEY_NAME, ClusterKey, Limits, check_name};
use rt::Nid;
use serde_json::{Value, json};
use types::{Duration, FsError, WallTime};
use wire::Op;
use wire::credential::{
    Credential, CredentialAct, CredentialFlags, CredentialRow, CredentialsReply, CredentialsRequest, IdRange,
};

use crate::cli::{CredentialIssue, CredentialList, CredentialOf, CredentialRevoke, CredentialVerb, Squashed};
use crate::daemon::{ClusterDir, find_key, keys_dir, load_in, on_shard, write_secret};
use crate::failure::{Failure, Outcome};
use crate::lfs::time;

/// How long the metadata server may take: it tells OSTs of a revocation meanwhile.
const PATIENCE: Duration = Duration::from_secs(20);

/// What else a metadata server may mean that turns a command away.
pub const ENCRYPTS: &str = "takes encrypted connections only (leave net.security=none out)";

/// The verbs of `credential`.
///
/// # Errors
/// Why that is not done, and what can be done.
pub fn credential(verb: &CredentialVerb) -> Outcome {
    match verb {
        CredentialVerb::Issue(a) => issue(a),
        CredentialVerb::List(a) => list(a),
        CredentialVerb::Revoke(a) => revoke(a),
    }
}

/// The metadata server that keeps a cluster's credentials, and the key to speak with it.
struct Keeper {
    dir: ClusterDir,
    mds: Nid,
    key: ClusterKey,
}

impl Keeper {
    fn of(of: &CredentialOf) -> Result<Keeper, Failure> {
        let dir = ClusterDir::open(&of.dir)?;
        let config = load_in(Some(&dir), &of.settings)?;
        let key = find_key(&config, Some(&dir))?;
        if !key.is_administrator() {
            let why = "credentials are the administrator's: name the directory that has keys/admin.key".to_string();
            return Err(Failure::with_errno(why, libc::EPERM));
        }
        let mds = match &of.mds {
            Some(text) => Nid::parse(text).map_err(|e| Failure::usage(format!("--mds: {e}")))?,
            None => dir.mds_nid()?.ok_or_else(|| {
                let why = format!(
                    "{}: no metadata server of it listens where clients of other hosts could mount: start the cluster with --processes, or name the server's address with --mds",
                    dir.path().display()
                );
                Failure::with_errno(why, libc::ECONNREFUSED)
            })?,
        };
        Ok(Keeper { dir, mds, key })
    }

    fn ask(&self, request: &CredentialsRequest) -> Result<CredentialsReply, Failure> {
        let asked = on_shard(frames::FramePool::new(16 << 20), async |rt| {
            let to = (&self.mds, &self.key);
            ask_mds::<_, CredentialsReply>(&rt, to, Op::Credentials, request, PATIENCE).await.map_err(|e| {
                let why = match e {
                    FsError::Access => {
                        format!("it has another key (the directory is another cluster's), or {ENCRYPTS}")
                    }
                    FsError::TimedOut => "it does not answer: does it run?".to_string(),
                    FsError::NotSupported => "it is an earlier program, without credentials: update it".to_string(),
                    e => e.to_string(),
                };
                Failure::with_errno(format!("the metadata server at {}: {why}", self.mds), e.errno())
            })
        })?;
        if asked.errno == 0 {
            return Ok(asked);
        }
        Err(Failure::with_errno(String::from_utf8_lossy(&asked.why).into_owned(), asked.errno.into()))
    }
}

fn issue(a: &CredentialIssue) -> Outcome {
    check_name(&a.name).map_err(Failure::usage)?;
    let asked = asked(a)?;
    let keeper = Keeper::of(&a.of)?;
    let file = match &a.output {
        Some(file) => {
            // A file that is there may be another key, of which there is no second one.
            make_new(file)?;
            file.clone()
        }
        None => keys_dir(keeper.dir.path()).join(format!("{}.credential", a.name)),
    };
    let issued = issue_to(&keeper, asked, &file);
    if issued.is_err() && a.output.is_some() {
        let _ = std::fs::remove_file(&file);
    }
    issued?;
    say!("{}", file.display());
    Ok(())
}

/// Makes a file that is not there yet.
fn make_new(file: &Path) -> Outcome {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    made.map(drop).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Failure::with_errno(
            format!("-o {}: it is there already: name a new file, or remove this one", file.display()),
            libc::EEXIST,
        ),
        _ => Failure::io("writing", file, &e),
    })
}

/// Has a credential issued, and writes it.
fn issue_to(keeper: &Keeper, asked: Credential, file: &Path) -> Outcome {
    let reply = keeper.ask(&CredentialsRequest { what: CredentialAct::Issue, credential: asked })?;
    let row = reply.rows.into_iter().next().ok_or_else(|| {
        Failure::with_errno("the metadata server says that it issued it, and not what: look at its log", libc::EPROTO)
    })?;
    let limits = Limits::new(row.credential).map_err(|e| Failure::with_errno(e, libc::EPROTO))?;
    let made = keeper.key.credential_of(limits).and_then(|k| k.credential_text());
    let text = made.ok_or_else(|| Failure::with_errno("this is no administrator's key", libc::EPERM))?;
    // What is there is of a credential of this name that is no more.
    write_secret(file, &text).map_err(|e| {
        let why = format!("{e}: the credential is issued, and nobody has its file: revoke it, and issue it again");
        Failure::with_errno(why, i32::from(e.code()))
    })
}

/// What the command line asks for.
fn asked(a: &CredentialIssue) -> Result<Credential, Failure> {
    let squash = match a.squash {
        None => 0,
        Some(Squashed::Root) => CredentialFlags::SQUASH_ROOT,
        Some(Squashed::All) => CredentialFlags::SQUASH_ALL,
    };
    let read_only = if a.read_only { CredentialFlags::READ_ONLY } else { 0 };
    let path = a.subtree.as_deref().unwrap_or_default().trim_matches('/');
    // An empty one, of a script's variable that is not set, must not become a credential for everything.
    if let Some(text) = a.subtree.as_deref().filter(|_| path.is_empty() || path == ".") {
        return Err(Failure::usage(format!(
            "--subtree '{text}' is the whole file system: name a directory of it, like projects/a, or leave --subtree out"
        )));
    }
    let mut id = [0; 8];
    getrandom(&mut id)?;
    Ok(Credential {
        // Not 0, which is the number of the key of all clients.
        id: u64::from_le_bytes(id) | 1,
        name: a.name.as_str().into(),
        expires: a.expires.as_deref().map_or(Ok(WallTime::default()), expires)?,
        flags: squash | read_only,
        path: path.into(),
        squash_uid: a.squash_to.0,
        squash_gid: a.squash_to.1,
        uids: a.uid.clone(),
        gids: a.gid.clone(),
        ..Credential::default()
    })
}

fn getrandom(bytes: &mut [u8]) -> Outcome {
    // SAFETY: a buffer of the said length that outlives the call.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n == bytes.len() as isize {
        return Ok(());
    }
    Err(Failure::with_errno("the system has no random numbers", libc::EIO))
}

/// When a credential ends: a date, or how long it lives.
fn expires(text: &str) -> Result<WallTime, Failure> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let wrong = |_| {
        Failure::usage(format!(
            "--expires {text}: write how long it lives, like 90d, 12h or 1d12h, or when it ends, like 2027-01-31 or '2027-01-31 13:05'"
        ))
    };
    let is_date = text.contains(['-', ':', '@']);
    let at = match is_date {
        true => time::parse(text, now).map_err(wrong)?.0,
        false => now.saturating_add(time::parse_age(text).map_err(wrong)?.0),
    };
    if at <= now {
        return Err(Failure::usage(format!("--expires {text}: that is over, write a later time")));
    }
    Ok(WallTime(at.saturating_mul(1_000_000_000)))
}

/// A range of ids as the command line has it.
///
/// # Errors
/// A sentence.
pub fn id_range(text: &str) -> Result<IdRange, String> {
    let numbers: Option<Vec<u32>> = text.split(':').map(|n| n.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[client, server, count]) => Ok(IdRange { client, server, count }),
        Some(&[client, server]) => Ok(IdRange { client, server, count: 1 }),
        _ => Err("write CLIENT:SERVER:COUNT, like 0:100000:65536, or CLIENT:SERVER for one id".into()),
    }
}

/// A user and a group.
///
/// # Errors
/// A sentence.
pub fn ids(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    let legal = ids.filter(|(u, g)| *u != u32::MAX && *g != u32::MAX);
    legal.ok_or_else(|| "write UID:GID, like 65534:65534".into())
}

fn list(a: &CredentialList) -> Outcome {
    let reply = Keeper::of(&a.of)?.ask(&CredentialsRequest::default())?;
    let revoked = reply.client_key_revoked;
    if a.json {
        let client = json!({"name": CLIENT_KEY_NAME, "revoked": when(revoked)});
        let all: Vec<Value> = std::iter::once(client).chain(reply.rows.iter().map(as_json)).collect();
        say!("{}", json!({ "credentials": all }));
        return Ok(());
    }
    let state = if revoked.0 != 0 { format!("revoked {}", shown(revoked)) } else { "valid".to_string() };
    say!("{:<24} {:<28} the key of all clients, without limits", CLIENT_KEY_NAME, state);
    for row in &reply.rows {
        say!(
            "{:<24} {:<28} {}",
            String::from_utf8_lossy(&row.credential.name),
            state_of(row),
            limits_of(&row.credential)
        );
    }
    Ok(())
}

fn shown(at: WallTime) -> String {
    time::show(at.secs(), c"%Y-%m-%d %H:%M")
}

/// Seconds since 1970; null: never.
fn when(at: WallTime) -> Value {
    if at.0 == 0 { Value::Null } else { json!(at.secs()) }
}

fn state_of(row: &CredentialRow) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let expires = row.credential.expires;
    match (row.revoked.0, expires.0) {
        (0, 0) => "valid".into(),
        (0, _) if expires.secs() <= now => format!("expired {}", shown(expires)),
        (0, _) => format!("valid until {}", shown(expires)),
        _ => format!("revoked {}", shown(row.revoked)),
    }
}

/// What a credential does not allow, in words.
fn limits_of(c: &Credential) -> String {
    let mut limits = Vec::new();
    let has = |flag| c.flags & flag != 0;
    if has(CredentialFlags::READ_ONLY) {
        limits.push("read only".to_string());
    }
    if !c.subtree.is_zero() {
        limits.push(format!("subtree /{} ({})", String::from_utf8_lossy(&c.path), c.subtree));
    }
    for (what, ranges) in [("users", &c.uids), ("groups", &c.gids)] {
        if !ranges.is_empty() {
            let all = ranges.iter().map(|r| format!("{}:{}:{}", r.client, r.server, r.count)).collect::<Vec<_>>();
            limits.push(format!("{what} {}", all.join(",")));
        }
    }
    let squashed = if has(CredentialFlags::SQUASH_ALL) { "all" } else { "root" };
    if has(CredentialFlags::SQUASH_ALL) || has(CredentialFlags::SQUASH_ROOT) {
        limits.push(format!("{squashed} as {}:{}", c.squash_uid, c.squash_gid));
    }
    if limits.is_empty() { "without limits".into() } else { limits.join(", ") }
}

fn as_json(row: &CredentialRow) -> Value {
    let c = &row.credential;
    let has = |flag| c.flags & flag != 0;
    let ranges = |all: &[IdRange]| -> Vec<Value> {
        all.iter().map(|r| json!({"client": r.client, "server": r.server, "count": r.count})).collect()
    };
    let squash = match (has(CredentialFlags::SQUASH_ALL), has(CredentialFlags::SQUASH_ROOT)) {
        (true, _) => json!("all"),
        (_, true) => json!("root"),
        _ => Value::Null,
    };
    let subtree = (!c.subtree.is_zero())
        .then(|| json!({"path": format!("/{}", String::from_utf8_lossy(&c.path)), "fid": c.subtree.to_string()}));
    json!({
        "name": String::from_utf8_lossy(&c.name),
        "id": format!("{:016x}", c.id),
        "issued": when(c.issued),
        "expires": when(c.expires),
        "revoked": when(row.revoked),
        "read_only": has(CredentialFlags::READ_ONLY),
        "subtree": subtree,
        "squash": squash,
        "squash_to": {"uid": c.squash_uid, "gid": c.squash_gid},
        "uids": ranges(&c.uids),
        "gids": ranges(&c.gids),
    })
}

fn revoke(a: &CredentialRevoke) -> Outcome {
    let keeper = Keeper::of(&a.of)?;
    let credential = Credential { name: a.name.as_str().into(), ..Credential::default() };
    let reply = keeper.ask(&CredentialsRequest { what: CredentialAct::Revoke, credential })?;
    say!("{} opens nothing any more; sessions that were ended at the metadata server: {}", a.name, reply.ended);
    if !reply.untold.is_empty() {
        let osts: Vec<String> = reply.untold.iter().map(|o| o.0.to_string()).collect();
        note!(
            "OST {} could not be told yet, and is as soon as the metadata server reaches it: until then it serves who holds a session there",
            osts.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_ids_are_read_and_what_is_none_is_refused() {
        assert_eq!(id_range("0:100000:65536"), Ok(IdRange { client: 0, server: 100_000, count: 65_536 }));
        assert_eq!(id_range("1000:5"), Ok(IdRange { client: 1000, server: 5, count: 1 }));
        for text in ["", "1", "1:2:3:4", "a:b:c", "-1:2:3", "1:2:99999999999"] {
            assert!(id_range(text).unwrap_err().contains("CLIENT:SERVER:COUNT"), "{text}");
        }
        assert_eq!(ids("65534:65534"), Ok((65_534, 65_534)));
        for text in ["", "1", "1:", "4294967295:1", "x:y"] {
            assert!(ids(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_end_is_a_date_or_a_duration_and_lies_ahead() {
        let in_a_day = expires("1d").unwrap().secs();
        let in_a_day_and_an_hour = expires("1d1h").unwrap().secs();
        assert!((3600..3610).contains(&(in_a_day_and_an_hour - in_a_day)));
        assert!(expires("2199-01-31").unwrap().secs() > in_a_day);
        for (text, says) in [("soon", "write how long"), ("2001-01-31", "that is over"), ("0d", "that is over")] {
            let why = expires(text).unwrap_err().to_string();
            assert!(why.contains(says) && why.contains(text), "{why}");
        }
    }

    #[test]
    fn what_a_credential_does_not_allow_is_said_in_words_and_as_json() {
        let flags = CredentialFlags::READ_ONLY | CredentialFlags::SQUASH_ROOT;
        let uids = vec![IdRange { client: 0, server: 100_000, count: 65_536 }];
        let ids = (65_534, 65_533);
        let c = Credential {
            name: "lab".into(),
            id: 9,
            flags,
            squash_uid: ids.0,
            squash_gid: ids.1,
            uids,
            ..Default::default()
        };
        assert_eq!(limits_of(&c), "read only, users 0:100000:65536, root as 65534:65533");
        assert_eq!(limits_of(&Credential::default()), "without limits");
        let row = CredentialRow { credential: c, revoked: WallTime(7_000_000_000) };
        let json = as_json(&row);
        assert_eq!((json["revoked"].as_i64(), json["squash"].as_str()), (Some(7), Some("root")));
        assert!(json["expires"].is_null() && json["subtree"].is_null() && json["read_only"] == true);
        assert!(state_of(&row).starts_with("revoked 1970-01-0"));
    }
}
