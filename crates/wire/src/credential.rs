//! Credentials of single clients: what they say, and how servers hear of them.
//!
//! A credential is a description of what its holder may do, and a key that comes from the cluster's secret and the description's
//! bytes: whoever proves the key has proved the description. Source: decision 0010.
use crate::shape::bits;
use crate::{Bytes, byte_enum, message};
use types::{Fid, OstIndex, WallTime};

/// [`Credential::version`] of this program. A server takes no other.
pub const CREDENTIAL_VERSION: u32 = 1;
/// Most ranges of a list of [`Credential`]: the description travels in the first message of a handshake.
pub const ID_RANGES_MAX: usize = 64;
/// Longest name of a credential in bytes.
pub const CREDENTIAL_NAME_BYTES_MAX: usize = 64;
/// Longest path of a credential's directory in bytes.
pub const CREDENTIAL_PATH_BYTES_MAX: usize = 1024;

bits! {
    /// Bits of [`Credential::flags`].
    CredentialFlags: u32 {
        /// Nothing is changed.
        READ_ONLY = 1,
        /// What root does is done as the squash ids.
        SQUASH_ROOT = 2,
        /// What anybody does is done as the squash ids.
        SQUASH_ALL = 4,
    }
}

byte_enum! {
    /// What is asked about credentials.
    CredentialAct { /// Which there are.
        #[default] List = 0, /// A new one.
        Issue = 1, /// The end of one.
        Revoke = 2, }
}

message! {
    /// User or group ids of a client that stand for others at the servers.
    IdRange {
        /// The first as the client has them.
        client: u32,
        /// The first as the servers have them.
        server: u32,
        /// How many, in both.
        count: u32,
    }
    /// What a credential says. Its key comes from these very bytes: a reader that would skip a field or take one as zero refuses it.
    Credential {
        /// [`CREDENTIAL_VERSION`].
        version: u32,
        /// The cluster that it opens.
        cluster: u64,
        /// Number, drawn when it was issued; not 0.
        id: u64,
        /// Name, for people.
        name: Bytes,
        /// When it was issued, by the metadata server's clock.
        issued: WallTime,
        /// When it ends; 0: never.
        expires: WallTime,
        /// [`CredentialFlags`].
        flags: u32,
        /// The directory that is its holder's root; zero: the file system's.
        subtree: Fid,
        /// Where that directory was when it was issued, from the root of the file system on; for people.
        path: Bytes,
        /// User at the servers of whoever is squashed, and of users outside `uids`.
        squash_uid: u32,
        /// Group at the servers of whoever is squashed, and of groups outside `gids`.
        squash_gid: u32,
        /// Users, by their ids at the client; none: they are the same at both.
        uids: Vec<IdRange>,
        /// Groups, likewise.
        gids: Vec<IdRange>,
    }
    /// A credential as the metadata server keeps it: without its key.
    CredentialRow {
        /// What it says.
        credential: Credential,
        /// When it was revoked; 0: it was not.
        revoked: WallTime,
    }
    /// `Credentials` request.
    CredentialsRequest {
        /// What.
        what: CredentialAct,
        /// `Issue`: what it shall say; `version`, `cluster`, `issued` and `subtree` are the server's to fill in. `Revoke`: its name.
        credential: Credential,
    }
    /// `Credentials` reply. What is answered is on stable storage.
    CredentialsReply {
        /// Why it was refused, as an errno value of Linux; 0: it was not.
        errno: u16,
        /// The same as a sentence.
        why: Bytes,
        /// Credentials by name: all, the new one, or the one that was revoked.
        rows: Vec<CredentialRow>,
        /// When the key of all clients was revoked; 0: it was not.
        client_key_revoked: WallTime,
        /// Sessions that were ended at the metadata server.
        ended: u32,
        /// OSTs that could not be told within the server's patience: they are as soon as the metadata server reaches them.
        untold: Vec<OstIndex>,
    }
    /// A credential that opens nothing any more.
    Revocation {
        /// Its number; 0: the key of all clients.
        id: u64,
        /// When it would have ended by itself, and need not be known any more; 0: never.
        expires: WallTime,
    }
    /// `Revoked` request: an OST knows these besides those that it knew, on stable storage, and has ended their sessions when it answers.
    RevokedRequest {
        /// Credentials.
        revoked: Vec<Revocation>,
    }
}
