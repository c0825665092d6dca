//! The cases, a module per family of calls.
use crate::run::Case;

/// Defines a family's cases: `suite! { "group"; name(dir) { ... } ... }`. A body may use `?` on any call.
macro_rules! suite {
    ($group:literal; $($(#[$m:meta])* $name:ident($d:ident) $body:block)*) => {
        $($(#[$m])* fn $name($d: &std::path::Path) -> $crate::sys::R { $body; Ok(()) })*
        pub(crate) const CASES: &[$crate::run::Case] =
            &[$($crate::run::Case { group: $group, name: stringify!($name), run: $name }),*];
    };
}

mod acl;
mod alloc;
mod dir;
mod link;
mod lock;
mod mapped;
mod mode;
mod name;
mod node;
mod open;
mod perm;
mod rename;
mod rw;
mod sync;
mod time;
mod truncate;
mod xattr;

pub use mapped::Map;

const FAMILIES: &[&[Case]] = &[
    open::CASES,
    rw::CASES,
    truncate::CASES,
    alloc::CASES,
    sync::CASES,
    mapped::CASES,
    rename::CASES,
    link::CASES,
    dir::CASES,
    node::CASES,
    mode::CASES,
    perm::CASES,
    time::CASES,
    xattr::CASES,
    acl::CASES,
    lock::CASES,
    name::CASES,
];

/// All cases, in order of family.
pub fn all() -> impl Iterator<Item = &'static Case> {
    FAMILIES.iter().flat_map(|f| f.iter())
}
