//! What a mount leaves for those after it: a record by which they know, and can prove to servers, that it has ended.
//!
//! A server of another host, or of another namespace of processes, cannot tell a client that is dead from one that is cut off. The
//! kernel on which the client ran can: a process of the same boot and namespaces, of which number and start time are
//! gone, is not there any more (`rt::Rt::is_gone`). So every mount writes down which process it is and what its sessions
//! come from, and every other mount of its user looks now and then whether one of the same cluster has ended without saying so.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::{Rc, Weak};

use client::Client;
use ptlrpc::SessionKey;
use rt::Rt;
use types::{ClientId, Duration, FsError, Origin};

use super::private::PrivateDir;
use crate::control;
use crate::failure::Failure;

/// The directory of records in the place of a user's control sockets.
const DIR: &str = "mounts";
/// First line of a record.
const HEAD: &str = "stria-mount-1";
/// Records of one user on one host; beyond it the oldest go, of mounts that have ended or are not seen from here.
const RECORDS_MAX: usize = 512;
/// The first looks follow each other closely: a process that was just killed takes a moment to end.
const FIRST_LOOKS: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Between later looks.
const PAUSE: Duration = Duration::from_secs(10);

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    cluster: u64,
    client: ClientId,
    origin: Origin,
    sessions: SessionKey,
}

impl Record {
    fn name(&self) -> String {
        format!("{:016x}", self.client.0)
    }
    /// Whether it is one of `own`'s cluster whose process has certainly ended. Of other boots and namespaces nothing is known.
    fn has_ended(&self, own: &Record, is_gone: &dyn Fn(Origin) -> bool) -> bool {
        self.cluster == own.cluster && self.origin.host == own.origin.host && is_gone(self.origin)
    }
    fn to_text(&self) -> String {
        let said = format!(
            "{HEAD}\ncluster {:016x}\nclient {:016x}\nhost {:016x}\nprocess {:016x}\nsessions {}\n",
            self.cluster,
            self.client.0,
            self.origin.host,
            self.origin.process,
            self.sessions.to_text()
        );
        format!("{said}check {:08x}\n", wire::crc32c(said.as_bytes()))
    }
    /// A sentence says what is wrong.
    fn from_text(text: &str) -> Result<Record, String> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err(format!("it does not begin with '{HEAD}'"));
        }
        let mut field = |name: &str| {
            let value = lines.next().and_then(|l| l.strip_prefix(name)?.strip_prefix(' '));
            value.ok_or_else(|| format!("'{name}' is missing"))
        };
        let number = |name: &str, text: &str| u64::from_str_radix(text, 16).map_err(|e| format!("'{name}': {e}"));
        let cluster = number("cluster", field("cluster")?)?;
        let client = ClientId(number("client", field("client")?)?);
        let (host, process) = (number("host", field("host")?)?, number("process", field("process")?)?);
        let sessions = SessionKey::from_text(field("sessions")?).ok_or("'sessions' are not 64 hexadecimal digits")?;
        let (told, record) = (
            field("check")?,
            Record { cluster, client, origin: Origin { host, process, ..Origin::default() }, sessions },
        );
        let whole = record.to_text();
        match whole == text {
            true => Ok(record),
            false => Err(format!("its checksum is {told}, it says something else")),
        }
    }
}

/// What a mount does about records: its own, and those of others.
pub struct Records {
    rt: Rt,
    /// Where they are; `None`: this mount leaves none, and reads none.
    dir: Option<PrivateDir>,
    own: Record,
    client: Weak<Client>,
    /// Those of which servers are being told.
    telling: RefCell<BTreeSet<ClientId>>,
    /// Records whose fault was told.
    refused: RefCell<BTreeSet<String>>,
}

impl Records {
    /// Leaves a record of a mount's client, and looks after others' for as long as it lives.
    #[must_use]
    pub fn begin(rt: &Rt, client: &Rc<Client>) -> Rc<Records> {
        let own = Record {
            cluster: client.osts().map().cluster,
            client: client.sessions().id(),
            origin: rt.origin(),
            sessions: *client.sessions().key(),
        };
        // A server in this very process ends with its clients, and a process that is not known cannot be looked after.
        let wanted = !client.sessions().mdc().nid().is_local() && own.origin.is_known();
        let dir = wanted.then(|| open(rt, &own)).and_then(|opened| {
            opened.inspect_err(|e| {
                tracing::warn!("no record of this mount is kept ({e}): if it dies, servers wait for it as for one that may come back");
            }).ok()
        });
        let (telling, refused) = (RefCell::default(), RefCell::default());
        let records = Rc::new(Records { rt: rt.clone(), dir, own, client: Rc::downgrade(client), telling, refused });
        if records.dir.is_some() {
            rt.spawn(watch(Rc::downgrade(&records), rt.clone()));
        }
        records
    }

    /// The mount has said goodbye to every server.
    pub fn over(&self) {
        self.remove(&self.own.name());
    }

    fn remove(&self, name: &str) {
        if let Some(Err(e)) = self.dir.as_ref().map(|d| d.remove(name)) {
            tracing::warn!("the record of a mount that has ended stays: {e}");
        }
    }

    /// Looks for mounts that have ended without a goodbye.
    fn look(self: &Rc<Self>) {
        let (Some(dir), Some(client)) = (&self.dir, self.client.upgrade()) else { return };
        if client.sessions().is_leaving() {
            return;
        }
        let names = match dir.names() {
            Ok(names) => names,
            Err(e) => return tracing::debug!("records of other mounts: {e}"),
        };
        for name in names.into_iter().filter(|n| is_name(n) && *n != self.own.name()) {
            match read(dir, &name) {
                // It went meanwhile.
                Ok(None) => {}
                Ok(Some(record)) if record.has_ended(&self.own, &|o| self.rt.is_gone(o)) => self.tell(&client, record),
                Ok(Some(_)) => {}
                Err(why) => {
                    if self.refused.borrow_mut().insert(name.clone()) {
                        tracing::warn!("the record {name} of a mount is of no use: {why}");
                    }
                }
            }
        }
    }

    /// Tells every server; the record goes when all of them have heard it.
    fn tell(self: &Rc<Self>, client: &Rc<Client>, record: Record) {
        if !self.telling.borrow_mut().insert(record.client) {
            return;
        }
        let (me, client) = (self.clone(), client.clone());
        self.rt.spawn(async move {
            let name = record.name();
            match client.sessions().tell_gone(record.client, &record.sessions).await {
                Ok(()) => {
                    tracing::info!("client {name} of this host has ended without a goodbye: every server knows");
                    me.remove(&name);
                }
                Err(e @ (FsError::NotPermitted | FsError::Busy)) => {
                    tracing::warn!("a server does not believe that client {name} of this host has ended: {e}");
                    me.remove(&name);
                }
                // Said again at the next look.
                Err(e) => tracing::debug!("telling of the end of client {name}: {e}"),
            }
            me.telling.borrow_mut().remove(&record.client);
        });
    }
}

async fn watch(records: Weak<Records>, rt: Rt) {
    let mut looks = 0;
    while let Some(records) = records.upgrade() {
        records.look();
        drop(records);
        looks += 1;
        rt.sleep(if looks < FIRST_LOOKS { FIRST_PAUSE } else { PAUSE }).await;
    }
}

/// Opens the directory, makes room in it, and leaves a record there.
fn open(rt: &Rt, own: &Record) -> Result<PrivateDir, Failure> {
    let place = control::own_place().map_err(|e| Failure::from(e.to_string()))?;
    open_in(&place, own, &|origin| rt.is_gone(origin))
}

fn open_in(place: &Path, own: &Record, is_gone: &dyn Fn(Origin) -> bool) -> Result<PrivateDir, Failure> {
    let at = place.join(DIR);
    let dir = PrivateDir::open_or_make(&at, &at)?;
    make_room(&dir, own, is_gone, RECORDS_MAX);
    dir.write_whole(&own.name(), &own.to_text())?;
    Ok(dir)
}

/// Removes the oldest records that are of no use here, so that no more than `most` stay.
fn make_room(dir: &PrivateDir, own: &Record, is_gone: &dyn Fn(Origin) -> bool, most: usize) {
    let names = dir.names().unwrap_or_default();
    let Some(excess) = (names.len() + 1).checked_sub(most).filter(|n| *n > 0) else { return };
    let useless = |name: &String| match read(dir, name) {
        Ok(Some(r)) => r.cluster != own.cluster && (r.origin.host != own.origin.host || is_gone(r.origin)),
        Ok(None) => false,
        Err(_) => true,
    };
    let mut old: Vec<(std::time::SystemTime, String)> =
        names.into_iter().filter(useless).filter_map(|n| Some((dir.modified(&n)?, n))).collect();
    old.sort();
    for (_, name) in old.into_iter().take(excess) {
        if let Err(e) = dir.remove(&name) {
            tracing::debug!("an old record stays: {e}");
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A record; `None`: it is gone.
fn read(dir: &PrivateDir, name: &str) -> Result<Option<Record>, String> {
    match dir.read(name) {
        Ok(text) => {
            let record = Record::from_text(&text)?;
            if record.name() != name {
                return Err(format!("it is of client {}", record.name()));
            }
            Ok(Some(record))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn record(client: u64) -> Record {
        let origin = Origin { host: 0xabc1, process: 7 << 41 | client, ..Origin::default() };
        Record { cluster: 0x57a1, client: ClientId(client), origin, sessions: SessionKey::new([client as u8; 32]) }
    }

    #[test]
    fn a_record_is_read_back_and_one_with_any_bit_flipped_or_cut_off_is_refused() {
        let text = record(3).to_text();
        assert_eq!(Record::from_text(&text), Ok(record(3)));
        for cut in 0..text.len() {
            assert!(Record::from_text(&text[..cut]).is_err(), "{cut}");
        }
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(damaged) = String::from_utf8(bytes) {
                assert!(Record::from_text(&damaged).is_err(), "{damaged}");
            }
        }
        assert!(Record::from_text(&(text + "\n")).is_err());
    }

    #[test]
    fn only_mounts_of_this_cluster_boot_and_namespace_whose_process_is_gone_have_ended() {
        let (own, gone) = (record(1), record(2));
        assert!(gone.has_ended(&own, &|o| o == gone.origin));
        assert!(!gone.has_ended(&own, &|o| o != gone.origin), "it lives");
        assert!(!Record { cluster: 1, ..gone.clone() }.has_ended(&own, &|_| true), "another cluster's");
        let elsewhere = Origin { host: 0xabc3, ..gone.origin };
        assert!(!Record { origin: elsewhere, ..gone }.has_ended(&own, &|_| true), "of another boot or namespace");
    }

    #[test]
    fn records_are_their_owners_alone_and_a_place_that_is_not_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let dir = open_in(place.path(), &record(1), &|_| false).unwrap();
        assert_eq!(read(&dir, &record(1).name()), Ok(Some(record(1))));
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        let at = place.path().join(DIR);
        assert_eq!((mode(&at), mode(&at.join(record(1).name()))), (0o700, 0o600));
        std::fs::copy(at.join(record(1).name()), at.join(record(2).name())).unwrap();
        assert!(read(&dir, &record(2).name()).unwrap_err().contains("it is of client"));
        dir.remove(&record(1).name()).unwrap();
        dir.remove(&record(1).name()).unwrap();
        assert_eq!(read(&dir, &record(1).name()), Ok(None));
        std::fs::set_permissions(&at, PermissionsExt::from_mode(0o755)).unwrap();
        let said = open_in(place.path(), &record(1), &|_| false).map(drop).unwrap_err().to_string();
        assert!(said.contains("is open to other users (mode 0755)"), "{said}");
        std::fs::remove_dir_all(&at).unwrap();
        std::fs::write(&at, "a file").unwrap();
        assert!(open_in(place.path(), &record(1), &|_| false).is_err());
    }

    #[test]
    fn room_is_made_by_the_oldest_that_are_of_no_use_here() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join(DIR);
        let dir = PrivateDir::open_or_make(&at, &at).unwrap();
        let foreign = |client: u64| Record { cluster: 9, ..record(client) };
        let all = [foreign(1), foreign(2), foreign(3), record(4)];
        for (age, r) in all.iter().enumerate() {
            dir.write_whole(&r.name(), &r.to_text()).unwrap();
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000 + age as u64);
            std::fs::File::options().write(true).open(at_of(place.path(), r)).unwrap().set_modified(at).unwrap();
        }
        // The oldest lives.
        make_room(&dir, &record(5), &|o| o != foreign(1).origin, 4);
        let left = |r: &Record| read(&dir, &r.name()) != Ok(None);
        assert_eq!(all.each_ref().map(left), [true, false, true, true]);
        make_room(&dir, &record(5), &|_| true, 1);
        assert_eq!(all.each_ref().map(left), [false, false, false, true], "this cluster's is of use");
    }

    fn at_of(place: &Path, record: &Record) -> std::path::PathBuf {
        place.join(DIR).join(record.name())
    }
}
