//! Clients and a metadata server over real sessions, with this engine.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#[path = "support/sessions.rs"]
mod sessions;

use std::path::PathBuf;
use std::rc::Rc;

use mds::MetaKv;
use rt::{LocalFuture, Rt};

#[derive(Clone)]
struct Dir(PathBuf);
impl sessions::Place for Dir {
    fn open(&self, rt: Rt) -> LocalFuture<Rc<dyn MetaKv>> {
        let kv: Rc<dyn MetaKv> = store_redb::open(rt, &self.0, 1 << 20).unwrap();
        Box::pin(std::future::ready(kv))
    }
}

fn with_store(test: impl FnOnce(&Dir)) {
    let dir = tempfile::tempdir().unwrap();
    let place = Dir(dir.path().into());
    let (options, at) = (sessions::options(), place.0.clone());
    rt::real::run(sessions::pool(), |rt| async move { store_redb::mkfs(rt, &at, &options).await.unwrap() }).unwrap();
    test(&place);
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
