//! A server whose store another one may take over, and which hears of that late.
use ptlrpc::Service;

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
