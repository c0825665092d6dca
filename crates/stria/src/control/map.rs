//! What tools ask and change of the cluster map: pools, and which OSTs there are and have files.
use std::rc::Rc;

use serde_json::{Value, json};
use types::{Fid, FsError, OstIndex};
use wire::Op;
use wire::connect::{MapChange, MapChangeReply, MapChangeRequest, OstFilesReply, OstFilesRequest};

use super::look::text_of;
use super::shard::{MAP_WAIT, Shard, refusal, refused};

/// Changes by the names that tools give them.
const CHANGES: [(&str, MapChange); 9] = [
    ("pool_new", MapChange::PoolNew),
    ("pool_add", MapChange::PoolAdd),
    ("pool_remove", MapChange::PoolRemove),
    ("pool_destroy", MapChange::PoolDestroy),
    ("close", MapChange::Close),
    ("open", MapChange::Open),
    ("remove_ost", MapChange::RemoveOst),
    ("replace_ost", MapChange::ReplaceOst),
    ("accept_older", MapChange::AcceptOlder),
];

impl Shard {
    /// Pools, OSTs, and those of them that take no new objects, as the metadata server has them now.
    pub(super) async fn show_map(self: &Rc<Self>) -> Value {
        self.look_at_map(MAP_WAIT).await;
        let map = self.client.osts().map();
        let indices = |osts: &[OstIndex]| osts.iter().map(|o| o.0).collect::<Vec<_>>();
        let pools = map.pools.iter().map(|p| json!({"name": text_of(&p.name), "osts": indices(&p.osts)}));
        json!({
            "fsname": text_of(&map.fsname),
            "cluster": format!("{:016x}", map.cluster),
            "mount_point": self.facts.mount_point,
            "dir": self.facts.dir,
            "pools": pools.collect::<Vec<_>>(),
            "osts": map.osts.iter().map(|o| o.ost.0).collect::<Vec<_>>(),
            "stores": map.osts.iter().map(|o| format!("{:016x}", o.uuid)).collect::<Vec<_>>(),
            "inactive": map.osts.iter().filter(|o| !o.active).map(|o| o.ost.0).collect::<Vec<_>>(),
            "closed": indices(&map.closed),
            "removed": indices(&map.removed),
        })
    }

    /// Has the metadata server change the map.
    pub(super) async fn change_map(self: &Rc<Self>, request: &Value) -> Value {
        let asked = request["what"].as_str().unwrap_or_default();
        let Some((_, what)) = CHANGES.iter().find(|(name, _)| *name == asked) else {
            return refusal(&format!("'{asked}' is no change of the cluster map"), libc::EINVAL);
        };
        let osts = request["osts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let osts = osts.iter().filter_map(|o| u16::try_from(o.as_u64()?).ok()).map(OstIndex).collect();
        let pool = request["pool"].as_str().unwrap_or_default().into();
        let id = self.client.rt().random().max(1);
        let question = MapChangeRequest { id, what: *what, pool, osts, uuid: request["uuid"].as_u64().unwrap_or(0) };
        let answer: Result<MapChangeReply, FsError> = self.client.sessions().mdc().ask(Op::MapChange, &question).await;
        match answer {
            Ok(reply) if reply.errno == 0 => {
                self.look_at_map(MAP_WAIT).await;
                json!({"epoch": reply.epoch, "lost_through": reply.lost_through})
            }
            Ok(reply) => refusal(&text_of(&reply.why), i32::from(reply.errno)),
            Err(e) => refused("the cluster map", e),
        }
    }

    /// A page of the files that have objects on an OST.
    pub(super) async fn ost_files(&self, request: &Value) -> Value {
        let ost = OstIndex(request["ost"].as_u64().and_then(|o| u16::try_from(o).ok()).unwrap_or(u16::MAX));
        let from = request["from"].as_str().and_then(Fid::parse).unwrap_or(Fid::ZERO);
        let lost = request["lost"].as_bool().unwrap_or(false);
        let question = OstFilesRequest { ost, from, lost };
        let answer: Result<OstFilesReply, FsError> = self.client.sessions().mdc().ask(Op::OstFiles, &question).await;
        match answer {
            Ok(reply) => {
                let one = |f: &wire::connect::OstFile| {
                    let path: Vec<u8> = f.path.to_vec();
                    json!({"fid": f.fid.to_string(), "path": path, "size": f.size, "stripes": f.stripes, "there": f.there})
                };
                let next = if reply.next.is_zero() { Value::Null } else { json!(reply.next.to_string()) };
                json!({"files": reply.files.iter().map(one).collect::<Vec<_>>(), "next": next, "lost": reply.lost})
            }
            Err(e) => refused(&format!("files of OST {}", ost.0), e),
        }
    }
}
