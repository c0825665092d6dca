//! The order in which every policy serves is part of what it promises: a digest of its answers on fixed schedules. A change
//! of data layout must not change one of them; a change of behaviour changes its line here, on purpose.
mod support;
use nrs::{IoOp, NrsPolicy, NrsRequest};
use support::{policy, request};
use types::{Duration, Instant, KIB, RequestId, Rng};

/// FNV-1a over what the policy answered.
struct Digest(u64);
impl Digest {
    fn add(&mut self, value: u64) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

struct Schedule {
    policy: Box<dyn NrsPolicy>,
    rng: Rng,
    now: Instant,
    digest: Digest,
    queued: Vec<RequestId>,
    /// Where each id stands in `queued`.
    place: Vec<usize>,
    free: Vec<RequestId>,
    served: Vec<(RequestId, Instant)>,
    next_offset: Vec<u64>,
    object_of: Vec<u32>,
}

impl Schedule {
    fn new(policy: Box<dyn NrsPolicy>, seed: u64, objects: u32, ids: u32) -> Schedule {
        Schedule {
            policy,
            rng: Rng::new(seed),
            now: Instant(1_000_000_000),
            digest: Digest(0xcbf2_9ce4_8422_2325),
            queued: Vec::new(),
            place: vec![0; ids as usize],
            free: (0..ids).rev().map(RequestId).collect(),
            served: Vec::new(),
            next_offset: vec![0; objects as usize],
            object_of: vec![0; ids as usize],
        }
    }
    fn enqueue(&mut self, object: Option<u32>) {
        let Some(id) = self.free.pop() else { return };
        let object = object.unwrap_or_else(|| self.rng.below(self.next_offset.len() as u64) as u32);
        let bytes = 4096 << self.rng.below(9);
        let next = &mut self.next_offset[object as usize];
        let offset = if self.rng.chance(0.8) { *next } else { self.rng.below(4096) * 64 * KIB };
        *next = offset + u64::from(bytes);
        let op = IoOp::ALL[[0, 0, 1, 1, 1, 1, 2, 3][self.rng.below(8) as usize]];
        let urgent = self.rng.chance(0.01).then(|| Duration::from_millis(1 + self.rng.below(50)));
        let req = NrsRequest { max_service: urgent, ..request(id.0, object, offset, bytes, op, self.now) };
        self.policy.enqueue(self.now, &req);
        self.object_of[id.0 as usize] = object;
        self.place[id.0 as usize] = self.queued.len();
        self.queued.push(id);
    }
    fn forget(&mut self, id: RequestId) {
        let at = self.place[id.0 as usize];
        self.queued.swap_remove(at);
        if let Some(moved) = self.queued.get(at) {
            self.place[moved.0 as usize] = at;
        }
    }
    fn dequeue(&mut self) -> Option<u32> {
        let got = self.policy.dequeue(self.now);
        self.digest.add(got.map_or(u64::MAX, |id| u64::from(id.0)));
        let Some(id) = got else {
            let at = self.policy.wakeup_at();
            self.digest.add(at.map_or(0, |at| at.0));
            self.now = at.unwrap_or(self.now).max(self.now);
            return None;
        };
        self.forget(id);
        self.served.push((id, self.now));
        Some(self.object_of[id.0 as usize])
    }
    fn complete(&mut self) {
        if !self.served.is_empty() {
            let nth = self.rng.below(self.served.len() as u64) as usize;
            let (id, since) = self.served.swap_remove(nth);
            self.policy.on_complete(self.now, id, self.now - since);
            self.free.push(id);
        }
    }
    fn rare(&mut self) {
        let Some(id) = self.queued.get(self.rng.below(self.queued.len().max(1) as u64) as usize).copied() else {
            return;
        };
        let by = self.now + Duration::from_millis(self.rng.below(20));
        match self.rng.below(12) {
            0..5 => self.digest.add(u64::from(self.policy.promote(self.now, id, by))),
            5..8 => self.digest.add(u64::from(self.policy.hasten(id))),
            8..11 => {
                assert!(self.policy.cancel(id));
                self.forget(id);
                self.free.push(id);
            }
            _ => {
                let values = [("quantum_requests", "3"), ("quantum_bytes", "1M"), ("weights", "uid={1-9} 4")];
                let mut config = nrs::NrsConfig::default();
                for (key, value) in &values[..self.rng.below(4) as usize] {
                    config.set(key, value).expect("the value is right");
                }
                self.policy.reconfigure(self.now, &config);
            }
        }
    }
    fn step(&mut self) {
        self.now = self.now + Duration::from_micros(self.rng.below(400));
        match self.rng.below(100) {
            0..40 => self.enqueue(None),
            // A reply opens its client's window: the next record of the object that was just served.
            40..75 => {
                let object = self.dequeue();
                if object.is_some() && self.rng.chance(0.7) {
                    self.enqueue(object);
                }
            }
            75..98 => self.complete(),
            _ => self.rare(),
        }
    }
    fn run(mut self, steps: u32) -> u64 {
        for step in 0..steps {
            self.step();
            if step % 20_000 == 19_999 {
                let mut drained = Vec::new();
                self.policy.drain(&mut drained);
                drained.iter().for_each(|id| self.digest.add(u64::from(id.0)));
                self.free.extend(drained);
                self.queued.clear();
            }
        }
        while !self.queued.is_empty() {
            self.dequeue();
        }
        let counted = self.policy.counters();
        for n in [counted.turns, counted.dynamic_fired, counted.mandatory_fired, counted.urgent_served] {
            self.digest.add(n);
        }
        self.digest.0
    }
}

fn digests(name: &str) -> [u64; 3] {
    let rules = "start a client={1-40} rate=900; start b jobid={*}&opcode={ost_read} bytes=200M depth=4";
    let few = Schedule::new(policy(name, &[]), 1, 7, 2000).run(60_000);
    let many = Schedule::new(policy(name, &[("tbf_rules", rules)]), 2, 900, 5000).run(60_000);
    let short = [("quantum_requests", "2"), ("region_bytes", "1M"), ("lambda", "0.3"), ("deadline_mode", "drain")];
    [few, many, Schedule::new(policy(name, &short), 3, 150, 600).run(60_000)]
}

const ANSWERS: &[(&str, [u64; 3])] = &[
    ("fifo", [0x78ae_4564_147e_be3a, 0x868b_e655_b7cc_d655, 0xd1df_94a6_208c_7320]),
    ("crrn", [0xfc96_116b_03f1_16ac, 0xc231_155c_3269_d5d5, 0xd160_8efc_34d5_6b76]),
    ("orr", [0x38c9_5ef9_7baf_f6ca, 0x62fe_df7a_58e6_bb34, 0x981e_8964_6448_b452]),
    ("trr", [0x51e8_6c87_bef0_1564, 0x8799_6076_4d6f_3577, 0x1a69_5e43_89a4_dff7]),
    ("obrr", [0x833b_ef47_19c0_492d, 0x7ffe_bcbb_ae6f_c7c0, 0xc376_b7a9_0f81_de38]),
    ("obrr+", [0xb203_acd8_6590_0144, 0x2486_1930_6f08_834e, 0x3d38_2bad_59a8_ac04]),
    ("tbf", [0xff27_1337_9804_3ec9, 0x5a38_8c53_4062_3c48, 0xe3cc_84d3_25ce_e2ba]),
    ("auto", [0x78ae_4564_147e_be3a, 0x868b_e655_b7cc_d655, 0x5c6a_1103_94c1_3676]),
    ("deadline+fifo", [0x7f99_d11e_e50f_49d3, 0x6f72_e912_89d1_a578, 0x2bfe_163b_07c5_92fd]),
    ("deadline+crrn", [0x082a_fc34_8976_6423, 0x7cc0_a08f_2e2f_f118, 0x58e6_57f4_0753_769c]),
    ("deadline+orr", [0x9f1a_3b3a_c3d0_e6e7, 0x4a43_a892_26a1_16d1, 0x52d9_d31d_5687_8ccf]),
    ("deadline+obrr", [0xbb32_de30_e690_d18f, 0xdd00_4d4b_68b6_c2f8, 0xa5aa_3cb2_736d_b2ba]),
    ("deadline+tbf", [0x0bcd_f263_9a7f_9d06, 0x6beb_9144_ef07_ac94, 0x9d8f_244a_b568_b8fc]),
];

#[test]
fn every_policy_serves_in_the_order_it_always_did() {
    let plain = nrs::registry().iter().map(|e| e.name.to_string());
    let wrapped = ["fifo", "crrn", "orr", "obrr", "tbf"].map(|n| format!("{}{n}", nrs::DEADLINE_PREFIX));
    let got: Vec<(String, [u64; 3])> = plain.chain(wrapped).map(|n| (n.clone(), digests(&n))).collect();
    let expected: Vec<(String, [u64; 3])> = ANSWERS.iter().map(|(n, d)| (n.to_string(), *d)).collect();
    assert_eq!(got, expected, "{got:#018x?}");
}
