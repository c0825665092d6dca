//! What operations have in hand: counted by whoever owns it, for tests that look whether an operation that ended, or whose future
//! was dropped, has left something behind.
use std::collections::BTreeMap;

/// How much of what is in use; what is not in use is not in it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InUse(BTreeMap<&'static str, u64>);

impl InUse {
    /// So much more of `what` is in use.
    pub(crate) fn add(&mut self, what: &'static str, n: u64) {
        if n > 0 {
            *self.0.entry(what).or_default() += n;
        }
    }
    /// The same of what is in use or not.
    pub(crate) fn add_if(&mut self, what: &'static str, is_used: bool) {
        self.add(what, u64::from(is_used));
    }
    /// How much of `what` is in use.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
    /// The same without `what`.
    #[must_use]
    pub fn without(mut self, what: &str) -> InUse {
        self.0.remove(what);
        self
    }
}
