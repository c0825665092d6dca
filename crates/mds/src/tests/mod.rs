//! Tests of the whole node in a world of their own.
mod harness;
mod namespace;
mod world;
