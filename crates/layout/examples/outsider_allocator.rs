//! An allocator from outside the house: *alternate*. A site has two racks, even and odd OST indices; neighbouring stripes
//! of a file should lie in different racks, so that one rack's switch never carries a whole file.
//!
//! `cargo run -p stria-layout --example outsider_allocator`
use types::{GIB, OstIndex, Rng};

use layout::{
    AllocConfig, AllocPolicy, Allocator, Candidate, LayoutSpec, OstFacts, POLICIES, PolicyEntry, conformance,
};

/// Turns within each rack; the next file starts in the rack where the last one did not end.
#[derive(Default)]
struct Alternate {
    turn: [usize; 2],
    rack: usize,
}

impl AllocPolicy for Alternate {
    fn choose(&mut self, candidates: &[Candidate], count: usize, _dice: u64, chosen: &mut Vec<OstIndex>) {
        let in_rack = |rack: usize| candidates.iter().filter(move |c| usize::from(c.index.0 % 2) == rack);
        let sizes = [in_rack(0).count(), in_rack(1).count()];
        let mut used = [0; 2];
        while chosen.len() < count {
            let other = 1 - self.rack;
            // A rack that has given all it has leaves the rest to the other.
            if used[self.rack] < sizes[self.rack] {
                let n = self.turn[self.rack] % sizes[self.rack];
                chosen.extend(in_rack(self.rack).nth(n).map(|c| c.index));
                self.turn[self.rack] = n + 1;
                used[self.rack] += 1;
            }
            self.rack = other;
        }
    }
}

const ENTRY: PolicyEntry =
    PolicyEntry::new("alternate", "Neighbouring stripes in different racks.", |_| Box::new(Alternate::default()));

fn main() {
    let osts: Vec<OstFacts> = (0..8)
        .map(|i| OstFacts {
            index: OstIndex(i),
            total_bytes: 100 * GIB,
            free_bytes: 60 * GIB,
            active: true,
            in_pool: true,
        })
        .collect();
    let ask = LayoutSpec::from_raw(0, 3, -1).expect("legal numbers").resolve();
    for entry in [POLICIES[1], ENTRY] {
        let mut allocator = Allocator::with_entry(entry, AllocConfig::default());
        let mut rng = Rng::named(1, "example");
        print!("{:<12}", entry.name);
        for _ in 0..6 {
            let file = allocator.allocate(&osts, &ask, &mut rng).expect("there is room");
            print!(" {:?}", file.iter().map(|o| o.0).collect::<Vec<_>>());
        }
        println!("  wrong answers: {}", allocator.wrong_answers());
    }
    (0..5).for_each(|seed| conformance::check(ENTRY.name, || (ENTRY.make)(&AllocConfig::default()), seed));
    println!("conformance: ok");
}
