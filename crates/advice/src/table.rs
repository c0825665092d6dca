//! The decision table: hint x tier x pressure -> actions. A policy is a table, or anything that answers like one.
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt;

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

/// A registry line.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// Config value, metric label, scenario key.
    pub name: &'static str,
    /// One sentence for the reference page.
    pub summary: &'static str,
    /// Builds one; called once per server.
    pub make: fn() -> Box<dyn AdvicePolicy>,
}

/// Every advice policy of the house. Adding one is one file (or table) and one line here.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry {
        name: "house",
        summary: "RAM and fast tier by what fits; less is done for low hints as pressure rises. The default.",
        make: || Box::new(HOUSE),
    },
    PolicyEntry { name: "ram_only", summary: "As `house`, without a fast tier.", make: || Box::new(RAM_ONLY) },
    PolicyEntry { name: "none", summary: "Hints are accepted and do nothing.", make: || Box::new(NOTHING) },
];

/// Name of the policy used when none is configured.
pub const POLICY_DEFAULT: &str = "house";

/// No policy has this name. `Display` lists those that exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy(pub String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&unknown("advice", &self.0, POLICIES.iter().map(|p| p.name)))
    }
}
impl core::error::Error for UnknownPolicy {}

/// The refusal of a policy of this kind, with those that exist.
pub(crate) fn unknown<'a>(kind: &str, name: &str, names: impl Iterator<Item = &'a str>) -> String {
    names.fold(format!("unknown {kind} policy '{name}': use one of"), |text, name| text + " " + name)
}
