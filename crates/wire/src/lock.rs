//! Lock messages. `ldlm` decides; this only carries.
use crate::shape::{Shapes, bits};
use crate::{Decode, Encode, Example, Reader, WireError, byte_enum, message};
pub use types::LockMode as Mode;
use types::{Extent, Fid, HandleId, WallTime};

/// Modes by their bytes on the wire, which is the field's order of strength.
const MODES: [(Mode, &str); 7] = [
    (Mode::Nl, "Nothing: goes with all."),
    (Mode::Cr, "Concurrent read: not with Ex, nor with Group."),
    (Mode::Cw, "Concurrent write: others may write, nobody reads protected; not with Pr, Pw, Ex, Group."),
    (Mode::Pr, "Protected read: others may read, nobody writes; not with Cw, Pw, Ex, Group."),
    (Mode::Pw, "Protected write: the only writer; with Cr and Nl only."),
    (Mode::Ex, "Exclusive: with Nl only."),
    (Mode::Group, "Shared by all of the same group id (`LockSpec.bits`), whatever they do; otherwise with Nl only."),
];

impl Encode for Mode {
    fn put(&self, out: &mut Vec<u8>) {
        let byte = MODES.iter().position(|(mode, _)| mode == self).expect("every mode is in the table: a test looks");
        out.push(byte as u8);
    }
}
impl Decode for Mode {
    fn get(r: &mut Reader<'_>) -> Result<Mode, WireError> {
        let byte = u8::get(r)?;
        MODES.get(usize::from(byte)).map(|(mode, _)| *mode).ok_or(WireError::BadValue(byte.into()))
    }
}
impl Example for Mode {
    fn example(n: &mut u64) -> Mode {
        *n += 1;
        MODES[*n as usize % MODES.len()].0
    }
    fn shape(shapes: &mut Shapes) -> String {
        let values: Vec<_> =
            MODES.iter().zip(0..).map(|((mode, meaning), n)| (format!("{mode:?}"), n, *meaning)).collect();
        shapes.byte(
            module_path!(),
            "Mode",
            "How a lock may be used, and with which others on the same resource it goes.",
            values,
        )
    }
}

byte_enum! {
    /// What a lock's policy data means.
    Kind { /// Byte ranges of an OST object.
        #[default] Extent = 0, /// Aspects of an inode.
        Inodebits = 1, /// fcntl byte ranges.
        Posix = 2, /// flock on a whole file.
        Flock = 3, }
}

message! {
    /// What is locked and how.
    LockSpec {
        /// The object or inode.
        fid: Fid,
        /// Kind of resource.
        kind: Kind,
        /// Mode.
        mode: Mode,
        /// Range (extent, posix).
        extent: Extent,
        /// Bits (inodebits), or group id (group extents).
        bits: u64,
        /// Lock owner (posix, flock): unique per client.
        owner: u64,
        /// Process id to show in F_GETLK.
        pid: u32,
    }
    /// Size and times of an object, as its lock's value block carries them.
    Lvb {
        /// Bytes.
        size: u64,
        /// 512-byte blocks allocated.
        blocks: u64,
        /// Modification.
        mtime: WallTime,
        /// Access.
        atime: WallTime,
        /// Change.
        ctime: WallTime,
        /// Grows whenever the object becomes shorter than anybody could find it before ([`cut_floor`]); [`CUT_AMID`]. 0: not told.
        cut: u64,
    }
    /// `LockEnqueue` request.
    EnqueueRequest {
        /// What.
        lock: LockSpec,
        /// Bits of [`EnqueueFlags`].
        flags: u32,
        /// The client's own name for the lock, never reused by it.
        cookie: u64,
        /// Locks of this client that it gives back with this request.
        cancels: Vec<HandleId>,
    }
    /// `LockEnqueue` reply.
    EnqueueReply {
        /// The server's name for the lock; 0 when nothing was granted or queued.
        handle: HandleId,
        /// Granted now; otherwise a completion callback will come.
        granted: bool,
        /// What was granted (perhaps wider than asked), or for a test: what is in the way.
        lock: LockSpec,
        /// Value block (extent locks).
        lvb: Option<Lvb>,
    }
    /// `LockCancel` request.
    CancelRequest {
        /// Server handles.
        handles: Vec<HandleId>,
        /// Cookies of requests to withdraw that are still waiting.
        cookies: Vec<u64>,
    }
    /// `LockConvert` request: keep fewer bits of an inode-bit lock, or an extent lock in a mode that allows less.
    ConvertRequest {
        /// Lock.
        handle: HandleId,
        /// Bits to keep (inode-bit locks).
        bits: u64,
        /// Mode to keep (extent locks).
        mode: Option<Mode>,
    }
    /// `LockBlocking` callback.
    BlockingCallback {
        /// Server handle.
        handle: HandleId,
        /// Client's cookie.
        cookie: u64,
        /// What is wanted.
        wanted: LockSpec,
        /// Milliseconds until the holder is evicted when nothing moves.
        patience_ms: u32,
    }
    /// `LockCompletion` callback.
    CompletionCallback {
        /// Server handle.
        handle: HandleId,
        /// Client's cookie.
        cookie: u64,
        /// What was granted.
        lock: LockSpec,
        /// 0 or the errno with which the wait ended.
        status: u16,
        /// Value block.
        lvb: Option<Lvb>,
    }
    /// `LockGlimpse` callback.
    GlimpseCallback {
        /// Server handle.
        handle: HandleId,
        /// Client's cookie.
        cookie: u64,
        /// What is not written out is to be written out first: another client syncs the file.
        write_out: bool,
    }
    /// Answer to `LockGlimpse`.
    GlimpseReply {
        /// Size and times as this client's cache has them; `None`: it no longer holds the lock.
        lvb: Option<Lvb>,
    }
}

/// [`Lvb::cut`] of a size that may be of no moment: the object became shorter while holders of locks were asked, or one of them
/// did not answer.
pub const CUT_AMID: u64 = u64::MAX;

/// [`Lvb::cut`] of an object that was not made shorter since its store was opened for the `epoch`-th time, as a session tells that.
#[must_use]
pub const fn cut_floor(epoch: u64) -> u64 {
    epoch << 40
}

bits! {
    /// Bits of [`EnqueueRequest::flags`].
    EnqueueFlags: u32 {
        /// Do not wait: answer EAGAIN when something is in the way.
        NOWAIT = 1,
        /// Do not lock: tell what is in the way (F_GETLK).
        TEST = 2,
        /// Glimpse: grant when free, otherwise only tell size and times.
        GLIMPSE = 4,
        /// Recovery: the client held this lock before the server was restarted.
        REPLAY = 8,
        /// The range must not grow.
        NO_EXPAND = 16,
        /// Unlock (posix, flock).
        UNLOCK = 32,
        /// Replay of a request that was still waiting.
        WAITING = 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_in_the_table_once() {
        for mode in Mode::ALL {
            assert_eq!(MODES.iter().filter(|(m, _)| *m == mode).count(), 1, "{mode:?}");
            assert_eq!(crate::decode(&crate::encode(&mode)), Ok(mode));
        }
        assert_eq!(MODES.len(), Mode::ALL.len());
    }
}
