//! Pool names: 1 to 15 characters, a value type so that it can be a key.
use alloc::string::String;
use core::fmt;

/// Longest pool name: 15 bytes (16 with the NUL that the xattr stores).
pub const POOL_NAME_BYTES_MAX: usize = 15;

/// The name of an OST pool: 1 to 15 letters, digits, `_`, `-`. Never one of the words `ignore`, `inherit`, `none`,
/// which are choices and not pools.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName {
    bytes: [u8; POOL_NAME_BYTES_MAX],
    len: u8,
}

/// Why a text is not a pool name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// No character at all.
    Empty,
    /// More than 15 bytes; holds the name's length.
    TooLong(usize),
    /// A byte that is neither letter, digit, `_` nor `-`.
    BadByte(u8),
    /// `ignore`, `inherit` or `none`.
    Reserved(String),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Empty => write!(f, "a pool name is empty: give 1 to 15 letters, digits, '_' or '-'"),
            PoolError::TooLong(n) => write!(f, "a pool name has {n} characters: use at most {POOL_NAME_BYTES_MAX}"),
            PoolError::BadByte(b) => {
                let c = char::from(*b).escape_default();
                write!(f, "a pool name contains '{c}': use letters, digits, '_' and '-'")
            }
            PoolError::Reserved(name) => write!(f, "'{name}' is a reserved word and no pool: choose another name"),
        }
    }
}
impl core::error::Error for PoolError {}

impl PoolName {
    /// Parses a pool's name.
    ///
    /// # Errors
    /// [`PoolError`], one variant per rule.
    pub fn parse(name: &str) -> Result<PoolName, PoolError> {
        let b = name.as_bytes();
        if b.is_empty() {
            return Err(PoolError::Empty);
        }
        if b.len() > POOL_NAME_BYTES_MAX {
            return Err(PoolError::TooLong(b.len()));
        }
        if let Some(bad) = b.iter().find(|c| !c.is_ascii_alphanumeric() && **c != b'_' && **c != b'-') {
            return Err(PoolError::BadByte(*bad));
        }
        if matches!(name, "ignore" | "inherit" | "none") {
            return Err(PoolError::Reserved(name.into()));
        }
        let mut bytes = [0; POOL_NAME_BYTES_MAX];
        bytes[..b.len()].copy_from_slice(b);
        Ok(PoolName { bytes, len: b.len() as u8 })
    }
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("parse accepted only ASCII")
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
impl fmt::Debug for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_name_has_1_to_15_plain_characters() {
        assert_eq!(PoolName::parse("flash").unwrap().as_str(), "flash");
        assert_eq!(PoolName::parse("a23456789012345").unwrap().as_str().len(), 15);
        assert_eq!(PoolName::parse(""), Err(PoolError::Empty));
        assert_eq!(PoolName::parse("a234567890123456"), Err(PoolError::TooLong(16)));
        assert_eq!(PoolName::parse("a.b"), Err(PoolError::BadByte(b'.')));
        assert_eq!(PoolName::parse("none"), Err(PoolError::Reserved("none".into())));
    }
}
