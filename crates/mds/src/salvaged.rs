//! What a store says of which some records were lost, when nothing tells any more which those were: for `stria fsck --repair`.
//!
//! A record that is lost looks like one that never was. Decides what stands for those of which that would be believed: the cluster map
//! (a key that was revoked would open the cluster again), the horizon (doubtful sizes would count), sessions and answers (a request
//! that is sent again would be carried out twice). What was revoked is asked of the OSTs, which keep it, too.
use types::WallTime;
use wire::credential::{CREDENTIAL_VERSION, Credential, CredentialRow, Revocation};

use crate::config_service::ClusterMap;
use crate::keys;
use crate::kv::{Key, seal};
use crate::record::HorizonRow;

/// What OSTs know of credentials that open nothing any more.
#[derive(Clone, Debug, Default)]
pub struct Revoked {
    /// Credentials, each at least once.
    pub known: Vec<Revocation>,
    /// OSTs that could be asked. When there is none nobody knows, and the key of all clients counts as revoked.
    pub asked: usize,
}

impl Revoked {
    /// A map in place of one that is lost: OSTs are in it again when they come, and who was shut out stays so.
    #[must_use]
    pub fn map_instead(&self, now: WallTime) -> ClusterMap {
        let mut credentials: Vec<CredentialRow> = Vec::new();
        for known in self.known.iter().filter(|r| r.id != ptlrpc::CLIENT_KEY) {
            if credentials.iter().all(|r| r.credential.id != known.id) {
                let name = format!("revoked-{:016x}", known.id);
                let credential = Credential {
                    version: CREDENTIAL_VERSION,
                    id: known.id,
                    name: name.as_str().into(),
                    expires: known.expires,
                    ..Credential::default()
                };
                credentials.push(CredentialRow { credential, revoked: now });
            }
        }
        credentials.sort_by(|a, b| a.credential.name[..].cmp(&b.credential.name[..]));
        let client_key_revoked = if self.has_client_key() { now } else { WallTime::default() };
        // More than there ever were changes: who has the lost map takes this one for newer.
        let epoch = u64::try_from(now.secs()).unwrap_or(0).max(1);
        ClusterMap { epoch, credentials, client_key_revoked, ..ClusterMap::default() }
    }

    fn has_client_key(&self) -> bool {
        self.asked == 0 || self.known.iter().any(|r| r.id == ptlrpc::CLIENT_KEY)
    }

    /// The same as a sentence.
    #[must_use]
    pub fn said_of_map(&self) -> String {
        let map = self.map_instead(WallTime(1));
        let key = match (map.client_key_revoked.0, self.asked) {
            (0, _) => "client.key was not revoked, as they know",
            (_, 0) => {
                "client.key counts as revoked, for nobody knows whether it was: issue credentials ('stria credential issue')"
            }
            _ => "client.key stays revoked",
        };
        format!(
            "the cluster map was lost: OSTs come back by themselves; settings, pools and who was given a credential are to be made again. \
             Of {} OST(s) that could be asked {} credential(s) stay revoked; {key}",
            self.asked,
            map.credentials.len()
        )
    }
}

/// Whether a record goes when others were lost: who was connected, and what was answered.
#[must_use]
pub fn is_dropped(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(keys::SESSION | keys::REPLY)))
}

/// What was saved of the records whose loss shows nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// The cluster map is there.
    pub map: bool,
    /// The users of the changelog are there.
    pub changelog_users: bool,
    /// Records of the changelog.
    pub changes: u64,
    /// Limits of quotas, those of defaults among them.
    pub limits: u64,
    /// The times of grace that were set are there.
    pub grace: bool,
}

impl Kept {
    /// Counts a record that was saved.
    pub fn note(&mut self, key: &[u8]) {
        match key {
            keys::CLUSTER_MAP => self.map = true,
            keys::CHANGELOG => self.changelog_users = true,
            keys::GRACE => self.grace = true,
            [keys::CHANGE, ..] => self.changes += 1,
            [keys::QUOTA, ..] => self.limits += 1,
            _ => {}
        }
    }

    /// What may have been lost of them, a sentence each.
    fn said(self) -> Vec<String> {
        let mut said = vec![format!(
            "{} limit(s) of quotas were saved{}; who had another limit has none any more: set it again ('lfs setquota')",
            self.limits,
            if self.grace { ", and the times of grace" } else { "; the times of grace are those of a new file system" },
        )];
        if !self.changelog_users {
            let records = match self.changes {
                0 => "",
                _ => ", and nobody keeps the records that were saved",
            };
            said.push(format!(
                "no user of the changelog was saved{records}: those that there were have to register again ('lctl changelog_register')"
            ));
        }
        said
    }
}

/// Records, sealed, that a store gets of which others were lost, and what they mean, a sentence each.
#[must_use]
pub fn instead(kept: Kept, revoked: &Revoked, now: WallTime) -> (Vec<(Key, Vec<u8>)>, Vec<String>) {
    let doubt = HorizonRow { doubting: true, ..HorizonRow::default() };
    let mut rows = vec![(keys::plain(keys::HORIZON), wire::encode(&doubt))];
    let mut said = vec![
        "what was answered to clients may be lost: all are told that they were evicted".to_string(),
        "sizes of files will be asked of their OSTs anew".to_string(),
    ];
    said.extend(kept.said());
    if !kept.map {
        rows.push((keys::plain(keys::CLUSTER_MAP), wire::encode(&revoked.map_instead(now))));
        said.push(revoked.said_of_map());
    }
    let sealed = |(key, value): (Key, Vec<u8>)| {
        let mut bytes = Vec::new();
        seal(&key, &value, &mut bytes);
        (key, bytes)
    };
    (rows.into_iter().map(sealed).collect(), said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ClientId;

    #[test]
    fn limits_and_users_of_the_changelog_that_may_be_lost_are_named() {
        let mut kept = Kept::default();
        let keys = [
            keys::CLUSTER_MAP.to_vec(),
            keys::quota((wire::quota::QuotaKind::User, 7)).to_vec(),
            keys::quota((wire::quota::QuotaKind::Group, 7)).to_vec(),
            keys::session(ClientId(3)).to_vec(),
        ];
        keys.iter().for_each(|key| kept.note(key));
        assert_eq!(kept, Kept { map: true, limits: 2, ..Kept::default() });
        let (rows, said) = instead(kept, &Revoked::default(), WallTime::default());
        assert_eq!((rows.len(), said.len()), (1, 4));
        assert!(
            said[2].starts_with("2 limit(s) of quotas were saved; the times of grace are those of a new"),
            "{said:?}"
        );
        assert!(said[3].starts_with("no user of the changelog was saved:"), "{said:?}");
        [keys::CHANGELOG, keys::GRACE].into_iter().for_each(|key| kept.note(key));
        let said = instead(kept, &Revoked::default(), WallTime::default()).1;
        assert!(
            said.len() == 3 && said[2].starts_with("2 limit(s) of quotas were saved, and the times of grace;"),
            "{said:?}"
        );
    }

    #[test]
    fn what_any_ost_knows_as_revoked_stays_so_and_without_any_the_key_of_all_clients_is() {
        let now = WallTime::from_parts(1_000, 0);
        let row = |id, expires| Revocation { id, expires: WallTime(expires) };
        let some = Revoked { known: vec![row(9, 5), row(4, 0), row(9, 5)], asked: 2 };
        let map = some.map_instead(now);
        assert_eq!((map.epoch, map.client_key_revoked), (1_000, WallTime::default()));
        let ids: Vec<_> =
            map.credentials.iter().map(|r| (r.credential.id, r.credential.expires.0, r.revoked)).collect();
        assert_eq!(ids, [(4, 0, now), (9, 5, now)]);
        let key = Revoked { known: vec![row(ptlrpc::CLIENT_KEY, 0)], asked: 1 };
        assert_eq!(key.map_instead(now).client_key_revoked, now);
        assert_eq!(Revoked::default().map_instead(now).client_key_revoked, now);
        let (rows, said) = instead(Kept::default(), &Revoked::default(), now);
        assert!(rows.iter().all(|(k, v)| crate::kv::is_whole(k, v)) && rows.len() == 2 && said.len() == 5);
        assert!(said[4].contains("client.key counts as revoked"), "{said:?}");
        assert!(is_dropped(&keys::session(ClientId(3))) && !is_dropped(keys::CLUSTER_MAP));
    }
}
