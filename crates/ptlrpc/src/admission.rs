//! Whether a session may ask what it asks: the one place where every request meets what its connection has proved, at metadata and
//! object storage targets alike, before anybody carries it out.
//!
//! A kind of request that is new has to be given its row here: there is no default.
use types::FsError;
use wire::connect::{Lasting, ParamsRequest};
use wire::lock::{EnqueueRequest, Kind, Mode};
use wire::mdt::OpenRequest;
use wire::ost::{ReadRequest, SetattrRequest};
use wire::{Class, Flags, Header, Op};

use crate::capability::{About, CAPABILITY_BYTES, CapabilityKey, about};
use crate::export::Export;

/// Linux's flags of open(2) with which a file may be changed or made.
const O_CHANGES: u32 = 0o3 | 0o100 | 0o1000 | 0o20_000_000;

/// What a request does, for credentials that may change nothing.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// It reads, or is about the session alone.
    Read,
    /// It changes files, or what others may do with them.
    Change,
    /// Its body says whether it is a change. What is no such body changes nothing: it is refused where it is read.
    AsItSays(fn(&[u8]) -> bool),
}

/// What a kind of request does.
#[must_use]
pub fn does(op: Op) -> Does {
    match op {
        Op::Connect
        | Op::Auth
        | Op::Disconnect
        | Op::Ping
        | Op::Config
        | Op::Params
        | Op::Jobs
        | Op::Gone
        | Op::OstFiles
        | Op::Changelog
        | Op::MdtLookup
        | Op::MdtGetattr
        | Op::MdtReaddir
        | Op::MdtReadlink
        | Op::MdtGetxattr
        | Op::MdtListxattr
        | Op::MdtStatfs
        | Op::MdtSync
        | Op::MdtFid2path
        // Its open ends; what it tells of the file is not taken (`mds::entering`).
        | Op::MdtClose
        | Op::MdtSettled
        | Op::LockCancel
        | Op::LockConvert
        | Op::LockBlocking
        | Op::LockCompletion
        | Op::LockGlimpse
        | Op::OstSync
        | Op::OstStatfs
        | Op::OstSeek
        | Op::OstAdvise
        | Op::OstShrinkGrant
        | Op::OstAskGrant
        | Op::OstAskQuota
        | Op::MdtQuota
        | Op::OstAdvised
        | Op::OstAskCut
        | Op::OstTrace
        | Op::OstChanged => Does::Read,
        Op::MdtOpen => Does::AsItSays(|body| of(body, |q: OpenRequest| q.flags & O_CHANGES != 0)),
        Op::LockEnqueue => Does::AsItSays(|body| of(body, |q: EnqueueRequest| locks_to_change(&q))),
        Op::OstRead => Does::AsItSays(|body| of(body, |q: ReadRequest| q.enqueue.is_some_and(|l| locks_to_change(&l)))),
        Op::Register
        | Op::MapChange
        | Op::ChangelogUser
        | Op::Credentials
        | Op::Revoked
        | Op::MdtCreate
        | Op::MdtUnlink
        | Op::MdtRename
        | Op::MdtLink
        | Op::MdtSetattr
        | Op::MdtSetxattr
        | Op::MdtCut
        | Op::MdtSwap
        | Op::OstWrite
        | Op::OstPunch
        | Op::OstSetattr
        | Op::OstPrecreate
        | Op::OstDestroy
        | Op::OstAllocate
        | Op::OstPromise
        | Op::MdtSetQuota
        | Op::OstQuota
        | Op::OstOwn => Does::Change,
    }
}

fn of<Q: wire::Decode>(body: &[u8], changes: impl Fn(Q) -> bool) -> bool {
    wire::decode(body).is_ok_and(changes)
}

/// Whether a lock is one that only a writer of bytes has a use for. Those of programs (fcntl, flock) are about nothing but themselves.
fn locks_to_change(q: &EnqueueRequest) -> bool {
    q.lock.kind == Kind::Extent && matches!(q.lock.mode, Mode::Cw | Mode::Pw | Mode::Ex | Mode::Group)
}

/// Bit of an `OstSetattr` request that gives the object to somebody else.
const SETS_OWNER: u32 = 1;

/// Whether a request is for administrators and servers alone: what changes servers, moves targets, makes and destroys objects in the
/// metadata server's name, or says whose an object is. That is the metadata server's word: a client's would stand above it, past what the
/// client's credential makes of ids, and its space would count for whomever the client names.
fn needs_administrator(op: Op, body: &[u8]) -> bool {
    match op {
        Op::Params => of(body, |q: ParamsRequest| q.value.is_some() || q.lasting != Lasting::No),
        Op::OstSetattr => of(body, |q: SetattrRequest| q.valid & SETS_OWNER != 0),
        op => op.is(Class::ADMINISTRATOR),
    }
}

/// The capability that a request brings along, taken off its body; empty: none.
pub(crate) fn capability_of(header: &Header, body: &mut Vec<u8>) -> Vec<u8> {
    let at = body.len().checked_sub(CAPABILITY_BYTES).filter(|_| header.flags.has(Flags::CAPABILITY));
    at.map(|at| body.split_off(at)).unwrap_or_default()
}

/// Whether the request may be carried out for the session; `shown` is the capability that came along.
///
/// # Errors
/// `NotPermitted`: it is an administrator's; `ReadOnly`: the session's credential may change nothing; `Access`: it is about an object
/// whose capability it does not show.
pub(crate) fn admit(
    export: &Export,
    capabilities: Option<CapabilityKey>,
    (op, body, shown): (Op, &[u8], &[u8]),
) -> Result<(), FsError> {
    if export.is_administrator() {
        return Ok(());
    }
    if needs_administrator(op, body) {
        return Err(FsError::NotPermitted);
    }
    let Some(limits) = export.limits() else { return Ok(()) };
    if limits.subtree().is_some()
        && let Some(About::Object(object)) = about(op)
    {
        let object = object(body).ok_or(FsError::Access)?;
        let is_shown = capabilities.is_some_and(|key| key.is_of(limits.said().id, object, shown));
        if !object.0.is_zero() && !is_shown && !types::planted!("capability-unchecked") {
            tracing::debug!(client = %export.client(), credential = limits.name(), ?op, %object, "refused: no capability");
            return Err(FsError::Access);
        }
    }
    if !limits.is_read_only() {
        return Ok(());
    }
    let changes = match does(op) {
        Does::Read => false,
        Does::Change => true,
        Does::AsItSays(changes) => changes(body),
    };
    if changes {
        tracing::debug!(client = %export.client(), credential = limits.name(), ?op, "refused: it may only read");
        return Err(FsError::ReadOnly);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::lock::LockSpec;

    #[test]
    fn whatever_may_become_a_transaction_is_a_change_or_says_whether_it_is() {
        for op in Op::ALL.iter().filter(|op| op.is(Class::CHANGES)) {
            let known = matches!(does(*op), Does::Change | Does::AsItSays(_)) || *op == Op::MdtClose;
            assert!(known, "{op:?} may change something, and is read for credentials that may only read");
        }
        // No transactions in the sense of a replay, and changes all the same.
        for op in [Op::MdtCut, Op::MdtSwap, Op::OstPromise, Op::OstPrecreate, Op::MapChange] {
            assert!(matches!(does(op), Does::Change), "{op:?}");
        }
    }

    #[test]
    fn whose_an_object_is_only_servers_say() {
        let sets = |valid| {
            needs_administrator(Op::OstSetattr, &wire::encode(&SetattrRequest { valid, ..SetattrRequest::default() }))
        };
        assert!([1, 3, 5, u32::MAX].iter().all(|valid| sets(*valid)));
        assert!(![0, 2, 4, 6].iter().any(|valid| sets(*valid)), "times are set by clients");
        assert!(needs_administrator(Op::OstOwn, &[]) && !needs_administrator(Op::OstSetattr, b"damaged"));
    }

    #[test]
    fn opens_are_changes_when_they_may_write_make_or_cut() {
        let Does::AsItSays(changes) = does(Op::MdtOpen) else { unreachable!("it says so itself") };
        let open = |flags| changes(&wire::encode(&OpenRequest { flags, ..OpenRequest::default() }));
        let (rdonly, directory, noatime) = (0, 0o200_000, 0o1_000_000);
        assert!(!open(rdonly) && !open(directory) && !open(noatime));
        let (wronly, rdwr, creat, trunc, tmpfile) = (1, 2, 0o100, 0o1000, 0o20_200_000);
        for flags in [wronly, rdwr, creat, trunc, tmpfile] {
            assert!(open(flags), "{flags:o}");
        }
        assert!(!changes(b"damaged"));
    }

    #[test]
    fn locks_to_write_under_are_changes_wherever_they_are_asked_for() {
        let ask = |kind, mode| EnqueueRequest {
            lock: LockSpec { kind, mode, ..LockSpec::default() },
            ..EnqueueRequest::default()
        };
        let (Does::AsItSays(alone), Does::AsItSays(along)) = (does(Op::LockEnqueue), does(Op::OstRead)) else {
            unreachable!("they say so themselves")
        };
        let read = |enqueue| along(&wire::encode(&ReadRequest { enqueue, ..ReadRequest::default() }));
        for mode in [Mode::Cw, Mode::Pw, Mode::Ex, Mode::Group] {
            assert!(alone(&wire::encode(&ask(Kind::Extent, mode))) && read(Some(ask(Kind::Extent, mode))), "{mode:?}");
            assert!(!alone(&wire::encode(&ask(Kind::Flock, mode))), "a program's lock");
        }
        assert!(!alone(&wire::encode(&ask(Kind::Extent, Mode::Pr))) && !read(None));
    }
}
