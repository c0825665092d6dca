//! What a program may expect of a POSIX file system on Linux, checked from outside: several hundred small cases and a
//! random-operation test against a model. Both run on any directory, so that the expectations themselves are checked
//! on a local file system first. Nothing here knows which file system it runs on; where Linux file systems differ, the
//! documented alternatives are accepted and nothing else.
pub mod cases;
pub mod check;
pub mod pair;
pub mod random;
mod ring;
pub mod run;
pub mod sys;

pub use run::{Case, Outcome, run_case};
