//! What a metadata target's directory remembers of its database: the newest commit that was seen there, outside of the database.
//!
//! A database alone does not show that it is an older copy of itself: a replica that was behind, a primary of before that came back, a backup. What
//! is behind the memory is refused when a store is opened, until it is accepted (`stria mdt accept`). A server writes it when it takes the store,
//! each second in which commits were acknowledged, when it sees that commits are gone, and when it ends.
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::link::StoreRow;

/// The file of a metadata target's directory that holds it.
pub const SEEN_FILE: &str = "mdt.seen";

/// Pause between two states of another server that are written down.
const NOTED_EVERY: Duration = Duration::from_secs(1);

/// How far a store was: what it has when nothing is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// The store.
    pub uuid: u64,
    /// How often it was taken.
    pub epoch: i64,
    /// Its last commit.
    pub commit: i64,
    /// The process that took this epoch, as the database has it.
    pub process: String,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, commit {}", self.epoch, self.commit)
    }
}

impl StoreRow {
    pub(crate) fn state(&self) -> State {
        let (epoch, commit) = (self.epoch, self.commit);
        State { uuid: self.identity.1, epoch, commit, process: self.holder_process.clone() }
    }
}

impl State {
    fn order(&self) -> (i64, i64) {
        (self.epoch, self.commit)
    }
    /// Whether a database that has `self` has all that one had with `other`: it is as far in both, and nobody else took its epoch.
    pub(crate) fn follows(&self, other: &State) -> bool {
        self.epoch >= other.epoch
            && self.commit >= other.commit
            && (self.epoch > other.epoch || self.process == other.process)
    }
    fn line(&self) -> String {
        format!("store {:016x} epoch {} commit {} by {}\n", self.uuid, self.epoch, self.commit, self.process)
    }
    fn of_line(line: &str) -> Option<State> {
        let (numbers, process) = line.strip_suffix('\n')?.split_once(" by ")?;
        match numbers.split(' ').collect::<Vec<_>>()[..] {
            ["store", uuid, "epoch", epoch, "commit", commit] => Some(State {
                uuid: u64::from_str_radix(uuid, 16).ok()?,
                epoch: epoch.parse().ok()?,
                commit: commit.parse().ok()?,
                process: process.into(),
            }),
            _ => None,
        }
    }
}

/// See the module's head.
pub(crate) struct Memory {
    dir: PathBuf,
    /// One at a time looks and writes.
    turn: Mutex<()>,
    /// What could not be written down; it counts while this process lives.
    unwritten: Mutex<Option<State>>,
    /// When something was remembered that somebody else has changed.
    noted: Mutex<Option<Instant>>,
}

impl Memory {
    pub fn of(dir: &Path) -> Memory {
        Memory { dir: dir.into(), turn: Mutex::default(), unwritten: Mutex::default(), noted: Mutex::default() }
    }
    fn path(&self) -> PathBuf {
        self.dir.join(SEEN_FILE)
    }
    fn written(&self) -> Result<Option<State>, String> {
        let said = |why: &str| {
            let path = self.path();
            format!("{}, which says the newest commit that was seen: {why}", path.display())
        };
        match fs::read_to_string(self.path()) {
            Ok(text) => State::of_line(&text)
                .map(Some)
                .ok_or_else(|| said("it is damaged: 'stria mdt accept --dir DIR' writes it anew")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(said(&e.to_string())),
        }
    }
    /// The newest state that was seen.
    ///
    /// # Errors
    /// The file cannot be read: a sentence.
    pub fn newest(&self) -> Result<Option<State>, String> {
        let unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let written = self.written()?;
        Ok(written.into_iter().chain(unwritten).max_by_key(State::order))
    }

    /// Refuses a database that lacks something of what was seen.
    ///
    /// # Errors
    /// It does; the file cannot be read: a sentence.
    pub fn check(&self, found: &State) -> Result<(), String> {
        let Some(seen) = self.newest()? else { return Ok(()) };
        let file = self.path();
        if seen.uuid != found.uuid {
            return Err(format!(
                "it holds store {:016x}, but {} is of store {:016x}: name the right database",
                found.uuid,
                file.display(),
                seen.uuid
            ));
        }
        if found.follows(&seen) {
            return Ok(());
        }
        let how = if found.epoch == seen.epoch && found.commit >= seen.commit {
            "another process took it"
        } else {
            "it is behind"
        };
        Err(format!(
            "the database is at {found}, but this server has seen {seen} ({}): {how}, so changes that were acknowledged are not in it (an older copy: a primary of before, a replica that was behind, a backup). Have the database with the newest commit take changes, and no other; or, if this is all that is left, 'stria mdt accept --dir DIR' on the stopped cluster takes it as it is",
            file.display()
        ))
    }

    /// Remembers a state that is newer than what was seen.
    pub fn keep(&self, state: &State) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_newer = |seen: &State| seen.uuid != state.uuid || state.order() > seen.order();
        let Err(why) = self.newest().and_then(|seen| match seen {
            Some(seen) if !is_newer(&seen) => Ok(()),
            _ => self.write(state).map_err(|e| format!("{}: {e}", self.path().display())),
        }) else {
            return;
        };
        let mut unwritten = self.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        if unwritten.replace(state.clone()).is_none() {
            tracing::warn!(
                "{why}: once this process has ended nobody knows that the metadata store's database was at {state}"
            );
        }
    }

    /// [`Memory::keep`] of another server's state, once a second at most.
    pub fn note(&self, state: &State) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.is_none_or(|at| at.elapsed() >= NOTED_EVERY) {
            *noted = Some(Instant::now());
            self.keep(state);
        }
    }

    /// Takes a state as the newest one, whatever was seen.
    ///
    /// # Errors
    /// The file system says no.
    pub fn write(&self, state: &State) -> io::Result<()> {
        let new = self.dir.join(format!("{SEEN_FILE}.{}", std::process::id()));
        let written = || {
            let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
            file.write_all(state.line().as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, self.path())?;
            fs::File::open(&self.dir)?.sync_all()
        };
        written().inspect_err(|_| drop(fs::remove_file(&new)))?;
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(epoch: i64, commit: i64, process: &str) -> State {
        State { uuid: 7, epoch, commit, process: process.into() }
    }

    #[test]
    fn what_is_behind_or_was_taken_by_somebody_else_is_refused_until_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::of(dir.path());
        memory.check(&state(1, 1, "a")).unwrap();
        memory.keep(&state(5, 322, "a"));
        memory.keep(&state(5, 300, "a"));
        let memory = Memory::of(dir.path());
        for there in [state(5, 322, "a"), state(5, 400, "a"), state(6, 322, "b")] {
            memory.check(&there).unwrap();
        }
        for (gone, said) in [
            (state(5, 133, "a"), "it is behind"),
            (state(6, 321, "b"), "it is behind"),
            (state(4, 500, "a"), "it is behind"),
            (state(5, 322, "b"), "another process took it"),
        ] {
            let why = memory.check(&gone).unwrap_err();
            assert!(why.contains(said) && why.contains(&gone.to_string()), "{why}");
            assert!(why.contains("seen epoch 5, commit 322") && why.contains("'stria mdt accept --dir DIR'"), "{why}");
        }
        let foreign = State { uuid: 8, ..state(9, 999, "a") };
        assert!(memory.check(&foreign).unwrap_err().contains("name the right database"));
        memory.write(&state(5, 133, "a")).unwrap();
        memory.check(&state(5, 133, "a")).unwrap();
        fs::write(memory.path(), "store 7 epoch x").unwrap();
        assert!(memory.check(&state(9, 999, "a")).unwrap_err().contains("it is damaged"));
    }

    #[test]
    fn what_cannot_be_written_down_counts_as_long_as_the_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::of(&dir.path().join("absent"));
        memory.keep(&state(5, 322, "a"));
        assert!(memory.check(&state(5, 321, "a")).is_err());
        memory.check(&state(5, 322, "a")).unwrap();
    }
}
