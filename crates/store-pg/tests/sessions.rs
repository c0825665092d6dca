//! Clients and a metadata server over real sessions, with this engine.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#[path = "support/postgres.rs"]
mod postgres;
#[path = "../../store-redb/tests/support/sessions.rs"]
mod sessions;

use std::rc::Rc;

use mds::MetaKv;
use postgres::{Postgres, is_there};
use rt::{LocalFuture, Rt};
use store_pg::Patience;

#[derive(Clone)]
struct Database(store_pg::Place);
impl sessions::Place for Database {
    fn open(&self, rt: Rt) -> LocalFuture<Rc<dyn MetaKv>> {
        let place = self.0.clone();
        Box::pin(async move {
            let kv = store_pg::open(&rt, &place, Some((7, 1)), 1 << 20, Patience::Lease).await;
            kv.unwrap() as Rc<dyn MetaKv>
        })
    }
}

fn with_store(test: impl FnOnce(&Database)) {
    if !is_there() {
        return;
    }
    let server = Postgres::start();
    let place = store_pg::Place::parse(&server.database("fs"), None).unwrap();
    let (options, at) = (sessions::options(), place.clone());
    rt::real::run(sessions::pool(), |rt| async move { store_pg::mkfs(&rt, &at, &options).await.unwrap() }).unwrap();
    test(&Database(place));
}

#[test]
fn a_server_that_lost_what_it_had_answered_gets_it_back_from_its_clients() {
    with_store(sessions::a_server_that_lost_what_it_had_answered_gets_it_back_from_its_clients);
}

#[test]
fn an_operation_calls_the_locks_of_other_clients_back() {
    with_store(sessions::an_operation_calls_the_locks_of_other_clients_back);
}

#[test]
fn what_was_synced_is_there_for_a_client_that_never_met_the_first_server() {
    with_store(sessions::what_was_synced_is_there_for_a_client_that_never_met_the_first_server);
}
