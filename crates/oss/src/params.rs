//! The parameter tree of an OST: one row per parameter, with the names that administrators know.
use std::fmt::Write as _;

use types::glob::Glob;
use types::metric::NAMED_MAX;
use types::params::{Keys as _, ONLY_TELLS, Parameter, reset, switch};
use types::record::Recordable as _;
use types::{ClientId, FsError};
use wire::Bytes;
use wire::connect::{Param, ParamsReply, ParamsRequest};

use crate::bandwidth;
use crate::config::Keys;
use crate::dispatch::Dispatcher;
use crate::fast::FastTier;
use crate::metrics::NUMBERS;
use crate::ost::{Ost, policy_of};

/// A parameter of an OST.
type Row = Parameter<Ost>;

fn row(path: String, get: impl Fn(&Ost) -> String + 'static) -> Row {
    Row::new(path, get)
}

impl Ost {
    fn rows(&self) -> Vec<Row> {
        let mut rows = self.number_rows();
        rows.extend(self.space_rows());
        rows.extend(self.statistics_rows());
        rows.extend(self.cache_rows());
        rows.extend(self.nrs_rows());
        rows.extend(self.advice_rows());
        rows.extend(self.fast_rows());
        rows
    }

    /// Numbers that are metrics, too.
    fn number_rows(&self) -> Vec<Row> {
        let target = self.identity.target();
        NUMBERS.iter().map(|s| row(s.path(&target), |o| s.text(o))).collect()
    }

    fn space_rows(&self) -> Vec<Row> {
        let at = |name: &str| format!("obdfilter.{}.{name}", self.identity.target());
        vec![
            row(at("uuid"), |o| format!("{}_UUID", o.identity.target())),
            row(at("blocksize"), |_| "4096".into()),
            row(at("fstype"), |o| o.store.kind().into()),
            row(at("no_precreate"), |o| u32::from(o.config.borrow().no_precreate).to_string()).settable(|o, t| {
                o.config.borrow_mut().no_precreate = switch(t)?;
                Ok(())
            }),
            row(at("recovery_status"), |o| o.recovery.borrow().as_ref().map(|r| r.text()).unwrap_or_default()),
            row(at("abort_recovery"), |_| String::new()).settable(|o, text| {
                if !switch(text)? {
                    return Err("write 1, which ends the wait for clients".into());
                }
                o.recovery.borrow().as_ref().into_iter().for_each(ptlrpc::RecoveryControl::abort);
                Ok(())
            }),
            row(at("store_failure"), |o| types::params::failure_text(o.store.failure_text(), &o.mending.borrow())),
            row(at("request_memory"), Ost::memory_text),
            row(at("scrub"), |o| o.scrub.borrow().text()).settable(|o, text| o.set_scrub(text)),
            row(at("evict_client"), |_| String::new()).settable(|o, text| o.evict_by_name(text)),
            row(at("last_committed"), |o| o.store.last_committed().0.to_string()),
            row(at("brw_size"), |o| (o.config.borrow().bulk_bytes_max >> 20).to_string()).settable(|o, text| {
                let bytes = Keys::read_mib("oss.bulk_bytes_max", text)?;
                if !bytes.is_power_of_two() {
                    return Err(format!("brw_size = {text}: write 1, 2, 4, 8, 16, 32 or 64 (MiB)"));
                }
                o.config.borrow_mut().bulk_bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX);
                Ok(())
            }),
        ]
    }

    /// Evicts a client that an administrator names.
    fn evict_by_name(&self, text: &str) -> Result<(), String> {
        let client = u64::from_str_radix(text.trim_start_matches("0x"), 16).ok().map(ClientId);
        let client = client
            .filter(|c| self.exports.borrow().contains_key(c))
            .ok_or_else(|| format!("'{text}' is no client here: write the id that 'stria status' shows"))?;
        let evict = self.config.borrow().evict.clone().ok_or("nobody carries evictions out here")?;
        tracing::warn!(%client, "evicted by an administrator");
        self.rt.spawn(evict(client));
        Ok(())
    }

    fn statistics_rows(&self) -> Vec<Row> {
        let at = |name: &str| format!("obdfilter.{}.{name}", self.identity.target());
        let clear = |o: &Ost, text: &str| {
            reset(text)?;
            o.stats.borrow_mut().reset(o.rt.wall());
            o.store.disk().into_iter().for_each(crate::store::DiskStats::reset);
            Ok(())
        };
        vec![
            row(at("stats"), |o| o.stats.borrow_mut().text(o.rt.wall())).settable(clear),
            row(at("brw_stats"), |o| o.stats.borrow().brw_text(o.rt.wall(), o.store.disk())).settable(clear),
            row(at("job_stats"), |o| o.stats.borrow().jobs_text()).settable(clear),
            row(at("latency_stats"), |o| {
                o.dispatch.with(|p, _| o.stats.borrow_mut().latency_text(o.rt.wall(), p.waits()))
            })
            .settable(clear),
            row(at("client_stats"), |o| o.stats.borrow().uses.text(NAMED_MAX)).settable(clear),
            row(at("ops"), |o| o.stats.borrow_mut().ops_text(o.rt.wall())),
            row(at("trace"), Ost::trace_text),
            row(at("trace_bytes"), |o| o.config.borrow().trace_bytes.to_string()).settable(Ost::set_trace_bytes),
            row(at("grants"), |o| {
                let mut text = String::new();
                for (client, bytes) in o.grants.borrow().iter() {
                    let _ = writeln!(text, "{client}: {bytes}");
                }
                text
            }),
            row(format!("ldlm.namespaces.filter-{}_UUID.stats", self.identity.target()), |o| {
                format!("{:#?}\n", o.locks.read(|ns| *ns.stats()))
            }),
        ]
    }

    fn cache_rows(&self) -> Vec<Row> {
        let at = |name: &str| format!("obdfilter.{}.{name}", self.identity.target());
        let keys = cache::CacheConfig::KEYS.iter().map(|key| {
            row(at(&format!("cache_{key}")), |o| o.cache.borrow().key(key).unwrap_or_default())
                .settable(|o, t| o.cache.borrow_mut().set_key(key, t))
        });
        let mut rows = vec![
            row(at("read_cache_enable"), |o| u32::from(o.config.borrow().read_cache).to_string()).settable(|o, t| {
                o.config.borrow_mut().read_cache = switch(t)?;
                Ok(())
            }),
            row(at("writethrough_cache_enable"), |o| u32::from(o.config.borrow().writethrough_cache).to_string())
                .settable(|o, t| {
                    o.config.borrow_mut().writethrough_cache = switch(t)?;
                    Ok(())
                }),
            row(at("cache_first"), |o| u32::from(o.config.borrow().cache_first).to_string()).settable(|o, t| {
                o.config.borrow_mut().cache_first = switch(t)?;
                Ok(())
            }),
            row(at("cache_policy"), |o| o.cache.borrow().policy_name().into()).settable(|o, t| {
                o.cache.borrow_mut().switch(t)?;
                o.config.borrow_mut().cache_policy = t.into();
                Ok(())
            }),
            row(at("cache_bytes"), |o| o.cache.borrow().capacity_bytes().to_string()).settable(|o, t| {
                let (bytes, policy) = (Keys::read("oss.cache_bytes", t)?, o.config.borrow().cache_policy.clone());
                o.cache.borrow_mut().rebuild(&policy, bytes)?;
                o.replace_advice();
                o.config.borrow_mut().cache_bytes = bytes;
                Ok(())
            }),
            row(at("cache_record"), |o| o.cache.borrow_mut().recorded(|r| r.record_param()).unwrap_or_else(|e| e))
                .settable(|o, t| o.cache.borrow_mut().recorded(|r| r.set_record_param(t))?),
            row(at("cache_stats"), |o| {
                let cache = o.cache.borrow();
                let mut text = format!("resident_bytes: {}\n", cache.resident_bytes());
                for (name, value) in cache.stats().counters() {
                    let _ = writeln!(text, "{name}: {value}");
                }
                text
            }),
        ];
        rows.extend(keys);
        rows
    }

    fn advice_rows(&self) -> Vec<Row> {
        let at = |name: &str| format!("obdfilter.{}.{name}", self.identity.target());
        let keys = advice::Config::KEYS.iter().map(|key| {
            let get = |o: &Ost| o.advised.with_advisor(|a| a.config().get(key.key)).map(|v| v.to_string());
            row(at(&format!("advice_{}", key.key)), move |o| get(o).unwrap_or_default()).settable(|o, t| {
                o.advised.set_key(key.key, t)?;
                if key.key.starts_with("fast_") {
                    o.refresh_admission();
                }
                Ok(())
            })
        });
        let mut rows = vec![
            row(at("advice_policy"), |o| o.advised.with_advisor(|a| a.policy().to_string())).settable(|o, t| {
                o.advised.switch(t)?;
                o.replace_advice();
                Ok(())
            }),
            row(at("advice_stats"), Ost::advice_text),
            row(at("advice_budget"), |o| o.advised.budgets_text()).settable(|o, t| o.advised.set_budget(t)),
        ];
        rows.extend(keys);
        rows
    }

    /// The fast tier, when there is one.
    fn fast_rows(&self) -> Vec<Row> {
        let at = |name: &str| format!("obdfilter.{}.{name}", self.identity.target());
        if self.store.fast().is_none() {
            return Vec::new();
        }
        fn tier(o: &Ost) -> &FastTier {
            o.store.fast().expect("a store that has a fast tier keeps it").tier()
        }
        vec![
            row(at("fast_stats"), |o| tier(o).text()),
            row(at("fast_admission"), |o| tier(o).policies().0.into()).settable(|o, t| {
                let config = o.advised.with_advisor(|a| a.config().clone());
                tier(o).set_admission(t, &config)
            }),
            row(at("fast_reclaim"), |o| tier(o).policies().1.into()).settable(|o, t| tier(o).set_reclaim(t)),
            row(at("fast_enable"), |o| u32::from(tier(o).is_on()).to_string()).settable(|o, t| {
                match (switch(t)?, tier(o).is_on()) {
                    (false, _) => tier(o).switch_off(),
                    (true, true) => {}
                    (true, false) => return Err("a fast tier that is off comes back when its OST starts again".into()),
                }
                Ok(())
            }),
        ]
    }

    /// What is advised, and how it fares.
    fn advice_text(&self) -> String {
        let ((objects, wishes), tiers, cache) = (self.advised.counts(), self.tiers(), self.cache.borrow());
        let mut text = format!("objects: {objects}\nranges: {wishes}\n");
        for tier in advice::Tier::ALL {
            let at = tier as usize;
            let (size, pressure) = (tiers.size_bytes[at], tiers.pressure[at].name());
            let _ = writeln!(
                text,
                "{0}_bytes: {size}\n{0}_placed_bytes: {1}\n{0}_pressure: {pressure}",
                tier.name(),
                self.advised.held_bytes(tier)
            );
        }
        let (unadvised, advised) = cache.reclaimed();
        let _ = writeln!(text, "reclaimed_unadvised_pages: {unadvised}\nreclaimed_advised_pages: {advised}");
        let _ = writeln!(text, "dropped_fetches: {}", self.dropped_fetches());
        text
    }

    fn nrs_rows(&self) -> Vec<Row> {
        let at = |name: &str| format!("ost.OSS.ost_io.{name}");
        let set_nrs = |name: &'static str| {
            move |o: &Ost, t: &str| {
                o.dispatch.with(|p, now| p.set_param(now, name, t, |r| *r)).map_err(|e| e.to_string())
            }
        };
        let mut rows = vec![
            row(at("nrs_policies"), |o| o.dispatch.with(|p, _| p.head().policy_name().to_string()))
                .settable(move |o, t| set_nrs("nrs_policies")(o, policy_of(&*o.store, t))),
            row(at("nrs_by_medium"), |o| {
                let found = o.store.medium();
                format!("{}: {}", nrs::default_for(found.medium), found.why)
            }),
            row(at("nrs_decisions"), |o| o.dispatch.with(|p, _| p.head().explain())),
            row(at("nrs_tbf_rule"), |o| o.dispatch.with(|p, _| p.get_param("nrs_tbf_rule")).unwrap_or_default())
                .settable(set_nrs("nrs_tbf_rule")),
            row(at("dispatch_window"), |o| o.dispatch.with(|p, _| p.window()).to_string()).settable(|o, t| {
                let window: u64 = Keys::read("oss.dispatch_window", t)?;
                o.dispatch.with(|p, _| p.set_window(u32::try_from(window).unwrap_or(u32::MAX)))
            }),
            row(at("nrs_record"), |o| o.dispatch.with(|p, now| p.recorded(now, |r| *r).record_param()))
                .settable(|o, t| o.dispatch.with(|p, now| p.recorded(now, |r| *r).set_record_param(t))),
            row(at("req_waitqueue"), |o| {
                o.dispatch.with(|p, _| {
                    let c = p.counters();
                    format!(
                        "queued: {}\nin_service: {}\n{c:#?}\n{:#?}\n",
                        p.queued(),
                        p.in_service(),
                        p.head().counters()
                    )
                })
            }),
        ];
        // A quantum can be read and set while its policy is in use.
        for name in nrs::PARAMETERS.iter().filter(|p| p.ends_with("_quantum")) {
            let get = |o: &Ost| o.dispatch.with(|p, _| p.get_param(name)).unwrap_or_default().trim_end().to_string();
            rows.push(row(at(name), get).settable(set_nrs(name)));
        }
        let measured = row(at("nrs_bw_mb_per_s"), |o| {
            o.dispatch.with(|p, _| p.head().config().get("bw_mb_per_s")).unwrap_or_default()
        });
        rows.push(measured.settable(Ost::set_bandwidth));
        for key in nrs::keys().iter().filter(|k| !["tbf_rule", "bw_mb_per_s"].contains(&k.name)) {
            let get = |o: &Ost| o.dispatch.with(|p, _| p.head().config().get(key.name)).unwrap_or_default();
            let set = |o: &Ost, t: &str| o.dispatch.with(|p, now| p.set(now, key.name, t)).map_err(|e| e.to_string());
            rows.push(row(at(&format!("nrs_{}", key.name)), get).settable(set));
        }
        rows
    }

    /// Sets the bandwidths that deadlines estimate by; `measure` has them measured on the store, in the background.
    fn set_bandwidth(&self, text: &str) -> Result<(), String> {
        let (rt, store, dispatch) = (self.rt.clone(), self.store.clone(), self.dispatch.clone());
        let set = |dispatch: &Dispatcher, text: &str| {
            dispatch.with(|p, now| p.set(now, "bw_mb_per_s", text)).map_err(|e| e.to_string())
        };
        if text != "measure" {
            return set(&dispatch, text);
        }
        let (target, window) = (self.identity.target(), dispatch.with(|p, _| p.window()));
        self.rt.spawn(async move {
            let measured = bandwidth::measure(&rt, &store, window).await.map_err(|e| e.to_string());
            match measured.and_then(|table| set(&dispatch, &bandwidth::text(&table)).map(|()| bandwidth::text(&table)))
            {
                Ok(table) => tracing::info!(%target, "bandwidth of the store by record size, MB/s: {table}"),
                Err(e) => tracing::warn!(%target, "bandwidth of the store: {e}"),
            }
        });
        Ok(())
    }

    /// Ends the recording of the scheduler and hands its log out ([`nrs::record::replay`]).
    pub fn take_nrs_record(&self) -> Option<Vec<u8>> {
        self.dispatch.with(|p, _| p.take_record())
    }

    /// The parameters that match a glob ([`types::glob`]).
    #[must_use]
    pub fn get_params(&self, pattern: &str) -> Vec<Param> {
        let glob = Glob::new(pattern);
        let rows = self.rows().into_iter().filter(|r| glob.matches(&r.path));
        rows.map(|r| self.param(&r)).collect()
    }

    fn param(&self, r: &Row) -> Param {
        let value = r.value(self).into_bytes();
        Param { path: r.path.as_str().into(), value: value.into(), writable: r.is_writable() }
    }

    /// Sets every parameter that matches a glob; answers them with their new values.
    ///
    /// # Errors
    /// A sentence that names parameter and value. Parameters before it in the tree keep their new values.
    pub fn set_params(&self, pattern: &str, value: &str) -> Result<Vec<Param>, String> {
        let (mut done, glob) = (Vec::new(), Glob::new(pattern));
        for r in self.rows().into_iter().filter(|r| glob.matches(&r.path)) {
            let set = r.set(self, value.trim()).unwrap_or_else(|| Err(ONLY_TELLS.into()));
            set.map_err(|e| format!("{}: {e}", r.path))?;
            done.push(self.param(&r));
        }
        Ok(done)
    }

    pub(crate) fn answer_params(&self, ask: &ParamsRequest) -> Result<ParamsReply, FsError> {
        let pattern = std::str::from_utf8(&ask.pattern).map_err(|_| FsError::Invalid)?;
        let mut reply = match &ask.value {
            None => ParamsReply { params: self.get_params(pattern), ..ParamsReply::default() },
            Some(value) => match self.set_params(pattern, &String::from_utf8_lossy(value)) {
                Ok(params) => ParamsReply { params, ..ParamsReply::default() },
                Err(e) => ParamsReply { error: e.as_str().into(), ..ParamsReply::default() },
            },
        };
        if ask.list {
            reply.params.iter_mut().for_each(|p| p.value = Bytes::default());
        }
        Ok(reply)
    }
}
