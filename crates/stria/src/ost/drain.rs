//! `ost drain`: an OST takes no new files, and the files that it has get other objects, one after the other, while programs use them. What
//! has moved has moved: a drain that was killed is begun again and goes on with the rest.
use std::path::Path;
use std::time::{Duration, Instant};

use layout::{LayoutSpec, Pattern, PoolChoice, StripeCount};
use serde_json::{Value, json};
use types::format_size;

use super::{Cluster, File};
use crate::cli::OstDrain;
use crate::control;
use crate::failure::{Failure, Outcome};
use crate::lfs;

/// How often it says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// Looks in succession at files that did not move, before they are given up: somebody else may migrate them now, or they have no
/// name and are gone when a program closes them.
const LOOKS_MAX: u32 = 5;
/// Pause between these.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Files that did not move and are named.
const NAMED_MAX: usize = 20;

/// The verb `ost drain`.
///
/// # Errors
/// The others cannot take what lies there; files that did not move.
pub fn drain(a: &OstDrain) -> Outcome {
    let cluster = Cluster::named(&a.of)?;
    let ost = cluster.index(&a.ost, a.remove)?;
    if a.cancel {
        cluster.change("open", ost)?;
        say!("OST {ost} takes new files again");
        return Ok(());
    }
    if !cluster.list("removed").contains(&ost) {
        let (mut files, mut bytes) = (0, 0);
        cluster.each_file(ost, false, |file| {
            // One that was removed needs no room elsewhere: it goes when the last program closes it.
            let moves = if file.has_name() { file.there } else { 0 };
            (files, bytes) = (files + 1, bytes + moves);
            Ok(())
        })?;
        let left = room(&cluster, ost, bytes)?;
        cluster.change("close", ost)?;
        say!(
            "OST {ost} takes no new files; {files} files with {} there, {left} left on the others",
            format_size(bytes)
        );
        empty(&cluster, ost, a.rate.unwrap_or(0) << 20, (files, bytes))?;
    }
    if a.remove {
        return super::take_out(&cluster, a.of.dir.as_deref(), ost);
    }
    say!(
        "OST {ost} has no files any more: 'stria ost remove {ost}' takes it out of the cluster, 'stria ost drain {ost} --cancel' uses it again"
    );
    Ok(())
}

/// What is left on the other OSTs, which have room for what lies on this one: files with `listed` bytes, of which some may be holes.
fn room(cluster: &Cluster, ost: u16, listed: u64) -> Result<String, Failure> {
    let out_of_use: Vec<u16> = [cluster.list("closed"), cluster.list("inactive")].concat();
    let others: Vec<u16> = cluster.list("osts").into_iter().filter(|o| *o != ost && !out_of_use.contains(o)).collect();
    if others.is_empty() {
        let why = format!(
            "OST {ost} is the last one of '{}' that takes files: add or activate another one first",
            cluster.fsname()
        );
        return Err(Failure::with_errno(why, libc::EBUSY));
    }
    let answer = control::ask(cluster.connection, &json!({"do": "df"}))?;
    let targets = answer["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |index: u16| targets.iter().find(|t| t["mdt"] == false && t["index"] == json!(index));
    let number = |t: &Value, key: &str| t[key].as_u64().unwrap_or(0);
    let Some(here) = of(ost).filter(|t| t["down"].is_null()) else {
        let why = format!(
            "OST {ost} does not answer, so nothing can be copied from it: 'stria ost files {ost}' lists the files that have objects there"
        );
        return Err(Failure::with_errno(why, libc::ENOTCONN));
    };
    // What is in use may be of files that were removed a moment ago.
    let used = number(here, "total").saturating_sub(number(here, "free")).min(listed);
    let free: u64 = others.iter().filter_map(|o| of(*o)).map(|t| number(t, "available")).sum();
    if used > free {
        let why = format!(
            "OST {ost} has {} in use, the others ({}) have {} left: remove files or add an OST first",
            format_size(used),
            others.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
            format_size(free)
        );
        return Err(Failure::with_errno(why, libc::ENOSPC));
    }
    Ok(format_size(free))
}

/// How far it is.
struct Progress {
    ost: u16,
    files: u64,
    bytes: u64,
    moved: u64,
    moved_bytes: u64,
    began: Instant,
    said: Instant,
}

impl Progress {
    fn on_moved(&mut self, file: &File) {
        self.moved += 1;
        self.moved_bytes += file.there;
        if self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            self.say();
        }
    }
    fn say(&self) {
        let per_s = (self.moved_bytes as f64 / self.began.elapsed().as_secs_f64().max(0.001)) as u64;
        // New ones cannot come, but files grow.
        let (files, bytes) = (self.files.max(self.moved), self.bytes.max(self.moved_bytes));
        say!(
            "OST {}: {} of {files} files moved, {} of {}, {}/s",
            self.ost,
            self.moved,
            format_size(self.moved_bytes),
            format_size(bytes),
            format_size(per_s)
        );
    }
}

/// Moves everything away.
fn empty(cluster: &Cluster, ost: u16, bytes_per_s: u64, (files, bytes): (u64, u64)) -> Outcome {
    let now = Instant::now();
    let mut progress = Progress { ost, files, bytes, moved: 0, moved_bytes: 0, began: now, said: now };
    let mut looks = 0;
    loop {
        let before = progress.moved;
        let (mut left, mut named, mut last) = (0u64, Vec::new(), None);
        still_wanted(cluster, ost)?;
        cluster.each_file(ost, false, |file| {
            still_wanted(cluster, ost)?;
            match one(cluster, &file, bytes_per_s) {
                Ok(()) => progress.on_moved(&file),
                Err(e) => {
                    left += 1;
                    if named.len() < NAMED_MAX {
                        named.push(e.to_string());
                    }
                    last = Some(e);
                }
            }
            Ok(())
        })?;
        let Some(why) = last else {
            // What this look moved may have been all; only a look that finds nothing says so.
            if progress.moved == before {
                progress.say();
                return Ok(());
            }
            looks = 0;
            continue;
        };
        looks = if progress.moved > before { 0 } else { looks + 1 };
        if looks >= LOOKS_MAX || i32::from(why.code()) == libc::ENOSPC {
            progress.say();
            named.iter().for_each(|line| note!("{line}"));
            let text = format!(
                "{left} file(s) still have objects on OST {ost}, which takes no new ones: begin again when their reasons are gone, or 'stria ost drain {ost} --cancel'"
            );
            return Err(Failure::with_errno(text, i32::from(why.code())));
        }
        if looks > 0 {
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}

/// Whether the OST is still to be emptied: it takes no new files, unless a drain was cancelled meanwhile.
fn still_wanted(cluster: &Cluster, ost: u16) -> Outcome {
    let now = Cluster::at(cluster.connection)?;
    if !now.list("osts").contains(&ost) || now.list("closed").contains(&ost) {
        return Ok(());
    }
    let why = format!("OST {ost} takes new files again: the drain was cancelled; what has moved stays where it is");
    Err(Failure::with_errno(why, libc::ECANCELED))
}

/// Gives a file other objects.
fn one(cluster: &Cluster, file: &File, bytes_per_s: u64) -> Outcome {
    if !file.has_name() {
        let why = format!("{} has no name any more, and goes when the program that has it open closes it", file.fid);
        return Err(Failure::with_errno(why, libc::EBUSY));
    }
    let path = cluster.mount_point().join(&file.path);
    match spec_of(&path) {
        Ok(Some(spec)) => lfs::migrate_file(&path, &spec, bytes_per_s),
        // Another one by now, or what is mounted there hides it.
        Ok(None) => Err(Failure::with_errno(format!("{} is not file {}", path.display(), file.fid), libc::EBUSY)),
        Err(e) => Err(e),
    }
}

/// A layout of the same form in another place; `None`: it has none.
fn spec_of(path: &Path) -> Result<Option<LayoutSpec>, Failure> {
    let Some(bytes) = lfs::default_layout(path)? else { return Ok(None) };
    let (_, layout) = layout::xattr::decode_layout(&bytes)
        .map_err(|e| Failure::with_errno(format!("{}: {e}", path.display()), libc::EBADMSG))?;
    let mut spec = LayoutSpec::default();
    spec.stripe_size = Some(layout.stripe_size());
    spec.stripe_count = StripeCount::Exactly(layout.stripe_count());
    spec.overstripe = layout.pattern() == Pattern::Raid0Overstriped;
    // A file without a pool stays without, whatever its directory says.
    spec.pool = layout.pool().map_or(PoolChoice::Ignore, PoolChoice::Named);
    Ok(Some(spec))
}
