//! Logs of a scheduler and texts of its rules and settings: none panics or takes more memory than it justifies.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use nrs::record::replay;
use nrs::{Expr, Head, IoOp, JobId, NrsConfig, NrsRequest, Weights, keys, registry};
use types::{ClientId, Duration, Extent, Instant, ObjectId, OstIndex, RequestId};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn recorded(policy: &str) -> Vec<u8> {
    let mut head = Head::new(policy, NrsConfig::default()).unwrap();
    assert!(head.record(1 << 16));
    for id in 0..12u32 {
        let now = Instant(u64::from(id) * 1000);
        let request = NrsRequest {
            id: RequestId(id),
            bytes: 4096,
            client: ClientId(u64::from(id % 3)),
            object: ObjectId::new(OstIndex(0), 1 + id % 4),
            extent: Extent::at(u64::from(id) * 4096, 4096),
            uid: id % 2,
            op: if id % 2 == 0 { IoOp::Read } else { IoOp::Write },
            job: JobId(1),
            arrived: now,
            max_service: (id % 5 == 0).then(|| Duration::from_millis(3)),
        };
        head.enqueue(now, &request).unwrap();
        head.promote(now, RequestId(id / 2), Instant(9_000_000));
        if id % 3 == 2 {
            if let Some(done) = head.dequeue(now) {
                if let Some(taken) = head.taken()
                    && let Some(share) = head.on_taken(now, &taken)
                {
                    head.on_shares(now, &taken, &share);
                }
                head.on_complete(now, done, Duration::from_micros(7));
            }
            head.cancel(RequestId(id));
        }
    }
    head.drain();
    head.take_record().unwrap()
}

#[test]
fn no_log_of_a_scheduler_panics() {
    let target = Target {
        name: "replay",
        root: ROOT,
        seeds: registry().iter().map(|p| recorded(p.name)).collect(),
        words: &[b"STRNRS", b"quantum=0", b"deadline:", b"fifo", b"\n"],
        mend: None,
        memory: (4 << 20, 1 << 10),
    };
    target.run(|input| outcome_of(&format!("{:?}", replay(input))));
}

#[test]
fn no_rule_and_no_setting_panics() {
    let words: [&str; 8] = [
        "uid={0-500}&opcode={ost_read},gid={1}",
        "jobid={dd.0} 100; nid={*} 1",
        "start r uid={500} rate=100",
        "*",
        "start slow jobid={dd.0}&uid={1} rate=1 rank=other",
        "change slow rate=18446744073709551615",
        "stop slow",
        "size={0-4095} 1000",
    ];
    let target = Target {
        name: "text",
        root: ROOT,
        seeds: words.iter().map(|w| w.as_bytes().to_vec()).collect(),
        words: &[b"={", b"}", b"&", b",", b"-", b"18446744073709551615", b" rate=", b" rank=", b"; "],
        mend: None,
        memory: (64 << 10, 1 << 10),
    };
    target.run(|input| {
        let text = String::from_utf8_lossy(input);
        let mut outcome = Expr::parse(&text).map_or_else(|e| outcome_of(&e), |_| 1);
        outcome ^= Weights::parse(&text).map_or_else(|e| outcome_of(&e), |_| 2);
        for key in keys() {
            let mut config = NrsConfig::default();
            // A rule command changes the rules: given twice it is another command.
            if config.set(key.name, &text).is_ok() && key.name != "tbf_rule" {
                let shown = config.get(key.name).unwrap();
                config.set(key.name, &shown).unwrap_or_else(|e| panic!("{} = {shown}: {e}", key.name));
                assert_eq!(config.get(key.name).unwrap(), shown, "{}", key.name);
                outcome ^= outcome_of(key.name);
            }
        }
        outcome
    });
}
