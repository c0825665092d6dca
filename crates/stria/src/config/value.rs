//! Types of configuration values: reading with the range checked, showing.
use types::{format_size, parse_size};

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

impl Value for u64 {
    fn read(text: &str, kind: &Kind) -> Result<u64, String> {
        let (value, min, max) = match *kind {
            Kind::Bytes { min, max } => (parse_size(text)?, min, max),
            Kind::Number { min, max, .. } => {
                (text.trim().parse().map_err(|_| format!("write a {}", kind.describe()))?, min, max)
            }
            _ => return Err("the table gives this key another type".into()),
        };
        if (min..=max).contains(&value) { Ok(value) } else { Err(format!("out of range: write a {}", kind.describe())) }
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
        let Kind::Signed { min, max, .. } = *kind else { return Err("the table gives this key another type".into()) };
        let value: i64 = text.trim().parse().map_err(|_| format!("write a {}", kind.describe()))?;
        if (min..=max).contains(&value) { Ok(value) } else { Err(format!("out of range: write a {}", kind.describe())) }
    }
    fn show(&self, _: &Kind) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn read(text: &str, _: &Kind) -> Result<bool, String> {
        text.trim().parse().map_err(|_| "write true or false".to_string())
    }
    fn show(&self, _: &Kind) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn read(text: &str, kind: &Kind) -> Result<String, String> {
        match kind {
            Kind::Choice(names) if !names().iter().any(|n| n == text) => Err(format!("write {}", kind.describe())),
            _ => Ok(text.into()),
        }
    }
    fn show(&self, _: &Kind) -> String {
        self.clone()
    }
}
