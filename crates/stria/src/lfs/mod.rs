//! The verbs of `lfs`: they act on paths of a mount through the `lustre.lov` xattr and plain system calls.
//!
//! Syntax, labels and columns are those that existing scripts use (interface facts only).
mod df;
mod fid;
mod find;
mod getopt;
mod getstripe;
mod setstripe;
mod xattr;

pub use df::df;
pub use fid::{fid2path, path2fid};
pub use find::find;
pub use getstripe::getstripe;
pub use setstripe::setstripe;
pub(crate) use xattr::connection_of;
