//! Classes of faults: what swarm testing switches on and off, and what coverage is counted by.

macro_rules! classes {
    ($($name:ident, $text:literal, $what:literal;)*) => {
        /// A class of faults. Each may happen alone or together with any others.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
        pub enum FaultClass { $(#[doc = $what] $name,)* }
        impl FaultClass {
            /// All of them, in the order of [`FaultClass::index`].
            pub const ALL: &'static [FaultClass] = &[$(FaultClass::$name,)*];
            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(FaultClass::$name => $text,)* }
            }
            /// What happens.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(FaultClass::$name => $what,)* }
            }
        }
    };
}

classes! {
    KillServer, "kill-server", "A server's process dies and is started again; what it wrote stays.";
    KillClient, "kill-client", "A client's process dies; another one takes its place.";
    Power, "power", "A node that dies loses its power: of what was not synced each sector is there or not.";
    Together, "together", "A client and the metadata server may die at the same time, or one while the other recovers.";
    Reset, "reset", "Connections between two nodes are reset.";
    Cut, "cut", "Two nodes do not reach each other for up to 8 s.";
    LongCut, "long-cut", "Two nodes do not reach each other for up to 150 s: longer than evictions take.";
    OneWay, "one-way", "Messages of one node to another do not arrive; those in the other direction do.";
    Pause, "pause", "A process is stopped for 10 to 90 s, as by SIGSTOP, or many times for up to 11 ms.";
    SlowDisk, "slow-disk", "A server's disk is 10 to 500 times slower.";
    DiskError, "disk-error", "Reads, writes or syncs of a server's disk fail with EIO until the server is started again.";
    BitRot, "bit-rot", "Reads of an OST's disk bring flipped bits.";
    SmallOsts, "small-osts", "OSTs are so small that they fill up.";
    Busy, "busy", "Scheduler heads hold so few requests that clients have to come again.";
    Loss, "loss", "Messages come late, because they had to be sent again.";
    Corrupt, "corrupt", "Bulk arrives with a flipped bit.";
    Duplicate, "duplicate", "Messages arrive twice.";
    Reorder, "reorder", "Messages overtake others of their connection.";
    Delay, "delay", "Messages take up to 20 ms.";
    Skew, "skew", "Clocks differ by up to a minute.";
    StalledDisk, "stalled-disk", "A server's disk stands still for 5 to 120 s, without an error.";
    Drift, "drift", "Clocks run up to 1 % faster or slower.";
    Crowd, "crowd", "Clients append to one file as fast as they can and ask for its size, while their processes stutter.";
    Strand, "strand", "A client whose writes wait at OSTs with disks that stand still is stopped until it is evicted, and dies, or gives the OSTs up and takes them back; others write there meanwhile.";
    Gap, "gap", "A client dies with the metadata server, which dies again once it has given the client up, before its recovery is over.";
    Rights, "rights", "Several users change owners, modes and ACLs, and are refused what they may not do: refusals are counted.";
    FullDisk, "full-disk", "Others fill the file system below a server's store for a while, but for a drawn rest.";
    RotStays, "rot-stays", "Bits of data blocks flip on the disk and stay so; a check names them in the end, and a repair makes the stores whole.";
    Timing, "timing", "Commit intervals, recovery windows and waits of servers are others than usual.";
    Absent, "absent", "A client that had been quiet is cut off from OSTs that die, with writes under its locks; others want what it has locked.";
    PageRot, "page-rot", "A bit of a server's database flips for good, while it runs or is down: it says so when it starts, and the page is put back from a copy.";
    Pauses, "pauses", "Programs think for seconds to a minute between operations, all at the same time or each by itself.";
    Migrate, "migrate", "Files that programs work on get other objects, in other numbers, sizes and places.";
    Appends, "appends", "Programs append to the file that others write, cut and punch at the same time.";
    DiskHeals, "disk-heals", "Reads, writes or syncs of a server's disk fail for up to 20 s, and the server is not started again: its store comes back by itself.";
    Fsck, "fsck", "All servers end, and their stores are checked and repaired before they start again; in the end what rotted is repaired, and only that is missing.";
    Interrupts, "interrupts", "Programs' operations are dropped amid, and they go on with the next one.";
    Quotas, "quotas", "Users, groups and projects have limits that change, their programs write up to them, and files change hands: refusals are counted.";
    Changelog, "changelog", "Programs follow the changelog, die and come again: records are counted that they take in.";
    Credentials, "credentials", "Clients have credentials that only read, are for a subtree, map ids, end or are revoked: refusals are counted.";
    Growth, "growth", "OSTs are added while clients work, closed, emptied, and removed or used again: changes of the cluster map are counted.";
    Standby, "standby", "The metadata store is an engine on another host that answers late, and its server starts now here and now there; at times the engine does not answer, or a second server follows one that stands still or is cut off from it.";
    GivenUp, "given-up", "A client gives an OST up for up to 30 s, or all do so by the cluster map: what was not written there is lost, and its programs are told.";
    ShortMemory, "short-memory", "Processes have few page frames beyond their caches, so that bulk waits for room: allocations that found none are counted.";
    Seeks, "seeks", "Programs look for data and holes, copy, reserve behind the end, set times and drop caches beside the writes of others, and begin together: what was looked for is counted.";
}

impl FaultClass {
    /// The first classes, in the order of [`FaultClass::index`]: which of them a seed has is drawn as it was before there were others.
    pub const FIRST: &'static [FaultClass] = FaultClass::ALL.split_at(FaultClass::Drift.index() + 1).0;
    /// How many there are.
    pub const COUNT: usize = FaultClass::ALL.len();
    /// Whether it happens at moments that are counted; otherwise it is how the whole run is.
    #[must_use]
    pub const fn is_event(self) -> bool {
        !matches!(
            self,
            FaultClass::Delay | FaultClass::Skew | FaultClass::Drift | FaultClass::Timing | FaultClass::Pauses
        )
    }
    /// Its place among all.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}
