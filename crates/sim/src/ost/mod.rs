//! One OST's request pipeline as a synchronous state machine: scheduler head, dispatch window, simulated store.
//!
//! The light worlds and a full node drive the same types; none of them knows an event queue. Time is an argument.
mod store;
mod window;

pub use store::{SIZE_CLASSES, SimStore, StoreStats, size_class, size_class_name};
pub use window::DispatchWindow;
