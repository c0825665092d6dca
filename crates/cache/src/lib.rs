//! The cache room: page frames (the mechanism's memory) and the policies that say which clean frame leaves first.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod frames;
