//! Capabilities of objects: with a file's layout the metadata server gives a client whose root is a subtree a proof for each object of
//! the file, and an object storage target lets such a client at no object without it.
//!
//! A capability is a keyed hash over the credential's number and the object; all servers have the key, which comes from the cluster's
//! secret, and no client has. It travels behind the body of each request about the object ([`wire::Flags::CAPABILITY`]), so a request
//! that is replayed to a server that was restarted brings it along, and a server remembers nothing.
//!
//! A proof that objects were given is made with the same key: the metadata server tells it to the client whose request gave a file its
//! objects, and believes it when that client names them in a replay.
use types::{ClientId, Fid, ObjectId};
use wire::lock::{EnqueueRequest, Kind};
use wire::{Op, ost};

/// Bytes of a capability.
pub const CAPABILITY_BYTES: usize = 16;

/// What capabilities are made of and checked with.
#[derive(Clone, Copy)]
pub struct CapabilityKey(pub(crate) [u8; 32]);

impl CapabilityKey {
    /// The capability of an object for the holder of a credential.
    #[must_use]
    pub fn of(&self, credential: u64, object: ObjectId) -> [u8; CAPABILITY_BYTES] {
        self.over(&[&credential.to_le_bytes(), &object.0.to_key()])
    }
    /// Whether a capability is that of an object. In constant time.
    pub(crate) fn is_of(&self, credential: u64, object: ObjectId, shown: &[u8]) -> bool {
        is_same(&self.of(credential, object), shown)
    }
    /// The proof that a request of a client gave a file its layout, which is `layout` as stored.
    #[must_use]
    pub fn of_gift(&self, client: ClientId, file: Fid, layout: &[u8]) -> [u8; CAPABILITY_BYTES] {
        // Longer than what a capability is made over.
        self.over(&[b"given to", &client.0.to_le_bytes(), &file.to_key(), layout])
    }
    /// Whether a proof is that of a client's layout of a file. In constant time.
    #[must_use]
    pub fn is_of_gift(&self, client: ClientId, file: Fid, layout: &[u8], shown: &[u8]) -> bool {
        is_same(&self.of_gift(client, file, layout), shown)
    }
    fn over(&self, said: &[&[u8]]) -> [u8; CAPABILITY_BYTES] {
        let mut h = blake3::Hasher::new_keyed(&self.0);
        for part in said {
            h.update(part);
        }
        let mut made = [0; CAPABILITY_BYTES];
        made.copy_from_slice(&h.finalize().as_bytes()[..CAPABILITY_BYTES]);
        made
    }
}

fn is_same(right: &[u8], shown: &[u8]) -> bool {
    shown.len() == right.len() && right.iter().zip(shown).fold(0, |d, (a, b)| d | (a ^ b)) == 0
}

/// What a request to an object storage target is about.
#[derive(Clone, Copy)]
pub(crate) enum About {
    /// Not about one object.
    Nothing,
    /// About the object in its body; zero: about none after all. `None`: the body is none, or names two.
    Object(fn(&[u8]) -> Option<ObjectId>),
}

macro_rules! object_of {
    ($request:ty) => {
        About::Object(|body| wire::decode::<$request>(body).ok().map(|q| q.object))
    };
}

/// What a kind of request is about; `None`: no object storage target is asked it.
pub(crate) fn about(op: Op) -> Option<About> {
    Some(match op {
        Op::OstRead => About::Object(|body| {
            let q: ost::ReadRequest = wire::decode(body).ok()?;
            let same = q.enqueue.as_ref().is_none_or(|l| ObjectId(l.lock.fid) == q.object);
            same.then_some(q.object)
        }),
        Op::OstWrite => object_of!(ost::WriteRequest),
        Op::OstPunch => object_of!(ost::PunchRequest),
        Op::OstSync => object_of!(ost::SyncRequest),
        Op::OstSetattr => object_of!(ost::SetattrRequest),
        Op::OstSeek => object_of!(ost::SeekRequest),
        Op::OstAllocate => object_of!(ost::AllocateRequest),
        Op::OstAdvise => object_of!(ost::AdviseRequest),
        Op::OstAdvised => object_of!(ost::AdvisedRequest),
        Op::OstPromise => object_of!(ost::PromiseRequest),
        Op::OstChanged => object_of!(ost::ChangedRequest),
        // Other kinds of locks are of inodes, and a metadata server's business.
        Op::LockEnqueue => About::Object(|body| {
            let q: EnqueueRequest = wire::decode(body).ok()?;
            Some(if q.lock.kind == Kind::Extent { ObjectId(q.lock.fid) } else { ObjectId::default() })
        }),
        Op::LockCancel
        | Op::LockConvert
        | Op::Params
        | Op::Jobs
        | Op::OstTrace
        | Op::OstStatfs
        | Op::OstShrinkGrant
        | Op::OstPrecreate
        | Op::OstDestroy
        | Op::OstQuota
        | Op::OstOwn
        | Op::Revoked => About::Nothing,
        _ => return None,
    })
}

/// The object that a request is about, if it is about one.
#[must_use]
pub fn object_of(op: Op, body: &[u8]) -> Option<ObjectId> {
    match about(op)? {
        About::Nothing => None,
        About::Object(of) => of(body).filter(|object| !object.0.is_zero()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Side;
    use wire::lock::LockSpec;

    #[test]
    fn of_every_request_to_an_object_storage_target_it_is_known_what_it_is_about() {
        for op in Op::ALL {
            let asked = op.ways().iter().any(|w| matches!(w.side, Side::Ost | Side::Target));
            assert_eq!(about(*op).is_some(), asked, "{op:?}");
        }
    }

    #[test]
    fn a_read_with_a_wish_for_a_lock_is_about_one_object_or_about_none() {
        let object = ObjectId::new(types::OstIndex(0), 5);
        let lock = |fid| EnqueueRequest { lock: LockSpec { fid, ..LockSpec::default() }, ..EnqueueRequest::default() };
        let read = |enqueue| {
            object_of(Op::OstRead, &wire::encode(&ost::ReadRequest { object, enqueue, ..Default::default() }))
        };
        assert_eq!((read(None), read(Some(lock(object.0)))), (Some(object), Some(object)));
        assert_eq!(read(Some(lock(types::Fid::new(object.0.seq, 6)))), None);
        assert_eq!(object_of(Op::OstWrite, b"damaged"), None);
        assert_eq!(object_of(Op::OstSync, &wire::encode(&ost::SyncRequest::default())), None, "everything");
    }

    #[test]
    fn a_capability_is_of_one_object_and_one_credential() {
        let (key, other) = (CapabilityKey([1; 32]), CapabilityKey([2; 32]));
        let object = |oid| ObjectId::new(types::OstIndex(0), oid);
        let shown = key.of(9, object(5));
        assert!(key.is_of(9, object(5), &shown));
        assert!(
            !key.is_of(8, object(5), &shown) && !key.is_of(9, object(6), &shown) && !other.is_of(9, object(5), &shown)
        );
        assert!(!key.is_of(9, object(5), &shown[1..]) && !key.is_of(9, object(5), &[]));
    }

    #[test]
    fn a_proof_is_of_one_client_one_file_and_one_layout() {
        let key = CapabilityKey([1; 32]);
        let (client, file, layout) = (ClientId(7), Fid::new(3, 4), &b"a layout"[..]);
        let shown = key.of_gift(client, file, layout);
        assert!(key.is_of_gift(client, file, layout, &shown));
        assert!(!key.is_of_gift(ClientId(8), file, layout, &shown));
        assert!(!key.is_of_gift(client, Fid::new(3, 5), layout, &shown));
        assert!(!key.is_of_gift(client, file, b"another", &shown));
        assert!(!key.is_of_gift(client, file, layout, &[]));
        assert_ne!(key.of_gift(client, file, b""), key.of(client.0, ObjectId(file)));
    }
}
