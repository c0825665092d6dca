//! A FUSE kernel as a model, in simulated time: it drives the very `mount` that serves real kernels, over the bytes of the
//! protocol ([`fuse::Pipe`]), in whole simulated clusters, so that what kernel and daemon do to each other is found by seed.
//!
//! The kernel: [`kernel`] (tables, notifications, what happens by itself), [`conn`] (requests, the background queue,
//! interrupts), [`inode`] (what is known of one, the gate of write-back), [`pages`] (page cache), [`file`] and [`names`]
//! (system calls), `aio` (asynchronous ones). On top: [`run`] makes a cluster with kernels and checks it; its programs are [`turns`] (one operation at
//! a time over all mounts, compared with an exact model), [`cells`] (all at once, every cell written by one program), and
//! [`churn`] (everything at once: nothing may hang, nothing may be damaged).
//!
//! Source: the FUSE protocol, its documentation, and the behaviour of Linux 6.18 as published and measured. Modelled as
//! there: a lookup counts; what an answer says is believed for as long as it says, and not at all when the inode changed
//! since the question; SETATTR of a size runs with write-back shut out and the inode's lock held; a fallocate that clears
//! a range writes it back first; an invalidation locks each page, waits for its write-back and launders it; reads past the
//! page cache write the range back first, such writes drop it before, and behind it again if something was written, asynchronous
//! ones when they have been sent; asynchronous ones go in line, and where one fails that was to make the file longer the kernel sets
//! the size that it believes in; SEEK_DATA writes nothing back; a first
//! mapping of a file drops its pages; a short READ of pages lowers the size. Differs: no huge pages, no write-back cache (never negotiated), no writes
//! through the page cache (files opened for writing are opened for direct I/O), no locks of programs.
pub mod across;
mod aio;
pub mod beside;
pub mod cells;
pub mod churn;
pub mod conn;
mod copy;
pub mod cross;
mod faults;
pub mod file;
pub mod inode;
pub mod kernel;
mod lock;
pub mod looks;
pub mod names;
pub mod pages;
pub mod planted;
pub mod run;
pub mod torture;
pub mod turns;

pub use conn::{Caller, Delays};
pub use file::{File, Mapping};
pub use kernel::{Kernel, KernelConfig};
pub use run::{Report, RunConfig, Work, run};
