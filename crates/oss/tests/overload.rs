//! What a target without room for a request answers, and what its clients' sessions make of it.
#![allow(clippy::unwrap_used)]
mod node;

use node::*;

/// A target that serves client 1 slowly and lets no more than one of its requests wait.
fn busy(seed: u64) -> Node {
    let n = node(seed, 1 << 30, OstConfig { dispatch_window: 1, nrs_policy: "tbf".into(), ..OstConfig::default() });
    n.ost.set_params("ost.OSS.ost_io.nrs_tbf_rule", "start a client={1} rate=100").unwrap();
    n.ost.set_params("ost.OSS.ost_io.nrs_queue_max", "1").unwrap();
    n
}

#[test]
fn a_request_that_finds_the_scheduler_full_is_sent_again_until_it_is_carried_out() {
    let n = busy(3);
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        let writes: Vec<_> = (0..40u64).map(|i| c.write_owned(i * 4096, vec![i as u8; 4096])).collect();
        assert!(rt::sync::join_all(writes).await.iter().all(Result::is_ok));
        assert!(c.import.refusals() > 0, "the head was never full");
        for i in 0..40 {
            assert_eq!(c.read(i * 4096, 4096).await.unwrap(), [i as u8; 4096]);
        }
    });
}

#[test]
fn a_write_that_finds_no_memory_at_the_target_waits_for_some() {
    let n = node(4, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Rc::new(Client::new(rt.clone(), 1).await);
        c.create(1).await;
        c.write(0, &[1; 20_000]).await.unwrap();
        let (bytes, done) = (vec![2; 9000], Rc::new(Cell::new(false)));
        let (me, told) = (c.clone(), done.clone());
        let mut bulk = Bulk::alloc(rt.frames(), bytes.len()).unwrap();
        bulk.copy_in(0, &bytes);
        let mut taken = Vec::new();
        while let Some(run) = rt.frames().alloc_run(1) {
            taken.push(run);
        }
        // The transfer has room, what it is copied into has none.
        taken.truncate(taken.len() - bulk.len().div_ceil(4096));
        rt.spawn(async move {
            // The page in the middle lies across two frames, and is copied.
            assert_eq!(me.write_bulk(100, bulk).await.map(|_| ()), Ok(()));
            told.set(true);
        });
        let until = async |reached: &dyn Fn() -> bool| {
            for _ in 0..100_000 {
                if reached() {
                    return;
                }
                rt.sleep(Duration::from_millis(1)).await;
            }
            panic!("{} refusals, and nothing happens", c.import.refusals());
        };
        until(&|| c.import.refusals() > 0).await;
        drop(taken);
        until(&|| done.get()).await;
        let got = c.read(0, 20_000).await.unwrap();
        assert!(got[..100] == [1; 100] && got[100..9100] == [2; 9000] && got[9100..] == [1; 10_900]);
    });
}

#[test]
fn a_request_that_nobody_waits_for_any_more_is_not_sent_again() {
    let n = busy(5);
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt.clone(), 1).await;
        c.create(1).await;
        let writes: Vec<_> = (0..60u64).map(|i| c.write_owned(i * 4096, vec![1; 4096])).collect();
        let all = rt::sync::join_all(writes);
        let refused_once = async {
            while c.import.refusals() == 0 {
                rt.sleep(Duration::from_micros(1)).await;
            }
        };
        assert!(rt::sync::race(all, refused_once).await.is_err(), "nothing was refused");
        rt.sleep(Duration::from_secs(30)).await;
        assert_eq!(c.import.in_flight(), 0);
        let (sent, refused) = (c.import.counters().1, c.import.refusals());
        c.write(0, &[7; 4096]).await.unwrap();
        assert_eq!((c.import.counters().1, c.import.refusals()), (sent + 1, refused), "slots are free again");
    });
}
