//! What a lock callback waits for, beside clients that keep an OST busy: R27 with the real servers and clients.
//!
//! `STRIA_BUSY_CLIENTS=1000` has as many (3.5 GB of memory, minutes).
use super::*;
use std::cell::Cell;

/// Writers of each busy client, each with a request under way all the time.
const STREAMS: u64 = 8;
/// Pairs of clients that take a file's lock from each other, and how often they do.
const PAIRS: usize = 5;
const ROUNDS: u64 = 4;

/// What it came to.
#[derive(Debug)]
struct Outcome {
    /// The longest time that a client waited for what another had in its cache.
    slowest: Duration,
    /// Most requests that the scheduler held back.
    queued_max: u64,
    urgent: u64,
    late: u64,
    evictions: u64,
}

/// A counter of the OST's pipeline or head.
fn count(cluster: &Cluster, name: &str) -> u64 {
    let text = cluster.ost_param(0, "ost.OSS.ost_io.req_waitqueue").unwrap();
    let line = text.lines().find_map(|l| l.trim().strip_prefix(&format!("{name}: "))).unwrap();
    line.trim_end_matches(',').parse().unwrap()
}

/// Keeps an OST busy until `stop`: small writes past the cache, here and there in a file of its own.
async fn keep_busy(c: &Rc<Client>, number: usize, stop: &Rc<Cell<bool>>) -> Result<(), FsError> {
    let new = NewFile { flags: O_CREAT_RDWR | O_DIRECT, mode: 0o644, ..NewFile::default() };
    let (_, f) = c.create_open(&cred(), Fid::ROOT, format!("busy{number}").as_bytes(), new).await?;
    for stream in 0..STREAMS {
        let (c, f, stop) = (c.clone(), f.clone(), stop.clone());
        c.rt().clone().spawn(async move {
            let mut at = 0;
            while !stop.get() {
                at = (at + 7) % 64;
                c.data().write(&f, (stream * 64 + at) * 4096, &[1; 4096]).await.unwrap();
            }
        });
    }
    Ok(())
}

/// Two clients write the same pages into their caches in turns, so that each has to wait until the other's are written
/// out; answers for how long at most.
async fn take_turns(cluster: &Cluster, pair: usize, clients: [Rc<Client>; 2]) -> Result<Duration, FsError> {
    let first = create(&clients[0], &format!("pair{pair}")).await?;
    let second = clients[1].open(&cred(), first.fid(), 2).await?;
    let both = [(&clients[0], first), (&clients[1], second)];
    // Grant comes with the first write.
    for (c, f) in &both {
        c.data().write(f, 0, &[0; 8192]).await?;
        c.data().fsync(f, false).await?;
    }
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        cluster.sim.sleep(Duration::from_millis(300 + 40 * pair as u64)).await;
        for (c, f) in &both {
            let asked = cluster.sim.now();
            c.data().write(f, 0, &[round as u8 + 1; 8192]).await?;
            slowest = slowest.max(cluster.sim.now().since(asked));
        }
    }
    let (c, f) = &both[0];
    assert!(c.data().read(f, 0, 8192).await?.to_vec() == [ROUNDS as u8; 8192]);
    Ok(slowest)
}

fn flushes_beside(busy: usize, policy: &str) -> Outcome {
    let clients = busy + 2 * PAIRS;
    let config = ClusterConfig {
        clients,
        osts: 1,
        stripe_count: 1,
        client_cache_bytes: MIB,
        // Grant for everybody.
        ost_bytes: 64 << 30,
        ost_reserve_bytes: 4 << 30,
        nrs_policy: policy.into(),
        ..ClusterConfig::default()
    };
    let disk = |ms| Duration::from_millis(ms);
    let sim = SimConfig { disk_min: disk(1), disk_max: disk(3), ..SimConfig::new(27) };
    let cluster = Cluster::new(Sim::new(sim, FramePool::new(1024 * MIB)), config);
    let slowest = Cell::new(Duration::ZERO);
    let whole = async {
        cluster.format().await.unwrap();
        for id in cluster.nodes().map(|n| n.id).collect::<Vec<_>>() {
            cluster.start(id).await.unwrap();
        }
        let stop = Rc::new(Cell::new(false));
        for number in 0..busy {
            keep_busy(&cluster.client(number).unwrap(), number, &stop).await?;
        }
        let pairs = (0..PAIRS).map(|pair| {
            let clients = [0, 1].map(|i| cluster.client(busy + 2 * pair + i).unwrap());
            let (cluster, slowest) = (&cluster, &slowest);
            async move {
                let took = take_turns(cluster, pair, clients).await?;
                slowest.set(slowest.get().max(took));
                Ok::<(), FsError>(())
            }
        });
        let done = rt::sync::join_all(pairs.collect()).await;
        stop.set(true);
        done.into_iter().collect::<Result<(), _>>()
    };
    cluster.sim.run_for(whole, Duration::from_secs(1200)).expect("no hang").unwrap();
    Outcome {
        slowest: slowest.get(),
        queued_max: count(&cluster, "queued_max"),
        urgent: count(&cluster, "urgent"),
        late: count(&cluster, "late"),
        evictions: (0..clients).map(|c| cluster.evictions(c)).sum(),
    }
}

#[test]
fn what_a_lock_callback_waits_for_is_urgent_end_to_end_and_in_time_beside_busy_clients() {
    let busy = std::env::var("STRIA_BUSY_CLIENTS").map_or(120, |n| n.parse().expect("a number of clients"));
    let o = flushes_beside(busy, "obrr+");
    println!("{busy} busy clients: {o:?}");
    assert!(o.queued_max > 6 * busy as u64, "the OST is busy: {o:?}");
    assert!(o.urgent >= PAIRS as u64 * (2 * ROUNDS - 1), "every flush is urgent: {o:?}");
    assert_eq!((o.late, o.evictions), (0, 0), "{o:?}");
    assert!(o.slowest < Duration::from_secs(5), "{o:?}");
}

#[test]
fn without_deadlines_a_lock_callback_waits_behind_everything_that_is_queued() {
    let [fifo, deadlines] = ["fifo", "obrr+"].map(|policy| flushes_beside(60, policy));
    println!("{fifo:?}, {deadlines:?}");
    assert!(fifo.slowest > deadlines.slowest * 4, "{fifo:?}, {deadlines:?}");
    assert!(fifo.urgent >= PAIRS as u64 * (2 * ROUNDS - 1) && fifo.evictions == 0, "{fifo:?}");
}
