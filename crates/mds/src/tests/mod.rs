//! Tests of the whole node in a world of their own.
mod backup;
mod changelog;
mod coherence;
mod crash;
mod earlier;
mod gaps;
mod growth;
mod harness;
mod log;
mod lov;
mod model;
mod namespace;
mod permissions;
mod quota;
mod readdir;
mod repair;
mod twice;
