//! Registries of policies, of one shape in every room: a name (config value, metric label, scenario key), a sentence for the
//! reference page, what builds one, and what else the room wants to know of it.
//!
//! A policy from outside is an [`Entry`] of somebody else's: mechanisms and conformance suites take entries, not names.
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

/// A policy as a registry has it. `P` is the room's trait, `C` what policies are built from, `F` what else is known.
pub struct Entry<P: ?Sized, C: ?Sized, F = ()> {
    /// Config value, metric label, scenario key.
    pub name: &'static str,
    /// One sentence for the reference page.
    pub summary: &'static str,
    /// Builds a fresh one.
    pub make: fn(&C) -> Box<P>,
    /// What else the room wants to know.
    pub facts: F,
}

impl<P: ?Sized, C: ?Sized> Entry<P, C> {
    /// A policy of a room that wants to know no more.
    #[must_use]
    pub const fn new(name: &'static str, summary: &'static str, make: fn(&C) -> Box<P>) -> Entry<P, C> {
        Entry { name, summary, make, facts: () }
    }
}
impl<P: ?Sized, C: ?Sized, F: Copy> Clone for Entry<P, C, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P: ?Sized, C: ?Sized, F: Copy> Copy for Entry<P, C, F> {}
impl<P: ?Sized, C: ?Sized, F: fmt::Debug> fmt::Debug for Entry<P, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// All policies of a kind, the default first.
pub struct Registry<P: ?Sized + 'static, C: ?Sized + 'static, F: 'static = ()> {
    kind: &'static str,
    entries: &'static [Entry<P, C, F>],
}

impl<P: ?Sized, C: ?Sized, F> Registry<P, C, F> {
    /// The policies of `kind` ("cache policy").
    #[must_use]
    pub const fn new(kind: &'static str, entries: &'static [Entry<P, C, F>]) -> Registry<P, C, F> {
        Registry { kind, entries }
    }
    /// The policy of this name.
    ///
    /// # Errors
    /// [`UnknownPolicy`], which lists those that exist.
    pub fn find(&self, name: &str) -> Result<&'static Entry<P, C, F>, UnknownPolicy> {
        self.entries.iter().find(|entry| entry.name == name).ok_or_else(|| UnknownPolicy {
            kind: self.kind,
            name: name.into(),
            known: self.names(),
        })
    }
    /// All of them.
    pub fn iter(&self) -> core::slice::Iter<'static, Entry<P, C, F>> {
        self.entries.iter()
    }
    /// Their names.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.entries.iter().map(|entry| entry.name).collect()
    }
}

impl<P: ?Sized, C: ?Sized, F> Clone for Registry<P, C, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P: ?Sized, C: ?Sized, F> Copy for Registry<P, C, F> {}
impl<P: ?Sized, C: ?Sized, F> Deref for Registry<P, C, F> {
    type Target = [Entry<P, C, F>];
    fn deref(&self) -> &Self::Target {
        self.entries
    }
}
impl<P: ?Sized, C: ?Sized, F> IntoIterator for Registry<P, C, F> {
    type Item = &'static Entry<P, C, F>;
    type IntoIter = core::slice::Iter<'static, Entry<P, C, F>>;
    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter()
    }
}

/// No policy has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy {
    /// Of what.
    pub kind: &'static str,
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} '{}': use one of {}", self.kind, self.name, self.known.join(", "))
    }
}
impl core::error::Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    trait Measured {
        fn size(&self) -> u32;
    }
    impl Measured for u32 {
        fn size(&self) -> u32 {
            *self
        }
    }
    static ENTRIES: &[Entry<dyn Measured, u32>] =
        &[Entry::new("same", "As it is.", |c| Box::new(*c)), Entry::new("twice", "Twice.", |c| Box::new(c * 2))];
    const SIZES: Registry<dyn Measured, u32> = Registry::new("size", ENTRIES);

    #[test]
    fn policies_are_found_by_name_and_refusals_list_them() {
        assert_eq!((SIZES.find("twice").unwrap().make)(&4).size(), 8);
        assert_eq!((SIZES[0].make)(&4).size(), 4);
        assert_eq!(SIZES.find("half").unwrap_err().to_string(), "unknown size 'half': use one of same, twice");
        assert_eq!(SIZES.into_iter().map(|e| e.name).collect::<Vec<_>>(), SIZES.names());
    }
}
