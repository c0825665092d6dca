//! Between `ldlm`'s words and `wire`'s.
use ldlm::{EnqueueFlags, InodeBits, LockCookie, LockDesc, LockMode, LockPolicyData, ResourceId, ResourceKind};
use types::{FsError, HandleId};
use wire::lock::{Kind, LockSpec};

pub(crate) fn spec(resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> LockSpec {
    let mut s = LockSpec { fid: resource.fid, mode, ..LockSpec::default() };
    match data {
        LockPolicyData::Extent { extent, gid } => {
            s.kind = Kind::Extent;
            s.extent = *extent;
            s.bits = *gid;
        }
        LockPolicyData::Inodebits { bits } => {
            s.kind = Kind::Inodebits;
            s.bits = u64::from(bits.0);
        }
    }
    s
}

/// The resource and data of a lock message.
pub(crate) fn resource_and_data(s: &LockSpec) -> Result<(ResourceId, LockPolicyData), FsError> {
    match s.kind {
        Kind::Extent => Ok((
            ResourceId { fid: s.fid, kind: ResourceKind::Extent },
            LockPolicyData::Extent { extent: s.extent, gid: s.bits },
        )),
        Kind::Inodebits => {
            let bits = u8::try_from(s.bits).map_err(|_| FsError::Protocol)?;
            Ok((ResourceId::inode(s.fid), LockPolicyData::bits(InodeBits(bits))))
        }
        Kind::Posix | Kind::Flock => Err(FsError::Protocol),
    }
}

pub(crate) fn desc(handle: HandleId, cookie: LockCookie, s: &LockSpec) -> Result<LockDesc, FsError> {
    let (resource, data) = resource_and_data(s)?;
    Ok(LockDesc { handle, cookie, resource, mode: s.mode, data })
}

pub(crate) fn flags_to_wire(flags: EnqueueFlags) -> u32 {
    let pairs = [
        (EnqueueFlags::NOWAIT, wire::lock::EnqueueFlags::NOWAIT),
        (EnqueueFlags::TEST, wire::lock::EnqueueFlags::TEST),
        (EnqueueFlags::GLIMPSE, wire::lock::EnqueueFlags::GLIMPSE),
        (EnqueueFlags::NO_EXPAND, wire::lock::EnqueueFlags::NO_EXPAND),
    ];
    pairs.iter().filter(|(f, _)| flags.has(*f)).fold(0, |w, (_, bit)| w | bit)
}
