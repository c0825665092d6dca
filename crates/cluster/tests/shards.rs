//! OSTs of one server on shards of their own: one address, one server for clients, threads that share nothing else.
#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::{MakeOss, OssNode, OssPlace, RoleError, make_oss};
use ptlrpc::Security;

mod world;
use world::*;

/// Frames, rules and cache as in one shard; the cache is parted.
const CACHE_BYTES: u64 = 8 * MIB;

async fn start_mds(rt: &Rt, nid: &Nid, key: &ClusterKey) -> MdsRole {
    let kv: Rc<dyn MetaKv> = MemoryKv::new();
    let (fsname, hash_keys) = ("stria".to_string(), [rt.random(), rt.random()]);
    let options = MkfsOptions {
        fsname,
        cluster: 0x57a1,
        uuid: rt.random() | 1,
        hash_keys,
        hash_mask: u64::MAX,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o755,
        now: rt.wall(),
    };
    mds::mkfs::format(&kv, &options).await.unwrap();
    start_mds_on(rt, kv, nid, key, Duration::from_secs(5), MdsConfig::default()).await.unwrap()
}

fn make(all: u64, key: &ClusterKey, failing: Option<u16>) -> MakeOss<RoleError> {
    let key = key.clone();
    Arc::new(move |rt, osts| {
        let key = key.clone();
        Box::pin(async move {
            if let Some(ost) = failing.filter(|ost| osts.contains(ost)) {
                return Err(RoleError(format!("no store {ost}")));
            }
            let config = OstConfig {
                cache_bytes: CACHE_BYTES / all * osts.len() as u64,
                nrs_policy: "tbf".into(),
                ..OstConfig::default()
            };
            let store = |i: &u16| {
                let identity = StoreIdentity {
                    cluster: 0x57a1,
                    fsname: "stria".into(),
                    ost: OstIndex(*i),
                    uuid: 7 + u64::from(*i),
                };
                MemoryStore::new(&rt, identity, 64 * MIB) as Rc<dyn ObjectStore>
            };
            make_oss(&rt, osts.iter().map(store).collect(), &key, Duration::from_secs(5), &config)
        })
    })
}

struct Wide {
    mds: Nid,
    oss: OssNode,
    key: ClusterKey,
    _mds: MdsRole,
}

/// `tcp`: which of its connections are encrypted; `None`: nothing leaves the process.
async fn wide(rt: &Rt, name: &str, tcp: Option<Security>, shards: usize) -> Wide {
    let (address, key): (&dyn Fn(&str) -> Nid, _) = match tcp {
        Some(security) => {
            let key = ClusterKey::from_text(b"a secret of at least sixteen bytes").unwrap();
            (&|_| Nid::parse("127.0.0.1:0").unwrap(), key.with_security(security))
        }
        None => (&|role| Nid::Local(format!("{role}-{name}")), ClusterKey::none()),
    };
    let mds = start_mds(rt, &address("mds"), &key).await;
    let place = OssPlace { nid: address("oss"), mds: mds.nid.clone(), key: key.clone() };
    let oss = OssNode::start(rt, &[0, 1, 2], shards, &place, make(3, &key, None)).await.unwrap();
    Wide { mds: mds.nid.clone(), oss, key, _mds: mds }
}

impl Wide {
    async fn client(&self, rt: &Rt) -> Rc<Client> {
        let config = ClientConfig { key: self.key.clone(), ..ClientConfig::new(self.mds.clone()) };
        join(rt, config, 3, PATIENCE).await.unwrap()
    }
}

/// Thread, targets, sessions of each shard, and bytes that its targets wrote and read.
async fn looks(oss: &OssNode) -> Vec<(String, Vec<String>, usize, u64)> {
    oss.each(|oss| {
        let names: Vec<String> = oss.osts().iter().map(|o| o.store().identity().target()).collect();
        let sessions = names.iter().map(|name| oss.server().exports(name).len()).sum();
        let mut measured = types::metric::Snapshot::default();
        oss.measure(&mut measured);
        let written =
            measured.families().filter(|f| f.metric.name == "stria_write_bytes_total").flat_map(|f| &f.series);
        let written = written.map(|s| if let types::metric::Value::Number(n) = s.value { n as u64 } else { 0 }).sum();
        (format!("{:?}", std::thread::current().id()), names, sessions, written)
    })
    .await
}

async fn two_clients_agree(rt: &Rt, w: &Wide) {
    let (one, other) = (w.client(rt).await, w.client(rt).await);
    for (i, name) in ["a", "b", "c", "d", "e", "f"].iter().enumerate() {
        let file = create(&one, Fid::ROOT, name).await;
        let bytes = vec![i as u8 + 1; 3 << 20];
        one.data().write(&file, 0, &bytes).await.unwrap();
        // Not written out: the other one's lock is what brings it there.
        let seen = open(&other, name).await;
        let bulk = other.data().read(&seen, 1 << 20, 1 << 20).await.unwrap();
        assert!(bulk.len() == 1 << 20 && bulk.to_vec() == bytes[..1 << 20], "{name}");
        one.data().write(&file, 1 << 20, &[200; 4096]).await.unwrap();
        let bulk = other.data().read(&seen, 1 << 20, 8192).await.unwrap();
        assert_eq!(bulk.to_vec(), [vec![200; 4096], vec![i as u8 + 1; 4096]].concat(), "{name}");
        one.release(&file).await.unwrap();
        other.release(&seen).await.unwrap();
    }
    for client in [one, other] {
        assert!(client.leave().await, "every server heard the goodbye");
    }
}

#[test]
fn osts_on_threads_of_their_own_are_one_server_behind_one_address() {
    let ways = [(None, "wide-local"), (Some(Security::None), "wide-tcp"), (Some(Security::Tls), "wide-encrypted")];
    for (tcp, name) in ways {
        on_a_shard(async |rt| {
            let w = wide(&rt, name, tcp, 2).await;
            two_clients_agree(&rt, &w).await;
            let looks = looks(&w.oss).await;
            let here = format!("{:?}", std::thread::current().id());
            let threads: BTreeSet<&String> = looks.iter().map(|(thread, ..)| thread).collect();
            assert!(threads.len() == 2 && !threads.contains(&here), "{looks:?}");
            let names: Vec<&[String]> = looks.iter().map(|(_, names, ..)| &names[..]).collect();
            assert_eq!(names, [&["stria-OST0000".to_string(), "stria-OST0002".into()][..], &["stria-OST0001".into()]]);
            // The metadata server's; clients have left.
            assert_eq!(looks.iter().map(|(_, _, sessions, _)| sessions).sum::<usize>(), 3, "{looks:?}");
            assert!(looks.iter().all(|(.., written)| *written >= 3 << 20), "each shard moved bytes: {looks:?}");
            assert_eq!(w.oss.close().await, Ok(()));
            assert!(w.oss.each(|_| ()).await.is_empty(), "a shard that has ended is silent");
        });
    }
}

#[test]
fn one_shard_is_the_calling_one() {
    on_a_shard(async |rt| {
        let w = wide(&rt, "narrow", None, 1).await;
        two_clients_agree(&rt, &w).await;
        let looks = looks(&w.oss).await;
        assert_eq!((w.oss.shards(), looks.len()), (0, 1));
        assert_eq!(looks[0].0, format!("{:?}", std::thread::current().id()));
        assert_eq!(w.oss.close().await, Ok(()));
    });
}

#[test]
fn a_client_that_every_shard_evicts_comes_back_and_sees_what_others_wrote() {
    on_a_shard(async |rt| {
        let w = wide(&rt, "evicting", None, 3).await;
        let (one, other) = (w.client(&rt).await, w.client(&rt).await);
        let file = create(&one, Fid::ROOT, "f").await;
        one.data().write(&file, 0, &[1; 8192]).await.unwrap();
        one.data().fsync(&file, false).await.unwrap();
        let id = one.sessions().id();
        let evict = move |oss: &oss::Oss| {
            for ost in oss.osts() {
                let name = ost.store().identity().target();
                let evicted = ost.set_params(&format!("obdfilter.{name}.evict_client"), &format!("{:016x}", id.0));
                assert!(evicted.is_ok(), "{evicted:?}");
            }
        };
        w.oss.each(evict).await;
        let fid = lookup(&other, Fid::ROOT, b"f").await.attr.fid;
        let seen = other.open(&root(), fid, O_RDWR).await.unwrap();
        other.data().write(&seen, 0, &[2; 8192]).await.unwrap();
        other.data().fsync(&seen, false).await.unwrap();
        // It hears of it, has another session and sees what was written meanwhile.
        let mut bulk = one.data().read(&file, 0, 8192).await;
        for _ in 0..1000 {
            if bulk.as_ref().is_ok_and(|b| b.to_vec() == [2; 8192]) {
                break;
            }
            rt.sleep(Duration::from_millis(5)).await;
            bulk = one.data().read(&file, 0, 8192).await;
        }
        assert_eq!(bulk.unwrap().to_vec(), [2; 8192]);
        assert_eq!(w.oss.close().await, Ok(()));
    });
}

#[test]
fn a_server_of_which_one_shard_does_not_start_does_not_start() {
    on_a_shard(async |rt| {
        let key = ClusterKey::none();
        let nid = Nid::Local("oss-halved".into());
        let place = OssPlace { nid: nid.clone(), mds: Nid::Local("mds-nowhere".into()), key: key.clone() };
        let failed = OssNode::start(&rt, &[0, 1, 2], 3, &place, make(3, &key, Some(1))).await;
        assert_eq!(failed.err().unwrap().to_string(), "no store 1");
        let taken = rt.listen(&nid).unwrap();
        let failed = OssNode::start(&rt, &[0, 1, 2], 3, &place, make(3, &key, None)).await;
        assert!(failed.err().unwrap().to_string().contains("is taken"));
        drop(taken);
        let oss = OssNode::start(&rt, &[0, 1, 2], 3, &place, make(3, &key, None)).await.unwrap();
        assert_eq!((oss.shards(), oss.close().await), (3, Ok(())));
    });
}
