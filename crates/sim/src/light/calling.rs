//! What programs of clients do that read call by call, and what that costs the client.
//!
//! Decides which call comes next and nothing else: paper 003's orders (one file after the other, strides, backward, several
//! streams, random) and paper 000's mix of fine and coarse accesses. How a call is carried out is the node's.
use cache::Grain;
use types::{Extent, Rng};

/// Streams of [`Order::Interleaved`].
const STREAMS: u64 = 4;
/// Bytes of the file that fine accesses of [`Order::Reuse`] go to.
const HUGE_BYTES: u64 = 64 << 30;

/// How clients' programs read.
#[derive(Clone, PartialEq, Debug)]
pub struct Calling {
    /// Programs of each client.
    pub programs: u32,
    /// Files of each program.
    pub files: u32,
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Files lie on the OSTs in one piece each, and no cache knows them; otherwise the clients write them first.
    pub laid_out: bool,
    /// Without a page cache everything stays that was read; otherwise nothing does.
    pub keeps: bool,
    /// What is read.
    pub order: Order,
    /// Bytes per call, where the order does not say.
    pub io_bytes: u64,
    /// A call goes on in steps of so many bytes, as a large read does.
    pub step_bytes: u64,
    /// All of a call is fetched at its beginning; otherwise a step's part when it is its turn.
    pub fetches_whole: bool,
    /// Largest RPC.
    pub rpc_bytes: u64,
    /// Bytes of a page of the model.
    pub unit_bytes: u64,
    /// Readahead policy by name.
    pub policy: String,
    /// Its configuration.
    pub readahead: readahead::Config,
    /// What calls cost.
    pub cost: Cost,
}

/// What a call costs its client, besides waiting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// Of a call.
    pub call_ns: u64,
    /// Of each byte that a program gets, or consumes.
    pub copy_ns_per_byte: f64,
    /// Of sending an RPC.
    pub issue_ns: u64,
    /// Of receiving bulk.
    pub receive_ns_per_byte: f64,
    /// Threads that receive what no reader receives itself.
    pub pool_threads: u32,
}

/// In which order a program reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Order {
    /// From the first byte to the last.
    Sequential,
    /// With gaps of so many bytes.
    Stride(u64),
    /// From the last byte to the first.
    Backward,
    /// Four sequential streams in turn.
    Interleaved,
    /// An eighth of the file, here and there.
    Random,
    /// Fine and coarse accesses at random.
    Mix(Mix),
    /// The files are read round and round by coarse accesses, fine ones go to another, huge file; before what is measured
    /// fine ones alone.
    Reuse(Mix),
}

/// Paper 000's accesses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mix {
    /// Probability that an access is fine.
    pub fine_share: f64,
    /// Bytes of a fine access.
    pub fine_bytes: u64,
    /// First bytes of a file, which fine accesses go to.
    pub hot_bytes: u64,
    /// Bytes of a coarse access.
    pub coarse_bytes: u64,
    /// Coarse accesses begin at multiples of this.
    pub coarse_step: u64,
    /// They leave this many bytes at the beginning alone.
    pub coarse_first: u64,
    /// Accesses of each program that are measured.
    pub accesses: u32,
    /// Accesses before.
    pub warmup: u32,
}

impl Calling {
    /// Fine and coarse accesses, if that is what is read.
    #[must_use]
    pub fn mix(&self) -> Option<Mix> {
        match self.order {
            Order::Mix(mix) | Order::Reuse(mix) => Some(mix),
            _ => None,
        }
    }
    /// Files of each client, and bytes of each.
    #[must_use]
    pub fn files_per_client(&self) -> u32 {
        self.programs * self.files_per_program()
    }
    /// Files of each program.
    #[must_use]
    pub fn files_per_program(&self) -> u32 {
        self.files + u32::from(matches!(self.order, Order::Reuse(_)))
    }
    /// Bytes of a program's file.
    #[must_use]
    pub fn bytes_of(&self, file: u32) -> u64 {
        if file % self.files_per_program() < self.files { self.file_bytes } else { HUGE_BYTES }
    }
}

/// A call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Wanted {
    /// Of the program's files.
    pub file: u32,
    pub extent: Extent,
    /// Whose response times are kept.
    pub grain: Option<Grain>,
}

/// How far a program is.
pub(super) struct Course {
    rng: Rng,
    made: u64,
    /// Accesses to be made, and whether they are measured.
    left: u32,
    measured: bool,
    /// Coarse pieces of [`Order::Reuse`] that were read.
    round: u64,
}

impl Course {
    /// At the beginning; of a mix no access is to be made yet.
    pub fn new(rng: Rng) -> Course {
        Course { rng, made: 0, left: 0, measured: false, round: 0 }
    }
    /// Makes so many accesses of a mix from now on.
    pub fn begin(&mut self, accesses: u32, measured: bool) {
        (self.left, self.measured) = (accesses, measured);
    }
    /// The next call; `None` at the end.
    pub fn next(&mut self, c: &Calling) -> Option<Wanted> {
        if let Some(mix) = c.mix() {
            self.left = self.left.checked_sub(1)?;
            return Some(self.access(c, mix));
        }
        let (n, io) = (self.made, c.io_bytes);
        self.made += 1;
        let start = match c.order {
            Order::Stride(skip) => n * (io + skip),
            Order::Backward => c.file_bytes.checked_sub((n + 1) * io)?,
            Order::Interleaved => {
                let part = c.file_bytes / STREAMS / io * io;
                let within = n / STREAMS * io;
                (within < part).then_some(n % STREAMS * part + within)?
            }
            Order::Random => {
                if n * io * 8 >= c.file_bytes {
                    return None;
                }
                self.rng.below(c.file_bytes / io) * io
            }
            _ => n * io,
        };
        let len = if c.order == Order::Sequential { io.min(c.file_bytes.checked_sub(start)?) } else { io };
        let fits = len > 0 && start + len <= c.file_bytes;
        fits.then(|| Wanted { file: 0, extent: Extent::at(start, len), grain: None })
    }

    fn access(&mut self, c: &Calling, mix: Mix) -> Wanted {
        let reuse = matches!(c.order, Order::Reuse(_));
        let fine = self.rng.chance(mix.fine_share) || (reuse && !self.measured);
        let (file, start) = match (reuse, fine) {
            (true, true) => (c.files, self.rng.below(HUGE_BYTES / mix.fine_bytes) * mix.fine_bytes),
            (true, false) => {
                let pieces = c.file_bytes / mix.coarse_bytes;
                let piece = self.round % (u64::from(c.files) * pieces);
                self.round += 1;
                ((piece / pieces) as u32, piece % pieces * mix.coarse_bytes)
            }
            (false, _) => {
                let file = self.rng.below(u64::from(c.files)) as u32;
                let start = if fine {
                    self.rng.below(mix.hot_bytes / mix.fine_bytes) * mix.fine_bytes
                } else {
                    let places = (c.file_bytes - mix.coarse_bytes - mix.coarse_first) / mix.coarse_step + 1;
                    mix.coarse_first + self.rng.below(places) * mix.coarse_step
                };
                (file, start)
            }
        };
        let (len, grain) = if fine { (mix.fine_bytes, Grain::Fine) } else { (mix.coarse_bytes, Grain::Coarse) };
        Wanted { file, extent: Extent::at(start, len), grain: Some(grain) }
    }
}
