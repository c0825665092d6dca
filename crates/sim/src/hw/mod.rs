//! Hardware models: disks, block-device elevators, block allocators. Every number states its reason beside it.
//!
//! Pure state machines: time is an argument, randomness is an argument, nothing here schedules events.
mod alloc;
mod disk;
mod elevator;
mod raid;

pub use alloc::{AllocKind, Allocator, Region, RegionMap};
pub use disk::{Access, DiskModel, DiskProfile, Started, profile_names};
pub use elevator::{BlockRequest, Elevator, ElevatorConfig, ElevatorKind, NO_PIECE, Piece, Pieces};
pub use raid::WriteBackCache;
