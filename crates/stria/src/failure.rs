//! How a command fails: a sentence on stderr and an exit code that is an errno value where there is one.
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    text: String,
    code: u8,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// What the user wrote cannot be right (exit code 22, EINVAL).
    #[must_use]
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), code: libc::EINVAL as u8 }
    }
    /// With an errno value as exit code.
    #[must_use]
    pub fn with_errno(text: impl Into<String>, errno: i32) -> Failure {
        Failure { text: text.into(), code: u8::try_from(errno).unwrap_or(1).max(1) }
    }
    /// The same, with an exit code that the command's own list has.
    #[must_use]
    pub fn exiting(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
    /// A system call on a path failed.
    #[must_use]
    pub fn io(what: &str, path: &Path, e: &std::io::Error) -> Failure {
        Failure::with_errno(format!("{what} {}: {e}", path.display()), e.raw_os_error().unwrap_or(libc::EIO))
    }
    /// Exit code, 1..=255.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.code
    }
    /// Prints it and gives the exit code.
    pub fn report(&self, program: &str) -> ExitCode {
        if !self.text.is_empty() {
            // Where stderr cannot be written, the exit code says it.
            let _ = writeln!(std::io::stderr(), "{program}: {}", self.text);
        }
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
impl std::error::Error for Failure {}
impl From<cluster::RoleError> for Failure {
    fn from(e: cluster::RoleError) -> Failure {
        Failure::from(e.0)
    }
}
impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure { text, code: 1 }
    }
}
impl From<bench::Failed> for Failure {
    fn from(failed: bench::Failed) -> Failure {
        Failure::with_errno(failed.text, failed.errno)
    }
}
