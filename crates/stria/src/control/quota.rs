//! What tools ask of quotas.
use std::rc::Rc;

use serde_json::{Value, json};
use types::FsError;
use wire::Op;
use wire::quota::{EVERYBODY, QuotaBits, QuotaKind, QuotaReply, QuotaRequest, SetQuotaReply, SetQuotaRequest};

use super::look::text_of;
use super::shard::{Shard, refusal, refused};

/// Whose quota a question is about.
fn whose(request: &Value) -> Option<(QuotaKind, u32)> {
    let kind = QuotaKind::ALL.into_iter().find(|k| request["kind"] == json!(*k as u8))?;
    Some((kind, u32::try_from(request["id"].as_u64()?).ok()?))
}

/// Why the metadata server tells this mount nothing.
const NOT_HERE: &str = "this mount's credential has ids of its own or is for a part of the file system, and usage is counted for the whole: ask on another host";

/// Whether only root and the daemon's user may ask this: what another user has. Groups, projects and the default are nobody's own.
pub(super) fn is_anothers(request: &Value, uid: u32) -> bool {
    whose(request).is_none_or(|(kind, id)| kind == QuotaKind::User && id != uid && id != EVERYBODY)
}

impl Shard {
    /// What an id has, and may have.
    pub(super) async fn quota(&self, request: &Value) -> Value {
        let Some((kind, id)) = whose(request) else { return refusal("name whose quota is meant", libc::EINVAL) };
        let question = QuotaRequest { kind, id };
        let answer: Result<QuotaReply, FsError> = self.client.sessions().mdc().ask(Op::MdtQuota, &question).await;
        let reply = match answer {
            Ok(reply) => reply,
            Err(FsError::NotPermitted) => return refusal(NOT_HERE, libc::EPERM),
            Err(e) => return refused("quotas", e),
        };
        let map = self.client.osts().map();
        let name = |ost| map.osts.iter().find(|o| o.ost == ost).map_or("?".into(), |o| text_of(&o.target));
        let osts: Vec<Value> = reply
            .osts
            .iter()
            .map(|o| {
                let (target, away, counting) = (name(o.ost), o.away, o.counting);
                json!({"target": target, "used": o.used, "share": o.share, "away": away, "counting": counting})
            })
            .collect();
        json!({
            "mdt": text_of(&map.mdt_target),
            "block_soft": reply.limits.block_soft,
            "block_hard": reply.limits.block_hard,
            "inode_soft": reply.limits.inode_soft,
            "inode_hard": reply.limits.inode_hard,
            "inodes": reply.inodes,
            "block_expires_ns": reply.block_expires.0,
            "inode_expires_ns": reply.inode_expires.0,
            "block_grace_s": reply.block_grace_s,
            "inode_grace_s": reply.inode_grace_s,
            "now_ns": reply.now.0,
            "by_default": reply.by_default,
            "osts": osts,
        })
    }

    /// Sets limits or times of grace.
    pub(super) async fn set_quota(self: &Rc<Self>, request: &Value) -> Value {
        let Some((kind, id)) = whose(request) else { return refusal("name whose quota is meant", libc::EINVAL) };
        let mut question = SetQuotaRequest { kind, id, ..SetQuotaRequest::default() };
        if request["to_default"] == json!(true) {
            question.set |= QuotaBits::TO_DEFAULT;
        }
        let limits = &mut question.limits;
        for (key, bit, field) in [
            ("block_soft", QuotaBits::BLOCK_SOFT, &mut limits.block_soft),
            ("block_hard", QuotaBits::BLOCK_HARD, &mut limits.block_hard),
            ("inode_soft", QuotaBits::INODE_SOFT, &mut limits.inode_soft),
            ("inode_hard", QuotaBits::INODE_HARD, &mut limits.inode_hard),
            ("block_grace_s", QuotaBits::BLOCK_GRACE, &mut question.block_grace_s),
            ("inode_grace_s", QuotaBits::INODE_GRACE, &mut question.inode_grace_s),
        ] {
            if let Some(value) = request["set"][key].as_u64() {
                *field = value;
                question.set |= bit;
            }
        }
        let answer: Result<SetQuotaReply, FsError> = self.client.sessions().mdc().ask(Op::MdtSetQuota, &question).await;
        match answer {
            Ok(reply) if reply.errno == 0 => json!({}),
            Ok(reply) => refusal(&text_of(&reply.why), i32::from(reply.errno)),
            Err(e) => refused("quotas", e),
        }
    }
}
