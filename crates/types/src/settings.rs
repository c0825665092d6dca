//! Configuration tables of whole numbers: one table gives the struct, its parser, its errors and its reference rows.
//!
//! [`config_table!`](crate::config_table) declares one. What a key means is the declaring crate's affair.
use crate::MIB;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// The known word that `word` is probably meant to be; none when all are too different.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, near) = known.map(|k| (distance(word, k), k)).min()?;
    (distance <= 2 + word.len() / 4).then_some(near)
}

/// Edits (insert, delete, replace) between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replace = corner + usize::from(ca != *cb);
            corner = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

/// One row of a configuration table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyDoc {
    /// Key, without the prefix of its table.
    pub key: &'static str,
    /// Value when nothing is said.
    pub default: u64,
    /// Smallest legal value.
    pub min: u64,
    /// Largest legal value.
    pub max: u64,
    /// Lustre's name for it, whose values count MiB; empty when there is none.
    pub alias_mb: &'static str,
    /// What it does, with its unit.
    pub meaning: &'static str,
}

/// Why a value is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// No such key.
    UnknownKey {
        /// The table's prefix.
        table: &'static str,
        /// What was given.
        key: String,
        /// The keys there are.
        known: &'static [KeyDoc],
    },
    /// Not a number.
    NotANumber {
        /// The table's prefix.
        table: &'static str,
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
    },
    /// Outside the key's range.
    OutOfRange {
        /// The table's prefix.
        table: &'static str,
        /// The key's row.
        key: KeyDoc,
        /// What was given, in the key's unit.
        value: u64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::UnknownKey { table, key, known } => {
                write!(f, "unknown key '{table}.{key}': known are")?;
                known.iter().try_for_each(|k| write!(f, " {}", k.key))
            }
            ConfigError::NotANumber { table, key, value } => {
                write!(f, "{table}.{key} = '{value}' is not a whole number")
            }
            ConfigError::OutOfRange { table, key, value } => {
                write!(f, "{table}.{} = {value} is out of range: use {} to {}", key.key, key.min, key.max)
            }
        }
    }
}
impl core::error::Error for ConfigError {}

/// Whether `min <= default <= max`.
#[must_use]
pub const fn within(min: u64, default: u64, max: u64) -> bool {
    min <= default && default <= max
}

/// The row and the value that `key = text` means; Lustre's names are accepted and count MiB.
///
/// # Errors
/// [`ConfigError`].
pub fn parse(
    table: &'static str,
    rows: &'static [KeyDoc],
    key: &str,
    text: &str,
) -> Result<(&'static str, u64), ConfigError> {
    let by_alias = |k: &&KeyDoc| !k.alias_mb.is_empty() && k.alias_mb == key;
    let row = rows.iter().find(|k| k.key == key || by_alias(k));
    let row = *row.ok_or_else(|| ConfigError::UnknownKey { table, key: key.to_string(), known: rows })?;
    let number: Result<u64, _> = text.trim().parse();
    let number = number.map_err(|_| ConfigError::NotANumber { table, key: row.key, value: text.to_string() })?;
    let value = if row.key == key { number } else { number.saturating_mul(MIB) };
    if !(row.min..=row.max).contains(&value) {
        return Err(ConfigError::OutOfRange { table, key: row, value });
    }
    Ok((row.key, value))
}

/// The chapter "Keys" of a reference page, in Markdown; with a column for Lustre's names if there are any.
#[must_use]
pub fn keys_markdown(table: &str, rows: &[KeyDoc]) -> String {
    let aliased = rows.iter().any(|k| !k.alias_mb.is_empty());
    let mut out = String::from("\n## Keys\n\n");
    out += if aliased {
        "Lustre's names count MiB.\n\n| key | Lustre's name | default | range | meaning |\n|---|---|---|---|---|\n"
    } else {
        "| key | default | range | meaning |\n|---|---|---|---|\n"
    };
    for k in rows {
        let alias = match (aliased, k.alias_mb) {
            (false, _) => String::new(),
            (true, "") => "  |".to_string(),
            (true, name) => format!(" `{name}` |"),
        };
        let (key, meaning) = (k.key, k.meaning.trim());
        out += &format!("| `{table}.{key}` |{alias} {} | {}..={} | {meaning} |\n", k.default, k.min, k.max);
    }
    out
}

/// The chapter "Policies" of a reference page, in Markdown, from names and summaries; `default` is marked.
#[must_use]
pub fn policies_markdown<'a>(title: &str, default: &str, policies: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = format!("## {title}\n\n| name | what it does |\n|---|---|\n");
    for (name, summary) in policies {
        let mark = if name == default { " (default)" } else { "" };
        out += &format!("| `{name}`{mark} | {summary} |\n");
    }
    out
}

/// Declares a configuration: `struct Config in "advice" { /// Meaning. key ["alias_mb"] = default, min, max; ... }`, the
/// alias may be left out. Gives the struct with one public `u64` per key, its `Default`, `KEYS`, `get` and `set`. A
/// default outside its range does not compile.
#[macro_export]
macro_rules! config_table {
    ($(#[doc = $about:literal])+ struct $name:ident in $table:literal {
        $($(#[doc = $doc:literal])+ $key:ident $([$alias:literal])? = $default:expr, $min:expr, $max:expr;)*
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[doc = $doc])+ pub $key: u64,)* }
        impl Default for $name {
            fn default() -> Self { $name { $($key: $default,)* } }
        }
        const _: () = { $(assert!($crate::settings::within($min, $default, $max), stringify!($key));)* };
        impl $name {
            /// The table's prefix in configuration files and messages.
            pub const TABLE: &'static str = $table;
            /// The table: every key with default, range and meaning.
            pub const KEYS: &'static [$crate::settings::KeyDoc] = &[$($crate::settings::KeyDoc {
                key: stringify!($key), default: $default, min: $min, max: $max,
                alias_mb: concat!($($alias)?), meaning: concat!($($doc),+),
            },)*];
            /// A key's value.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<u64> {
                match key { $(stringify!($key) => Some(self.$key),)* _ => None }
            }
            /// Sets a key from text; Lustre's names are accepted and count MiB.
            ///
            /// # Errors
            /// [`ConfigError`]($crate::settings::ConfigError); the configuration stays as it was.
            pub fn set(&mut self, key: &str, text: &str) -> Result<(), $crate::settings::ConfigError> {
                let (key, value) = $crate::settings::parse($table, Self::KEYS, key, text)?;
                match key { $(stringify!($key) => self.$key = value,)* _ => {} }
                Ok(())
            }
            /// Every key with its value, as text.
            pub fn texts(&self) -> impl Iterator<Item = (&'static str, $crate::alloc_string::String)> {
                let values = [$(self.$key),*];
                Self::KEYS.iter().zip(values).map(|(k, v)| (k.key, $crate::alloc_string::ToString::to_string(&v)))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    crate::config_table! {
        /// A table of a room.
        struct Config in "room" {
            /// Pages.
            pages ["max_pages_mb"] = 2 * MIB, 0, 8 * MIB;
            /// Percent.
            share = 17, 0, 100;
        }
    }

    #[test]
    fn a_table_gives_defaults_values_and_the_reference() {
        let mut c = Config::default();
        assert_eq!((c.get("pages"), c.get("share"), c.get("x")), (Some(2 * MIB), Some(17), None));
        for k in Config::KEYS {
            c.set(k.key, &k.max.to_string()).unwrap();
            assert_eq!(c.get(k.key), Some(k.max));
        }
        let texts: std::vec::Vec<_> = c.texts().collect();
        assert_eq!(texts, [("pages", "8388608".to_string()), ("share", "100".to_string())]);
        let page = keys_markdown(Config::TABLE, Config::KEYS);
        assert!(page.contains("| `room.pages` | `max_pages_mb` | 2097152 | 0..=8388608 | Pages. |"), "{page}");
        assert!(page.contains("| `room.share` |  | 17 | 0..=100 | Percent. |"), "{page}");
        assert!(keys_markdown("room", &Config::KEYS[1..]).contains("| `room.share` | 17 | 0..=100 |"));
    }

    #[test]
    fn lustres_names_count_mib() {
        let mut c = Config::default();
        c.set("max_pages_mb", " 3 ").unwrap();
        assert_eq!(c.pages, 3 * MIB);
        assert!(matches!(c.set("max_pages_mb", "9"), Err(ConfigError::OutOfRange { value, .. }) if value == 9 * MIB));
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused_by_name_and_change_nothing() {
        let mut c = Config::default();
        let mut refused = |key, text| c.set(key, text).unwrap_err().to_string();
        assert_eq!(refused("sare", "1"), "unknown key 'room.sare': known are pages share");
        assert_eq!(refused("", "1"), "unknown key 'room.': known are pages share");
        assert_eq!(refused("share", "1M"), "room.share = '1M' is not a whole number");
        assert_eq!(refused("share", "101"), "room.share = 101 is out of range: use 0 to 100");
        assert_eq!(c, Config::default());
    }
}
