//! The parameter tree of a metadata target: names, values, what can be set.
use std::fmt::Write;
use std::rc::Rc;

use rt::LocalFuture;
use types::glob::Glob;
use types::params::{ONLY_TELLS, Parameter, reset, switch};
use types::{ClientId, FsError, OstIndex};
use wire::connect::{Param, ParamsReply, ParamsRequest};

use crate::mds::Mds;
use crate::metrics::NUMBERS;
use crate::pools::Pool;

/// How setting a parameter goes on; some wait for the store.
type Setting = LocalFuture<Result<(), String>>;
/// What is shown of an OST.
type Field = fn(&Pool) -> String;
/// A number of the lock tables.
type Counter = fn(&ldlm::NamespaceStats) -> u64;
/// A parameter of a metadata target.
type Row = Parameter<Rc<Mds>, Setting>;

fn row(path: String, get: impl Fn(&Rc<Mds>) -> String + 'static) -> Row {
    Row::new(path, get)
}
fn at_once(done: Result<(), String>) -> Setting {
    Box::pin(std::future::ready(done))
}

/// Why an OST stays out of use that an administrator takes back.
const AWAY: &str = "it was left out when the metadata server was started, for its store was not found or was not wanted ('stria status' says which): put that right, and start it again";

impl Mds {
    /// Reads or sets parameters. A value that is refused is told in the reply's error; what was set before stays set.
    ///
    /// # Errors
    /// `NotFound`: nothing matches.
    pub(crate) async fn params(self: &Rc<Self>, q: &ParamsRequest) -> Result<ParamsReply, FsError> {
        let glob = Glob::new(&String::from_utf8_lossy(&q.pattern));
        let mut found: Vec<Row> = self.rows().into_iter().filter(|row| glob.matches(&row.path)).collect();
        if found.is_empty() {
            return Err(FsError::NotFound);
        }
        let mut error = String::new();
        if let Some(value) = &q.value {
            let value = String::from_utf8_lossy(value).trim().to_string();
            for i in 0..found.len() {
                let set = found[i].set(self, &value).unwrap_or_else(|| at_once(Err(ONLY_TELLS.into())));
                if let Err(e) = set.await {
                    error = format!("{}: {e}", found[i].path);
                    found.truncate(i);
                    break;
                }
            }
        }
        let param = |row: &Row| {
            let value = if q.list { String::new() } else { row.value(self) };
            Param { path: row.path.as_str().into(), value: value.as_str().into(), writable: row.is_writable() }
        };
        Ok(ParamsReply { params: found.iter().map(param).collect(), error: error.as_str().into() })
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.statistics_rows();
        rows.extend(self.session_rows());
        rows.extend(self.allocator_rows());
        rows.extend(self.ost_rows());
        rows
    }

    fn statistics_rows(&self) -> Vec<Row> {
        let t = &self.target;
        let clear = |m: &Rc<Mds>, text: &str| at_once(reset(text).map(|()| m.stats.clear(m.rt.wall())));
        let mut rows = vec![
            row(format!("mdt.{t}.md_stats"), |m| m.stats.text(m.rt.wall())).settable(clear),
            row(format!("mdt.{t}.latency_stats"), |m| m.stats.latency_text(m.rt.wall())).settable(clear),
            row(format!("mdt.{t}.client_stats"), |m| m.stats.clients_text()).settable(clear),
            row(format!("mdt.{t}.job_stats"), |m| m.stats.jobs_text())
                .settable(|m, text| at_once(reset(text).map(|()| m.stats.clear_jobs()))),
            row(format!("mdt.{t}.trace"), |m| m.traced.text()),
            row(format!("mdt.{t}.trace_bytes"), |m| m.traced.bytes().to_string())
                .settable(|m, text| at_once(m.traced.set_bytes(text))),
            row(format!("mdt.{t}.backup"), |m| m.backup.borrow().clone()).settable(|m, text| {
                let (m, text) = (m.clone(), text.to_string());
                Box::pin(async move { m.begin_backup(&text).await })
            }),
            row(format!("mdt.{t}.scrub"), |m| m.scrub.borrow().text()).settable(|m, text| at_once(m.set_scrub(text))),
        ];
        rows.extend(self.changelog_rows());
        rows.extend(NUMBERS.iter().map(|number| row(number.path(t), |m| number.text(m))));
        rows
    }

    fn changelog_rows(&self) -> [Row; 3] {
        let at = |name: &str| format!("mdd.{}.changelog_{name}", self.target);
        [
            row(at("users"), |m| m.changelog.users_text(m.rt.wall())),
            row(at("mask"), |m| m.changelog.mask_text()).settable(|m, text| at_once(m.changelog.set_mask(text))),
            row(at("max_idle_indexes"), |m| m.changelog.idle_indexes().to_string())
                .settable(|m, text| at_once(m.changelog.set_idle_indexes(text))),
        ]
    }

    fn session_rows(&self) -> Vec<Row> {
        let t = &self.target;
        let mut rows: Vec<Row> = Vec::new();
        for e in self.exports.borrow().values() {
            let e = e.clone();
            rows.push(row(format!("mdt.{t}.exports.{:016x}.uuid", e.client().0), move |_| e.peer()));
        }
        rows.extend([
            row(format!("mdt.{t}.evict_client"), |_| String::new()).settable(|m, text| {
                let (m, text) = (m.clone(), text.to_string());
                Box::pin(async move { m.evict_by_name(&text).await })
            }),
            row(format!("mdt.{t}.recovery_status"), |m| m.recovery_text()),
            row(format!("mdt.{t}.store_failure"), |m| {
                types::params::failure_text(m.store.failure().map(|e| e.to_string()), &m.mending.borrow())
            }),
            row(format!("mdt.{t}.abort_recovery"), |_| String::new()).settable(|m, text| {
                if text != "1" {
                    return at_once(Err("write 1, which ends the wait for clients".into()));
                }
                m.recovery.borrow().as_ref().into_iter().for_each(ptlrpc::RecoveryControl::abort);
                at_once(Ok(()))
            }),
        ]);
        let counters: [(&str, Counter); 4] = [
            ("grants", |s| s.granted),
            ("waited", |s| s.waited),
            ("evictions", |s| s.evictions),
            ("limit_hits", |s| s.limit_hits),
        ];
        rows.extend(counters.map(|(name, get)| {
            row(format!("ldlm.namespaces.mdt-{t}.{name}"), move |m| get(m.locks.namespace.borrow().stats()).to_string())
        }));
        rows
    }

    fn allocator_rows(&self) -> Vec<Row> {
        let at = |name: &str| format!("lod.{}-MDT0000-mdtlov.{name}", self.fs());
        let mut rows = vec![
            row(at("qos_policy"), |m| m.pools.borrow_mut().allocator().policy().to_string()).settable(|m, text| {
                at_once(m.pools.borrow_mut().allocator().set_policy(text).map_err(|e| e.to_string()))
            }),
            row(at("pool_dry"), |m| m.pools.borrow().dry.to_string()),
        ];
        rows.extend(layout::AllocConfig::KEYS.iter().map(|key| {
            let get = |m: &Rc<Mds>| m.pools.borrow_mut().allocator().config().get(key.key).unwrap_or_default();
            row(at(&format!("qos_{}", key.key)), move |m| get(m).to_string()).settable(|m, text| {
                let mut pools = m.pools.borrow_mut();
                let mut config = pools.allocator().config().clone();
                let set = config.set(key.key, text).map_err(|e| e.to_string());
                at_once(set.map(|()| pools.allocator().set_config(config)))
            })
        }));
        rows
    }

    fn ost_rows(&self) -> Vec<Row> {
        let osts: Vec<OstIndex> = self.pools.borrow().all().iter().map(|p| p.ost).collect();
        let of = |ost: OstIndex, field: fn(&Pool) -> String| {
            move |m: &Rc<Mds>| m.pools.borrow().all().iter().find(|p| p.ost == ost).map(field).unwrap_or_default()
        };
        let mut rows = Vec::new();
        for ost in osts {
            let name = format!("{}-OST{:04x}-osc-MDT0000", self.fs(), ost.0);
            // The second is the name under which clients have it, so that one pattern reaches everybody.
            rows.extend(["osp", "osc"].map(|kind| {
                row(format!("{kind}.{name}.active"), of(ost, |p| u8::from(p.active).to_string())).settable(
                    move |m, text| {
                        let (m, active) = (m.clone(), switch(text));
                        Box::pin(async move {
                            let active = active?;
                            m.set_ost_active(ost, active).await.map_err(|e| e.to_string())?;
                            match active && !m.map.is_active(ost) {
                                true => Err(AWAY.into()),
                                false => Ok(()),
                            }
                        })
                    },
                )
            }));
            let limit = |p: &Pool| if p.closed { 0 } else { crate::pools::READY_MAX }.to_string();
            rows.push(row(format!("osp.{name}.max_create_count"), of(ost, limit)).settable(move |m, text| {
                let (m, most) = (m.clone(), text.parse::<u32>());
                Box::pin(async move {
                    let most =
                        most.map_err(|_| "write 0 (no new objects there) or a number above (as many as are needed)")?;
                    m.close_ost(ost, most == 0).await.map_err(|e| e.to_string())
                })
            }));
            let fields: [(&str, Field); 5] = [
                ("prealloc_last_id", |p| p.last.to_string()),
                ("prealloc_next_id", |p| p.used.saturating_add(1).to_string()),
                ("prealloc_status", |p| u8::from(!p.can_serve()).to_string()),
                ("kbytestotal", |p| (p.total_bytes / 1024).to_string()),
                ("kbytesavail", |p| (p.free_bytes / 1024).to_string()),
            ];
            rows.extend(fields.map(|(field, get)| row(format!("osp.{name}.{field}"), of(ost, get))));
        }
        rows
    }

    /// The file system's name, as in the target's.
    fn fs(&self) -> &str {
        self.target.trim_end_matches("-MDT0000")
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
