//! One connection: its statements, and what its errors mean.
//!
//! Only what PostgreSQL, Citus, YugabyteDB and CockroachDB have in common is used: two plain tables, serializable transactions,
//! `ON CONFLICT`, arrays, the database's clock.
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mds::kv::KvBatch;
use mds::kv::KvError;
use tokio::sync::watch;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::choose::{Connected, connect, in_time};
use crate::memory::State;
use crate::place::{Place, with_causes};

/// The version of the tables that this build reads and writes (`docs/spec/mdt-postgres.md`).
pub const SCHEMA_VERSION: i32 = 1;
/// Records of one `INSERT`.
const ROWS_MAX: usize = 4096;
/// Bytes of one `INSERT`, or one record.
const ROWS_BYTES_MAX: usize = 4 << 20;

/// How long a transaction may wait for its server's next order before the database gives it up.
const IDLE_MAX: Duration = Duration::from_secs(2);

const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS stria_mdt_records (k BYTEA PRIMARY KEY, v BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS stria_mdt (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version INTEGER NOT NULL,
    fsname TEXT NOT NULL,
    cluster TEXT NOT NULL,
    uuid TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    commit_number BIGINT NOT NULL,
    holder TEXT NOT NULL,
    holder_process TEXT NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL
)";
const BEGIN_ROW: &str = "\
INSERT INTO stria_mdt VALUES (1, $1::int4, $2::text, $3::text, $4::text, 0, 0, '', '', clock_timestamp()) ON CONFLICT (one) DO NOTHING";
const NAME_EMPTY: &str = "\
UPDATE stria_mdt SET fsname = $1, cluster = $2, uuid = $3
WHERE one = 1 AND lease_until <= clock_timestamp() AND NOT EXISTS (SELECT 1 FROM stria_mdt_records LIMIT 1)";
const LOOK: &str = "\
SELECT fsname, cluster, uuid, epoch, commit_number, holder, holder_process,
    CAST(extract(epoch FROM lease_until - clock_timestamp()) AS FLOAT8),
    EXISTS (SELECT 1 FROM stria_mdt_records LIMIT 1)
FROM stria_mdt WHERE one = 1";
const TAKE: &str = "\
UPDATE stria_mdt SET epoch = epoch + 1, holder = $2, holder_process = $3,
    lease_until = clock_timestamp() + $4::float8 * interval '1 second'
WHERE one = 1 AND epoch = $1 AND commit_number >= $6::int8 AND (lease_until <= clock_timestamp() OR $5::bool) RETURNING commit_number";
const RENEW: &str = "\
UPDATE stria_mdt SET lease_until = clock_timestamp() + $2::float8 * interval '1 second'
WHERE one = 1 AND epoch = $1 AND commit_number >= $3::int8";
const CLAIM: &str = "\
UPDATE stria_mdt SET commit_number = commit_number + 1, lease_until = clock_timestamp() + $3::float8 * interval '1 second'
WHERE one = 1 AND epoch = $1 AND commit_number = $2";
const STATE: &str = "SELECT epoch, commit_number, holder FROM stria_mdt WHERE one = 1";
const GET: &str = "\
SELECT s.epoch, s.commit_number, r.v FROM stria_mdt s LEFT JOIN stria_mdt_records r ON r.k = $1::bytea WHERE s.one = 1";
const RANGE: &str = "\
SELECT s.epoch, s.commit_number, r.k, r.v FROM stria_mdt s
LEFT JOIN (SELECT k, v FROM stria_mdt_records WHERE k >= $1::bytea AND k < $2::bytea ORDER BY k LIMIT $3::int8) r ON true
WHERE s.one = 1 ORDER BY r.k";
const BEFORE: &str = "SELECT k, v FROM stria_mdt_records WHERE k = ANY($1::bytea[])";
const PUT: &str = "\
INSERT INTO stria_mdt_records (k, v) SELECT t.k, t.v FROM unnest($1::bytea[], $2::bytea[]) AS t(k, v)
ON CONFLICT (k) DO UPDATE SET v = excluded.v";
const DELETE: &str = "DELETE FROM stria_mdt_records WHERE k = ANY($1::bytea[])";

/// Why something did not go through.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Nothing was changed: somebody else's transaction was in the way. Again.
    Again(String),
    /// The connection is gone, or leads to a server that takes no changes; what it was at may have been done.
    Lost(String),
    /// The database's medium is full; nothing was changed.
    Full,
    /// It fails whenever it is tried.
    Refused(String),
    /// There are no tables of a metadata store.
    Missing,
    /// The tables are of another version.
    Version(i32),
    /// The server takes no changes.
    ReadOnly,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Again(why) | Trouble::Lost(why) | Trouble::Refused(why) => f.write_str(why),
            Trouble::Full => f.write_str("its medium is full"),
            Trouble::Missing => f.write_str("it holds no metadata store: make one with 'stria mkfs' first"),
            Trouble::Version(found) => write!(
                f,
                "its tables are of version {found}, this build reads version {SCHEMA_VERSION}: use the build that made them, or move the store with 'stria mdt export' and 'stria mdt import'"
            ),
            Trouble::ReadOnly => f.write_str(
                "the server takes no changes (a read-only replica, or default_transaction_read_only): name the primary, or all servers of the pair",
            ),
        }
    }
}

impl Trouble {
    /// Whether the same may go through a moment later.
    pub fn may_pass(&self) -> bool {
        matches!(self, Trouble::Again(_) | Trouble::Lost(_) | Trouble::ReadOnly)
    }
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Trouble {
        let why = with_causes(&e);
        let Some(db) = e.as_db_error() else { return Trouble::Lost(why) };
        let (code, why) = (db.code(), format!("{} (SQLSTATE {})", db.message(), db.code().code()));
        match code.code() {
            // Of a statement's unknown end (40003) the number of commits tells at the next try.
            "40001" | "40P01" | "40003" => Trouble::Again(why),
            "25006" => Trouble::ReadOnly,
            "53100" => Trouble::Full,
            "42P01" | "3F000" => Trouble::Missing,
            // Statements that are gone, or whose tables were made anew.
            "26000" | "0A000" => Trouble::Lost(why),
            c if code == &SqlState::TOO_MANY_CONNECTIONS || c.starts_with("08") || c.starts_with("57P") => {
                Trouble::Lost(why)
            }
            "25P03" => Trouble::Lost(why),
            _ => Trouble::Refused(why),
        }
    }
}

impl From<Trouble> for KvError {
    fn from(t: Trouble) -> KvError {
        match t {
            Trouble::Full => KvError::NoSpace,
            t => KvError::Io(t.to_string()),
        }
    }
}

/// The row of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreRow {
    pub fsname: String,
    /// Of cluster and store.
    pub identity: (u64, u64),
    pub epoch: i64,
    /// The last commit.
    pub commit: i64,
    pub holder: String,
    pub holder_process: String,
    /// What is left of the lease by the database's clock; 0 or less: it has run out.
    pub left_s: f64,
    pub has_records: bool,
}

/// What a read saw: the store's epoch and commit at that moment.
#[derive(Debug)]
pub(crate) struct Seen<T> {
    pub epoch: i64,
    pub commit: i64,
    pub value: T,
}

/// Keys and values as the database has them.
pub(crate) type Records = Vec<(Vec<u8>, Vec<u8>)>;

type Column = Vec<Vec<u8>>;
type Parameter<'a> = &'a (dyn ToSql + Sync + 'a);

/// What a batch writes, sealed.
#[derive(Default, Debug)]
pub(crate) struct Writes {
    /// Keys and their values, as many as one statement takes.
    puts: Vec<(Column, Column)>,
    deletes: Vec<Vec<u8>>,
}

impl Writes {
    pub fn of(batch: &KvBatch) -> Writes {
        let (mut writes, mut bytes) = (Writes::default(), 0);
        let taken: Result<(), std::convert::Infallible> = batch.each_sealed(|k, v| {
            let Some(v) = v else {
                writes.deletes.push(k.to_vec());
                return Ok(());
            };
            let is_full = |rows: usize| rows >= ROWS_MAX || bytes >= ROWS_BYTES_MAX;
            if writes.puts.last().is_none_or(|(keys, _)| is_full(keys.len())) {
                writes.puts.push((Vec::new(), Vec::new()));
                bytes = 0;
            }
            let (keys, values) = writes.puts.last_mut().expect("one was pushed if there was none");
            bytes += k.len() + v.len();
            keys.push(k.to_vec());
            values.push(v.to_vec());
            Ok(())
        });
        let Ok(()) = taken;
        writes
    }
}

/// A connection with its statements.
pub(crate) struct Link {
    client: Client,
    server: String,
    statements: Statements,
    /// Calls under way.
    pending: Cell<usize>,
    /// When the server answered last, or was asked after a pause.
    heard: Cell<Instant>,
    given_up: watch::Sender<bool>,
}

struct Statements {
    look: Statement,
    take: Statement,
    renew: Statement,
    claim: Statement,
    state: Statement,
    get: Statement,
    range: Statement,
    before: Statement,
    put: Statement,
    delete: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> Result<Statements, Trouble> {
        let (look, take, renew, claim, state) = tokio::try_join!(
            client.prepare(LOOK),
            client.prepare(TAKE),
            client.prepare(RENEW),
            client.prepare(CLAIM),
            client.prepare(STATE)
        )?;
        let (get, range, before, put, delete) = tokio::try_join!(
            client.prepare(GET),
            client.prepare(RANGE),
            client.prepare(BEFORE),
            client.prepare(PUT),
            client.prepare(DELETE)
        )?;
        Ok(Statements { look, take, renew, claim, state, get, range, before, put, delete })
    }
}

/// A call under way.
struct Pending<'a>(&'a Link);

impl Pending<'_> {
    fn begin(link: &Link) -> Pending<'_> {
        if link.pending.replace(link.pending.get() + 1) == 0 {
            link.heard.set(Instant::now());
        }
        Pending(link)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
        self.0.heard.set(Instant::now());
    }
}

/// A connection to a server, if that takes changes.
pub(crate) async fn reach(config: &Config, security: MakeRustlsConnect) -> Result<Client, Trouble> {
    let (client, connection) = config.connect(security).await?;
    tokio::spawn(async move {
        // Whoever uses the connection hears of its end.
        if let Err(e) = connection.await {
            tracing::debug!("a connection to the metadata store's database ended: {e}");
        }
    });
    let read_only: String = client.query_one("SHOW transaction_read_only", &[]).await?.get(0);
    if read_only == "on" {
        return Err(Trouble::ReadOnly);
    }
    // Not every database has these; without them it is right all the same. Tables that grow from nothing are not scanned, whatever
    // their statistics say; a commit that was acknowledged is on stable storage, whatever the database's default says.
    let synchronous = client.query_opt("SHOW synchronous_commit", &[]).await;
    if synchronous.is_ok_and(|row| row.is_some_and(|row| row.get::<_, String>(0) == "off")) {
        client.batch_execute("SET synchronous_commit = on").await?;
    }
    drop(client.batch_execute("SET enable_seqscan = off").await);
    // A server that stands still in the middle of a transaction holds the store's row, and its successor waits for that.
    let limit = format!("SET idle_in_transaction_session_timeout = '{}ms'", IDLE_MAX.as_millis());
    drop(client.batch_execute(&limit).await);
    Ok(client)
}

/// How far the store of a server is.
pub(crate) async fn state_of(client: &Client) -> Result<State, Trouble> {
    let all = "SELECT uuid, epoch, commit_number, holder_process FROM stria_mdt WHERE one = 1";
    let row = client.query_opt(all, &[]).await?.ok_or(Trouble::Missing)?;
    Ok(State { uuid: number(&row, 0)?, epoch: row.get(1), commit: row.get(2), process: row.get(3) })
}

/// Sixteen hexadecimal digits of a row.
fn number(row: &Row, i: usize) -> Result<u64, Trouble> {
    let read = u64::from_str_radix(row.get(i), 16);
    read.map_err(|_| Trouble::Refused("its row of identity cannot be read".into()))
}

/// Makes the tables where they are missing, and names the store if nothing is in it.
pub(crate) async fn create(client: &Client, fsname: &str, (cluster, uuid): (u64, u64)) -> Result<(), Trouble> {
    client.batch_execute(CREATE).await?;
    let (cluster, uuid) = (hex(cluster), hex(uuid));
    client.execute(BEGIN_ROW, &[&SCHEMA_VERSION, &fsname, &cluster, &uuid]).await?;
    check_version(client).await?;
    client.execute(NAME_EMPTY, &[&fsname, &cluster, &uuid]).await?;
    Ok(())
}

async fn check_version(client: &Client) -> Result<(), Trouble> {
    let row = client.query_opt("SELECT schema_version FROM stria_mdt WHERE one = 1", &[]).await?;
    match row.ok_or(Trouble::Missing)?.get(0) {
        SCHEMA_VERSION => Ok(()),
        other => Err(Trouble::Version(other)),
    }
}

fn hex(n: u64) -> String {
    format!("{n:016x}")
}

fn seen<T>(row: &Row, value: T) -> Seen<T> {
    Seen { epoch: row.get(0), commit: row.get(1), value }
}

impl Link {
    /// `at_least`: epoch and commit that the server is to have, see [`connect`].
    pub async fn open(place: &Place, at_least: Option<(i64, i64)>) -> Result<Rc<Link>, Trouble> {
        Link::over(connect(place, at_least).await?).await.map(Rc::new)
    }

    async fn over(Connected { server, client }: Connected) -> Result<Link, Trouble> {
        in_time(check_version(&client)).await?;
        let statements = in_time(Statements::prepare(&client)).await?;
        let (pending, heard, given_up) = (Cell::new(0), Cell::new(Instant::now()), watch::Sender::new(false));
        Ok(Link { client, server, statements, pending, heard, given_up })
    }

    /// The server's name.
    pub fn server(&self) -> &str {
        &self.server
    }
    /// What the server answers, unless it is given up before.
    pub async fn answer<T>(&self, asked: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        let _pending = Pending::begin(self);
        let mut given_up = self.given_up.subscribe();
        tokio::select! {
            biased;
            _ = given_up.wait_for(|is| *is) => Err(Trouble::Lost("it has answered nobody for some seconds".into())),
            answer = asked => answer,
        }
    }
    /// Since when the server owes an answer, if it does.
    pub fn owes_since(&self) -> Option<Instant> {
        (self.pending.get() > 0).then(|| self.heard.get())
    }
    /// Whoever waits for an answer of the server is told that none comes.
    pub fn give_up(&self) {
        self.given_up.send_replace(true);
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub async fn look(&self) -> Result<StoreRow, Trouble> {
        let row = self.client.query_opt(&self.statements.look, &[]).await?.ok_or(Trouble::Missing)?;
        Ok(StoreRow {
            fsname: row.get(0),
            identity: (number(&row, 1)?, number(&row, 2)?),
            epoch: row.get(3),
            commit: row.get(4),
            holder: row.get(5),
            holder_process: row.get(6),
            left_s: row.get(7),
            has_records: row.get(8),
        })
    }

    /// Raises the epoch from `epoch` if the commit that was seen with it is there and its lease has run out, or in any case; gives the last
    /// commit. `None`: it was not so.
    pub async fn take(
        &self,
        (epoch, commit): (i64, i64),
        (holder, process): (&str, &str),
        lease_s: f64,
        in_any_case: bool,
    ) -> Result<Option<i64>, Trouble> {
        let claim: [Parameter<'_>; 6] = [&epoch, &holder, &process, &lease_s, &in_any_case, &commit];
        let row = self.client.query_opt(&self.statements.take, &claim).await?;
        Ok(row.map(|row| row.get(0)))
    }

    /// Lengthens the lease of `epoch`, 0: ends it. False: the epoch is another.
    pub async fn renew(&self, (epoch, commit): (i64, i64), lease_s: f64) -> Result<bool, Trouble> {
        Ok(self.client.execute(&self.statements.renew, &[&epoch, &lease_s, &commit]).await? == 1)
    }

    /// Epoch, last commit, who has it.
    pub async fn state(&self) -> Result<Seen<String>, Trouble> {
        let row = self.client.query_opt(&self.statements.state, &[]).await?.ok_or(Trouble::Missing)?;
        Ok(seen(&row, row.get(2)))
    }

    pub async fn get(&self, key: &[u8]) -> Result<Seen<Option<Vec<u8>>>, Trouble> {
        let row = self.client.query_opt(&self.statements.get, &[&key]).await?.ok_or(Trouble::Missing)?;
        Ok(seen(&row, row.get(2)))
    }

    pub async fn range(&self, from: &[u8], to: &[u8], limit: i64) -> Result<Seen<Records>, Trouble> {
        let rows = self.client.query(&self.statements.range, &[&from, &to, &limit]).await?;
        let first = rows.first().ok_or(Trouble::Missing)?;
        let pairs = rows.iter().filter_map(|row| Some((row.get::<_, Option<Vec<u8>>>(2)?, row.get(3)))).collect();
        Ok(seen(first, pairs))
    }

    /// Begins the transaction of the commit behind `commit`: claims its number, reads `keys` as they were, and writes what goes with
    /// one more statement. `None`: the number cannot be claimed.
    pub async fn begin(
        &self,
        (epoch, commit): (i64, i64),
        lease_s: f64,
        keys: &[Vec<u8>],
        writes: &Writes,
    ) -> Result<Option<Records>, Trouble> {
        let s = &self.statements;
        let none = (Vec::new(), Vec::new());
        let (ks, vs) = writes.puts.first().unwrap_or(&none);
        let claim: [Parameter<'_>; 3] = [&epoch, &commit, &lease_s];
        let (before, put, delete): ([Parameter<'_>; 1], [Parameter<'_>; 2], [Parameter<'_>; 1]) =
            ([&keys], [ks, vs], [&writes.deletes]);
        // One flight: each is sent when it is polled first, in this order.
        let (begun, claimed, before, put, deleted) = tokio::join!(
            biased;
            self.client.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE"),
            self.client.execute(&s.claim, &claim),
            self.client.query(&s.before, &before),
            self.client.execute(&s.put, &put),
            self.client.execute(&s.delete, &delete)
        );
        begun?;
        if claimed? != 1 {
            return Ok(None);
        }
        let before = before?.iter().map(|row| (row.get(0), row.get(1))).collect();
        put?;
        deleted?;
        for (ks, vs) in writes.puts.iter().skip(1) {
            self.client.execute(&s.put, &[ks, vs]).await?;
        }
        Ok(Some(before))
    }

    pub async fn commit(&self) -> Result<(), Trouble> {
        Ok(self.client.batch_execute("COMMIT").await?)
    }
    pub async fn rollback(&self) -> Result<(), Trouble> {
        Ok(self.client.batch_execute("ROLLBACK").await?)
    }
}
