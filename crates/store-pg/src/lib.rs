//! The shared engine of the metadata server: a database that speaks PostgreSQL's protocol.
//!
//! One table holds all keys, a second one row: whose store it is, its epoch, the number of its last commit, and until when its server
//! has it to itself (`docs/spec/mdt-postgres.md`). A batch is one serializable transaction. Only the server that has raised the epoch
//! last changes anything: every transaction asks for its own. What keys and values mean is the MDS's business.
//!
//! Because nobody else changes records, those that were read or written stay in memory; reads of others take a round trip.
//! The client library needs a runtime of its own, so it has a thread of its own ([`worker`]).
mod cache;
mod choose;
mod link;
mod memory;
mod open;
mod place;
mod security;
mod snapshot;
mod worker;

use std::rc::Rc;
use std::sync::Arc;

use mds::kv::{KvBatch, KvError, KvLimits, KvSnapshot, MetaKv};
use rt::LocalFuture;

pub use link::SCHEMA_VERSION;
pub use memory::{SEEN_FILE, State};
pub use open::{Accepted, Identity, OpenError, Patience, accept, create, look, mkfs, open};
pub use place::{PLACE_FILE, Place, PlaceError};
pub use worker::LEASE;

use crate::snapshot::Engine;

/// Records in memory when nothing else is said: 256 MiB.
pub const CACHE_BYTES_DEFAULT: usize = 256 << 20;

/// What such a store says of the space it has: nobody asks the database's medium.
const SPACE_BYTES: u64 = 1 << 40;

/// A database as a metadata store.
pub struct PgKv {
    engine: Rc<Engine>,
    identity: Identity,
}

impl PgKv {
    /// Whose store it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

impl MetaKv for PgKv {
    fn limits(&self) -> KvLimits {
        // A batch is one transaction: what one should hold. A key fits an index's page (2.7 kB).
        KvLimits {
            batch_ops_max: 128 << 10,
            batch_bytes_max: 256 << 20,
            key_bytes_max: 2048,
            value_bytes_max: 1 << 20,
            snapshot_isolation: true,
        }
    }
    fn snapshot(&self) -> LocalFuture<Result<Rc<dyn KvSnapshot>, KvError>> {
        let snapshot = self.engine.snapshot();
        Box::pin(std::future::ready(Ok(snapshot)))
    }
    fn commit(&self, batch: Arc<KvBatch>) -> LocalFuture<Result<(), KvError>> {
        let engine = self.engine.clone();
        Box::pin(async move { engine.commit(batch).await })
    }
    fn failure(&self) -> Option<KvError> {
        self.engine.shared.failure()
    }
    fn is_sure(&self) -> bool {
        self.engine.shared.is_good()
    }
    fn confirm(&self) -> LocalFuture<Result<(), KvError>> {
        let engine = self.engine.clone();
        Box::pin(async move { engine.confirm().await })
    }
    fn space(&self) -> (u64, u64) {
        (SPACE_BYTES, SPACE_BYTES)
    }
}
