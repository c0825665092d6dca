//! What requests did at a target: when each arrived, was handed to the store and was done, in a bounded ring that is
//! always on; the file that such records are kept in; figures and tables of them.
//!
//! A recording of a policy's calls (`types::record`) answers whether a policy still decides the same: it begins with a fresh
//! policy and ends where its memory does, for a log with a hole does not replay. A trace answers what happened to requests,
//! whatever decided it, and is worth the most for what has just been: so it is a ring, of records of one size, and costs a
//! few stores a request. An OST and the simulator write the same records; `stria sim replay` gives their arrivals to another
//! policy.
//!
//! Code map: [`Record`] · [`Ring`] · [`Trace`] and [`read`] ([`docs/spec/trace.md`](../../../docs/spec/trace.md)) ·
//! [`told`] what targets tell · [`why`] where time went · [`Waits`] · [`Figures`] and [`Sequentiality`] · [`export`] · [`import`].
pub mod export;
mod figures;
mod file;
pub mod import;
mod record;
mod ring;
pub mod told;
mod waits;
pub mod why;

pub use nrs::JobId;

pub use figures::{Figures, SIZE_CLASSES, Sequentiality, Spread, size_class};
pub use file::{BLOCK_RECORDS_MAX, MAGIC, ReadError, Target, Trace, VERSION, Writer, mend, read};
pub use record::{Came, Flags, RECORD_BYTES, Record, RecordError, micros, op_name, op_named, op_of};
pub use ring::{RING_BYTES, Ring};
pub use waits::Waits;
