//! Models of storage devices: one table of profiles, disks, block-device elevators, block allocators. Every number states
//! its reason beside it.
//!
//! Pure state machines: time is an argument, randomness is an argument, nothing here waits. The emulated OST lets real or
//! virtual time pass by them, the simulator its event queue; so a device of a name is one device in both.
//!
//! Code map: [`profile`](DeviceProfile) (the table, and keys that change a device) · [`DiskModel`] (service times) ·
//! [`WriteBackCache`] (a controller's) · [`Array`] (RAID 5, 6 and 10) · [`Elevator`] (what comes next, what is merged) · [`Device`] (elevator before disk)
//! · [`Allocator`] (where an object's bytes lie) · [`Places`] (where those of requests seen lie) · [`Fit`] (a disk's
//! parameters from what requests took).
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod allocator;
mod array;
mod device;
mod disk;
mod elevator;
mod fit;
mod places;
mod profile;
mod raid;

pub use allocator::{AllocKind, Allocator, Region, RegionMap};
pub use array::{Array, Level, Part, Work};
pub use device::{Device, DeviceStats, SIZE_CLASSES, size_class, size_class_name};
pub use disk::{Access, DiskModel, Started};
pub use elevator::{BlockRequest, Elevator, ElevatorConfig, ElevatorKind, NO_PIECE, Piece, Pieces};
pub use fit::{Fit, Observation, Served, fit, fit_jumps, observations};
pub use places::{Asked, Places};
pub use profile::{DeviceProfile, KEYS, profile_names};
pub use raid::WriteBackCache;
