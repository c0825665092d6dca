//! One OST's store on models: elevator and disk. What stands before it, scheduler head and dispatch window, is the very
//! type that servers run ([`nrs::Pipeline`]).
//!
//! It knows no event queue. Time is an argument.
mod store;

pub use store::{SIZE_CLASSES, SimStore, StoreStats, size_class, size_class_name};
