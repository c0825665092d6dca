//! `stria tune`: which settings serve a workload best on a mount.
//!
//! Pure: [`judge`] (gains and their error bars), [`factor`], [`descent`] (what is measured in which order, and what comes of
//! it), [`workload`], [`report`]. Acting: [`catalogue`] (what a mount lets be set), [`scratch`] and [`bed`] (measuring on the
//! mount), [`simulated`] (the light world of `sim`, for settings of the servers), [`saved`] (old values), [`run`] (all of it).
//! A [`Cluster`] gives parameters and layouts; the `stria` binary has the one of a real mount.
//! Source: paper 002 (which settings matter, and that they are found one after the other).
pub mod bed;
pub mod catalogue;
pub mod cluster;
pub mod descent;
pub mod factor;
pub mod judge;
pub mod report;
pub mod run;
pub mod saved;
pub mod scratch;
pub mod simulated;
pub mod workload;

pub use cluster::{Cluster, Param, Stripes};
