//! The changelog: a record for everything that happens to names and files, in the order in which it happens, for programs that follow it.
//!
//! A record is a key of the store and is written with what it tells of, in one transaction: what is undone by a crash has none, and what
//! is replayed afterwards has one. Readers get records from stable storage only, so that none is ever taken back. Records are written
//! while anybody is registered; a user says how far it has come, and what all have taken in is removed. Whoever stays too far behind is
//! removed, for a program that was forgotten must not fill the metadata store.
//!
//! Source: the changelogs of Lustre, whose kinds, numbers and commands these are.
use std::cell::{Cell, Ref, RefCell};
use std::fmt::Write;
use std::rc::Rc;

use types::{FsError, WallTime};
use wire::Op;
use wire::changelog::{
    ChangeKind, ChangeRecord, ChangelogAct, ChangelogReply, ChangelogRequest, ChangelogUserReply, ChangelogUserRequest,
};
use wire::mdt::Cred;

use crate::keys;
use crate::kv::Key;
use crate::mds::Mds;
use crate::record::{ChangelogRow, ChangelogUserRow, decode_row};
use crate::service::Outcome;
use crate::start::ready;
use crate::store::Change;
use crate::tx::Tx;

/// Records of one page.
const PAGE_RECORDS: usize = 1024;
/// Records that are removed in one step.
const PURGE_RECORDS: usize = 4096;
/// Users at most.
pub const USERS_MAX: usize = 64;
/// Records that a user may be behind before it is removed, unless the parameter says otherwise: some 2 GiB of the store.
const IDLE_INDEXES: u64 = 16 << 20;
/// The kinds that are written unless the parameter says otherwise: all but changes of access times.
const MASK: u32 = !(1 << ChangeKind::Atime as u8);

/// What a metadata target knows of its changelog. See the module's head.
pub(crate) struct Changelog {
    row: RefCell<ChangelogRow>,
    /// Index of the next record.
    next: Cell<u64>,
    mask: Cell<u32>,
    /// Records that a user may be behind.
    idle_indexes: Cell<u64>,
    purging: Cell<bool>,
    removing: Cell<bool>,
}

impl Changelog {
    /// From what the store holds: its row and the index of the last record, 0 without any.
    pub fn new(row: ChangelogRow, last: u64) -> Changelog {
        let next = if types::planted!("index-given-again") { row.next.max(1) } else { row.next.max(last + 1) };
        Changelog {
            row: RefCell::new(row),
            next: Cell::new(next),
            mask: Cell::new(MASK),
            idle_indexes: Cell::new(IDLE_INDEXES),
            purging: Cell::default(),
            removing: Cell::default(),
        }
    }
    /// Whether things of this kind are written down.
    pub fn writes(&self, kind: ChangeKind) -> bool {
        self.mask.get() & kind.bit() != 0 && !self.row.borrow().users.is_empty()
    }
    /// Index of the next record.
    pub fn next(&self) -> u64 {
        self.next.get()
    }
    /// So many records were written.
    pub fn wrote(&self, records: u64) {
        self.next.set(self.next.get() + records);
    }
    /// Index of the last record that nobody waits for.
    fn taken_in(&self) -> u64 {
        let last = self.next.get() - 1;
        let row = self.row.borrow();
        let all = row.users.iter().map(|u| u.index);
        if types::planted!("cleared-for-all") { all.max() } else { all.min() }.unwrap_or(last)
    }
    /// Records that are kept.
    pub fn records(&self) -> u64 {
        self.behind(self.taken_in())
    }
    /// Records behind this index. Indices that were skipped when the store was put back are none, and nobody is late by them.
    fn behind(&self, index: u64) -> u64 {
        let row = self.row.borrow();
        let from = index.saturating_add(1);
        let skipped = row.gaps.iter().map(|g| g.next.saturating_sub(g.first.max(from)));
        self.next.get().saturating_sub(skipped.fold(from, u64::saturating_add))
    }
    /// Users.
    pub fn users(&self) -> u64 {
        self.row.borrow().users.len() as u64
    }
    /// Whoever is too far behind.
    fn laggard(&self) -> Option<u32> {
        let most = self.idle_indexes.get();
        self.row.borrow().users.iter().find(|u| self.behind(u.index) > most).map(|u| u.user)
    }
    /// The row as it is now.
    fn saved(&self) -> Change {
        let mut row = self.row.borrow_mut();
        row.next = self.next.get();
        let ChangelogRow { users, gaps, .. } = &mut *row;
        gaps.retain(|g| users.iter().any(|u| u.index.saturating_add(1) < g.next));
        (keys::plain(keys::CHANGELOG), Some(wire::encode(&*row)))
    }
    fn user(&self, user: u32) -> Option<Ref<'_, ChangelogUserRow>> {
        Ref::filter_map(self.row.borrow(), |row| row.users.iter().find(|u| u.user == user)).ok()
    }

    /// The value of `changelog_mask`.
    pub fn mask_text(&self) -> String {
        let set = ChangeKind::ALL.iter().filter(|(kind, _)| self.mask.get() & kind.bit() != 0);
        set.map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
    }
    /// Sets `changelog_mask`: names of kinds, which replace those of before; with a sign each is added or taken away.
    pub fn set_mask(&self, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let signed = words.first().is_some_and(|w| w.starts_with(['+', '-']));
        let mut mask = if signed { self.mask.get() } else { 0 };
        for word in words {
            let (name, on) = match word.split_at_checked(1) {
                Some(("+", name)) if signed => (name, true),
                Some(("-", name)) if signed => (name, false),
                _ => (word, true),
            };
            let kind = ChangeKind::ALL.iter().find(|(_, n)| n.eq_ignore_ascii_case(name)).ok_or_else(|| {
                let all: Vec<&str> = ChangeKind::ALL.iter().map(|(_, n)| *n).collect();
                format!("'{word}' is no kind of record: write some of {}, or each with + or -", all.join(" "))
            })?;
            mask = if on { mask | kind.0.bit() } else { mask & !kind.0.bit() };
        }
        self.mask.set(mask);
        Ok(())
    }
    /// The value of `changelog_max_idle_indexes`.
    pub fn idle_indexes(&self) -> u64 {
        self.idle_indexes.get()
    }
    /// Sets `changelog_max_idle_indexes`.
    pub fn set_idle_indexes(&self, text: &str) -> Result<(), String> {
        let most = text.parse().ok().filter(|n| *n > 0);
        self.idle_indexes
            .set(most.ok_or_else(|| format!("'{text}': write how many records a user may be behind, 1 or more"))?);
        Ok(())
    }
    /// The value of `changelog_users`.
    pub fn users_text(&self, now: WallTime) -> String {
        let mut text = format!("current index: {}\nID    index (idle seconds)\n", self.next.get() - 1);
        for u in &self.row.borrow().users {
            let idle = now.0.saturating_sub(u.seen.0).max(0) / 1_000_000_000;
            let _ = writeln!(text, "{:<5} {} ({idle})", format!("cl{}", u.user), u.index);
        }
        text
    }
}

impl Tx<'_> {
    /// Writes a record with what this operation changes, if such are written. `fill` says what it is about.
    pub(crate) fn record(&mut self, kind: ChangeKind, cred: Option<&Cred>, fill: impl FnOnce(&mut ChangeRecord)) {
        if !self.mds.changelog.writes(kind) || self.replay && types::planted!("replay-unrecorded") {
            return;
        }
        let mut record = ChangeRecord {
            index: self.mds.changelog.next() + self.recorded,
            kind,
            time: self.now,
            uid: cred.map_or(ChangeRecord::UNKNOWN, |c| c.uid),
            gid: cred.map_or(ChangeRecord::UNKNOWN, |c| c.gid),
            job: cred.map_or(0, |c| c.job),
            client: self.client,
            ..ChangeRecord::default()
        };
        fill(&mut record);
        self.recorded += 1;
        self.add_up(keys::change(record.index), Some(wire::encode(&record)));
    }
}

impl Mds {
    /// Requests about the changelog.
    pub(crate) async fn serve_changelog(self: &Rc<Self>, op: Op, body: &[u8]) -> Result<Outcome, FsError> {
        if op == Op::Changelog {
            let q: ChangelogRequest = wire::decode(body).map_err(FsError::from)?;
            return self.changelog_page(&q).await.map(|r| Outcome::plain(&r));
        }
        let q: ChangelogUserRequest = wire::decode(body).map_err(FsError::from)?;
        self.changelog_user(&q).await.map(|r| Outcome::plain(&r))
    }

    /// A page of records. See [`ChangelogReply`].
    ///
    /// # Errors
    /// The store fails, or a record is damaged.
    async fn changelog_page(&self, q: &ChangelogRequest) -> Result<ChangelogReply, FsError> {
        self.store.sync().await?;
        let last = self.changelog.next() - 1;
        let (from, to) = (keys::change(q.from.max(self.changelog.taken_in() + 1)), keys::change(last + 1));
        let mut reply = ChangelogReply { last, written: self.changelog.users() > 0, ..ChangelogReply::default() };
        if from >= to {
            return Ok(reply);
        }
        // What is on stable storage: no record is ever taken back.
        let page = self.store.snapshot.borrow().range(&from, &to, PAGE_RECORDS);
        let mut jobs: Vec<u64> = Vec::new();
        for (key, sealed) in ready(page).await? {
            let record: ChangeRecord = decode_row(&key, &crate::kv::unseal(&key, sealed)?)?;
            if record.job != 0 && !jobs.contains(&record.job) {
                jobs.push(record.job);
            }
            reply.records.push(record);
        }
        reply.jobs = jobs.into_iter().map(|job| self.stats.job_name(job).as_str().into()).collect();
        Ok(reply)
    }

    /// A user comes, tells how far it is, or goes. What is refused is told in the reply.
    ///
    /// # Errors
    /// The store fails.
    async fn changelog_user(self: &Rc<Self>, q: &ChangelogUserRequest) -> Result<ChangelogUserReply, FsError> {
        let done = match q.act {
            ChangelogAct::Register => self.register_user(q.id),
            ChangelogAct::Clear => self.clear_for(q.user, q.index),
            ChangelogAct::Deregister => self.deregister(q.user, q.id),
        };
        match done {
            Ok((user, index)) => {
                self.store.sync().await?;
                self.purge_changelog();
                Ok(ChangelogUserReply { user, index, ..ChangelogUserReply::default() })
            }
            Err((e, why)) => {
                let errno = e.errno() as u16;
                Ok(ChangelogUserReply { errno, why: why.as_str().into(), ..ChangelogUserReply::default() })
            }
        }
    }

    fn register_user(&self, id: u64) -> Result<(u32, u64), (FsError, String)> {
        let log = &self.changelog;
        if let Some(u) = log.row.borrow().users.iter().find(|u| id != 0 && u.request == id) {
            return Ok((u.user, u.index));
        }
        if log.row.borrow().users.len() >= USERS_MAX {
            let why =
                format!("there are {USERS_MAX} users of the changelog: deregister one (changelog_users lists them)");
            return Err((FsError::NoSpace, why));
        }
        let mut row = log.row.borrow_mut();
        let (user, index) = (row.last_user + 1, log.next() - 1);
        row.last_user = user;
        row.users.push(ChangelogUserRow { user, index, request: id, seen: self.clock() });
        drop(row);
        self.save_changelog();
        tracing::info!(target = self.target, user, index, "a user of the changelog was registered");
        Ok((user, index))
    }

    fn clear_for(&self, user: u32, index: u64) -> Result<(u32, u64), (FsError, String)> {
        let log = &self.changelog;
        let Some(now) = log.user(user).map(|u| u.index) else { return Err(self.no_user(user)) };
        let last = log.next() - 1;
        let index = if index == 0 { last } else { index };
        if index > last {
            let why = format!("record {index} is not written yet: the last one is {last}");
            return Err((FsError::Invalid, why));
        }
        if index < now {
            let why = format!("cl{user} has taken in the records up to {now} already, {index} lies before it");
            return Err((FsError::Invalid, why));
        }
        let seen = self.clock();
        for u in log.row.borrow_mut().users.iter_mut().filter(|u| u.user == user) {
            (u.index, u.seen) = (index, seen);
        }
        self.save_changelog();
        Ok((user, index))
    }

    fn deregister(&self, user: u32, id: u64) -> Result<(u32, u64), (FsError, String)> {
        let log = &self.changelog;
        if log.row.borrow().last_removed == id && id != 0 {
            return Ok((user, 0));
        }
        let Some(index) = log.user(user).map(|u| u.index) else { return Err(self.no_user(user)) };
        let mut row = log.row.borrow_mut();
        row.users.retain(|u| u.user != user);
        row.last_removed = id;
        drop(row);
        self.save_changelog();
        tracing::info!(target = self.target, user, index, "a user of the changelog was deregistered");
        Ok((user, index))
    }

    fn no_user(&self, user: u32) -> (FsError, String) {
        let all: Vec<String> = self.changelog.row.borrow().users.iter().map(|u| format!("cl{}", u.user)).collect();
        let there = if all.is_empty() { "nobody is".into() } else { format!("{} are", all.join(", ")) };
        (
            FsError::NotFound,
            format!(
                "cl{user} is not registered: {there}; who stays too far behind is removed (changelog_max_idle_indexes)"
            ),
        )
    }

    fn save_changelog(&self) {
        self.store.apply([self.changelog.saved()], 0, 0);
    }

    /// Records were written just now: a user that is too far behind for them goes.
    pub(crate) fn wrote_records(self: &Rc<Self>, records: u64) {
        self.changelog.wrote(records);
        if self.changelog.laggard().is_none() || self.changelog.removing.replace(true) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            while let Some(user) = me.changelog.laggard() {
                tracing::warn!(
                    target = me.target,
                    user,
                    most = me.changelog.idle_indexes(),
                    "a user of the changelog is too far behind and was removed: it has to begin anew"
                );
                let q = ChangelogUserRequest { act: ChangelogAct::Deregister, user, ..ChangelogUserRequest::default() };
                if let Err(e) = me.changelog_user(&q).await {
                    tracing::error!("the changelog: {e}");
                    break;
                }
            }
            me.changelog.removing.set(false);
        });
    }

    /// Removes what all users have taken in, in the background, some records at a time.
    pub(crate) fn purge_changelog(self: &Rc<Self>) {
        if self.changelog.purging.replace(true) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            match me.purge().await {
                // The next start goes on with it.
                Ok(()) | Err(FsError::ShuttingDown) => {}
                Err(e) => {
                    tracing::error!("records of the changelog that nobody waits for stay until the next start: {e}")
                }
            }
            me.changelog.purging.set(false);
        });
    }

    async fn purge(&self) -> Result<(), FsError> {
        while !self.stopped.get() {
            let through = self.changelog.taken_in();
            let (rows, next) = self.store.scan(&keys::change(0), &keys::change(through + 1), PURGE_RECORDS).await?;
            if rows.is_empty() && next.is_none() {
                // Users may have come further while this was read.
                if self.changelog.taken_in() == through {
                    break;
                }
                continue;
            }
            // The row tells of their indices when the records do not any more; it may have been lost.
            let gone = rows.into_iter().map(|(key, _): (Key, _)| (key, None));
            self.store.apply(gone.chain([self.changelog.saved()]), 0, 0);
            // Others' changes go before the next step.
            self.store.sync().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_replaced_by_names_and_changed_by_signs_and_a_wrong_word_changes_nothing() {
        let log = Changelog::new(ChangelogRow::default(), 0);
        assert!(log.mask_text().contains("MTIME") && !log.mask_text().contains("ATIME"));
        log.set_mask("creat UNLNK").unwrap();
        assert_eq!(log.mask_text(), "CREAT UNLNK");
        log.set_mask("+XATTR -CREAT").unwrap();
        assert_eq!(log.mask_text(), "UNLNK XATTR");
        let refused = log.set_mask("-UNLNK +OPEN").unwrap_err();
        assert!(refused.contains("'+OPEN'") && refused.contains("CREAT MKDIR"), "{refused}");
        assert_eq!(log.mask_text(), "UNLNK XATTR");
        log.set_mask("").unwrap();
        assert_eq!(log.mask_text(), "");
        for wrong in ["0", "-1", "many", ""] {
            assert!(log.set_idle_indexes(wrong).unwrap_err().contains(wrong));
        }
    }

    #[test]
    fn the_next_index_is_behind_the_row_and_behind_the_last_record() {
        let row = ChangelogRow { next: 8, ..ChangelogRow::default() };
        assert_eq!(Changelog::new(row.clone(), 0).next(), 8, "the last one was removed");
        assert_eq!(Changelog::new(row, 11).next(), 12, "records came since the row was written");
        assert_eq!(Changelog::new(ChangelogRow::default(), 0).next(), 1);
    }
}
