//! The decision table: hint x tier x pressure -> actions. A policy is a table, or anything that answers like one.
use alloc::boxed::Box;
use types::registry::{Entry, Registry};

use crate::config::Config;
use crate::{Hint, Pressure, Tier};

/// What to do with advised bytes in one tier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Actions {
    /// The bytes may live in this tier under the hint's class. False: this tier does nothing for the hint now.
    pub admit: bool,
    /// Fetch them now, in the background. Only with `admit`.
    pub prefetch: bool,
    /// Let go of what is there at once rather than at reclaim. Only without `admit`.
    pub drop: bool,
}

/// Decides by hint, tier and pressure alone. Same question, same answer.
pub trait AdvicePolicy: Send {
    /// The actions. [`Hint::None`] asks what to do with bytes whose advice is withdrawn.
    fn decide(&self, hint: Hint, tier: Tier, pressure: Pressure) -> Actions;
}

/// A table: `rows[hint][tier][pressure]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// The cells.
    pub rows: [[[Actions; 3]; 2]; 5],
}

impl AdvicePolicy for Table {
    fn decide(&self, hint: Hint, tier: Tier, pressure: Pressure) -> Actions {
        self.rows[hint as usize][tier as usize][pressure as usize]
    }
}

const IGNORE: Actions = Actions { admit: false, prefetch: false, drop: false };
const DROP: Actions = Actions { admit: false, prefetch: false, drop: true };
const KEEP: Actions = Actions { admit: true, prefetch: false, drop: false };
const FETCH: Actions = Actions { admit: true, prefetch: true, drop: false };

/// The house's table. Columns: pressure low, medium, high. Rows: RAM, then the fast tier.
/// CACHE never reaches the fast tier: copying there costs a write, which bytes nobody asked for do not repay.
pub const HOUSE: Table = Table {
    rows: [
        [[IGNORE, IGNORE, DROP], [IGNORE, IGNORE, DROP]],
        [[KEEP, KEEP, IGNORE], [IGNORE, IGNORE, IGNORE]],
        [[FETCH, KEEP, IGNORE], [FETCH, FETCH, IGNORE]],
        [[FETCH, FETCH, KEEP], [FETCH, FETCH, KEEP]],
        [[FETCH, FETCH, FETCH], [FETCH, FETCH, FETCH]],
    ],
};

/// As [`HOUSE`] without the fast tier, for servers that have none.
pub const RAM_ONLY: Table = Table {
    rows: [
        [HOUSE.rows[0][0], [IGNORE; 3]],
        [HOUSE.rows[1][0], [IGNORE; 3]],
        [HOUSE.rows[2][0], [IGNORE; 3]],
        [HOUSE.rows[3][0], [IGNORE; 3]],
        [HOUSE.rows[4][0], [IGNORE; 3]],
    ],
};

/// Hints do nothing.
pub const NOTHING: Table = Table { rows: [[[IGNORE; 3]; 2]; 5] };

/// A policy of the registry, or an outsider's; built once per server.
pub type PolicyEntry = Entry<dyn AdvicePolicy, Config>;

/// Every advice policy of the house, the default first. Adding one is one file (or table) and one line here.
pub const POLICIES: Registry<dyn AdvicePolicy, Config> = Registry::new("advice policy", ENTRIES);

static ENTRIES: &[PolicyEntry] = &[
    Entry::new(
        POLICY_DEFAULT,
        "RAM and fast tier by what fits; less is done for low hints as pressure rises. The default.",
        |_| Box::new(HOUSE),
    ),
    Entry::new("ram_only", "As `house`, without a fast tier.", |_| Box::new(RAM_ONLY)),
    Entry::new("none", "Hints are accepted and do nothing.", |_| Box::new(NOTHING)),
];

/// Name of the policy used when none is configured.
pub const POLICY_DEFAULT: &str = "house";
