//! The drivers of a client without any server, for their tests: what is asked of a server has no answer.
use std::cell::RefCell;
use std::rc::Rc;

use layout::xattr::{Form, encode_layout};
use layout::{Layout, Pattern, StripeObject, StripeSize};
use ldlm::LockMode;
use ptlrpc::ClusterKey;
use rt::{Nid, Rt};
use types::{ClientId, Extent, Fid, HandleId, MIB, ObjectId, OstIndex};
use wire::connect::{ConfigReply, OstEntry};
use wire::lock as w;

use crate::ClientConfig;
use crate::attrs::Clock;
use crate::data::Data;
use crate::inode::{Common, Inode};
use crate::jobs::Jobs;
use crate::kernel::Kernel;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::losses::Losses;
use crate::meta::Meta;
use crate::osc::Osts;
use crate::pages::PageCache;
use crate::readahead::Readahead;
use crate::sessions::Sessions;
use crate::settled::Settling;

/// Bytes of a stripe of [`layout_of`].
pub(crate) const STRIPE: u64 = 65_536;

pub(crate) struct Parts {
    pub(crate) osts: Rc<Osts>,
    pub(crate) common: Rc<Common>,
    pub(crate) meta: Rc<Meta>,
    pub(crate) data: Rc<Data>,
}

/// A file of that number.
pub(crate) fn fid(number: u32) -> Fid {
    Fid::new(0x2_0000_0401, number)
}

fn nid() -> Nid {
    Nid::parse("127.0.0.1:7988").unwrap()
}

/// A cluster map of that many OSTs.
pub(crate) fn map_of(osts: u16) -> ConfigReply {
    let ost = |i| OstEntry {
        ost: OstIndex(i),
        nid: nid().to_string().as_bytes().into(),
        target: format!("stria-OST{i:04x}").as_bytes().into(),
        active: true,
        uuid: u64::from(i) + 1,
    };
    ConfigReply { osts: (0..osts).map(ost).collect(), ..ConfigReply::default() }
}

/// The layout of a file with an object on each of these OSTs.
pub(crate) fn layout_of(file: Fid, osts: &[u16]) -> Vec<u8> {
    let object =
        |ost: &u16| StripeObject { ost: OstIndex(*ost), object: ObjectId(Fid::new(u64::from(*ost) + 7, file.oid)) };
    let objects = osts.iter().map(object).collect();
    let layout = Layout::new(StripeSize::new(STRIPE).unwrap(), Pattern::Raid0, None, objects).unwrap();
    encode_layout(&layout, file, Form::Stored)
}

impl Parts {
    /// With a map of `osts` OSTs; to be called within the world.
    pub(crate) fn new(rt: &Rt, osts: u16) -> Parts {
        let config = ClientConfig::new(nid());
        let pages = PageCache::new(rt.frames(), 8 * MIB, "lru", &config.cache_keys).unwrap();
        let ahead = Readahead::new("parallel", config.readahead.clone(), 8 * MIB).unwrap();
        let jobs = Jobs::new(rt.clone(), config.jobs.clone());
        let sessions = Sessions::new(rt.clone(), ClientId(7), ClusterKey::none(), nid(), jobs);
        let losses = Rc::new(Losses::default());
        let all = Osts::new(sessions.clone(), pages.clone(), losses.clone(), config.clone());
        let common = Rc::new(Common {
            kernel: Kernel::new(rt.clone()),
            locks: Locks::new(rt.clone(), ldlm::LockCacheConfig::default()),
            clock: Clock::default(),
            limits: Limits::new(config.inodes_max),
            ahead,
            rpc_bytes: MIB,
            keeper: RefCell::new(None),
        });
        let settling = Settling::new(sessions.clone(), all.clone(), config.dirty_age_max);
        let below = (sessions, all.clone());
        let meta = Meta::new("MDT0000", below.clone(), common.clone(), losses, settling);
        let data = Data::new(below, meta.clone(), common.clone(), pages, false);
        all.take_map(map_of(osts));
        Parts { osts: all, common, meta, data }
    }
    /// The metadata server gave a lock on these bits.
    pub(crate) fn bits_granted(&self, fid: Fid, bits: u64) {
        let (cookie, _reserved) = self.common.locks.reserve_one();
        assert!(self.common.locks.adopt_bits(cookie, HandleId(cookie + 100), fid, bits));
    }
    /// The OSTs gave locks of that mode over all of the file.
    pub(crate) fn bytes_granted(&self, inode: &Inode, mode: LockMode) {
        for object in &inode.striping().unwrap().objects {
            let locks = &self.osts.osc(object.ost).locks;
            let (cookie, _reserved) = locks.reserve_one();
            let lock = w::LockSpec {
                fid: object.id.0,
                kind: w::Kind::Extent,
                mode,
                extent: Extent::ALL,
                ..w::LockSpec::default()
            };
            let reply = w::EnqueueReply { handle: HandleId(cookie + 100), granted: true, lock, lvb: None };
            assert!(locks.adopt(cookie, Some(&reply)));
        }
    }
}
