//! The room's configuration: one table from which the struct, the parser and the reference page come.
use alloc::string::{String, ToString};
use core::fmt;

/// One row of a configuration table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyDoc {
    /// Key, without the room's prefix `advice.`.
    pub key: &'static str,
    /// Value when nothing is said.
    pub default: u64,
    /// Smallest legal value.
    pub min: u64,
    /// Largest legal value.
    pub max: u64,
    /// What it does, with its unit.
    pub meaning: &'static str,
}

/// Why a value is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// No such key.
    UnknownKey(String),
    /// Not a number.
    NotANumber {
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
    },
    /// Outside the key's range.
    OutOfRange {
        /// The key's row.
        key: KeyDoc,
        /// What was given.
        value: u64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::UnknownKey(key) => {
                write!(f, "unknown key 'advice.{key}': known are")?;
                Config::KEYS.iter().try_for_each(|k| write!(f, " {}", k.key))
            }
            ConfigError::NotANumber { key, value } => write!(f, "advice.{key} = '{value}' is not a whole number"),
            ConfigError::OutOfRange { key, value } => {
                write!(f, "advice.{} = {value} is out of range: use {} to {}", key.key, key.min, key.max)
            }
        }
    }
}
impl core::error::Error for ConfigError {}

macro_rules! config {
    ($($(#[doc = $doc:literal])+ $key:ident = $default:literal, $min:literal ..= $max:literal;)*) => {
        /// Configuration of the advice room. Live: takes effect at the next advice.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Config { $($(#[doc = $doc])+ pub $key: u64,)* }
        impl Default for Config {
            fn default() -> Self { Config { $($key: $default,)* } }
        }
        impl Config {
            /// The table: every key with default, range and meaning.
            pub const KEYS: &'static [KeyDoc] = &[$(KeyDoc {
                key: stringify!($key), default: $default, min: $min, max: $max, meaning: concat!($($doc),+),
            },)*];
            /// A key's value.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<u64> {
                match key { $(stringify!($key) => Some(self.$key),)* _ => None }
            }
            fn slot(&mut self, key: &str) -> Option<&mut u64> {
                match key { $(stringify!($key) => Some(&mut self.$key),)* _ => None }
            }
        }
    };
}

config! {
    /// Percent of a tier that advised bytes may hold together; the rest stays for reads nobody advised.
    advised_percent_max = 80, 0..=100;
    /// Percent of a tier that one project's advised bytes may hold, unless the project has a budget of its own.
    project_percent_max = 50, 0..=100;
    /// Smallest part in bytes of an extent that is placed when the whole does not fit.
    part_bytes_min = 1048576, 4096..=1073741824;
    /// Bytes of one piece of a background prefetch. Larger: fewer seeks, longer waits for others.
    piece_bytes = 8388608, 65536..=67108864;
    /// Pieces of background prefetch in flight at a time, per object store.
    pieces_in_flight_max = 2, 1..=64;
    /// Advised extents remembered at most; further advice is refused.
    extents_max = 1048576, 1..=16777216;
}

impl Config {
    /// Sets a key from text.
    ///
    /// # Errors
    /// [`ConfigError`]; the configuration stays as it was.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        let row = *Self::KEYS.iter().find(|k| k.key == key).ok_or_else(|| ConfigError::UnknownKey(key.to_string()))?;
        let value: u64 =
            text.trim().parse().map_err(|_| ConfigError::NotANumber { key: row.key, value: text.to_string() })?;
        if value < row.min || value > row.max {
            return Err(ConfigError::OutOfRange { key: row, value });
        }
        *self.slot(key).expect("the table and the struct come from one macro") = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_in_its_range_and_every_key_can_be_set() {
        for k in Config::KEYS {
            assert!(k.min <= k.default && k.default <= k.max, "{}", k.key);
            let mut c = Config::default();
            assert_eq!(c.get(k.key), Some(k.default));
            c.set(k.key, &k.max.to_string()).unwrap();
            assert_eq!(c.get(k.key), Some(k.max));
        }
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused_by_name() {
        let mut c = Config::default();
        let text = c.set("advised_percent", "1").unwrap_err().to_string();
        assert!(text.contains("'advice.advised_percent'") && text.contains("advised_percent_max"), "{text}");
        let text = c.set("advised_percent_max", "101").unwrap_err().to_string();
        assert_eq!(text, "advice.advised_percent_max = 101 is out of range: use 0 to 100");
        assert!(c.set("part_bytes_min", "x").is_err());
        assert_eq!(c, Config::default());
    }
}
