//! What a message asks: one row for each kind, from which everybody takes what there is to know of it.
use crate::changelog::{ChangelogReply, ChangelogRequest, ChangelogUserReply, ChangelogUserRequest};
use crate::connect::{
    AuthReply, AuthRequest, ConfigReply, ConnectReply, ConnectRequest, GoneRequest, JobsRequest, MapChangeReply,
    MapChangeRequest, OstFilesReply, OstFilesRequest, ParamsReply, ParamsRequest, RegisterRequest,
};
use crate::credential::{CredentialsReply, CredentialsRequest, RevokedRequest};
use crate::shape::flags;
use crate::{Body, lock, mdt, ost, quota};

flags! {
    /// What is to be known of a kind of request before it is read.
    Class {
        /// Its body begins with who asks (`mdt.Cred`).
        CALLER = 1,
        /// It may become a transaction: the answer tells `transno`, and the client keeps it until `last_committed` covers that.
        CHANGES = 2,
        /// It tells a server what the client holds: told again to one that was restarted, with REPLAY and `transno` 0.
        STATE = 4,
        /// For administrators' sessions; others get EPERM.
        ADMINISTRATOR = 8,
        /// Carried out while a restarted server still waits for clients.
        IN_RECOVERY = 16,
        /// About the server alone: who asks nothing else is no client that a restarted server would wait for.
        PASSING = 32,
        /// It leaves its client with no more than it had, and is no transaction.
        CALM = 64,
        /// A metadata target keeps in its trace what became of it.
        TRACED = 128,
        /// Bulk follows the request.
        BULK = 256,
        /// Bulk follows the answer.
        BULK_BACK = 512,
        /// Always sent with URGENT: some other client waits for what it gives up.
        URGENT = 1024,
    }
}

/// Who carries a request out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The session's end at any target, whatever it serves.
    Session,
    /// Any target.
    Target,
    /// A metadata target.
    Mdt,
    /// An object storage target.
    Ost,
    /// Who opened the session (CALLBACK): a client, or at an OST also the metadata server.
    Client,
}

/// A way that a kind of request goes.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Who carries it out.
    pub side: Side,
    /// Its body.
    pub request: Body,
    /// The answer's body.
    pub reply: Body,
}

macro_rules! ops {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal $label:literal [$($class:ident)*]
        $($side:ident($request:ty) -> $reply:ty),+;)*) => {
        /// A request's kind. Numbers are part of the wire format and never reused.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Op { $($(#[doc = $doc])+ $name = $value,)* }
        impl Op {
            /// Every kind.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];
            /// The kind with this number.
            #[must_use]
            pub const fn from_u16(v: u16) -> Option<Op> { match v { $($value => Some(Op::$name),)* _ => None } }
            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Op::$name => stringify!($name),)* } }
            /// What statistics, metrics and tools call it.
            #[must_use]
            pub const fn label(self) -> &'static str { match self { $(Op::$name => $label,)* } }
            /// What it asks.
            #[must_use]
            pub const fn meaning(self) -> &'static str { match self { $(Op::$name => concat!($($doc),+),)* } }
            /// What is to be known of it.
            #[must_use]
            pub const fn class(self) -> Class {
                match self { $(Op::$name => Class(0)$(.with(Class::$class))*,)* }
            }
            /// The ways it goes.
            #[must_use]
            pub const fn ways(self) -> &'static [Way] {
                match self { $(Op::$name => const { &[$(Way {
                    side: Side::$side,
                    request: Body::of::<$request>(stringify!($request)),
                    reply: Body::of::<$reply>(stringify!($reply)),
                },)+] },)* }
            }
        }
    };
}

impl Op {
    /// Numbers of kinds that are no more: nothing else is ever asked by them.
    pub const RETIRED: &'static [(u16, &'static str)] = &[(33, "MdtSwapLayouts"), (101, "OstGetattr")];

    /// Whether all of `class` is so.
    #[must_use]
    pub const fn is(self, class: Class) -> bool {
        self.class().has(class)
    }
}

ops! {
    /// First half of the handshake: who am I, which target do I want.
    Connect = 1 "connect" [] Session(ConnectRequest) -> ConnectReply;
    /// Second half: proof of the cluster key; opens the session.
    Auth = 2 "auth" [] Session(AuthRequest) -> AuthReply;
    /// A client leaves for good.
    Disconnect = 3 "disconnect" [] Session(()) -> ();
    /// Are you there; also tells `last_committed`.
    Ping = 4 "ping" [IN_RECOVERY PASSING CALM] Session(()) -> ();
    /// The cluster map. A metadata server tells it to its clients when it changes.
    Config = 5 "config" [IN_RECOVERY PASSING CALM] Mdt(()) -> ConfigReply, Client(ConfigReply) -> ();
    /// A server registers its target with the configuration service.
    Register = 6 "register" [ADMINISTRATOR IN_RECOVERY PASSING CALM] Mdt(RegisterRequest) -> ConfigReply;
    /// Reads or writes parameters of a server (`get_param`, `set_param`). With a value, or to keep or forget a setting: an
    /// administrator's.
    Params = 7 "params" [IN_RECOVERY PASSING CALM] Target(ParamsRequest) -> ParamsReply;
    /// What jobs are called whose numbers requests carry.
    Jobs = 8 "jobs" [IN_RECOVERY PASSING CALM] Target(JobsRequest) -> ();
    /// A client knows that the process of another session of its user has ended.
    Gone = 9 "gone" [IN_RECOVERY] Session(GoneRequest) -> ();
    /// Changes the cluster map: pools, and which OSTs there are.
    MapChange = 10 "map_change" [ADMINISTRATOR PASSING CALM] Mdt(MapChangeRequest) -> MapChangeReply;
    /// Which files have objects on an OST.
    OstFiles = 11 "ost_files" [ADMINISTRATOR PASSING CALM] Mdt(OstFilesRequest) -> OstFilesReply;
    /// What happened to names and files, from a record on.
    Changelog = 12 "changelog" [ADMINISTRATOR PASSING CALM] Mdt(ChangelogRequest) -> ChangelogReply;
    /// Users of the changelog come, tell how far they are, and go.
    ChangelogUser = 13 "changelog_user" [ADMINISTRATOR PASSING CALM] Mdt(ChangelogUserRequest) -> ChangelogUserReply;
    /// Credentials of single clients are issued, listed and revoked.
    Credentials = 14 "credentials" [ADMINISTRATOR PASSING CALM] Mdt(CredentialsRequest) -> CredentialsReply;
    /// MDS to OST: which credentials open nothing any more.
    Revoked = 15 "revoked" [ADMINISTRATOR IN_RECOVERY PASSING CALM] Ost(RevokedRequest) -> ();

    /// Name to attributes.
    MdtLookup = 16 "lookup" [CALLER TRACED] Mdt(mdt::LookupRequest) -> mdt::EntryReply;
    /// FID to attributes.
    MdtGetattr = 17 "getattr" [CALLER TRACED] Mdt(mdt::GetattrRequest) -> mdt::EntryReply;
    /// Open, with optional create and truncate.
    MdtOpen = 18 "open" [CALLER CHANGES STATE TRACED] Mdt(mdt::OpenRequest) -> mdt::OpenReply;
    // 19 was the end of one open.
    /// mkdir, mknod, symlink.
    MdtCreate = 20 "mknod" [CALLER CHANGES TRACED] Mdt(mdt::CreateRequest) -> mdt::EntryReply;
    /// unlink, rmdir. The answer is about the inode whose name went.
    MdtUnlink = 21 "unlink" [CALLER CHANGES TRACED] Mdt(mdt::UnlinkRequest) -> mdt::EntryReply;
    /// rename with flags. The answer is about the inode that was renamed.
    MdtRename = 22 "rename" [CALLER CHANGES TRACED] Mdt(mdt::RenameRequest) -> mdt::EntryReply;
    /// Hard link.
    MdtLink = 23 "link" [CALLER CHANGES TRACED] Mdt(mdt::LinkRequest) -> mdt::EntryReply;
    /// chmod, chown, truncate, utimens.
    MdtSetattr = 24 "setattr" [CALLER CHANGES TRACED] Mdt(mdt::SetattrRequest) -> mdt::EntryReply;
    /// A page of directory entries, with or without attributes.
    MdtReaddir = 25 "readdir" [CALLER TRACED] Mdt(mdt::ReaddirRequest) -> mdt::ReaddirReply;
    /// Target of a symbolic link.
    MdtReadlink = 26 "readlink" [CALLER TRACED] Mdt(mdt::InodeRequest) -> mdt::BytesReply;
    /// One xattr's value.
    MdtGetxattr = 27 "getxattr" [CALLER TRACED] Mdt(mdt::XattrRequest) -> mdt::BytesReply;
    /// Sets or removes an xattr. The answer has the file's layout when the xattr gave it one, else nothing.
    MdtSetxattr = 28 "setxattr" [CALLER CHANGES TRACED] Mdt(mdt::SetxattrRequest) -> mdt::SetxattrReply;
    /// Names of xattrs.
    MdtListxattr = 29 "listxattr" [CALLER TRACED] Mdt(mdt::XattrRequest) -> mdt::NamesReply;
    /// Inodes used and free.
    MdtStatfs = 30 "statfs" [PASSING CALM] Mdt(()) -> ost::StatfsReply;
    /// Everything answered so far is on stable storage when this is answered.
    MdtSync = 31 "sync" [CALM TRACED] Mdt(mdt::SyncRequest) -> ();
    /// FID to path.
    MdtFid2path = 32 "fid2path" [TRACED] Mdt(mdt::Fid2pathRequest) -> mdt::BytesReply;
    /// Ends of opens; bring sizes and times home.
    MdtClose = 34 "close" [CHANGES TRACED] Mdt(mdt::CloseRequest) -> mdt::CloseReply;
    /// The data of the files whose sizes this client told are on stable storage.
    MdtSettled = 35 "settled" [CALM TRACED] Mdt(mdt::SettledRequest) -> ();
    /// A cut of several objects is to happen: it is carried out on all of them, whatever becomes of the client.
    MdtCut = 36 "cut" [TRACED] Mdt(mdt::CutRequest) -> ();
    /// Two files exchange their layouts; the objects that the first one had are to go.
    MdtSwap = 37 "swap_layouts" [CALLER TRACED] Mdt(mdt::SwapRequest) -> mdt::BytesReply;
    /// What a user, a group or a project has, and may have.
    MdtQuota = 38 "quota" [PASSING CALM] Mdt(quota::QuotaRequest) -> quota::QuotaReply;
    /// What a user, a group or a project may have from now on.
    MdtSetQuota = 39 "set_quota" [ADMINISTRATOR PASSING CALM] Mdt(quota::SetQuotaRequest) -> quota::SetQuotaReply;

    /// Asks for a lock.
    LockEnqueue = 64 "ldlm_enqueue" [STATE TRACED] Target(lock::EnqueueRequest) -> lock::EnqueueReply;
    /// Gives locks back.
    LockCancel = 65 "ldlm_cancel" [CALM URGENT] Target(lock::CancelRequest) -> ();
    /// Changes a lock's mode or bits downwards.
    LockConvert = 66 "ldlm_convert" [CALM URGENT]
        Mdt(lock::ConvertRequest) -> lock::EnqueueReply, Ost(lock::ConvertRequest) -> ();
    /// Somebody wants what this lock protects.
    LockBlocking = 67 "ldlm_blocking" [] Client(lock::BlockingCallback) -> ();
    /// The lock you waited for is yours.
    LockCompletion = 68 "ldlm_completion" [] Client(lock::CompletionCallback) -> ();
    /// How large is the object under your lock.
    LockGlimpse = 69 "ldlm_glimpse" [] Client(lock::GlimpseCallback) -> lock::GlimpseReply;

    /// Reads extents of an object into bulk.
    OstRead = 96 "read" [CALM BULK_BACK] Ost(ost::ReadRequest) -> ost::ReadReply;
    /// Writes bulk into extents of an object.
    OstWrite = 97 "write" [CHANGES BULK] Ost(ost::WriteRequest) -> ost::WriteReply;
    /// Deallocates or truncates a range.
    OstPunch = 98 "punch" [CHANGES] Ost(ost::PunchRequest) -> ost::AttrReply;
    /// An object, or everything, on stable storage.
    OstSync = 99 "sync" [CALM] Ost(ost::SyncRequest) -> ();
    /// Bytes and objects used and free. An OST in trouble tells the metadata server by itself.
    OstStatfs = 100 "statfs" [IN_RECOVERY PASSING CALM] Ost(()) -> ost::StatfsReply, Client(ost::StatfsReply) -> ();
    /// Owner, project, times of an object.
    OstSetattr = 102 "setattr" [CHANGES] Ost(ost::SetattrRequest) -> ost::AttrReply;
    /// MDS to OST: make objects ready for creates.
    OstPrecreate = 103 "create" [ADMINISTRATOR] Ost(ost::PrecreateRequest) -> ost::PrecreateReply;
    /// Removes objects.
    OstDestroy = 104 "destroy" [ADMINISTRATOR CHANGES] Ost(ost::DestroyRequest) -> ();
    /// Next data or hole.
    OstSeek = 105 "seek" [CALM] Ost(ost::SeekRequest) -> ost::SeekReply;
    /// Reserves space.
    OstAllocate = 106 "allocate" [CHANGES] Ost(ost::AllocateRequest) -> ost::AttrReply;
    /// Advice on a range.
    OstAdvise = 107 "ladvise" [] Ost(ost::AdviseRequest) -> ();
    /// A client gives back grant that it does not need.
    OstShrinkGrant = 108 "shrink_grant" [CALM URGENT] Ost(ost::ShrinkGrantRequest) -> ();
    /// Space is short, give back grant that you do not need.
    OstAskGrant = 109 "ask_grant" [] Client(ost::AskGrantCallback) -> ();
    /// Which advice there is on an object, and what came of it.
    OstAdvised = 110 "advised" [CALM] Ost(ost::AdvisedRequest) -> ost::AdvisedReply;
    /// A client will cut an object if the MDS decides so.
    OstPromise = 111 "promise" [] Ost(ost::PromiseRequest) -> ();
    /// OST to MDS: was this cut decided, whose client is gone.
    OstAskCut = 112 "ask_cut" [] Client(ost::AskCutCallback) -> ost::AskCutReply;
    /// What a target did with the requests of late; metadata targets answer it, too.
    OstTrace = 113 "trace" [IN_RECOVERY PASSING CALM] Target(ost::TraceRequest) -> ost::TraceReply;
    /// What changed of an object since it was asked before.
    OstChanged = 114 "changed" [CALM] Ost(ost::ChangedRequest) -> ost::ChangedReply;
    /// MDS to OST: how much users, groups and projects may have there, and what they have.
    OstQuota = 115 "quota" [ADMINISTRATOR CALM] Ost(quota::OstQuotaRequest) -> quota::OstQuotaReply;
    /// OST to MDS: somebody wants to write more than the OST may let it.
    OstAskQuota = 116 "ask_quota" [] Client(quota::AskQuotaCallback) -> quota::AskQuotaReply;
    /// MDS to OST: whose objects are.
    OstOwn = 117 "own" [ADMINISTRATOR CHANGES] Ost(quota::OwnRequest) -> ();
}
