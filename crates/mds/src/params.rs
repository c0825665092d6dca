//! The parameter tree of a metadata target: names, values, what can be set.
use std::fmt::Write;
use std::rc::Rc;

use types::glob::Glob;
use types::{ClientId, FsError, OstIndex};
use wire::connect::{Param, ParamsReply, ParamsRequest};

use crate::mds::Mds;
use crate::metrics::NUMBERS;
use crate::pools::Pool;

impl Mds {
    /// Reads or sets parameters. A value that is refused is told in the reply's error; what was set before stays set.
    ///
    /// # Errors
    /// `NotFound`: nothing matches.
    pub(crate) async fn params(self: &Rc<Self>, q: &ParamsRequest) -> Result<ParamsReply, FsError> {
        let glob = Glob::new(&String::from_utf8_lossy(&q.pattern));
        let name = |p: &Param| String::from_utf8_lossy(&p.path).into_owned();
        let found: Vec<String> = self.all_params().iter().map(name).filter(|n| glob.matches(n)).collect();
        if found.is_empty() {
            return Err(FsError::NotFound);
        }
        let mut error = String::new();
        let mut shown = found.len();
        if let Some(value) = &q.value {
            let value = String::from_utf8_lossy(value).trim().to_string();
            for (i, path) in found.iter().enumerate() {
                if let Err(e) = self.set_param(path, &value).await {
                    (shown, error) = (i, format!("{path}: {e}"));
                    break;
                }
            }
        }
        let found = &found[..shown];
        let mut params: Vec<Param> = self.all_params().into_iter().filter(|p| found.contains(&name(p))).collect();
        if q.list {
            params.iter_mut().for_each(|p| p.value = wire::Bytes::default());
        }
        Ok(ParamsReply { params, error: error.as_str().into() })
    }

    fn all_params(&self) -> Vec<Param> {
        let t = &self.target;
        let fs = t.trim_end_matches("-MDT0000");
        let mut all = Vec::new();
        let mut add = |path: String, value: String, writable: bool| {
            all.push(Param { path: path.as_str().into(), value: value.as_str().into(), writable });
        };
        add(format!("mdt.{t}.md_stats"), self.stats.text(self.rt.wall()), true);
        add(format!("mdt.{t}.latency_stats"), self.stats.latency_text(self.rt.wall()), true);
        add(format!("mdt.{t}.client_stats"), self.stats.clients_text(), true);
        add(format!("mdt.{t}.job_stats"), self.stats.jobs_text(), true);
        add(format!("mdt.{t}.trace"), self.traced.text(), false);
        add(format!("mdt.{t}.trace_bytes"), self.traced.bytes().to_string(), true);
        for e in self.exports.borrow().values() {
            add(format!("mdt.{t}.exports.{:016x}.uuid", e.client().0), e.peer(), false);
        }
        add(format!("mdt.{t}.evict_client"), String::new(), true);
        add(format!("mdt.{t}.backup"), self.backup.borrow().clone(), true);
        add(format!("mdt.{t}.scrub"), self.scrub.borrow().text(), true);
        for number in &NUMBERS {
            add(number.path(t), number.text(self), false);
        }
        add(format!("mdt.{t}.recovery_status"), self.recovery_text(), false);
        add(format!("mdt.{t}.abort_recovery"), String::new(), true);
        let ns = self.locks.namespace.borrow();
        let s = *ns.stats();
        drop(ns);
        add(format!("ldlm.namespaces.mdt-{t}.grants"), s.granted.to_string(), false);
        add(format!("ldlm.namespaces.mdt-{t}.evictions"), s.evictions.to_string(), false);
        add(format!("ldlm.namespaces.mdt-{t}.limit_hits"), s.limit_hits.to_string(), false);
        let mut pools = self.pools.borrow_mut();
        add(format!("lod.{fs}-MDT0000-mdtlov.qos_policy"), pools.allocator().policy().to_string(), true);
        for key in layout::AllocConfig::KEYS {
            let value = pools.allocator().config().get(key.key).unwrap_or_default();
            add(format!("lod.{fs}-MDT0000-mdtlov.qos_{}", key.key), value.to_string(), true);
        }
        add(format!("lod.{fs}-MDT0000-mdtlov.pool_dry"), pools.dry.to_string(), false);
        let fields: Vec<_> = pools.all().iter().map(|p| (osp_name(fs, p), osp_fields(p))).collect();
        drop(pools);
        for (name, fields) in fields {
            for (field, value, writable) in fields {
                if field == "active" {
                    // The name under which clients have it, so that one pattern reaches everybody.
                    add(format!("osc.{name}.{field}"), value.clone(), writable);
                }
                add(format!("osp.{name}.{field}"), value, writable);
            }
        }
        all
    }

    fn recovery_text(&self) -> String {
        let mut s = String::new();
        match &*self.recovery.borrow() {
            Some(recovery) => s += &recovery.text(),
            None => s += "status: COMPLETE\n",
        }
        let _ = writeln!(s, "last_transno: {}", self.store.last_transno());
        let _ = writeln!(s, "last_committed: {}", self.store.last_committed());
        s
    }

    /// Sets one parameter; the error is a sentence.
    async fn set_param(self: &Rc<Self>, path: &str, value: &str) -> Result<(), String> {
        if [".md_stats", ".latency_stats", ".client_stats", ".job_stats"].iter().any(|page| path.ends_with(page)) {
            if !matches!(value, "0" | "clear") {
                return Err(format!("'{value}' cannot be written here: write 0 or clear, which resets it"));
            }
            if path.ends_with(".job_stats") {
                self.stats.clear_jobs();
            } else {
                self.stats.clear(self.rt.wall());
            }
            return Ok(());
        }
        if path.ends_with(".abort_recovery") {
            if value != "1" {
                return Err("write 1, which ends the wait for clients".into());
            }
            self.recovery.borrow().as_ref().into_iter().for_each(ptlrpc::RecoveryControl::abort);
            return Ok(());
        }
        if path.ends_with(".trace_bytes") {
            return self.traced.set_bytes(value);
        }
        if path.ends_with(".backup") {
            return self.begin_backup(value);
        }
        if path.ends_with(".scrub") {
            return self.set_scrub(value);
        }
        if path.ends_with(".evict_client") {
            return self.evict_by_name(value).await;
        }
        if let Some(key) = path.rsplit_once(".qos_").map(|(_, k)| k) {
            let mut pools = self.pools.borrow_mut();
            if key == "policy" {
                return pools.allocator().set_policy(value).map_err(|e| e.to_string());
            }
            let mut config = pools.allocator().config().clone();
            config.set(key, value).map_err(|e| e.to_string())?;
            pools.allocator().set_config(config);
            return Ok(());
        }
        if (path.starts_with("osp.") || path.starts_with("osc.")) && path.ends_with(".active") {
            let active = match value {
                "0" => false,
                "1" => true,
                _ => return Err(format!("'{value}' is neither 1 nor 0")),
            };
            let index = path
                .split('-')
                .find_map(|p| p.strip_prefix("OST"))
                .and_then(|h| u16::from_str_radix(h.get(..4)?, 16).ok());
            let ost = OstIndex(index.ok_or("it names no OST")?);
            return self.set_ost_active(ost, active).await.map_err(|e| e.to_string());
        }
        Err("it cannot be set: it only tells".into())
    }

    /// Evicts a client that an administrator names.
    async fn evict_by_name(self: &Rc<Self>, value: &str) -> Result<(), String> {
        let client = u64::from_str_radix(value.trim_start_matches("0x"), 16).ok().map(ClientId);
        let known = client.filter(|c| self.exports.borrow().contains_key(c));
        let Some(client) = known else {
            return Err(format!("'{value}' is no client here: mdt.*.exports.*.uuid lists them"));
        };
        tracing::warn!(%client, "evicted by an administrator");
        self.evict(client).await;
        Ok(())
    }
}

fn osp_name(fs: &str, p: &Pool) -> String {
    format!("{fs}-OST{:04x}-osc-MDT0000", p.ost.0)
}
fn osp_fields(p: &Pool) -> [(&'static str, String, bool); 6] {
    [
        ("active", u8::from(p.active).to_string(), true),
        ("prealloc_last_id", p.last.to_string(), false),
        ("prealloc_next_id", p.used.saturating_add(1).to_string(), false),
        ("prealloc_status", u8::from(!p.can_serve()).to_string(), false),
        ("kbytestotal", (p.total_bytes / 1024).to_string(), false),
        ("kbytesavail", (p.free_bytes / 1024).to_string(), false),
    ]
}
