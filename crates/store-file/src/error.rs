//! Why a store cannot be made or opened: each with the value and the remedy.
use std::fmt;
use std::path::PathBuf;

/// Why a store cannot be made or opened.
#[derive(Debug)]
pub enum OpenError {
    /// There is no store.
    Missing(PathBuf),
    /// There is one already.
    Exists(PathBuf),
    /// Another process has it open.
    InUse(PathBuf),
    /// It belongs to another cluster.
    OtherCluster {
        /// Where.
        dir: PathBuf,
        /// Cluster id in the store.
        found: u64,
        /// Cluster id asked for.
        wanted: u64,
    },
    /// A newer program wrote it.
    NewerFormat {
        /// Where.
        dir: PathBuf,
        /// Version in the store.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// Its contents contradict themselves.
    Corrupt(PathBuf, String),
    /// A value that a store cannot have.
    Invalid(String),
    /// The file system said no.
    Io(PathBuf, std::io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Missing(dir) => {
                write!(f, "{} holds no object store: make one with 'stria mkfs'", dir.display())
            }
            OpenError::Exists(dir) => {
                write!(f, "{} holds an object store already: remove it first, or use another directory", dir.display())
            }
            OpenError::InUse(dir) => write!(f, "{} is in use by another process: stop it first", dir.display()),
            OpenError::OtherCluster { dir, found, wanted } => write!(
                f,
                "{} belongs to cluster {found:016x}, not to {wanted:016x}: use the directory that was made for this cluster",
                dir.display()
            ),
            OpenError::NewerFormat { dir, found, known } => write!(
                f,
                "{} has store format {found}, this program knows up to {known}: use a newer program",
                dir.display()
            ),
            OpenError::Corrupt(dir, what) => write!(f, "{} is damaged: {what}; run 'stria fsck'", dir.display()),
            OpenError::Invalid(what) => f.write_str(what),
            OpenError::Io(path, e) => write!(f, "{}: {e}", path.display()),
        }
    }
}
impl std::error::Error for OpenError {}
