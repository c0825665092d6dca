//! The room's configuration: one table from which the struct, the parser and the reference page come.
use alloc::string::{String, ToString};
use core::fmt;
use types::{KIB, MIB};

/// One row of the configuration table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyDoc {
    /// Key, without the room's prefix `readahead.`.
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
        /// What was given, in the key's unit.
        value: u64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::UnknownKey(key) => {
                write!(f, "unknown key 'readahead.{key}': known are")?;
                Config::KEYS.iter().try_for_each(|k| write!(f, " {}", k.key))
            }
            ConfigError::NotANumber { key, value } => write!(f, "readahead.{key} = '{value}' is not a whole number"),
            ConfigError::OutOfRange { key, value } => {
                write!(f, "readahead.{} = {value} is out of range: use {} to {}", key.key, key.min, key.max)
            }
        }
    }
}
impl core::error::Error for ConfigError {}

macro_rules! config {
    ($($(#[doc = $doc:literal])+ $key:ident [$alias:literal] = $default:expr, $min:expr, $max:expr;)*) => {
        /// Configuration of readahead. Live: a file takes it up at its next open or [`crate::FileReadahead::new`].
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Config { $($(#[doc = $doc])+ pub $key: u64,)* }
        impl Default for Config {
            fn default() -> Self { Config { $($key: $default,)* } }
        }
        impl Config {
            /// The table: every key with default, range, alias and meaning.
            pub const KEYS: &'static [KeyDoc] = &[$(KeyDoc {
                key: stringify!($key), default: $default, min: $min, max: $max, alias_mb: $alias, meaning: concat!($($doc),+),
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
    /// Bytes that all files of one client shard may have prefetched and unused. 0 switches readahead off.
    budget_bytes_max ["max_read_ahead_mb"] = 256 * MIB, 0, 1 << 40;
    /// Bytes that one file may have prefetched and unused. 0 switches readahead off.
    window_bytes_max ["max_read_ahead_per_file_mb"] = 64 * MIB, 0, 1 << 36;
    /// Files up to this size are fetched whole, on a first miss at offset 0 or on a second miss anywhere.
    whole_file_bytes_max ["max_read_ahead_whole_mb"] = 2 * MIB, 0, 1 << 30;
    /// Smallest first window of a stream.
    window_bytes_initial_min [""] = 64 * KIB, 4 * KIB, 1 << 30;
    /// Largest first window of a stream (it is 4 times the first read, within these bounds). Larger: faster start, more waste.
    window_bytes_initial_max [""] = MIB, 4 * KIB, 1 << 30;
    /// The window grows to this by itself, and beyond it (to the file's maximum) only when readers had to wait.
    window_bytes_unforced_max [""] = 32 * MIB, 64 * KIB, 1 << 36;
    /// Bytes beyond a miss that the reader fetches along with it and waits for.
    sync_bytes_max [""] = MIB, 0, 64 * MIB;
    /// A file may prefetch this many bytes before any use ...
    waste_allowance_bytes [""] = 4 * MIB, 64 * KIB, 1 << 30;
    /// ... and this share, in percent, of the bytes it used: the bound on bytes prefetched per bytes used. 400 = 4 to 1.
    waste_percent_max [""] = 400, 100, 100_000;
    /// Records that a stride is prefetched ahead.
    records_ahead_max [""] = 64, 1, 4096;
    /// Window of the `miss` baseline.
    miss_window_bytes [""] = 2 * MIB, 4 * KIB, 1 << 30;
    /// Window of the `ondemand` baseline.
    ondemand_window_bytes [""] = 40 * MIB, 4 * KIB, 1 << 30;
}

impl Config {
    /// Sets a key from text; Lustre's names are accepted and count MiB.
    ///
    /// # Errors
    /// [`ConfigError`]; the configuration stays as it was.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        let by_alias = |k: &&KeyDoc| !k.alias_mb.is_empty() && k.alias_mb == key;
        let row = Self::KEYS.iter().find(|k| k.key == key || by_alias(k));
        let row = *row.ok_or_else(|| ConfigError::UnknownKey(key.to_string()))?;
        let number: u64 =
            text.trim().parse().map_err(|_| ConfigError::NotANumber { key: row.key, value: text.to_string() })?;
        let value = if row.key == key { number } else { number.saturating_mul(MIB) };
        if value < row.min || value > row.max {
            return Err(ConfigError::OutOfRange { key: row, value });
        }
        *self.slot(row.key).expect("the table and the struct come from one macro") = value;
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
    fn lustres_names_count_mib() {
        let mut c = Config::default();
        c.set("max_read_ahead_mb", "128").unwrap();
        c.set("max_read_ahead_per_file_mb", "0").unwrap();
        c.set("max_read_ahead_whole_mb", "8").unwrap();
        assert_eq!((c.budget_bytes_max, c.window_bytes_max, c.whole_file_bytes_max), (128 * MIB, 0, 8 * MIB));
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused_by_name() {
        let mut c = Config::default();
        assert!(c.set("window", "1").unwrap_err().to_string().contains("window_bytes_max"));
        assert!(c.set("", "1").is_err() && c.set("sync_bytes_max", "1M").is_err());
        let text = c.set("waste_percent_max", "99").unwrap_err().to_string();
        assert_eq!(text, "readahead.waste_percent_max = 99 is out of range: use 100 to 100000");
        assert_eq!(c, Config::default());
    }
}
