//! The parameters of a mount: those of its client, by name, each with what reads and what sets it. One whose value is a key's
//! takes the key's range.
use std::rc::Rc;

use client::{Client, Keys as ClientKeys, Osc};
use types::MIB;
use types::params::{Keys as _, Parameter, reset, switch};

use super::shard::Shard;

/// A parameter of a mount.
type Own = Parameter<Shard>;

/// What reads one of the times by which servers are waited for, and what sets it.
type GetTime = fn(&ptlrpc::AdaptiveTimeouts) -> types::Duration;
/// See [`GetTime`].
type SetTime = fn(&mut ptlrpc::AdaptiveTimeouts, types::Duration);

impl Shard {
    /// All of them.
    pub(super) fn own(&self) -> Vec<Own> {
        let mut own = jobs_and_timeouts();
        let llite = format!("llite.{}", self.instance());
        let at = |name: &str| format!("{llite}.{name}");
        own.extend(cache(&at));
        own.extend(readahead(&at));
        own.extend(self.inodes_and_statistics(&at));
        for osc in self.client.osts().all() {
            own.extend(of_osc(&self.osc_name(&osc), &osc));
        }
        let map = self.client.osts().map();
        let target = String::from_utf8_lossy(&map.mdt_target).into_owned();
        let mdc = format!("mdc.{target}-mdc-{:016x}", self.client.sessions().id().0);
        own.push(Own::new(format!("{mdc}.import"), |s| import_text(&s.client.sessions().mdc())));
        own
    }

    fn instance(&self) -> String {
        let map = self.client.osts().map();
        format!("{}-{:016x}", String::from_utf8_lossy(&map.fsname), self.client.sessions().id().0)
    }

    /// Name of an OST's client side, as in `osc.NAME.stats`.
    fn osc_name(&self, osc: &Osc) -> String {
        let fs = String::from_utf8_lossy(&self.client.osts().map().fsname).into_owned();
        format!("osc.{fs}-OST{:04x}-osc-{:016x}", osc.index().0, self.client.sessions().id().0)
    }

    fn inodes_and_statistics(&self, at: &dyn Fn(&str) -> String) -> Vec<Own> {
        let now = |s: &Shard| s.client.rt().wall();
        let clear_calls = move |s: &Shard, t: &str| reset(t).map(|()| s.client.data().calls().reset(now(s)));
        let mut own: Vec<Own> = Vec::new();
        for number in &client::NUMBERS {
            own.push(Own::new(number.path(&self.instance()), |s| number.text(&s.client)));
        }
        own.extend([
            Own::new(at("max_cached_inodes"), |s| s.client.meta().inodes_max().to_string()).settable(|s, t| {
                match ClientKeys::read::<u64>("client.inodes_max", t)? {
                    0 => Err("0 is for the start, where it means what fits into memory: write how many".into()),
                    n => {
                        s.client.meta().set_inodes_max(usize::try_from(n).unwrap_or(usize::MAX));
                        Ok(())
                    }
                }
            }),
            Own::new(at("max_changes_alone"), |s| s.client.sessions().alone().max().to_string()).settable(|s, t| {
                let max = ClientKeys::read::<u64>("client.changes_alone_max", t)?;
                s.client.sessions().alone().set_max(usize::try_from(max).unwrap_or(usize::MAX));
                Ok(())
            }),
            Own::new(at("inode_cache_stats"), |s| inodes_text(&s.client)),
            Own::new(at("lost_files"), |s| s.client.losses().text())
                .settable(|s, t| reset(t).map(|()| s.client.losses().clear())),
            Own::new(at("lost_changes"), |s| s.client.losses().changes_text())
                .settable(|s, t| reset(t).map(|()| s.client.losses().clear_changes())),
            Own::new(at("mount_point"), |s| s.facts.mount_point.clone()),
            Own::new(at("stats"), move |s| s.client.data().calls().text(now(s), s.client.data().pages().found()))
                .settable(clear_calls),
            Own::new(at("latency_stats"), move |s| s.client.data().calls().latency_text(now(s))).settable(clear_calls),
            Own::new(at("extents_stats"), move |s| s.client.data().calls().extents_text(now(s))).settable(clear_calls),
            Own::new(at("offset_stats"), move |s| s.client.offsets().text(now(s))).settable(|s, t| {
                s.client.offsets().set(t);
                Ok(())
            }),
        ]);
        own
    }
}

fn jobs_and_timeouts() -> Vec<Own> {
    let jobs = |s: &Shard| s.client.sessions().jobs().rule().1;
    let mut own = vec![
        Own::new("jobid_var".into(), move |s| jobs(s).var.clone())
            .settable(|s, t| s.client.sessions().jobs().set_var(t)),
        Own::new("jobid_name".into(), move |s| jobs(s).name.clone())
            .settable(|s, t| s.client.sessions().jobs().set_name(t)),
    ];
    let times: [(&str, GetTime, SetTime); 3] = [
        ("at_min", |at| at.min, |at, time| at.min = time),
        ("at_max", |at| at.max, |at, time| at.max = time),
        ("at_history", |at| at.history, |at, time| at.history = time),
    ];
    own.extend(times.map(|(name, get, put)| {
        Own::new(name.into(), move |s| get(&s.client.sessions().timeouts()).as_secs().to_string()).settable(
            move |s, t| {
                let mut at = s.client.sessions().timeouts();
                put(&mut at, types::Duration::from_secs(number(t, 1, 86_400)?));
                s.client.sessions().set_timeouts(at)
            },
        )
    }));
    own
}

fn cache(at: &dyn Fn(&str) -> String) -> Vec<Own> {
    let mut own = vec![
        Own::new(at("max_cached_mb"), |s| (s.client.data().pages().limit_pages() as u64 * 4096 / MIB).to_string())
            .settable(|s, t| ClientKeys::read_mib("client.cache_bytes", t).map(|b| s.client.data().set_cache_bytes(b))),
        Own::new(at("cache_policy"), |s| s.client.data().pages().policy_name().into())
            .settable(|s, t| s.client.data().pages().set_policy(t)),
        Own::new(at("cache_record"), |s| s.client.data().pages().record())
            .settable(|s, t| s.client.data().pages().set_record(t)),
        Own::new(at("cache_stats"), |s| cache_text(&s.client.data().pages().stats())),
    ];
    own.extend(cache::CacheConfig::KEYS.iter().map(|key| {
        Own::new(at(&format!("cache_{key}")), |s| s.client.data().pages().key(key).unwrap_or_default())
            .settable(|s, t| s.client.data().pages().set_key(key, t))
    }));
    own
}

fn readahead(at: &dyn Fn(&str) -> String) -> Vec<Own> {
    let mut own = vec![
        Own::new(at("readahead_policy"), |s| s.client.data().readahead().policy().into())
            .settable(|s, t| s.client.data().readahead().set_policy(t)),
        Own::new(at("readahead_record"), |s| s.client.data().readahead().record())
            .settable(|s, t| s.client.data().readahead().set_record(t)),
        Own::new(at("read_ahead_stats"), |s| {
            let ahead = s.client.data().readahead();
            readahead_text(&ahead.stats(), ahead.held_bytes())
        }),
    ];
    own.extend(::readahead::Config::KEYS.iter().map(|key| {
        // Those that Lustre has go by its names, and count MiB.
        let (name, unit) = match key.alias_mb {
            "" => (key.key, 1),
            alias => (alias, MIB),
        };
        let path = if unit == 1 { at(&format!("readahead_{name}")) } else { at(name) };
        Own::new(path, move |s| (s.client.data().readahead().setting(name).unwrap_or_default() / unit).to_string())
            .settable(move |s, t| s.client.data().readahead().set(name, t))
    }));
    own
}

fn of_osc(name: &str, osc: &Rc<Osc>) -> Vec<Own> {
    let get = |key: &str, get: fn(&Rc<Osc>) -> String| {
        let osc = osc.clone();
        Own::new(format!("{name}.{key}"), move |_| get(&osc))
    };
    let set = |set: fn(&Rc<Osc>, &str) -> Result<(), String>| {
        let osc = osc.clone();
        move |_: &Shard, text: &str| set(&osc, text)
    };
    let clear = |osc: &Rc<Osc>, t: &str| reset(t).map(|()| osc.reset_stats());
    let mut own = vec![
        get("active", |o| u8::from(o.is_active()).to_string())
            .settable(set(|o, t| switch(t).map(|active| o.set_active(active)))),
        get("max_rpcs_in_flight", |o| o.rpcs_in_flight_max().to_string()).settable(set(|o, t| {
            ClientKeys::read("client.max_rpcs_in_flight", t).map(|n: u64| o.set_rpcs_in_flight_max(n as usize))
        })),
        get("max_pages_per_rpc", |o| o.rpc_pages_max().to_string()).settable(set(|o, t| {
            ClientKeys::read("client.max_pages_per_rpc", t).and_then(|n: u64| set_rpc_pages(o, n as usize))
        })),
        get("max_dirty_mb", |o| (o.dirty_max() / MIB).to_string())
            .settable(set(|o, t| ClientKeys::read_mib("client.max_dirty_mb", t).map(|b| o.set_dirty_max(b)))),
        get("grant_shrink_interval", |o| (o.grant_shrink_interval().as_millis() / 1000).to_string()).settable(set(
            |o, t| {
                let seconds = ClientKeys::read("client.grant_shrink_interval_s", t)?;
                o.set_grant_shrink_interval(types::Duration::from_secs(seconds));
                Ok(())
            },
        )),
    ];
    for number in &client::OSC_NUMBERS {
        let osc = osc.clone();
        own.push(Own::new(number.path(&name["osc.".len()..]), move |_| number.text(&osc)));
    }
    own.extend([
        get("stats", |o| o.stats_text()).settable(set(clear)),
        get("latency_stats", |o| o.latency_stats_text()).settable(set(clear)),
        get("rpc_stats", |o| o.rpc_stats_text()).settable(set(clear)),
    ]);
    if let Some(import) = osc.import_if_any() {
        own.push(Own::new(format!("{name}.import"), move |_| import_text(&import)));
    }
    own
}

fn readahead_text(stats: &readahead::Stats, held_bytes: u64) -> String {
    let counters = stats.counters().map(|(name, value, unit)| format!("{name} {value} samples [{unit}]\n"));
    counters.concat() + &format!("held_bytes {held_bytes} samples [bytes]\n")
}

fn inodes_text(client: &Client) -> String {
    let [inodes, names, children, objects] = client.meta().remembered();
    let reclaimed = client.meta().inodes_reclaimed();
    format!("inodes: {inodes}\nnames: {names}\nchildren: {children}\nobjects: {objects}\nreclaimed: {reclaimed}\n")
}

fn cache_text(stats: &cache::Stats) -> String {
    stats.counters().map(|(name, value)| format!("{name}: {value}\n")).concat()
}

fn import_text(import: &ptlrpc::Import) -> String {
    let (sessions, sent, resent) = import.counters();
    let mut text = format!(
        "import:\n    target: {}\n    nid: {}\n    state: {:?}\n    security: {}\n    sessions: {sessions}\n    rpcs: {sent}\n    resent: {resent}\n    in_flight: {}\n    last_committed: {}\n    service_time_ms: {}\n    patience_ms: {}\n    early_replies: {}\n",
        import.target(),
        import.nid(),
        import.state(),
        import.security(),
        import.in_flight(),
        import.last_committed(),
        import.service_time().as_millis(),
        import.patience().as_millis(),
        import.early_replies()
    );
    if let Some(why) = import.failure() {
        text += &format!("    failure: {why}\n");
    }
    text
}

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let value: Option<u64> = text.parse().ok().filter(|n| (min..=max).contains(n));
    value.ok_or_else(|| format!("write a number from {min} to {max}"))
}

/// Pages of one bulk RPC; more than the OST takes would stay without effect.
fn set_rpc_pages(osc: &client::Osc, pages: usize) -> Result<(), String> {
    let most = osc.rpc_pages_offered();
    if pages > most {
        let (ost, mib) = (osc.index(), most as u64 * types::PAGE_BYTES as u64 / MIB);
        return Err(format!("{ost} takes {most} pages at most: its brw_size was {mib} MiB when this client connected"));
    }
    osc.set_rpc_pages_max(pages);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_with_their_range() {
        assert_eq!(number("8", 1, 256), Ok(8));
        assert_eq!(number("0", 1, 256).unwrap_err(), "write a number from 1 to 256");
        assert_eq!(ClientKeys::read("client.max_rpcs_in_flight", "256"), Ok(256u64));
        assert_eq!(ClientKeys::read_mib("client.cache_bytes", "1G"), Ok(1 << 30));
        assert!(ClientKeys::read_mib("client.cache_bytes", "3").is_err());
        for text in ["99999999999999999999", "18446744073709551615", "0"] {
            assert!(ClientKeys::read_mib("client.max_dirty_mb", text).is_err(), "{text}");
        }
    }
}
