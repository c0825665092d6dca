//! What tests of formats share; no program links it.
//!
//! A format is held in place from two sides: [`golden`] files say which bytes it has, and [`fuzz`] shows that no other
//! bytes make a decoder panic, hang or allocate more than the input justifies ([`memory`]).
//! How the corpus is kept and why there is no engine from outside: `docs/decisions/0003-own-fuzzing.md`.
pub mod fuzz;
pub mod golden;
pub mod memory;
mod mutate;
