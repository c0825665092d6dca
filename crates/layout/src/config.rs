//! The room's configuration: one table from which the struct, the parser and the reference page come.
use alloc::string::{String, ToString};
use core::fmt;

/// One row of a configuration table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyDoc {
    /// Key, without the room's prefix `layout.`.
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
                write!(f, "unknown key 'layout.{key}': known are")?;
                AllocConfig::KEYS.iter().try_for_each(|k| write!(f, " {}", k.key))
            }
            ConfigError::NotANumber { key, value } => write!(f, "layout.{key} = '{value}' is not a whole number"),
            ConfigError::OutOfRange { key, value } => {
                write!(f, "layout.{} = {value} is out of range: use {} to {}", key.key, key.min, key.max)
            }
        }
    }
}
impl core::error::Error for ConfigError {}

macro_rules! config {
    ($($(#[doc = $doc:literal])+ $key:ident = $default:literal, $min:literal ..= $max:literal;)*) => {
        /// Configuration of the OST allocators. Live: takes effect at the next create.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct AllocConfig { $($(#[doc = $doc])+ pub $key: u64,)* }
        impl Default for AllocConfig {
            fn default() -> Self { AllocConfig { $($key: $default,)* } }
        }
        impl AllocConfig {
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
    /// Percent by which the emptiest and the fullest OST's free space may differ before `auto` leaves round robin.
    balanced_within_percent = 17, 0..=100;
    /// An OST whose free space is at most this share of its size, in thousandths, gets no new objects.
    full_permille = 1, 0..=500;
}

impl AllocConfig {
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
        for k in AllocConfig::KEYS {
            assert!(k.min <= k.default && k.default <= k.max, "{}", k.key);
            let mut c = AllocConfig::default();
            assert_eq!(c.get(k.key), Some(k.default));
            c.set(k.key, &k.max.to_string()).unwrap();
            assert_eq!(c.get(k.key), Some(k.max));
        }
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused_by_name() {
        let mut c = AllocConfig::default();
        let text = c.set("ful_permille", "1").unwrap_err().to_string();
        assert!(text.contains("'layout.ful_permille'") && text.contains("full_permille"), "{text}");
        assert_eq!(
            c.set("full_permille", "501").unwrap_err().to_string(),
            "layout.full_permille = 501 is out of range: use 0 to 500"
        );
        assert!(c.set("full_permille", "x").is_err());
        assert_eq!(c, AllocConfig::default());
    }
}
