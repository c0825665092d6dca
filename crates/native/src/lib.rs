//! The native path: a program's reads and writes of an open file go to the mount's daemon through rings in shared memory
//! instead of through the kernel. Why it is as it is: `docs/decisions/0006-native-path.md`.
//!
//! ```text
//!  program                                     kernel                         daemon (mount::native)
//!  open(2)             ───────────────────────► checks, OPEN ───────────────► the open file, known by its handle
//!  ioctl(fd, OFFER)    ───────────────────────► IOCTL ──────────────────────► a token for this open file, once; the socket's place
//!  connect(2)          ── once per process and mount, SO_PEERCRED on both sides ► memory, the daemon's eventfd
//!  [`ring`] BIND token ══ shared memory ════════════════════════════════════► a number for the open file on this connection
//!  [`ring`] READ WRITE SYNC ═════════════════════════════════════════════════► client.read, client.write: as FUSE handlers do
//!  close(2)            ───────────────────────► RELEASE ────────────────────► the number is good for nothing any more
//! ```
//! The kernel's descriptor is the right to the file: whoever has it passed every check of open(2), and its end, whatever ends
//! it, is the end of the open file. So a program that dies leaves nothing behind, and the daemon judges no path.
//!
//! Code map: [`offer`] the ioctl · [`area`] shared memory · [`ring`] what stands in it · [`pass`] sockets and descriptors ·
//! [`connection`] the program's end of the rings · `bells` its descriptors · [`generation`] forked children · [`lock`] threads that jump away · [`bound`] an open file's number ·
//! [`file`] open files of a program · [`queue`] requests together.
#![warn(missing_docs)]
pub mod area;
pub mod bells;
pub mod bound;
pub mod connection;
pub mod file;
pub mod generation;
pub mod lock;
pub mod offer;
pub mod pass;
pub mod queue;
pub mod ring;

pub use bound::Bound;
pub use connection::{Connection, Lent, Room, Ticket};
pub use file::{File, Pending};
