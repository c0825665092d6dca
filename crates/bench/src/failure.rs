//! How a measurement fails: a sentence, and an errno value that becomes the exit code.
use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What the user reads.
    pub text: String,
    /// The errno value next to it.
    pub errno: i32,
}

/// What measurements return.
pub type Outcome<T = ()> = Result<T, Failed>;

impl Failed {
    /// With an errno value.
    #[must_use]
    pub fn new(text: impl Into<String>, errno: i32) -> Failed {
        Failed { text: text.into(), errno }
    }
    /// What the user wrote cannot be right.
    #[must_use]
    pub fn usage(text: impl Into<String>) -> Failed {
        Failed::new(text, libc::EINVAL)
    }
    /// A system call on a path failed.
    #[must_use]
    pub fn io(what: &str, path: &Path, e: &io::Error) -> Failed {
        Failed::new(format!("{what} {}: {e}", path.display()), e.raw_os_error().unwrap_or(libc::EIO))
    }
    /// The same, with the words of who says it in front.
    #[must_use]
    pub fn by(self, who: &str) -> Failed {
        Failed { text: format!("{who}: {}", self.text), ..self }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
impl std::error::Error for Failed {}
