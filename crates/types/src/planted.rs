//! Planted bugs: faults in Stria's own code that a run of the fault simulation switches on, one at a time, to show that it
//! would be found.
//!
//! A place says `types::planted!("name")`. In builds without debug assertions and without the feature `planted` that is the
//! constant `false`, and nothing of this is in the program. Otherwise it is true while [`plant`] has that name, on that
//! thread: the fault simulation runs a whole cluster in one.

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug {
    /// Its name: that of its place in the code.
    pub name: &'static str,
    /// What is wrong while it is on.
    pub what: &'static str,
}

const fn bug(name: &'static str, what: &'static str) -> Bug {
    Bug { name, what }
}

/// All planted bugs.
pub const BUGS: &[Bug] = &[
    bug("replay-dropped", "A client forgets the first transaction that it should replay to a restarted server."),
    bug("older-copy-let-in", "The older copy of an OST's store is let in as the store that the cluster saw last."),
    bug("older-copy-made-anew", "An OST makes objects that were given out, and that its store does not have, anew."),
    bug("objects-told-early", "An OST tells of objects that are not on stable storage."),
    bug("never-room", "A metadata server refuses every change for want of space."),
    bug("looks-take-frames", "An OST's commit waits for a page frame to look whose store it is."),
    bug("unadmitted-believed", "What an OST answers counts before its store was let in."),
    bug("sync-skipped", "An OST answers a sync without syncing."),
    bug("grant-leaked", "A write that used grant gives none of it back to the server's books."),
    bug("callback-lost", "A client answers a blocking callback and keeps the lock."),
    bug("checksum-ignored", "An OST does not look at the checksum of the bulk it receives."),
    bug("replay-backwards", "A restarted server carries out the latest of the transactions offered first."),
    bug("replies-forgotten", "A restarted server has forgotten its answers: what is sent again is carried out again."),
    bug("resend-carried-out", "A request that is sent again is carried out again although its answer is remembered."),
    bug("commit-told-early", "A server says that a transaction is on stable storage when it has only answered it."),
    bug("bulk-unchecked", "A client does not look at the checksum of the bulk it receives."),
    bug(
        "reopened-unnoticed",
        "A target whose store was opened again passes for the one of before: clients tell it nothing again.",
    ),
    bug("lock-in-conflict", "An extent lock is granted while another client's conflicts with it."),
    bug("flock-in-conflict", "A byte range lock of a program is granted while another one has it."),
    bug("lock-not-replayed", "A client does not tell a restarted server of the first of its locks."),
    bug(
        "recalled-not-waited-for",
        "What a metadata server answers after a recovery without everybody does not wait for locks that it called back.",
    ),
    bug("gap-forgotten", "A metadata server that dies in a recovery forgets that somebody had not come back to it."),
    bug("quiet-amid-replays", "A client that stands still amid its replays counts as one that has nothing to replay."),
    bug(
        "quiet-and-asking",
        "An OST goes on without a missing client that asked for something after it had been quiet.",
    ),
    bug(
        "missing-not-waited-for",
        "An OST that goes on without a missing client gives others what that may have locked.",
    ),
    bug(
        "commit-of-others",
        "A restarted metadata server takes what one client replayed and is committed for what all clients replayed.",
    ),
    bug("late-size-counts", "The size that a close tells counts, whoever else changed the file meanwhile."),
    bug(
        "dirty-unlisted",
        "A page that becomes dirty has no place in the order of write-out until its write went through.",
    ),
    bug("glimpse-ignored", "A server that asks lock holders for the size does not believe their answers."),
    bug("dropped-half-done", "What a program began and was killed in stays half done: answers to it are not taken in."),
    bug(
        "uncached-write-let-go",
        "An uncached write of a program that was killed keeps no later write of its bytes back.",
    ),
    bug("flush-forgotten", "A client gives a lock back without writing out what it wrote under it."),
    bug("stale-pages", "A client keeps clean pages when it gives their lock back."),
    bug("eviction-ignored", "A client that an OST evicted goes on with the locks that it had."),
    bug("error-swallowed", "An error of write-back is not told to the file's descriptors."),
    bug("error-told-once", "An error of write-back is told to the first descriptor that asks, not to all."),
    bug("evicted-changes", "A change that waited at an OST while its client was evicted is carried out."),
    bug(
        "outlived-open",
        "A write that comes to its end behind that of its open leaves the size that the end of the open told.",
    ),
    bug(
        "map-change-kept-once",
        "A change of the cluster map that was not kept is answered as done when it is asked for again.",
    ),
    bug("ended-and-told", "An open that ended before a restart, and whose end was not answered, is open for good."),
    bug("settled-by-old-attributes", "A time is set by attributes of before somebody else wrote, and does not last."),
    bug(
        "own-time-kept",
        "A client that wrote goes on telling its own time, although another one has set the file's since, when it has locks on it again.",
    ),
    bug(
        "set-time-untold",
        "The objects of a file are not told of a time that was set while nobody wrote it, when somebody opens it for writing.",
    ),
    bug("appended-amid-a-cut", "An append goes behind the end that a cut of the same client is about to take away."),
    bug(
        "parted-and-lost",
        "Who takes a server back that it had given up loses what it asked for since with the session of before.",
    ),
    bug("whole-unsettled", "An OST's store that is at rest does not sync which commit was whole."),
    bug(
        "map-untold-to-the-away",
        "A client that was cut off while the cluster map changed does not hear of it when it is back.",
    ),
    bug(
        "map-untold-to-the-new",
        "A client whose session begins anew does not hear how the cluster map changed since its earlier one.",
    ),
    bug("parted-changes", "A change that waited at an OST while its client gave the OST up is carried out."),
    bug("sought-by-old-size", "A client looks for data up to the end that it was told before others wrote behind it."),
    bug(
        "frames-for-all",
        "What comes to a server takes the last frames, also those that requests in service need to come to an end.",
    ),
    bug(
        "answers-wait-for-frames",
        "An answer waits for frames for its bulk, and what comes behind it on its connection with it.",
    ),
    bug("evicted-amid", "The locks of an evicted client go to others while a change of it is carried out."),
    bug("sizes-torn", "A client adds up lengths of objects, whether or not one was cut between the answers."),
    bug("cut-edge-kept", "A cut leaves the bytes behind it in the block where the object ends."),
    bug("promise-not-stored", "An OST forgets what cuts it was promised when it dies."),
    bug("decision-not-stored", "The metadata server forgets which cuts it decided when it dies."),
    bug(
        "gone-and-asked",
        "A client waits for what an OST that has left, or whose store is another one, has made of a cut.",
    ),
    bug("exchange-told-early", "Clients are shown a file's new objects before the exchange is on stable storage."),
    bug("cut-not-promised", "A client cuts the objects of a file one after the other, and dies amid that."),
    bug("cut-unfinished", "An OST whose client died amid a cut of several objects lets its own object be as it is."),
    bug("data-not-synced", "An OST's store commits where data are without having synced them."),
    bug("orphan-removed", "An open file is removed with its last name."),
    bug("rename-half-done", "A rename leaves the old name."),
    bug("xattr-not-replayed", "A replayed change of an xattr is lost."),
    bug(
        "horizon-forgotten",
        "A restarted metadata server believes the sizes that a client told which did not come back.",
    ),
    bug(
        "late-size-believed",
        "A size that comes late counts although the lock over the end that is on its way out is in use.",
    ),
    bug(
        "migrated-without-the-rest",
        "What was written while a file was copied is not copied once others are kept away.",
    ),
    bug("migrated-up-to-a-new-hole", "What lies behind a hole that is punched while a file is copied is not copied."),
    bug("paced-under-locks", "A migration keeps to its rate while others are kept away."),
    bug("others-not-synced", "An fsync makes durable what its own client wrote, and nothing else."),
    bug("settled-early", "A client says that told sizes are settled without waiting for their data."),
    bug("fast-copy-kept", "A change leaves the copies in the fast tier that it makes old."),
    bug("adopted-kept", "A file that a repair made of an object keeps it when the create comes that it was made for."),
    bug("adopted-given-out", "An object that a repair made a file of counts as not given out."),
    bug("repair-unnamed", "A repair leaves a file with damaged data under its name, and says nothing."),
    bug("rolled-back", "A repair gives a whole commit up of which one page rotted, instead of that page."),
    bug("link-uncounted", "A hard link is not counted."),
    bug("removal-uncounted", "An inode that goes counts on for its user, group and project."),
    bug("replay-uncounted", "What clients replay to a restarted metadata server counts for nobody."),
    bug("chown-keeps-count", "An inode that changes hands counts on for whom it was of."),
    bug("owner-not-told", "OSTs do not hear that a file changed hands."),
    bug("usage-apart", "An OST's counts are not part of the commit that changes what they count."),
    bug("quota-ignored", "An OST lets writes in whatever the share is."),
    bug("share-not-kept", "An OST forgets, when it dies, that it gave a part of its share back."),
    bug("share-said-early", "An OST says that it gave a part of its share back before its store knows."),
    bug("share-told-late", "What an OST said of its share before it said something else counts."),
    bug(
        "grown-over-zeros",
        "A read ends where a file ends that has grown meanwhile, over zeros where others have written.",
    ),
    bug("cut-over-zeros", "A read past the cache shows zeros where the file ended for a moment and was written again."),
    bug("untold-forgotten", "A write-back error that came after the last close is told to nobody."),
    bug("given-up-and-forgotten", "Who gives an OST up does not say what it loses of what it had answered."),
    bug(
        "scan-apart",
        "Background work of the metadata server does not see what is committed while its look at the store is under way.",
    ),
    bug(
        "epoch-ignored",
        "An OST takes the metadata server whose session is the latest for the one that has the store.",
    ),
    bug(
        "precreate-sent-again",
        "What a metadata server has an OST make and remove is sent again over a later connection, whoever has the store by then.",
    ),
    bug(
        "unsure-and-kept",
        "A metadata server that cannot reach its store keeps its clients, whatever another one does.",
    ),
    bug("answered-unconfirmed", "A metadata server answers without asking whether the store is still its own."),
    bug(
        "removed-unconfirmed",
        "A metadata server has OSTs remove what it knows nothing of without asking whether the store is still its own.",
    ),
    bug("default-unheard", "An OST that comes back is not told which kinds have default limits."),
    bug("tight-unheard", "A client goes on to write under grant for somebody who has little left."),
    bug("replay-unrecorded", "What clients replay to a restarted metadata server has no records in the changelog."),
    bug("cleared-for-all", "What one user of the changelog has cleared is gone for all."),
    bug("index-given-again", "A restarted metadata server gives records of the changelog numbers that others have."),
    bug("revocation-not-kept", "A metadata server forgets, when it dies, that a credential was revoked."),
    bug("revoked-stay", "An OST lets the sessions of a revoked credential go on."),
    bug("capability-unchecked", "An OST lets a client of a subtree at every object."),
    bug(
        "ids-not-mapped",
        "An OST counts what a client writes for the owner that the client names, whatever ids it has at the servers.",
    ),
    bug("added-forgotten", "A metadata server answers an OST that registers before its store knows of it."),
    bug("drained-with-files-left", "A metadata server lets an OST go that files have objects on."),
    bug("left-and-kept", "A client keeps its session with an OST that has left the cluster."),
];

/// Whether planted bugs are compiled in.
pub const COMPILED_IN: bool = cfg!(any(debug_assertions, feature = "planted"));

#[cfg(any(debug_assertions, feature = "planted"))]
mod switch {
    extern crate std;
    use core::cell::Cell;

    std::thread_local! {
        static PLANTED: Cell<(Option<&'static str>, u64)> = const { Cell::new((None, 0)) };
    }

    /// Switches a planted bug on for this thread, or with `None` all of them off.
    pub fn plant(name: Option<&'static str>) {
        PLANTED.set((name, 0));
    }
    /// How many times the place of the bug that is on was reached.
    #[must_use]
    pub fn reached() -> u64 {
        PLANTED.get().1
    }
    /// Whether the bug of this name is on; for [`crate::planted!`].
    #[must_use]
    pub fn is(name: &str) -> bool {
        let (planted, reached) = PLANTED.get();
        let is = planted.is_some_and(|p| p == name);
        if is {
            PLANTED.set((planted, reached + 1));
        }
        is
    }
}
#[cfg(any(debug_assertions, feature = "planted"))]
pub use switch::{is, plant, reached};

/// Switches a planted bug on for this thread: does nothing in builds without planted bugs.
#[cfg(not(any(debug_assertions, feature = "planted")))]
pub fn plant(_name: Option<&'static str>) {}
/// How many times the place of the bug that is on was reached.
#[cfg(not(any(debug_assertions, feature = "planted")))]
#[must_use]
pub const fn reached() -> u64 {
    0
}
/// Whether the bug of this name is on: never, in builds without planted bugs.
#[cfg(not(any(debug_assertions, feature = "planted")))]
#[inline(always)]
#[must_use]
pub const fn is(_name: &str) -> bool {
    false
}

/// Whether a planted bug is on here and now: the constant `false` in products.
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        $crate::planted::is($name)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_on_where_it_was_planted_and_nowhere_else() {
        plant(Some("sync-skipped"));
        assert!(planted!("sync-skipped") && !planted!("grant-leaked"));
        assert_eq!(reached(), 1);
        plant(None);
        assert!(!planted!("sync-skipped"));
    }
}
