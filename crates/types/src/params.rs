//! What can be set: keys of the configuration, each declared once beside what uses it, and parameters of running nodes.
//!
//! [`keys!`](crate::keys) declares the keys of a node or room: name, type, default, range, unit, scope, life and meaning. The struct, its
//! parser, errors, `config explain` and the reference page come from that. [`Parameter`] is a value of a running node by name, with
//! what reads it and what sets it in one place.
use crate::{MIB, format_size, parse_size, settings::nearest};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Whose key it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The same in every process of a cluster.
    Cluster,
    /// Each process its own.
    Process,
}

/// When a change takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// At once, by this parameter, with the same values. `*` stands for what differs from node to node.
    Live(&'static str),
    /// At the next start.
    Restart,
}

/// One row of a table of keys.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Dotted name: section and key.
    pub key: &'static str,
    /// Type and range.
    pub kind: Kind,
    /// Default as a user would write it.
    pub default: &'static str,
    /// Whose key it is.
    pub scope: Scope,
    /// When a change takes effect.
    pub life: Life,
    /// One sentence or two.
    pub meaning: &'static str,
}

/// Type and range of a key.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A size with a suffix K M G T, base 2.
    Bytes {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A whole number.
    Number {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
        /// Of what.
        unit: &'static str,
    },
    /// A whole number that may be negative.
    Signed {
        /// Least.
        min: i64,
        /// Most.
        max: i64,
        /// Of what.
        unit: &'static str,
    },
    /// true or false.
    Switch,
    /// Any text.
    Text,
    /// One of some names.
    Choice(fn() -> Vec<String>),
}

impl Kind {
    /// Type and range in words.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Kind::Bytes { min, max } => format!("size, {} to {}", format_size(*min), format_size(*max)),
            Kind::Number { min, max, unit } => format!("number, {min} to {max} {unit}"),
            Kind::Signed { min, max, unit } => format!("number, {min} to {max} {unit}"),
            Kind::Switch => "true or false".into(),
            Kind::Text => "text".into(),
            Kind::Choice(names) => format!("one of {}", names().join(", ")),
        }
    }
    fn refusal(&self) -> String {
        let article =
            if matches!(self, Kind::Bytes { .. } | Kind::Number { .. } | Kind::Signed { .. }) { "a " } else { "" };
        format!("write {article}{}", self.describe())
    }
    fn out_of_range(&self) -> String {
        format!("out of range: {}", self.refusal())
    }
}

/// A size from `min` to `max` bytes.
#[must_use]
pub const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Bytes { min, max }
}
/// A number from `min` to `max`.
#[must_use]
pub const fn number(min: u64, max: u64, unit: &'static str) -> Kind {
    Kind::Number { min, max, unit }
}

/// Why a key or a value is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no such key.
    Unknown {
        /// What was given.
        key: String,
        /// What was probably meant.
        near: Option<&'static str>,
    },
    /// The key does not take the value.
    Value {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What is wrong with it, or what would be right.
        why: String,
    },
}

impl Refused {
    /// The key is none of `known`.
    #[must_use]
    pub fn unknown<'a>(key: &str, known: impl Iterator<Item = &'a Row>) -> Refused {
        Refused::Unknown { key: key.into(), near: nearest(key, known.map(|row| row.key)) }
    }
    /// `key` does not take `value`.
    #[must_use]
    pub fn value(key: &str, value: impl fmt::Display, why: impl fmt::Display) -> Refused {
        Refused::Value { key: key.into(), value: value.to_string(), why: why.to_string() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Unknown { key, near: Some(near) } => write!(f, "unknown key '{key}': did you mean '{near}'?"),
            Refused::Unknown { key, near: None } => {
                write!(f, "unknown key '{key}': 'stria config explain' lists all keys")
            }
            Refused::Value { key, value, why } => write!(f, "{key} = {value}: {why}"),
        }
    }
}
impl core::error::Error for Refused {}
impl From<Refused> for String {
    fn from(refused: Refused) -> String {
        refused.to_string()
    }
}

/// A value of a key.
pub trait Value: Sized {
    /// Reads a text of the kind.
    ///
    /// # Errors
    /// What it should be.
    fn read(text: &str, kind: &Kind) -> Result<Self, String>;
    /// The text that reads back.
    fn show(&self, kind: &Kind) -> String;
}

const OTHER_TYPE: &str = "the table gives this key another type";

impl Value for u64 {
    fn read(text: &str, kind: &Kind) -> Result<u64, String> {
        let (value, min, max) = match *kind {
            Kind::Bytes { min, max } => (parse_size(text)?, min, max),
            Kind::Number { min, max, .. } => (text.trim().parse().map_err(|_| kind.refusal())?, min, max),
            _ => return Err(OTHER_TYPE.into()),
        };
        if (min..=max).contains(&value) { Ok(value) } else { Err(kind.out_of_range()) }
    }
    fn show(&self, kind: &Kind) -> String {
        match kind {
            // Only round sizes have a short form that reads back exactly.
            Kind::Bytes { .. } => [(40, "T"), (30, "G"), (20, "M"), (10, "K")]
                .iter()
                .find(|(bits, _)| *self != 0 && self.trailing_zeros() >= *bits)
                .map_or_else(|| self.to_string(), |(bits, suffix)| format!("{}{suffix}", self >> bits)),
            _ => self.to_string(),
        }
    }
}

impl Value for i64 {
    fn read(text: &str, kind: &Kind) -> Result<i64, String> {
        let Kind::Signed { min, max, .. } = *kind else { return Err(OTHER_TYPE.into()) };
        let value: i64 = text.trim().parse().map_err(|_| kind.refusal())?;
        if (min..=max).contains(&value) { Ok(value) } else { Err(kind.out_of_range()) }
    }
    fn show(&self, _: &Kind) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn read(text: &str, kind: &Kind) -> Result<bool, String> {
        text.trim().parse().map_err(|_| kind.refusal())
    }
    fn show(&self, _: &Kind) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn read(text: &str, kind: &Kind) -> Result<String, String> {
        match kind {
            Kind::Choice(names) if !names().iter().any(|n| n == text) => Err(kind.refusal()),
            _ => Ok(text.into()),
        }
    }
    fn show(&self, _: &Kind) -> String {
        self.clone()
    }
}

/// A group of keys, as [`keys!`](crate::keys) declares it.
pub trait Keys: Default {
    /// The table.
    const ROWS: &'static [Row];
    /// Sets a key from its text; false: it is none of these.
    ///
    /// # Errors
    /// The value is none of the key's.
    fn put(&mut self, key: &str, text: &str) -> Result<bool, Refused>;
    /// A key's value as text that [`Keys::put`] reads back.
    fn get(&self, key: &str) -> Option<String>;
    /// The row of a key.
    #[must_use]
    fn row(key: &str) -> Option<&'static Row> {
        Self::ROWS.iter().find(|row| row.key == key)
    }
    /// Reads a value of one of these keys: what a parameter of the same meaning takes.
    ///
    /// # Errors
    /// As a sentence, what would be right.
    fn read<V: Value>(key: &str, text: &str) -> Result<V, String> {
        V::read(text, &Self::row(key).ok_or("there is no such key")?.kind)
    }
    /// [`Keys::read`] of a size whose parameter counts MiB, in bytes; a suffix makes the text a size of its own.
    ///
    /// # Errors
    /// As [`Keys::read`].
    fn read_mib(key: &str, text: &str) -> Result<u64, String> {
        let kind = Self::row(key).ok_or("there is no such key")?.kind;
        let (min, max) = match kind {
            Kind::Number { min, max, .. } => (min.saturating_mul(MIB), max.saturating_mul(MIB)),
            Kind::Bytes { min, max } => (min, max),
            _ => return Err(OTHER_TYPE.into()),
        };
        let bare = text.bytes().all(|b| b.is_ascii_digit());
        let bytes = parse_size(text)?.saturating_mul(if bare { MIB } else { 1 });
        let fits = (min..=max).contains(&bytes);
        if fits { Ok(bytes) } else { Err(format!("out of range: write {} to {} (MiB)", min / MIB, max / MIB)) }
    }
}

/// Declares a group of keys: the struct, its table and its parser.
#[macro_export]
macro_rules! keys {
    ($(#[doc = $about:literal])+ struct $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident: $ty:ty = $key:literal, $kind:expr, $default:literal, $scope:ident,
            $life:ident $(($parameter:literal))?;)*
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name { $($(#[doc = $doc])+ pub $field: $ty,)* }
        impl Default for $name {
            fn default() -> $name {
                $name { $($field: <$ty as $crate::params::Value>::read($default, &$kind).expect("a table's defaults are legal: a test reads them all"),)* }
            }
        }
        impl $crate::params::Keys for $name {
            const ROWS: &'static [$crate::params::Row] = &[$($crate::params::Row {
                key: $key, kind: $kind, default: $default, scope: $crate::params::Scope::$scope,
                life: $crate::params::Life::$life $(($parameter))?, meaning: concat!($($doc),+),
            },)*];
            fn put(&mut self, key: &str, text: &str) -> Result<bool, $crate::params::Refused> {
                match key {
                    $($key => self.$field = <$ty as $crate::params::Value>::read(text, &$kind)
                        .map_err(|why| $crate::params::Refused::value(key, text, why))?,)*
                    _ => return Ok(false),
                }
                Ok(true)
            }
            fn get(&self, key: &str) -> Option<$crate::alloc_string::String> {
                match key { $($key => Some($crate::params::Value::show(&self.$field, &$kind)),)* _ => None }
            }
        }
    };
}

/// What sets a parameter of a node: text in, and how that went.
pub type Setter<N, S> = Box<dyn Fn(&N, &str) -> S>;

/// A parameter of a running node: its name, what reads it, and what sets it, if it can be set.
pub struct Parameter<N, S = Result<(), String>> {
    /// Full path, dots between the parts.
    pub path: String,
    get: Box<dyn Fn(&N) -> String>,
    set: Option<Setter<N, S>>,
}

impl<N, S> Parameter<N, S> {
    /// One that only tells.
    #[must_use]
    pub fn new(path: String, get: impl Fn(&N) -> String + 'static) -> Parameter<N, S> {
        Parameter { path, get: Box::new(get), set: None }
    }
    /// The same, which can be set.
    #[must_use]
    pub fn settable(mut self, set: impl Fn(&N, &str) -> S + 'static) -> Parameter<N, S> {
        self.set = Some(Box::new(set));
        self
    }
    /// Whether it can be set.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.set.is_some()
    }
    /// Its value.
    #[must_use]
    pub fn value(&self, node: &N) -> String {
        (self.get)(node)
    }
    /// Sets it; `None`: it only tells ([`ONLY_TELLS`]).
    pub fn set(&self, node: &N, text: &str) -> Option<S> {
        self.set.as_ref().map(|set| set(node, text))
    }
}

/// What `store_failure` says of a target: why its store failed and what is done about it, a line each; nothing when all is well.
#[must_use]
pub fn failure_text(failure: Option<String>, mending: &str) -> String {
    let Some(failure) = failure else { return String::new() };
    if mending.is_empty() { failure } else { format!("{failure}\n{mending}") }
}

/// The refusal of a value for a parameter that cannot be set.
pub const ONLY_TELLS: &str = "it cannot be set: it only tells";

/// Reads 1 and 0, and what stands for them.
///
/// # Errors
/// What would be right.
pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "on" | "enable" | "true" => Ok(true),
        "0" | "off" | "disable" | "false" => Ok(false),
        _ => Err(format!("'{text}' is neither 1 nor 0")),
    }
}

/// Statistics can only be set back.
///
/// # Errors
/// What would be right.
pub fn reset(text: &str) -> Result<(), String> {
    if matches!(text, "0" | "clear") { Ok(()) } else { Err(format!("'{text}': write 0 or clear, which starts anew")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::keys! {
        /// Keys of a node.
        struct Node {
            /// How many.
            count: u64 = "node.count", number(1, 9, "things"), "3", Process, Live("node.*.count");
            /// How large.
            size: u64 = "node.size", bytes(4096, 1 << 40), "4M", Cluster, Restart;
            /// Which.
            kind: String = "node.kind", Kind::Choice(|| alloc::vec!["a".into(), "b".into()]), "a", Process, Restart;
        }
    }

    #[test]
    fn keys_are_read_shown_and_refused_by_their_rows() {
        let mut keys = Node::default();
        assert_eq!((keys.count, keys.size, &*keys.kind), (3, 4 << 20, "a"));
        assert_eq!(keys.put("node.count", "9"), Ok(true));
        assert_eq!(keys.put("node.other", "9"), Ok(false));
        assert_eq!((keys.get("node.count"), keys.get("node.size")), (Some("9".into()), Some("4M".into())));
        let refused = |keys: &mut Node, key: &str, text: &str| keys.put(key, text).unwrap_err().to_string();
        assert_eq!(
            refused(&mut keys, "node.count", "10"),
            "node.count = 10: out of range: write a number, 1 to 9 things"
        );
        assert_eq!(refused(&mut keys, "node.kind", "c"), "node.kind = c: write one of a, b");
        assert_eq!(keys, Node { count: 9, ..Node::default() });
        let unknown = Refused::unknown("node.cuont", Node::ROWS.iter()).to_string();
        assert_eq!(unknown, "unknown key 'node.cuont': did you mean 'node.count'?");
    }

    #[test]
    fn a_parameter_takes_the_range_of_its_key() {
        assert_eq!(Node::read("node.count", "4"), Ok(4u64));
        assert_eq!(Node::read::<u64>("node.count", "0").unwrap_err(), "out of range: write a number, 1 to 9 things");
        assert_eq!((Node::read_mib("node.count", "2"), Node::read_mib("node.count", "2M")), (Ok(2 << 20), Ok(2 << 20)));
        assert!(Node::read_mib("node.count", "10").is_err() && Node::read_mib("node.count", "1K").is_err());
        assert_eq!(Node::read_mib("node.size", "4"), Ok(4 << 20));
    }

    #[test]
    fn what_can_be_set_has_what_sets_it() {
        let tells: Parameter<u64> = Parameter::new("node.x.count".into(), u64::to_string);
        assert_eq!((tells.value(&7), tells.is_writable(), tells.set(&7, "1")), ("7".into(), false, None));
        let sets = tells.settable(|_, text| switch(text).map(drop));
        assert_eq!(sets.set(&7, "on"), Some(Ok(())));
        assert!(sets.is_writable() && sets.set(&7, "maybe").is_some_and(|r| r.is_err()));
    }
}
