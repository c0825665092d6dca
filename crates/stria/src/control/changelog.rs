//! What tools ask of the metadata server's changelog.
use std::rc::Rc;

use serde_json::{Value, json};
use types::FsError;
use wire::Op;
use wire::changelog::{
    ChangeRecord, ChangelogAct, ChangelogReply, ChangelogRequest, ChangelogUserReply, ChangelogUserRequest,
};

use super::look::text_of;
use super::shard::{Shard, refusal, refused};

/// What is done about users, by the names that tools give it.
const ACTS: [(&str, ChangelogAct); 3] =
    [("register", ChangelogAct::Register), ("deregister", ChangelogAct::Deregister), ("clear", ChangelogAct::Clear)];

impl Shard {
    /// A page of records.
    pub(super) async fn changelog(&self, request: &Value) -> Value {
        let question = ChangelogRequest { from: request["from"].as_u64().unwrap_or(0) };
        let answer: Result<ChangelogReply, FsError> = self.client.sessions().mdc().ask(Op::Changelog, &question).await;
        let reply = match answer {
            Ok(reply) => reply,
            Err(e) => return refused("the changelog", e),
        };
        let mut jobs: Vec<u64> = Vec::new();
        let mut records = Vec::with_capacity(reply.records.len());
        for r in &reply.records {
            let known = jobs.iter().position(|job| *job == r.job);
            if known.is_none() && r.job != 0 {
                jobs.push(r.job);
            }
            let place = known.unwrap_or(jobs.len().saturating_sub(1));
            let job = reply.jobs.get(place).filter(|_| r.job != 0).map(|name| text_of(name));
            records.push(shown(r, job));
        }
        json!({"records": records, "last": reply.last, "written": reply.written})
    }

    /// A user comes, tells how far it is, or goes.
    pub(super) async fn changelog_user(self: &Rc<Self>, request: &Value) -> Value {
        let asked = request["act"].as_str().unwrap_or_default();
        let Some((_, act)) = ACTS.iter().find(|(name, _)| *name == asked) else {
            return refusal(&format!("'{asked}' is nothing that is done about a user of the changelog"), libc::EINVAL);
        };
        let user = request["user"].as_u64().and_then(|u| u32::try_from(u).ok()).unwrap_or(0);
        let (id, index) = (self.client.rt().random().max(1), request["index"].as_u64().unwrap_or(0));
        let question = ChangelogUserRequest { id, act: *act, user, index };
        let answer: Result<ChangelogUserReply, FsError> =
            self.client.sessions().mdc().ask(Op::ChangelogUser, &question).await;
        match answer {
            Ok(reply) if reply.errno == 0 => json!({"user": reply.user, "index": reply.index}),
            Ok(reply) => refusal(&text_of(&reply.why), i32::from(reply.errno)),
            Err(e) => refused("the changelog", e),
        }
    }
}

fn shown(r: &ChangeRecord, job: Option<String>) -> Value {
    json!({
        "index": r.index,
        "kind": r.kind as u8,
        "kind_name": r.kind.name(),
        "flags": r.flags,
        "time_ns": r.time.0,
        "target": r.target.to_string(),
        "parent": r.parent.to_string(),
        "name": r.name.to_vec(),
        "source": r.source.to_string(),
        "source_parent": r.source_parent.to_string(),
        "source_name": r.source_name.to_vec(),
        "renames": !r.source.is_zero(),
        "is_named": !r.parent.is_zero(),
        "uid": r.uid,
        "gid": r.gid,
        "job": job,
        "client": format!("{:016x}", r.client.0),
    })
}
