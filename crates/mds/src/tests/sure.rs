//! A server whose store another one may take over, and which hears of that late.
use ptlrpc::Service;
use types::{Duration, Fid, FsError};

use super::harness::Fs;

#[test]
fn clients_stay_as_long_as_the_store_answers_that_it_is_this_servers_however_long_a_commit_takes() {
    let fs = Fs::new();
    let looks = |seconds: u64| -> Vec<bool> {
        let look = |_| {
            fs.pass(1);
            fs.mds.is_unsure()
        };
        (0..seconds).map(look).collect()
    };
    fs.kv.set_sure(false, true);
    assert_eq!(looks(20), [false; 20]);
    fs.kv.set_sure(false, false);
    assert_eq!(looks(5)[3..], [true; 2], "nothing is answered any more");
    fs.kv.set_sure(false, true);
    assert_eq!(looks(20), [false; 20], "again");
    fs.kv.set_sure(true, false);
    assert_eq!(looks(5), [false; 5], "it need not be asked");
}

#[test]
fn a_server_whose_store_is_away_ends_and_leaves_to_the_clients_what_is_not_committed() {
    let fs = Fs::new();
    fs.mkdir(Fid::ROOT, "kept").unwrap();
    fs.sync();
    fs.kv.hold_commits(true);
    fs.kv.set_sure(false, false);
    fs.mkdir(Fid::ROOT, "answered").unwrap();
    let mds = fs.mds.clone();
    let ended = fs.world.run(async {
        let began = fs.world.rt().now();
        (mds.stop().await, fs.world.rt().now().since(began))
    });
    assert_eq!(ended.0, Err(FsError::TimedOut));
    assert!(ended.1 < Duration::from_secs(15), "{:?}", ended.1);
}

#[test]
fn a_server_whose_store_is_only_slow_waits_for_it() {
    let fs = Fs::new();
    fs.kv.hold_commits(true);
    fs.mkdir(Fid::ROOT, "answered").unwrap();
    let mds = fs.mds.clone();
    let ended = fs.world.run(async {
        let rt = fs.world.rt();
        rt.timeout(Duration::from_secs(60), mds.stop()).await
    });
    assert_eq!(ended, None);
}
