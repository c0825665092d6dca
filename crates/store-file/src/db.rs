//! The database: tables, what is read from them, and how a commit is written. Runs on worker threads.
use std::sync::Arc;

use oss::store::{Charged, ObjectAttr, ObjectInfo, Promise, ReplyRecord, Usages};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use types::{ClientId, ObjectId, Origin, Transno, WallTime};
use wire::connect::Opening;
use wire::quota::QuotaKind;

use crate::format::{
    Extent, FormatError, Superblock, advice_from_bytes, advice_to_bytes, answer_from_bytes, answer_key,
    answer_to_bytes, extent_from_bytes, extent_key, extent_of_key, extent_to_bytes, object_from_bytes, object_key,
    object_of_key, object_to_bytes, promise_from_bytes, promise_to_bytes, quiet_from_bytes, quiet_to_bytes,
};
use crate::space::Run;

pub(crate) const SUPER: TableDefinition<&str, &[u8]> = TableDefinition::new("super");
pub(crate) const STATE: TableDefinition<&str, u64> = TableDefinition::new("state");
pub(crate) const OBJECTS: TableDefinition<&[u8; 16], &[u8]> = TableDefinition::new("objects");
pub(crate) const EXTENTS: TableDefinition<&[u8; 24], &[u8]> = TableDefinition::new("extents");
pub(crate) const SEQUENCES: TableDefinition<u64, u32> = TableDefinition::new("sequences");
pub(crate) const SESSIONS: TableDefinition<u64, u64> = TableDefinition::new("sessions");
/// Which process the client of a session was: host and process.
pub(crate) const ORIGINS: TableDefinition<u64, (u64, u64)> = TableDefinition::new("origins");
/// On which machine that was, and in which of its boots.
pub(crate) const MACHINES: TableDefinition<u64, (u64, u64)> = TableDefinition::new("machines");
/// Answers to requests that changed objects, by client and reply slot.
pub(crate) const ANSWERS: TableDefinition<&[u8; 10], &[u8]> = TableDefinition::new("answers");
/// Advice on objects.
pub(crate) const ADVICE: TableDefinition<&[u8; 16], &[u8]> = TableDefinition::new("advice");
/// Promises to cut objects.
pub(crate) const PROMISES: TableDefinition<&[u8; 16], &[u8]> = TableDefinition::new("promises");
/// Credentials that were revoked, and when they would have ended (nanoseconds since 1970; 0: never).
pub(crate) const REVOKED: TableDefinition<u64, i64> = TableDefinition::new("revoked");
/// Objects of which a repair took rows that may be older than what was lost, until a repair has named them: made and read by `fsck` alone.
pub(crate) const DOUBTED: TableDefinition<&[u8; 16], ()> = TableDefinition::new("doubted");
/// What quiet clients hold.
pub(crate) const QUIET: TableDefinition<u64, &[u8]> = TableDefinition::new("quiet");

/// Blocks of users, groups and projects.
pub(crate) const USAGE: TableDefinition<u64, u64> = TableDefinition::new("usage");
/// Bytes that users, groups and projects may have here.
pub(crate) const SHARES: TableDefinition<u64, u64> = TableDefinition::new("shares");
/// Of `state`: the opening in which all changes were counted so far.
pub(crate) const COUNTED: &str = "counted";
/// Of `state`: objects up to this one that do not exist may be lost.
const LOST: &str = "lost";
/// Of `state`: 1 if every object has an owner.
const OWNED: &str = "owned";

/// The key of one of them: kind, number.
pub(crate) fn charged_key((kind, id): Charged) -> u64 {
    u64::from(kind as u8) << 32 | u64::from(id)
}
/// Who that is; `None`: nobody.
pub(crate) fn charged_of_key(key: u64) -> Option<Charged> {
    let kind = QuotaKind::ALL.into_iter().find(|kind| u64::from(*kind as u8) == key >> 32)?;
    Some((kind, key as u32))
}

/// Beyond this size the database keeps what it needs for a quick start after a crash.
const QUICK_REPAIR_BYTES: u64 = 256 << 20;

/// What is known of the store as an older copy.
fn about_copies(txn: &redb::WriteTransaction, op: &DbOp) -> DbResult<()> {
    let mut state = txn.open_table(STATE)?;
    match op {
        DbOp::Lost(last) => drop(state.insert(LOST, u64::from(*last))?),
        DbOp::Mark(boot, mark) => crate::openings::keep(txn, *boot, *mark)?,
        DbOp::Opened(boot) => {
            let known = state.get("boot")?.map_or(0, |v| v.value());
            state.insert("boot", known.max(*boot))?;
        }
        _ => {}
    }
    Ok(())
}

/// Which processes the clients of sessions were.
fn origins(txn: &redb::WriteTransaction) -> DbResult<Vec<(ClientId, Origin)>> {
    let (origins, machines) = (txn.open_table(ORIGINS)?, txn.open_table(MACHINES)?);
    let mut all = Vec::new();
    for row in origins.iter()? {
        let (client, origin) = row?;
        let (host, process) = origin.value();
        let (machine, boot) = machines.get(client.value())?.map(|m| m.value()).unwrap_or_default();
        all.push((ClientId(client.value()), Origin { machine, boot, host, process }));
    }
    Ok(all)
}

/// The promises of cuts that are remembered. One that nobody can keep is forgotten: no client can have cut its object so.
fn promises(txn: &redb::WriteTransaction) -> DbResult<Vec<(ObjectId, Promise)>> {
    let (mut promises, mut impossible) = (Vec::new(), Vec::new());
    let mut table = txn.open_table(PROMISES)?;
    for row in table.iter()? {
        let (k, v) = row?;
        let object = object_of_key(k.value());
        match promise_from_bytes(object, v.value()) {
            Ok(promise) => promises.push((object, promise)),
            Err(e @ FormatError::Field("size")) => {
                tracing::error!(%object, "the promise to cut it is forgotten, it cannot be kept: {e}");
                impossible.push(object);
            }
            Err(e) => return Err(record_error(object, "the promise to cut it,", e)),
        }
    }
    for object in impossible {
        table.remove(&object_key(object))?;
    }
    Ok(promises)
}

/// Answers that are remembered of clients' requests.
fn answers(txn: &redb::WriteTransaction) -> DbResult<Vec<ReplyRecord>> {
    let mut all = Vec::new();
    for row in txn.open_table(ANSWERS)?.iter()? {
        let (k, v) = row?;
        let answer = answer_from_bytes(k.value(), v.value());
        all.push(answer.map_err(|e| DbError::Record(format!("an answer of client {:02x?}", k.value()), e))?);
    }
    Ok(all)
}

/// Credentials that were revoked, and when they would have ended.
fn revoked(txn: &redb::WriteTransaction) -> DbResult<Vec<(u64, WallTime)>> {
    let table = txn.open_table(REVOKED)?;
    table
        .iter()?
        .map(|row| row.map(|(id, expires)| (id.value(), WallTime(expires.value()))).map_err(DbError::from))
        .collect()
}

/// The promise to cut an object, or that there is none any more.
fn set_promise(txn: &redb::WriteTransaction, object: ObjectId, promise: Option<&Promise>) -> DbResult<()> {
    let mut table = txn.open_table(PROMISES)?;
    match promise {
        Some(promise) => table.insert(&object_key(object), promise_to_bytes(object, promise).as_slice())?,
        None => table.remove(&object_key(object))?,
    };
    Ok(())
}

/// A credential was revoked, or nobody needs to know any more.
fn set_revoked(txn: &redb::WriteTransaction, id: u64, expires: Option<WallTime>) -> DbResult<()> {
    let mut table = txn.open_table(REVOKED)?;
    match expires {
        Some(expires) => table.insert(id, expires.0)?,
        None => table.remove(id)?,
    };
    Ok(())
}

/// What quiet clients hold, as noted in opening `before` and kept from then on as of opening `boot`. What an earlier opening noted
/// is forgotten: a program that knows no such records had the store in between, and took none back.
fn quiet(txn: &redb::WriteTransaction, before: u64, boot: u64) -> DbResult<Vec<(ClientId, Vec<u8>)>> {
    let mut table = txn.open_table(QUIET)?;
    let mut kept = Vec::new();
    for row in table.iter()? {
        let (client, bytes) = row?;
        let client = ClientId(client.value());
        match quiet_from_bytes(client, bytes.value()) {
            Ok((at, held)) if at == before => kept.push((client, held)),
            Ok(_) => {}
            // The client is waited for after a restart, that is all.
            Err(e) => tracing::error!(%client, "what it held when it was quiet is forgotten: {e}"),
        }
    }
    table.retain(|_, _| false)?;
    for (client, held) in &kept {
        table.insert(client.0, quiet_to_bytes(*client, boot, held).as_slice())?;
    }
    Ok(kept)
}

fn set_quiet(txn: &redb::WriteTransaction, client: ClientId, row: Option<&[u8]>) -> DbResult<()> {
    let mut table = txn.open_table(QUIET)?;
    match row {
        Some(row) => drop(table.insert(client.0, row)?),
        None => drop(table.remove(client.0)?),
    }
    Ok(())
}

/// Blocks of everybody: those that are kept, or, when another program had the store since they were, those of the objects that there
/// are. From now on they are kept as of opening `boot`.
fn usages(txn: &redb::WriteTransaction, boot: u64) -> DbResult<Usages> {
    // One table at a time: the engine cannot close another one where opening one fails for a damaged page.
    let counted = {
        let mut state = txn.open_table(STATE)?;
        let counted = state.get(COUNTED)?.map(|v| v.value());
        state.insert(COUNTED, boot)?;
        counted
    };
    if counted == Some(boot - 1) {
        let mut rows = Vec::new();
        for row in txn.open_table(USAGE)?.iter()? {
            let (key, blocks) = row?;
            rows.extend(charged_of_key(key.value()).map(|who| (who, blocks.value())));
        }
        return Ok(Usages::of_rows(rows));
    }
    let mut attrs = Vec::new();
    for row in txn.open_table(OBJECTS)?.iter()? {
        let (key, value) = row?;
        // A damaged one answers EIO, and counts for nobody.
        let attr = object_from_bytes(object_of_key(key.value()), value.value());
        attrs.extend(attr.ok().filter(|a| a.owner.is_some() && a.blocks > 0));
    }
    let counts = Usages::of_objects(&attrs);
    let mut table = txn.open_table(USAGE)?;
    table.retain(|_, _| false)?;
    for (who, blocks) in counts.iter() {
        table.insert(charged_key(who), blocks)?;
    }
    Ok(Usages::of_rows(counts.iter()))
}

/// What each may have here.
fn shares(txn: &redb::WriteTransaction) -> DbResult<Vec<(Charged, u64)>> {
    let mut shares = Vec::new();
    for row in txn.open_table(SHARES)?.iter()? {
        let (key, bytes) = row?;
        shares.extend(charged_of_key(key.value()).map(|who| (who, bytes.value())));
    }
    Ok(shares)
}

fn put_or_remove(
    txn: &redb::WriteTransaction,
    table: TableDefinition<u64, u64>,
    who: Charged,
    value: Option<u64>,
) -> DbResult<()> {
    let mut table = txn.open_table(table)?;
    match value {
        Some(value) => drop(table.insert(charged_key(who), value)?),
        None => drop(table.remove(charged_key(who))?),
    }
    Ok(())
}

/// What an operation changes of what is known of quotas.
fn about_quotas(txn: &redb::WriteTransaction, op: &DbOp) -> DbResult<()> {
    match op {
        DbOp::Usage(who, blocks) => put_or_remove(txn, USAGE, *who, Some(*blocks).filter(|b| *b > 0)),
        DbOp::Share(who, bytes) => put_or_remove(txn, SHARES, *who, *bytes),
        DbOp::Owned => {
            txn.open_table(STATE)?.insert(OWNED, 1)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Why the database could not do it.
#[derive(Debug)]
pub(crate) enum DbError {
    Engine(redb::Error),
    Record(String, FormatError),
    /// A page of the file is not what was written; what reading it came to.
    Page(String),
}

impl std::fmt::Display for DbError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DbError::Engine(e) => write!(f, "database: {e}"),
            DbError::Record(what, e) => write!(f, "{what}: {e}"),
            DbError::Page(why) => write!(f, "a page of the database is damaged: {why}"),
        }
    }
}

impl std::error::Error for DbError {}

impl<E: Into<redb::Error>> From<E> for DbError {
    fn from(e: E) -> DbError {
        DbError::Engine(e.into())
    }
}

pub(crate) type DbResult<T> = Result<T, DbError>;

/// Works on the database; the engine's panic at a damaged page is an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> DbResult<T>) -> DbResult<T> {
    dbcheck::guarded(work).unwrap_or_else(|why| Err(DbError::Page(why)))
}

/// What a store knows at its start.
pub(crate) struct Start {
    pub superblock: Superblock,
    pub transno: Transno,
    pub boot: u64,
    pub openings: Vec<Opening>,
    pub lost_through: u32,
    pub sequences: Vec<(u64, u32)>,
    pub sessions: Vec<(ClientId, u64)>,
    pub origins: Vec<(ClientId, Origin)>,
    pub answers: Vec<ReplyRecord>,
    pub quiet: Vec<(ClientId, Vec<u8>)>,
    pub advice: Vec<(ObjectId, Vec<u8>)>,
    pub promises: Vec<(ObjectId, Promise)>,
    pub revoked: Vec<(u64, WallTime)>,
    pub usages: Usages,
    pub shares: Vec<(Charged, u64)>,
    pub is_owned: bool,
    pub objects: u64,
    /// Space of every extent.
    pub used: Vec<Run>,
}

/// One change of the database.
#[derive(Debug)]
pub(crate) enum DbOp {
    PutObject(ObjectId, ObjectAttr),
    DropObject(ObjectId),
    PutExtent(ObjectId, u64, Extent),
    DropExtent(ObjectId, u64),
    Sequence(u64, u32),
    /// Objects up to this one that do not exist may be lost.
    Lost(u32),
    /// The store was opened so often at least.
    Opened(u64),
    /// The mark of an opening is kept from now on.
    Mark(u64, u64),
    SessionOpen(ClientId, u64, Origin),
    SessionClose(ClientId),
    Answer(ReplyRecord),
    /// What a quiet client holds, as a row; `None`: it is quiet no more.
    Quiet(ClientId, Option<Vec<u8>>),
    /// Advice on an object; empty: there is none any more.
    Advice(ObjectId, Vec<u8>),
    /// The promise to cut an object; `None`: there is none any more.
    Promise(ObjectId, Option<Promise>),
    /// A credential was revoked; `None`: nobody needs to know any more.
    Revoked(u64, Option<WallTime>),
    /// Blocks that count for one.
    Usage(Charged, u64),
    /// Bytes that one may have; `None`: any number.
    Share(Charged, Option<u64>),
    /// Every object has an owner.
    Owned,
}

/// An open database.
#[derive(Clone)]
pub(crate) struct Db(Arc<dbcheck::Open>);

fn record_error(object: ObjectId, what: &str, e: FormatError) -> DbError {
    DbError::Record(format!("{what} of object {object}"), e)
}

impl Db {
    pub fn new(database: Database) -> Db {
        Db(Arc::new(dbcheck::Open::new(database)))
    }

    /// Compares some of its pages with their checksums.
    pub fn look_at_pages(&self, check: &mut dbcheck::PageCheck, bytes: u64) -> std::io::Result<types::scrub::Looked> {
        check.look(&self.0, bytes)
    }

    /// Makes the tables of a new store.
    pub fn make(&self, superblock: &Superblock) -> DbResult<()> {
        let txn = self.0.begin_write()?;
        {
            txn.open_table(SUPER)?.insert("superblock", superblock.to_bytes().as_slice())?;
            txn.open_table(OBJECTS)?;
            txn.open_table(EXTENTS)?;
            let mut sequences = txn.open_table(SEQUENCES)?;
            if superblock.lost_through > 0 {
                sequences.insert(types::ObjectId::seq_of(superblock.identity.ost), superblock.lost_through)?;
            }
            txn.open_table(SESSIONS)?;
            let mut state = txn.open_table(STATE)?;
            state.insert("transno", 0)?;
            state.insert("boot", 0)?;
            state.insert(OWNED, 1)?;
        }
        txn.commit()?;
        Ok(())
    }

    /// The superblock; `None` when there is none.
    pub fn superblock(&self) -> DbResult<Option<Superblock>> {
        let txn = self.0.begin_read()?;
        let table = match txn.open_table(SUPER) {
            Ok(t) => t,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let Some(bytes) = table.get("superblock")? else { return Ok(None) };
        Superblock::from_bytes(bytes.value()).map(Some).map_err(|e| DbError::Record("superblock".into(), e))
    }

    /// Counts this opening, under its `mark`, and reads what a store has to know.
    pub fn start(&self, superblock: Superblock, mark: u64) -> DbResult<Start> {
        let txn = self.0.begin_write()?;
        // One table after the other: where a damaged page has the engine panic while it opens one, those that are open panic in their ends.
        let (transno, boot) = {
            let mut state = txn.open_table(STATE)?;
            let read = |name| -> DbResult<u64> { Ok(state.get(name)?.map_or(0, |v| v.value())) };
            let (transno, boot) = (read("transno")?, read("boot")? + 1);
            state.insert("boot", boot)?;
            (transno, boot)
        };
        let (objects, mut used) = (txn.open_table(OBJECTS)?.len()?, Vec::<Run>::new());
        let openings = crate::openings::known(&txn, Opening { boot, mark, committed: Transno(transno) })?;
        let lost = txn.open_table(STATE)?.get(LOST)?.map_or(0, |v| v.value());
        let lost_through = superblock.lost_through.max(u32::try_from(lost).unwrap_or(u32::MAX));
        let (mut sequences, mut sessions) = (Vec::new(), Vec::new());
        for row in txn.open_table(SEQUENCES)?.iter()? {
            let (k, v) = row?;
            sequences.push((k.value(), v.value()));
        }
        for row in txn.open_table(SESSIONS)?.iter()? {
            let (client, number) = row?;
            sessions.push((ClientId(client.value()), number.value()));
        }
        let origins = origins(&txn)?;
        let (usages, shares) = (usages(&txn, boot)?, shares(&txn)?);
        let is_owned = txn.open_table(STATE)?.get(OWNED)?.is_some_and(|v| v.value() == 1);
        let quiet = quiet(&txn, boot - 1, boot)?;
        let answers = answers(&txn)?;
        let mut advice = Vec::new();
        for row in txn.open_table(ADVICE)?.iter()? {
            let (k, v) = row?;
            let object = object_of_key(k.value());
            match advice_from_bytes(object, v.value()) {
                Ok(body) => advice.push((object, body)),
                // Nobody's data depend on it.
                Err(e) => tracing::error!(%object, "what was advised of it is forgotten: {e}"),
            }
        }
        let promises = promises(&txn)?;
        let revoked = revoked(&txn)?;
        for row in txn.open_table(EXTENTS)?.iter()? {
            let (k, v) = row?;
            let e = extent_from_bytes(k.value(), v.value())
                .map_err(|e| record_error(extent_of_key(k.value()).0, "an extent", e))?;
            match used.last_mut() {
                Some(last) if last.start + last.blocks == e.phys => last.blocks += e.blocks,
                _ => used.push(Run { start: e.phys, blocks: e.blocks }),
            }
        }
        txn.commit()?;
        let transno = Transno(transno);
        Ok(Start {
            superblock,
            transno,
            boot,
            openings,
            lost_through,
            sequences,
            sessions,
            origins,
            answers,
            quiet,
            advice,
            promises,
            revoked,
            usages,
            shares,
            is_owned,
            objects,
            used,
        })
    }

    /// An object's attributes.
    pub fn object(&self, object: ObjectId) -> DbResult<Option<ObjectAttr>> {
        let table = self.0.begin_read()?.open_table(OBJECTS)?;
        let Some(bytes) = table.get(&object_key(object))? else { return Ok(None) };
        object_from_bytes(object, bytes.value()).map(Some).map_err(|e| record_error(object, "the record", e))
    }

    /// Extents of an object that start in `first..end`, in order.
    pub fn extents(&self, object: ObjectId, first: u64, end: u64) -> DbResult<Vec<(u64, Extent)>> {
        let table = self.0.begin_read()?.open_table(EXTENTS)?;
        let (from, to) = (extent_key(object, first), extent_key(object, end));
        let mut out = Vec::new();
        for row in table.range::<&[u8; 24]>(&from..&to)? {
            let (k, v) = row?;
            let e = extent_from_bytes(k.value(), v.value()).map_err(|e| record_error(object, "an extent", e))?;
            out.push((extent_of_key(k.value()).1, e));
        }
        Ok(out)
    }

    /// First block of an object's first extent that starts at or behind `from`.
    pub fn next_extent(&self, object: ObjectId, from: u64) -> DbResult<Option<u64>> {
        let table = self.0.begin_read()?.open_table(EXTENTS)?;
        let (from, to) = (extent_key(object, from), extent_key(object, u64::MAX));
        let first = table.range::<&[u8; 24]>(&from..&to)?.next().transpose()?;
        Ok(first.map(|(k, _)| extent_of_key(k.value()).1))
    }

    /// Up to `count` objects behind `after`; one whose record is damaged has no attributes.
    pub fn list(&self, after: ObjectId, count: usize) -> DbResult<Vec<ObjectInfo>> {
        let table = self.0.begin_read()?.open_table(OBJECTS)?;
        let from = object_key(after);
        let mut out = Vec::new();
        for row in table.range::<&[u8; 16]>(&from..)? {
            let (k, v) = row?;
            let object = object_of_key(k.value());
            if object == after {
                continue;
            }
            if out.len() == count {
                break;
            }
            let attr = object_from_bytes(object, v.value()).unwrap_or_else(|e| {
                tracing::error!(%object, "its record is damaged: {e}");
                ObjectAttr::default()
            });
            out.push(ObjectInfo { object, attr });
        }
        Ok(out)
    }

    /// Carries `ops` out in order, as one transaction that ends on stable storage.
    pub fn commit(&self, ops: &[DbOp], transno: Transno, meta_bytes: u64) -> DbResult<()> {
        let mut txn = self.0.begin_write()?;
        txn.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
        txn.set_quick_repair(meta_bytes > QUICK_REPAIR_BYTES);
        {
            let mut objects = txn.open_table(OBJECTS)?;
            let mut extents = txn.open_table(EXTENTS)?;
            let mut sequences = txn.open_table(SEQUENCES)?;
            let mut sessions = txn.open_table(SESSIONS)?;
            for op in ops {
                match op {
                    DbOp::PutObject(id, attr) => {
                        objects.insert(&object_key(*id), object_to_bytes(*id, attr).as_slice())?;
                    }
                    DbOp::DropObject(id) => {
                        objects.remove(&object_key(*id))?;
                        let (from, to) = (extent_key(*id, 0), extent_key(*id, u64::MAX));
                        extents.retain_in::<&[u8; 24], _>(&from..&to, |_, _| false)?;
                    }
                    DbOp::PutExtent(id, first, e) => {
                        let key = extent_key(*id, *first);
                        extents.insert(&key, extent_to_bytes(&key, e).as_slice())?;
                    }
                    DbOp::DropExtent(id, first) => {
                        extents.remove(&extent_key(*id, *first))?;
                    }
                    DbOp::Sequence(seq, last) => {
                        sequences.insert(seq, last)?;
                    }
                    DbOp::Lost(..) | DbOp::Opened(..) | DbOp::Mark(..) => about_copies(&txn, op)?,
                    DbOp::SessionOpen(client, number, origin) => {
                        sessions.insert(client.0, number)?;
                        txn.open_table(ORIGINS)?.insert(client.0, (origin.host, origin.process))?;
                        txn.open_table(MACHINES)?.insert(client.0, (origin.machine, origin.boot))?;
                        txn.open_table(QUIET)?.remove(client.0)?;
                    }
                    DbOp::SessionClose(client) => {
                        sessions.remove(client.0)?;
                        txn.open_table(ORIGINS)?.remove(client.0)?;
                        txn.open_table(MACHINES)?.remove(client.0)?;
                        txn.open_table(QUIET)?.remove(client.0)?;
                        let (from, to) = (answer_key(*client, 0), answer_key(*client, u16::MAX));
                        txn.open_table(ANSWERS)?.retain_in::<&[u8; 10], _>(&from..=&to, |_, _| false)?;
                    }
                    DbOp::Answer(r) => {
                        let key = answer_key(r.client, r.slot);
                        txn.open_table(ANSWERS)?.insert(&key, answer_to_bytes(r).as_slice())?;
                    }
                    DbOp::Quiet(client, row) => set_quiet(&txn, *client, row.as_deref())?,
                    DbOp::Advice(id, body) if body.is_empty() => {
                        txn.open_table(ADVICE)?.remove(&object_key(*id))?;
                    }
                    DbOp::Advice(id, body) => {
                        txn.open_table(ADVICE)?.insert(&object_key(*id), advice_to_bytes(*id, body).as_slice())?;
                    }
                    DbOp::Promise(id, promise) => set_promise(&txn, *id, promise.as_ref())?,
                    DbOp::Revoked(id, expires) => set_revoked(&txn, *id, *expires)?,
                    DbOp::Usage(..) | DbOp::Share(..) | DbOp::Owned => about_quotas(&txn, op)?,
                }
            }
            txn.open_table(STATE)?.insert("transno", transno.0)?;
        }
        txn.commit()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use oss::store::StoreIdentity;
    use types::OstIndex;

    fn made() -> (Db, Superblock) {
        let backend = redb::backends::InMemoryBackend::new();
        let db = Db::new(Database::builder().create_with_backend(backend).unwrap());
        let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
        let superblock = Superblock { identity, capacity_bytes: 0, lost_through: 0 };
        db.make(&superblock).unwrap();
        (db, superblock)
    }
    fn object(oid: u32) -> ObjectId {
        ObjectId::new(OstIndex(0), oid)
    }

    #[test]
    fn a_promise_that_nobody_can_keep_is_forgotten_at_the_start_and_the_others_stay() {
        let (db, superblock) = made();
        let promise = |size| Promise { client: ClientId(3), number: 4, size };
        let ops = [(1, 5), (2, 1 << 63), (3, wire::ost::REMOVED)]
            .map(|(oid, size)| DbOp::Promise(object(oid), Some(promise(size))));
        db.commit(&ops, Transno(1), 0).unwrap();
        let kept = [(object(1), promise(5)), (object(3), promise(wire::ost::REMOVED))];
        assert_eq!(db.start(superblock.clone(), 5).unwrap().promises, kept);
        let left = db.0.begin_read().unwrap().open_table(PROMISES).unwrap().len().unwrap();
        assert_eq!(left, 2, "its row is gone");
    }

    #[test]
    fn an_object_with_a_damaged_record_is_listed_with_those_behind_it() {
        let (db, _) = made();
        let ops = [1, 2, 3].map(|oid| DbOp::PutObject(object(oid), ObjectAttr { size: 9, ..ObjectAttr::default() }));
        db.commit(&ops, Transno(1), 0).unwrap();
        let txn = db.0.begin_write().unwrap();
        txn.open_table(OBJECTS).unwrap().insert(&object_key(object(2)), [1u8; 7].as_slice()).unwrap();
        txn.commit().unwrap();
        let found: Vec<_> = db.list(ObjectId::default(), 10).unwrap().iter().map(|o| (o.object, o.attr.size)).collect();
        assert_eq!(found, [(object(1), 9), (object(2), 0), (object(3), 9)]);
        assert!(matches!(db.object(object(2)), Err(DbError::Record(..))), "whoever asks for it is told");
    }
}
