//! What a message asks.

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// A request's kind. Numbers are part of the wire format and never reused.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Op { $($(#[$doc])* $name = $value,)* }
        impl Op {
            /// The kind with this number.
            #[must_use]
            pub const fn from_u16(v: u16) -> Option<Op> { match v { $($value => Some(Op::$name),)* _ => None } }
            /// Lower-case name for statistics.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Op::$name => stringify!($name),)* } }
            /// Numbers of kinds that are no more: nothing else is ever asked by them.
            pub const RETIRED: &'static [(u16, &'static str)] = &[(33, "MdtSwapLayouts"), (101, "OstGetattr")];
            /// Every kind.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];
        }
    };
}

ops! {
    /// First half of the handshake: who am I, which target do I want.
    Connect = 1,
    /// Second half: proof of the cluster key; opens the session.
    Auth = 2,
    /// A client leaves for good.
    Disconnect = 3,
    /// Are you there; also tells `last_committed`.
    Ping = 4,
    /// The cluster map.
    Config = 5,
    /// A server registers its target with the configuration service.
    Register = 6,
    /// Reads or writes parameters of a server (`get_param`, `set_param`).
    Params = 7,
    /// What jobs are called whose numbers requests carry.
    Jobs = 8,
    /// A client knows that the process of another session of its user has ended.
    Gone = 9,

    /// Name to attributes.
    MdtLookup = 16,
    /// FID to attributes.
    MdtGetattr = 17,
    /// Open, with optional create and truncate.
    MdtOpen = 18,
    // 19 was the end of one open.
    /// mkdir, mknod, symlink.
    MdtCreate = 20,
    /// unlink, rmdir.
    MdtUnlink = 21,
    /// rename with flags.
    MdtRename = 22,
    /// Hard link.
    MdtLink = 23,
    /// chmod, chown, truncate, utimens.
    MdtSetattr = 24,
    /// A page of directory entries, with or without attributes.
    MdtReaddir = 25,
    /// Target of a symbolic link.
    MdtReadlink = 26,
    /// One xattr's value.
    MdtGetxattr = 27,
    /// Sets or removes an xattr.
    MdtSetxattr = 28,
    /// Names of xattrs.
    MdtListxattr = 29,
    /// Inodes used and free.
    MdtStatfs = 30,
    /// Everything answered so far is on stable storage when this is answered.
    MdtSync = 31,
    /// FID to path.
    MdtFid2path = 32,
    /// Ends of opens; bring sizes and times home.
    MdtClose = 34,
    /// The data of the files whose sizes this client told are on stable storage.
    MdtSettled = 35,
    /// A cut of several objects is to happen: it is carried out on all of them, whatever becomes of the client.
    MdtCut = 36,

    /// Asks for a lock.
    LockEnqueue = 64,
    /// Gives locks back.
    LockCancel = 65,
    /// Changes a lock's mode or bits downwards.
    LockConvert = 66,
    /// Server to client: somebody wants what this lock protects.
    LockBlocking = 67,
    /// Server to client: the lock you waited for is yours.
    LockCompletion = 68,
    /// Server to client: how large is the object under your lock.
    LockGlimpse = 69,

    /// Reads extents of an object into bulk.
    OstRead = 96,
    /// Writes bulk into extents of an object.
    OstWrite = 97,
    /// Deallocates or truncates a range.
    OstPunch = 98,
    /// An object, or everything, on stable storage.
    OstSync = 99,
    /// Bytes and objects used and free.
    OstStatfs = 100,
    /// Owner, project, times of an object.
    OstSetattr = 102,
    /// MDS to OST: make objects ready for creates.
    OstPrecreate = 103,
    /// Removes objects.
    OstDestroy = 104,
    /// Next data or hole.
    OstSeek = 105,
    /// Reserves space.
    OstAllocate = 106,
    /// Advice on a range.
    OstAdvise = 107,
    /// A client gives back grant that it does not need.
    OstShrinkGrant = 108,
    /// Server to client: space is short, give back grant that you do not need.
    OstAskGrant = 109,
    /// Which advice there is on an object, and what came of it.
    OstAdvised = 110,
    /// A client will cut an object if the MDS decides so.
    OstPromise = 111,
    /// OST to MDS: was this cut decided, whose client is gone.
    OstAskCut = 112,
    /// What a target did with the requests of late; metadata targets answer it, too.
    OstTrace = 113,
}
