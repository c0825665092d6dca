//! A policy from outside the house: a site whose SSD is worn protects it. Only HIGH may be copied there, and nothing at all
//! while the SSD is pressed. One table is the whole policy.
//!
//! `cargo run -p stria-advice --example outsider_table`
use types::{Extent, GIB, ObjectId, OstIndex};

use advice::table::{HOUSE, Table};
use advice::{
    Actions, Advice, AdvicePolicy, Advisor, Config, Hint, OwnerId, PolicyEntry, Pressure, ProjectId, Tier, Tiers,
    UserId, Wish,
};

/// The house's table, asked first; writes to the fast tier need HIGH and a calm device.
struct SpareTheSsd(Table);

impl AdvicePolicy for SpareTheSsd {
    fn decide(&self, hint: Hint, tier: Tier, pressure: Pressure) -> Actions {
        let house = self.0.decide(hint, tier, pressure);
        if tier == Tier::Fast && (hint < Hint::High || pressure > Pressure::Low) {
            return Actions { admit: false, prefetch: false, drop: house.drop };
        }
        house
    }
}

const ENTRY: PolicyEntry =
    PolicyEntry::new("spare_the_ssd", "Only HIGH goes to the fast tier, and only while it is calm.", |_| {
        Box::new(SpareTheSsd(HOUSE))
    });

fn main() {
    let tiers = Tiers { size_bytes: [4 * GIB, 100 * GIB], pressure: [Pressure::Low; 2] };
    for entry in [advice::POLICIES[0], ENTRY] {
        let mut advisor = Advisor::with_entry(&entry, Config::default());
        println!("{}", entry.name);
        for (n, hint) in [(1, Hint::Med), (2, Hint::High)] {
            let advice = Advice {
                object: ObjectId::new(OstIndex(0), n),
                extent: Extent::new(0, 10 * GIB),
                hint,
                wish: Wish::Auto,
                project: ProjectId(1),
                owner: OwnerId(42),
                user: UserId(0),
            };
            let mut steps = Vec::new();
            advisor.advise(&advice, &tiers, &mut steps).expect("the advice is legal");
            steps.iter().for_each(|s| println!("  {s:?}"));
        }
    }
    (0..5).for_each(|seed| advice::conformance::check(ENTRY.name, &ENTRY, seed));
    println!("conformance: ok");
}
