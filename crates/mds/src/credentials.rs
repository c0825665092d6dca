//! Credentials of single clients: which were issued, and which of them were revoked.
//!
//! They are kept with the cluster map, without their keys: whoever has the cluster's secret makes a key from its description. What
//! was revoked is on stable storage before anybody's session is ended, and every OST is told with each session that the metadata
//! server opens there, and at once. An OST keeps what it was told on its own stable storage.
use std::rc::Rc;

use ptlrpc::{CLIENT_KEY, CLIENT_KEY_NAME, Limits, Validity};
use types::{Duration, Fid, FsError, OstIndex, WallTime};
use wire::Op;
use wire::credential::{
    CREDENTIAL_VERSION, Credential, CredentialAct, CredentialRow, CredentialsReply, CredentialsRequest, Revocation,
    RevokedRequest,
};

use crate::mds::{Caller, Mds};
use crate::osts::OstPort;
use crate::tx::{Done, Tx};

/// Credentials that are kept at most: those that neither ended nor were revoked, and those that were revoked until they would have ended.
pub const CREDENTIALS_MAX: usize = 4096;
/// How long an OST may take to say that it knows a revocation before whoever revoked is told that it does not.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// How long a revocation outlives the credential that it is about: clocks of servers are not one.
const REVOKED_KEPT_NS: i64 = 86_400_000_000_000;

/// Why something about credentials is refused: an errno, and a sentence.
struct Refused(FsError, String);

impl Mds {
    /// `Credentials`. What is refused is told in the reply.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn credentials(self: &Rc<Self>, q: &CredentialsRequest) -> Result<CredentialsReply, FsError> {
        let done = match q.what {
            CredentialAct::List => Ok(CredentialsReply { rows: self.map.credentials(), ..CredentialsReply::default() }),
            CredentialAct::Issue => self.issue_credential(&q.credential).await?,
            CredentialAct::Revoke => self.revoke_credential(&q.credential.name).await?,
        };
        let reply = done.unwrap_or_else(|Refused(e, why)| CredentialsReply {
            errno: e.errno() as u16,
            why: why.as_str().into(),
            ..CredentialsReply::default()
        });
        Ok(CredentialsReply { client_key_revoked: self.map.client_key_revoked(), ..reply })
    }

    async fn issue_credential(
        self: &Rc<Self>,
        asked: &Credential,
    ) -> Result<Result<CredentialsReply, Refused>, FsError> {
        let now = self.rt.wall();
        // Sent again, because the answer to it was lost.
        if let Some(row) = self.map.credentials().into_iter().find(|r| r.credential.id == asked.id && asked.id != 0) {
            self.store.sync().await?;
            return Ok(Ok(CredentialsReply { rows: vec![row], ..CredentialsReply::default() }));
        }
        let name = String::from_utf8_lossy(&asked.name).into_owned();
        let credential = Credential {
            version: CREDENTIAL_VERSION,
            cluster: self.superblock.cluster,
            issued: now,
            subtree: Fid::default(),
            ..asked.clone()
        };
        let limits = match Limits::new(credential) {
            Ok(limits) => limits,
            Err(why) => return Ok(Err(Refused(FsError::Invalid, why))),
        };
        if limits.validity(now) == Validity::Expired {
            let why = format!("credential '{name}' would have expired already: give a later --expires");
            return Ok(Err(Refused(FsError::Invalid, why)));
        }
        let subtree = match self.subtree_of(&asked.path).await {
            Ok(fid) => fid,
            Err(refused) => return Ok(Err(refused)),
        };
        let row =
            CredentialRow { credential: Credential { subtree, ..limits.said().clone() }, revoked: WallTime::default() };
        if let Err(refused) = self.map.add_credential(row.clone(), now) {
            return Ok(Err(refused));
        }
        self.save_map().await?;
        tracing::info!(name, id = format!("{:016x}", asked.id), "a credential was issued");
        Ok(Ok(CredentialsReply { rows: vec![row], ..CredentialsReply::default() }))
    }

    /// The directory at a path from the root of the file system on; zero for the root.
    async fn subtree_of(self: &Rc<Self>, path: &[u8]) -> Result<Fid, Refused> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let found = self.run(Caller::own(), |tx| tx.directory_at(path), |_, fid| Ok(Found { fid })).await;
        let refused = |e: FsError, what: &str| Refused(e, format!("subtree '/{shown}': {what}"));
        match found {
            Ok(answered) => Ok(answered.reply.fid),
            Err(FsError::NotFound) => Err(refused(
                FsError::NotFound,
                "there is no such directory in the file system: make it first, and give its path from the file system's root on",
            )),
            Err(FsError::NotDirectory) => {
                Err(refused(FsError::NotDirectory, "it is no directory: a client's root must be one"))
            }
            Err(e) => Err(refused(e, &e.to_string())),
        }
    }

    async fn revoke_credential(self: &Rc<Self>, name: &[u8]) -> Result<Result<CredentialsReply, Refused>, FsError> {
        let now = self.rt.wall();
        let id = match self.map.revoke_credential(name, now) {
            Ok(id) => id,
            Err(refused) => return Ok(Err(refused)),
        };
        // Also when it was revoked before: an OST may not have heard of it.
        if !types::planted!("revocation-not-kept") {
            self.save_map().await?;
        }
        let shown = String::from_utf8_lossy(name).into_owned();
        tracing::info!(name = shown, id = format!("{id:016x}"), "a credential was revoked");
        let untold = self.tell_osts_revoked();
        let ended = self.end_sessions_of(id).await;
        let rows = self.map.credentials().into_iter().filter(|r| r.credential.id == id).collect();
        Ok(Ok(CredentialsReply { rows, ended, untold: untold.await, ..CredentialsReply::default() }))
    }

    /// Ends every session of a credential, as an eviction does.
    async fn end_sessions_of(self: &Rc<Self>, id: u64) -> u32 {
        let of_it: Vec<_> =
            self.exports.borrow().values().filter(|e| e.credential() == Some(id)).map(|e| e.client()).collect();
        for client in &of_it {
            tracing::warn!(%client, "its credential was revoked: evicted");
        }
        rt::sync::join_all(of_it.iter().map(|client| self.evict(*client)).collect::<Vec<_>>()).await;
        of_it.len() as u32
    }

    /// Tells all OSTs at once; completes with those that did not answer in time.
    fn tell_osts_revoked(self: &Rc<Self>) -> impl Future<Output = Vec<OstIndex>> + use<> {
        let told = self.osts.all().into_iter().map(|link| {
            let (me, port) = (self.clone(), link.port());
            async move {
                let Some(port) = port.filter(|p| p.is_in_service()) else { return Some(link.ost) };
                let told = me.rt.timeout(TOLD_WITHIN, me.tell_ost_revoked(&*port)).await;
                (told != Some(Ok(()))).then_some(link.ost)
            }
        });
        let told = rt::sync::join_all(told.collect::<Vec<_>>());
        async move { told.await.into_iter().flatten().collect() }
    }

    /// Tells an OST which credentials open nothing any more.
    pub(crate) async fn tell_ost_revoked(&self, port: &dyn OstPort) -> Result<(), FsError> {
        let revoked = self.map.revocations(self.rt.wall());
        if revoked.is_empty() {
            return Ok(());
        }
        port.call(Op::Revoked, wire::encode(&RevokedRequest { revoked })).await.map(|_| ())
    }
}

wire::message! {
    /// A directory that was looked for.
    Found {
        /// Which.
        fid: Fid,
    }
}

impl Tx<'_> {
    fn directory_at(&mut self, path: &[u8]) -> Done<Fid> {
        let mut at = Fid::ROOT;
        for name in path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            if name == b".." {
                return Err(FsError::NotFound.into());
            }
            at = self.find_entry(at, name)?.ok_or(FsError::NotFound)?.0;
            if !self.inode_of_store(at)?.is_dir() {
                return Err(FsError::NotDirectory.into());
            }
        }
        Ok(if at == Fid::ROOT { Fid::default() } else { at })
    }
}

impl crate::config_service::ConfigService {
    /// Credentials, by name.
    #[must_use]
    pub fn credentials(&self) -> Vec<CredentialRow> {
        self.map.borrow().credentials.clone()
    }
    /// When the key of all clients was revoked; 0: it was not.
    #[must_use]
    pub fn client_key_revoked(&self) -> WallTime {
        self.map.borrow().client_key_revoked
    }
    /// Whether a credential was revoked.
    #[must_use]
    pub fn is_revoked(&self, id: u64) -> bool {
        let map = self.map.borrow();
        if id == CLIENT_KEY {
            return map.client_key_revoked.0 != 0;
        }
        map.credentials.iter().any(|r| r.credential.id == id && r.revoked.0 != 0)
    }
    /// What OSTs are to know.
    fn revocations(&self, now: WallTime) -> Vec<Revocation> {
        let map = self.map.borrow();
        let all = (map.client_key_revoked.0 != 0).then_some(Revocation { id: CLIENT_KEY, ..Revocation::default() });
        let kept = map.credentials.iter().filter(|r| r.revoked.0 != 0 && !is_forgotten(r, now));
        let of_row = |r: &CredentialRow| Revocation { id: r.credential.id, expires: r.credential.expires };
        all.into_iter().chain(kept.map(of_row)).collect()
    }
    fn add_credential(&self, row: CredentialRow, now: WallTime) -> Result<(), Refused> {
        let mut map = self.map.borrow_mut();
        let is_over =
            |r: &CredentialRow| r.revoked.0 != 0 || r.credential.expires.0 != 0 && r.credential.expires <= now;
        map.credentials.retain(|r| !is_forgotten(r, now));
        let name = String::from_utf8_lossy(&row.credential.name).into_owned();
        if map.credentials.iter().any(|r| r.credential.name == row.credential.name && !is_over(r)) {
            let why = format!(
                "there is a credential '{name}' already: take another name, or revoke that one ('stria credential revoke {name}')"
            );
            return Err(Refused(FsError::Exists, why));
        }
        if map.credentials.len() >= CREDENTIALS_MAX {
            let why = format!("{CREDENTIALS_MAX} credentials are kept already: give credentials an end (--expires)");
            return Err(Refused(FsError::NoSpace, why));
        }
        let at = map.credentials.partition_point(|r| *r.credential.name <= *row.credential.name);
        map.credentials.insert(at, row);
        map.epoch += 1;
        Ok(())
    }
    fn revoke_credential(&self, name: &[u8], now: WallTime) -> Result<u64, Refused> {
        let mut map = self.map.borrow_mut();
        if name == CLIENT_KEY_NAME.as_bytes() {
            map.client_key_revoked = if map.client_key_revoked.0 == 0 { now } else { map.client_key_revoked };
            map.epoch += 1;
            return Ok(CLIENT_KEY);
        }
        // Of several of one name the last is the one that lives, if one does.
        let found = map.credentials.iter_mut().rfind(|r| r.credential.name[..] == *name);
        let Some(row) = found else {
            let known: Vec<_> = map.credentials.iter().map(|r| String::from_utf8_lossy(&r.credential.name)).collect();
            let known = if known.is_empty() { "none were issued".to_string() } else { known.join(", ") };
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(Refused(
                FsError::NotFound,
                format!(
                    "there is no credential '{name}': there are {CLIENT_KEY_NAME}, the key of all clients, and {known}"
                ),
            ));
        };
        row.revoked = if row.revoked.0 == 0 { now } else { row.revoked };
        let id = row.credential.id;
        map.epoch += 1;
        Ok(id)
    }
}

/// Whether nobody needs to know a credential any more: its time was over a day ago.
fn is_forgotten(row: &CredentialRow, now: WallTime) -> bool {
    let expires = row.credential.expires.0;
    expires != 0 && expires.saturating_add(REVOKED_KEPT_NS) < now.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_service::{ClusterMap, ConfigService};

    fn row(name: &str, id: u64, expires: i64) -> CredentialRow {
        let credential = Credential { name: name.into(), id, expires: WallTime(expires), ..Credential::default() };
        CredentialRow { credential, revoked: WallTime::default() }
    }

    #[test]
    fn names_are_taken_while_their_credential_lives_and_revocations_stay() {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        let now = WallTime(1000);
        assert!(c.add_credential(row("b", 1, 0), now).is_ok() && c.add_credential(row("a", 2, 0), now).is_ok());
        let taken = c.add_credential(row("a", 3, 0), now).err().unwrap();
        assert!(taken.0 == FsError::Exists && taken.1.contains("stria credential revoke a"), "{}", taken.1);
        assert_eq!(c.revoke_credential(b"a", now).ok(), Some(2));
        assert_eq!(c.revoke_credential(b"a", WallTime(2000)).ok(), Some(2), "again: it may not be known everywhere");
        assert!(c.is_revoked(2) && !c.is_revoked(1) && !c.is_revoked(CLIENT_KEY));
        assert!(c.add_credential(row("a", 3, 0), now).is_ok(), "the name is free");
        assert_eq!((c.revoke_credential(b"a", now).ok(), c.is_revoked(2)), (Some(3), true));
        let names: Vec<_> = c.credentials().iter().map(|r| (r.credential.name.to_vec(), r.credential.id)).collect();
        assert_eq!(names, [(b"a".to_vec(), 2), (b"a".to_vec(), 3), (b"b".to_vec(), 1)]);
        let unknown = c.revoke_credential(b"c", now).err().unwrap();
        assert!(unknown.0 == FsError::NotFound && unknown.1.contains("client.key") && unknown.1.contains("a, a, b"));
        assert_eq!(c.revoke_credential(b"client.key", now).ok(), Some(CLIENT_KEY));
        assert!(c.is_revoked(CLIENT_KEY) && c.client_key_revoked() == now);
        assert_eq!(c.revocations(now).iter().map(|r| r.id).collect::<Vec<_>>(), [CLIENT_KEY, 2, 3]);
    }

    #[test]
    fn what_ended_by_itself_is_forgotten_a_day_later_revoked_or_not() {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        assert!(c.add_credential(row("a", 1, 500), WallTime(100)).is_ok());
        c.revoke_credential(b"a", WallTime(200)).ok().unwrap();
        assert_eq!(c.revocations(WallTime(600)).len(), 1, "clocks are apart");
        let later = WallTime(501 + REVOKED_KEPT_NS);
        assert!(c.revocations(later).is_empty() && c.add_credential(row("a", 2, 0), later).is_ok());
        assert_eq!(c.credentials().len(), 1);
    }
}
