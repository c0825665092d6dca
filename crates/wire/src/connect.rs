//! Handshake, cluster map, parameters.
use crate::{Bytes, byte_enum, message};
use types::{ClientId, Fid, OstIndex, Transno};

byte_enum! {
    /// How long what a `Params` request sets shall last.
    Lasting { /// Until the server ends.
        #[default] No = 0, /// For good: the configuration service keeps it and tells everybody.
        Set = 1, /// No longer: the configuration service forgets it; values stay as they are until a restart.
        Remove = 2, }
}

byte_enum! {
    /// What a client proves to be.
    Role { /// It mounts: files, locks, and reading what servers tell about themselves.
        #[default] Client = 0, /// Servers among themselves, and whoever may change servers' parameters.
        Administrator = 1, }
}

byte_enum! {
    /// A change of the cluster map.
    MapChange { /// A pool without OSTs comes into being.
        #[default] PoolNew = 0, /// OSTs come into a pool.
        PoolAdd = 1, /// OSTs leave a pool.
        PoolRemove = 2, /// A pool goes.
        PoolDestroy = 3, /// No more objects are given out of OSTs; their files stay.
        Close = 4, /// Objects are given out of OSTs again.
        Open = 5, /// An OST that no file has objects on leaves the cluster.
        RemoveOst = 6, /// A new store takes the place of the one that an OST has lost; what that held is lost.
        ReplaceOst = 7, /// The older copy of an OST's store that was refused is taken in; what it lacks is lost.
        AcceptOlder = 8, }
}

message! {
    /// `Connect` request.
    ConnectRequest {
        /// Target's name, like `stria-MDT0000`; `*` asks an endpoint for any target (configuration only).
        target: Bytes,
        /// 32 random bytes of the client.
        nonce: Bytes,
        /// Lowest and highest wire version spoken, reserved for negotiation.
        version_min: u16,
        /// See `version_min`.
        version_max: u16,
        /// Boot number of the server that the client last spoke to; 0 at first connect.
        last_boot: u64,
        /// Whether this client takes part in recovery (servers among themselves do not).
        recoverable: bool,
        /// Which key both sides are to prove.
        role: Role,
        /// Which process the client is, in words of its host: see [`types::Origin`]. 0: it does not say.
        host: u64,
        /// See `host`.
        process: u64,
        /// Number of the place where the client lives, at which there is never more than one at a time; 0: it does not say.
        place: u64,
        /// Identity of the store that is meant; 0: any.
        store: u64,
        /// Address that was dialled, as text.
        dialled: Bytes,
        /// The machine on which the client runs, the same at each of its boots; 0: it does not say.
        machine: u64,
        /// The boot of that machine.
        boot: u64,
        /// The credential whose key is proved, as the bytes of [`crate::credential::Credential`]; empty: the key of all clients, or the
        /// administrator's.
        credential: Bytes,
    }
    /// `Connect` reply.
    ConnectReply {
        /// 32 random bytes of the server.
        nonce: Bytes,
        /// Proof that the server knows the cluster key: keyed BLAKE3 over role, both nonces, what is meant, and client id.
        proof: Bytes,
        /// The file system's id; a client that knows another refuses.
        cluster: u64,
        /// Identity of the target's store, which the proofs cover.
        store: u64,
    }
    /// `Auth` request.
    AuthRequest {
        /// Proof that the client knows the cluster key.
        proof: Bytes,
        /// 32 secret bytes of the client, the same at every connection of its session: whoever opens a session under its id
        /// and does not know them is another.
        identity: Bytes,
        /// Grant that the target's last server had promised the client, taken by unwritten data or not: a restarted server
        /// promises it anew before it serves anybody.
        granted: u64,
        /// The same as `identity` of the session that is to be opened when that one is over; empty: `identity` again.
        next: Bytes,
        /// Highest epoch of the target that this client has seen; 0: none.
        epoch: u64,
        /// 32 secret bytes that the client's id comes from: the first 8 bytes, little endian, of BLAKE3 in key derivation mode over
        /// them, context `stria client id, version 1`. Empty: the id is only claimed, and goes to whoever proves that it is its own.
        id_proof: Bytes,
    }
    /// `Auth` reply: the session.
    AuthReply {
        /// Changes with every start of the server process.
        boot: u64,
        /// The server still knew this client (its locks and replies survive).
        known: bool,
        /// The server was restarted and takes replays first.
        recovering: bool,
        /// Transactions up to here are on stable storage.
        last_committed: Transno,
        /// Requests the client may have in flight.
        credits: u16,
        /// Most bulk bytes of one RPC.
        bulk_max: u32,
        /// Dirty bytes the client may hold for this target.
        grant: u64,
        /// Highest xid of this client that the server has seen.
        last_xid: u64,
        /// The target's stable identity (store uuid).
        target_uuid: u64,
        /// How often the target's store was opened: of two servers of one store the later one has the higher. 0: not counted.
        epoch: u64,
        /// Since its start the server has ended a session of this client without its word, or may have: what the client had under way
        /// then may have been carried out.
        gave_up: bool,
        /// Mark of this opening of the target's store ([`Opening`]); 0: there is none.
        opening: u64,
    }
    /// One opening of a store.
    Opening {
        /// How often the store was opened by then, this time included.
        boot: u64,
        /// A number that was drawn then and that the store keeps: a copy of before does not have it. Not 0.
        mark: u64,
        /// Of the present opening: transactions up to here were on stable storage when it began.
        committed: Transno,
    }
    /// An OST whose server is not let in, for its store is an older copy.
    RefusedOst {
        /// Which.
        ost: OstIndex,
        /// Why, as a sentence.
        why: Bytes,
        /// How often the cluster has seen the store opened.
        boot: u64,
        /// Mark of the opening that was refused.
        mark: u64,
    }
    /// One object storage target in the cluster map.
    OstEntry {
        /// Index.
        ost: OstIndex,
        /// Address of its server.
        nid: Bytes,
        /// Target's name, like `stria-OST0000`.
        target: Bytes,
        /// Deactivated by the administrator: no new objects, clients answer EIO at once.
        active: bool,
        /// Store uuid.
        uuid: u64,
    }
    /// `Config` reply: the cluster map.
    ConfigReply {
        /// Grows with every change.
        epoch: u64,
        /// File system name, like `stria`.
        fsname: Bytes,
        /// Cluster id.
        cluster: u64,
        /// Object storage targets by index.
        osts: Vec<OstEntry>,
        /// Address of the metadata server.
        mdt_nid: Bytes,
        /// Target name of the metadata server.
        mdt_target: Bytes,
        /// Permanent settings, in the order in which they were made.
        settings: Vec<Setting>,
        /// Pools, by name.
        pools: Vec<OstPool>,
        /// OSTs that no new objects are given out of, ascending.
        closed: Vec<OstIndex>,
        /// OSTs that have left the cluster for good, ascending: their indices are not used again.
        removed: Vec<OstIndex>,
        /// OSTs that are not let in, by index. The answer to `Register` has the one that asked among them where that is refused for its
        /// store's age.
        refused: Vec<RefusedOst>,
    }
    /// A pool: OSTs that files can be told to lie on.
    OstPool {
        /// Its name without the file system's.
        name: Bytes,
        /// Its OSTs, ascending.
        osts: Vec<OstIndex>,
    }
    /// `MapChange` request.
    MapChangeRequest {
        /// Drawn by who asks: the change that was made last is not made again, but answered again.
        id: u64,
        /// What.
        what: MapChange,
        /// The pool's name without the file system's; empty where it is not about one.
        pool: Bytes,
        /// The OSTs that it is about.
        osts: Vec<OstIndex>,
        /// The store that takes the OST's place (`ReplaceOst`); otherwise 0.
        uuid: u64,
    }
    /// `MapChange` reply. What is answered is on stable storage.
    MapChangeReply {
        /// Why it was refused, as an errno value of Linux; 0: it was not.
        errno: u16,
        /// The same as a sentence.
        why: Bytes,
        /// Epoch of the map.
        epoch: u64,
        /// Highest object that the lost store may have held (`ReplaceOst`): the new one answers for all up to it that they are lost.
        lost_through: u32,
    }
    /// `OstFiles` request: a page of the files that have objects on an OST.
    OstFilesRequest {
        /// The OST.
        ost: OstIndex,
        /// Inodes from this FID on; zero: from the first one.
        from: Fid,
        /// Only files whose objects there were lost with an earlier store of the OST.
        lost: bool,
    }
    /// A file that has objects on an OST.
    OstFile {
        /// Which.
        fid: Fid,
        /// Its first path, from the root of the file system on; empty: it has no name.
        path: Bytes,
        /// Bytes in all, as last told.
        size: u64,
        /// Its stripes in all.
        stripes: u32,
        /// Those of them on the OST, or lost there.
        there: u32,
    }
    /// `OstFiles` reply.
    OstFilesReply {
        /// Files, by FID.
        files: Vec<OstFile>,
        /// Where the next page begins; zero: that was the last one.
        next: Fid,
        /// As the request says: a server that does not know of lost objects does not say so.
        lost: bool,
    }
    /// A permanent setting.
    Setting {
        /// Glob over parameter paths.
        pattern: Bytes,
        /// Value of every parameter that matches.
        value: Bytes,
    }
    /// `Register` request: a target announces itself to the configuration service.
    RegisterRequest {
        /// The target as it wants to appear.
        entry: OstEntry,
        /// Cluster id that its store was formatted for.
        cluster: u64,
        /// The store's openings that it knows of, ascending, the present one last; empty: it keeps none.
        openings: Vec<Opening>,
        /// The last object that the store ever made.
        last_object: u32,
    }
    /// `Params` request: glob patterns to read, or assignments to make.
    ParamsRequest {
        /// Glob over parameter paths.
        pattern: Bytes,
        /// New value; `None` reads.
        value: Option<Bytes>,
        /// Names only.
        list: bool,
        /// To the metadata server only: what to keep (`pattern` with `value`).
        lasting: Lasting,
    }
    /// One parameter.
    Param {
        /// Full path, dots between the parts.
        path: Bytes,
        /// Value as text.
        value: Bytes,
        /// Whether it can be set.
        writable: bool,
    }
    /// `Params` reply.
    ParamsReply {
        /// What matched.
        params: Vec<Param>,
        /// Why a value was refused, naming parameter and value; empty: it was not. What is listed was set before.
        error: Bytes,
    }
    /// `Jobs` request.
    JobsRequest {
        /// Names of jobs, at most [`types::JOB_NAME_BYTES_MAX`] bytes each; their numbers are [`types::job_id`] of them.
        names: Vec<Bytes>,
    }
    /// `Gone` request: a client's process has ended, which its kernel told whoever asks.
    GoneRequest {
        /// Whose session at this target is over.
        client: ClientId,
        /// What the identities of its sessions at this target come from, 32 bytes: nobody knows them but whoever could read
        /// what that client kept for the next one.
        key: Bytes,
    }
}
