//! What is asked of the file system that is tuned.
use std::path::Path;

use bench::Outcome;

/// A parameter of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its full name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Whether it can be set.
    pub writable: bool,
}

/// How a file is striped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Stripes.
    pub count: u32,
    /// Bytes of one.
    pub size: u64,
}

/// Parameters and layouts of a mounted cluster.
pub trait Cluster {
    /// Parameters that match a pattern; none is no error. One name comes more than once when servers differ in its value.
    ///
    /// # Errors
    /// Nobody answers.
    fn params(&self, pattern: &str) -> Outcome<Vec<Param>>;
    /// Sets a parameter.
    ///
    /// # Errors
    /// The value is refused, or nobody answers.
    fn set(&self, name: &str, value: &str) -> Outcome;
    /// Indices of the OSTs.
    ///
    /// # Errors
    /// Nobody answers.
    fn osts(&self) -> Outcome<Vec<u16>>;
    /// Makes a file with `count` stripes (-1: on all OSTs) of `size` bytes.
    ///
    /// # Errors
    /// It exists, or the layout cannot be.
    fn make(&self, path: &Path, count: i64, size: u64) -> Outcome;
    /// How a file is striped.
    ///
    /// # Errors
    /// It has no layout.
    fn stripes(&self, path: &Path) -> Outcome<Stripes>;
    /// The bytes of a directory's own default layout; `None`: it has none.
    ///
    /// # Errors
    /// They cannot be read.
    fn default_layout(&self, dir: &Path) -> Outcome<Option<Vec<u8>>>;
    /// Sets or takes away the default layout of a directory.
    ///
    /// # Errors
    /// They cannot be set.
    fn set_default_layout(&self, dir: &Path, bytes: Option<&[u8]>) -> Outcome;
    /// The bytes of a default layout with another count or size, and everything else as it was.
    ///
    /// # Errors
    /// The old bytes are no layout, or name the OSTs one by one.
    fn with_stripes(&self, old: Option<&[u8]>, count: Option<i64>, size: Option<u64>) -> Outcome<Vec<u8>>;
}
