//! `stria bench` and `stria survey`: how much many clients get together, and how much one layer gives alone.
//!
//! Pure: [`plan`] (who accesses what in which order), [`shuffle`], [`pattern`] (what is written), [`clock`], [`series`],
//! [`stats`], [`report`], [`picture`]. Acting: [`rank`] (one task), [`agent`], [`crew`] (agents as processes), [`control`],
//! [`survey`]. The `stria` binary mounts [`cli`].
//! Source: paper 002 (its aggregate bandwidth tool), IOR, and the surveys of Lustre's iokit.
pub mod agent;
pub mod cli;
pub mod clock;
pub mod control;
pub mod crew;
pub mod failure;
pub mod message;
pub mod os;
pub mod pattern;
pub mod picture;
pub mod plan;
pub mod rank;
pub mod report;
pub mod series;
pub mod shuffle;
pub mod stats;
pub mod survey;

pub use failure::{Failed, Outcome};
