//! What a credential allows: the description that its holder shows, read strictly.
//!
//! The key of a credential comes from the cluster's secret and from the description's bytes (`auth`), so a server keeps nothing of
//! it: a client that proves the key has proved the description. Whatever a description says that this program does not understand
//! is a limit that it could not keep, and is refused.
use types::{Fid, WallTime};
use wire::credential::{
    CREDENTIAL_NAME_BYTES_MAX, CREDENTIAL_PATH_BYTES_MAX, CREDENTIAL_VERSION, Credential, CredentialFlags,
    ID_RANGES_MAX, IdRange,
};

/// Number of the key of all clients among credentials: it has no description and no limits.
pub const CLIENT_KEY: u64 = 0;
/// Name of the key of all clients among credentials.
pub const CLIENT_KEY_NAME: &str = "client.key";
/// How far the clock of a server may be behind that of the metadata server that issued a credential, in nanoseconds.
const CLOCKS_APART_NS: i64 = 300_000_000_000;

/// A credential's description that is one of this program's version, with ranges that mean something.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits(Credential);

/// Whether a credential is valid now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validity {
    /// It is.
    Valid,
    /// It was issued later than now: clocks are apart.
    NotYet,
    /// Its time is over.
    Expired,
}

impl Limits {
    /// What a description says.
    ///
    /// # Errors
    /// A sentence, as [`Limits::read`].
    pub fn new(credential: Credential) -> Result<Limits, String> {
        let name = String::from_utf8_lossy(&credential.name).into_owned();
        if credential.version != CREDENTIAL_VERSION {
            return Err(format!(
                "credential '{name}' has version {}, this program knows version {CREDENTIAL_VERSION}: issue another one, or update this host",
                credential.version
            ));
        }
        check_name(&name)?;
        let flags = CredentialFlags::READ_ONLY | CredentialFlags::SQUASH_ROOT | CredentialFlags::SQUASH_ALL;
        if credential.flags & !flags != 0 {
            return Err(format!("credential '{name}' has limits that this program does not know: update this host"));
        }
        if credential.id == CLIENT_KEY {
            return Err(format!("credential '{name}' has number 0, which is that of {CLIENT_KEY_NAME}: issue another"));
        }
        if credential.path.len() > CREDENTIAL_PATH_BYTES_MAX {
            return Err(format!(
                "the subtree's path has {} bytes: at most {CREDENTIAL_PATH_BYTES_MAX}",
                credential.path.len()
            ));
        }
        check_ranges("user", &credential.uids)?;
        check_ranges("group", &credential.gids)?;
        Ok(Limits(credential))
    }
    /// What the bytes of a description say, which must be the bytes that this program writes for it.
    ///
    /// # Errors
    /// A sentence: they are none, of another version, or say what this program does not know.
    pub fn read(bytes: &[u8]) -> Result<Limits, String> {
        let credential: Credential = wire::decode(bytes).map_err(|e| format!("no credential: {e}"))?;
        let limits = Limits::new(credential)?;
        if limits.bytes() != bytes {
            return Err(format!("credential '{}' says more than this program knows: update this host", limits.name()));
        }
        Ok(limits)
    }
    /// The description's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        wire::encode(&self.0)
    }
    /// All that it says.
    #[must_use]
    pub fn said(&self) -> &Credential {
        &self.0
    }
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.0.name).into_owned()
    }
    /// Whether nothing may be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.flags & CredentialFlags::READ_ONLY != 0
    }
    /// The directory that is its holder's root, unless that is the file system's.
    #[must_use]
    pub fn subtree(&self) -> Option<Fid> {
        Some(self.0.subtree).filter(|fid| !fid.is_zero() && *fid != Fid::ROOT)
    }
    /// Whether it is valid at a time.
    #[must_use]
    pub fn validity(&self, now: WallTime) -> Validity {
        if self.0.expires.0 != 0 && now >= self.0.expires {
            Validity::Expired
        } else if now.0.saturating_add(CLOCKS_APART_NS) < self.0.issued.0 {
            Validity::NotYet
        } else {
            Validity::Valid
        }
    }
    /// Nanoseconds from `now` to its end; `None`: it has none.
    #[must_use]
    pub fn left_ns(&self, now: WallTime) -> Option<u64> {
        let left = self.0.expires.0.saturating_sub(now.0);
        (self.0.expires.0 != 0).then(|| u64::try_from(left).unwrap_or(0))
    }
    /// Whether ids at the client are others than at the servers, or not believed.
    #[must_use]
    pub fn changes_ids(&self) -> bool {
        let squashes = CredentialFlags::SQUASH_ROOT | CredentialFlags::SQUASH_ALL;
        self.0.flags & squashes != 0 || !self.0.uids.is_empty() || !self.0.gids.is_empty()
    }
    /// Whether everybody is squashed.
    #[must_use]
    pub fn squashes_all(&self) -> bool {
        self.0.flags & CredentialFlags::SQUASH_ALL != 0
    }
    /// Whether root is squashed.
    #[must_use]
    pub fn squashes_root(&self) -> bool {
        self.0.flags & (CredentialFlags::SQUASH_ROOT | CredentialFlags::SQUASH_ALL) != 0
    }
    /// User and group at the servers of who is squashed or has no id there.
    #[must_use]
    pub fn squash_ids(&self) -> (u32, u32) {
        (self.0.squash_uid, self.0.squash_gid)
    }
    /// A client's user at the servers; `None`: it has none.
    #[must_use]
    pub fn uid_in(&self, uid: u32) -> Option<u32> {
        mapped(&self.0.uids, uid, |r| (r.client, r.server))
    }
    /// A client's group at the servers; `None`: it has none.
    #[must_use]
    pub fn gid_in(&self, gid: u32) -> Option<u32> {
        mapped(&self.0.gids, gid, |r| (r.client, r.server))
    }
    /// A servers' user at the client; `None`: it has none.
    #[must_use]
    pub fn uid_out(&self, uid: u32) -> Option<u32> {
        mapped(&self.0.uids, uid, |r| (r.server, r.client))
    }
    /// A servers' group at the client; `None`: it has none.
    #[must_use]
    pub fn gid_out(&self, gid: u32) -> Option<u32> {
        mapped(&self.0.gids, gid, |r| (r.server, r.client))
    }
}

/// An id on the other side of ranges; without any it is the same.
fn mapped(ranges: &[IdRange], id: u32, sides: impl Fn(&IdRange) -> (u32, u32)) -> Option<u32> {
    if ranges.is_empty() {
        return Some(id);
    }
    ranges.iter().find_map(|r| {
        let (from, to) = sides(r);
        id.checked_sub(from).filter(|behind| *behind < r.count).map(|behind| to + behind)
    })
}

/// Whether a text can be a credential's name, which is part of a file's name.
///
/// # Errors
/// A sentence.
pub fn check_name(name: &str) -> Result<(), String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let starts = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if starts && name.len() <= CREDENTIAL_NAME_BYTES_MAX && name.bytes().all(legal) && name != CLIENT_KEY_NAME {
        return Ok(());
    }
    Err(format!(
        "'{name}' is no name of a credential: write 1 to {CREDENTIAL_NAME_BYTES_MAX} letters, digits, '.', '_' and '-', a letter or digit first, and not '{CLIENT_KEY_NAME}'"
    ))
}

/// Whether ranges of ids mean something: none is empty, reaches the id that stands for none, or shares an id with another one.
fn check_ranges(what: &str, ranges: &[IdRange]) -> Result<(), String> {
    if ranges.len() > ID_RANGES_MAX {
        return Err(format!("{} ranges of {what} ids: at most {ID_RANGES_MAX}", ranges.len()));
    }
    let shown = |r: &IdRange| format!("{}:{}:{}", r.client, r.server, r.count);
    for r in ranges {
        let fits = |first: u32| first.checked_add(r.count).is_some();
        if r.count == 0 || !fits(r.client) || !fits(r.server) {
            return Err(format!(
                "range of {what} ids '{}': CLIENT:SERVER:COUNT, with a count of at least 1 and ids up to {}",
                shown(r),
                u32::MAX - 1
            ));
        }
    }
    for (i, a) in ranges.iter().enumerate() {
        let meets = |x: u32, y: u32, b: &IdRange| x < y + b.count && y < x + a.count;
        let other = ranges[..i].iter().find(|b| meets(a.client, b.client, b) || meets(a.server, b.server, b));
        if let Some(b) = other {
            return Err(format!(
                "ranges of {what} ids '{}' and '{}' overlap: an id may be in one only, at the client and at the servers",
                shown(b),
                shown(a)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(client: u32, server: u32, count: u32) -> IdRange {
        IdRange { client, server, count }
    }
    fn lab() -> Credential {
        Credential { version: CREDENTIAL_VERSION, cluster: 7, id: 9, name: "lab-1".into(), ..Credential::default() }
    }

    #[test]
    fn a_description_is_read_as_it_was_written_and_nothing_else_is() {
        let limits = Limits::new(Credential { uids: vec![range(0, 100_000, 65_536)], ..lab() }).unwrap();
        assert_eq!(Limits::read(&limits.bytes()), Ok(limits.clone()));
        let mut longer = limits.bytes();
        longer.push(0);
        assert!(Limits::read(&longer).unwrap_err().contains("more than this program knows"));
        // A field that a later program appended.
        let mut grown = limits.bytes();
        grown.extend_from_slice(&[1, 0, 0, 0]);
        let len = (grown.len() - 4) as u32;
        grown[..4].copy_from_slice(&len.to_le_bytes());
        assert!(Limits::read(&grown).unwrap_err().contains("more than this program knows"));
        assert!(Limits::read(&grown[..7]).is_err());
        for wrong in [
            Credential { version: 2, ..lab() },
            Credential { flags: 8, ..lab() },
            Credential { id: 0, ..lab() },
            Credential { name: "../up".into(), ..lab() },
            Credential { name: "client.key".into(), ..lab() },
            Credential { path: vec![b'x'; 1025].into(), ..lab() },
        ] {
            assert!(Limits::new(wrong.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn ranges_that_overlap_are_empty_or_overflow_are_refused_by_what_they_say() {
        let with = |uids: Vec<IdRange>| Limits::new(Credential { uids, ..lab() }).map(|_| ());
        assert_eq!(with(vec![range(0, 1000, 10), range(10, 1010, 10)]), Ok(()));
        for (ranges, says) in [
            (vec![range(0, 1000, 10), range(9, 2000, 1)], "'0:1000:10' and '9:2000:1' overlap"),
            (vec![range(0, 1000, 10), range(20, 1009, 5)], "overlap"),
            (vec![range(0, 0, 0)], "'0:0:0'"),
            (vec![range(u32::MAX, 0, 1)], "ids up to 4294967294"),
            (vec![range(0, u32::MAX - 1, 2)], "ids up to"),
            (vec![range(0, 0, 1); 65], "at most 64"),
        ] {
            let why = with(ranges).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        let largest = Limits::new(Credential { uids: vec![range(u32::MAX - 1, 0, 1)], ..lab() }).unwrap();
        assert_eq!((largest.uid_in(u32::MAX - 1), largest.uid_out(0)), (Some(0), Some(u32::MAX - 1)));
    }

    #[test]
    fn ids_are_mapped_there_and_back_and_those_outside_have_none() {
        let limits = Limits::new(Credential { uids: vec![range(1000, 5000, 2), range(0, 9, 1)], ..lab() }).unwrap();
        assert_eq!([1000, 1001, 0].map(|u| limits.uid_in(u)), [Some(5000), Some(5001), Some(9)]);
        assert_eq!([5000, 5001, 9].map(|u| limits.uid_out(u)), [Some(1000), Some(1001), Some(0)]);
        assert_eq!((limits.uid_in(1002), limits.uid_out(0), limits.uid_in(999)), (None, None, None));
        assert_eq!((limits.gid_in(77), limits.gid_out(77)), (Some(77), Some(77)), "no list: they are the same");
        assert!(limits.changes_ids() && !Limits::new(lab()).unwrap().changes_ids());
    }

    #[test]
    fn a_credential_is_valid_from_its_issue_to_its_end_by_clocks_that_may_be_minutes_apart() {
        let (issued, expires) = (WallTime(1_000 * 1_000_000_000), WallTime(2_000 * 1_000_000_000));
        let limits = Limits::new(Credential { issued, expires, ..lab() }).unwrap();
        let at = |s: i64| limits.validity(WallTime(s * 1_000_000_000));
        assert_eq!(
            [600, 700, 1000, 1999, 2000].map(at),
            [Validity::NotYet, Validity::Valid, Validity::Valid, Validity::Valid, Validity::Expired]
        );
        assert_eq!(limits.left_ns(WallTime(expires.0 - 5)), Some(5));
        assert_eq!(limits.left_ns(WallTime(expires.0 + 5)), Some(0));
        let forever = Limits::new(Credential { issued, ..lab() }).unwrap();
        assert_eq!((forever.validity(WallTime(i64::MAX)), forever.left_ns(issued)), (Validity::Valid, None));
    }
}
