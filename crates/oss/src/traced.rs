//! What of the trace is told: the answer to `OstTrace`, the parameter.
use std::fmt::Write as _;

use devices::{AllocKind, ElevatorConfig};
use types::FsError;
use wire::ost::{TraceReply, TraceRequest};

use crate::Ost;

impl Ost {
    pub(crate) fn answer_trace(&self, ask: &TraceRequest) -> Result<TraceReply, FsError> {
        let settings = self.trace_settings();
        self.dispatch.trace(|ring| trace::told::answer(ring, ask, &settings))
    }

    /// What a replay has to know, by the names of the simulator's keys; and whose the clock is.
    fn trace_settings(&self) -> String {
        let mut out = format!("target={}\nsource=ost\nstore.kind={}\n", self.identity.target(), self.store.kind());
        let mut put = |key: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(out, "{key}={value}");
        };
        if let Some((profile, elevator)) = self.store.emulated() {
            let defaults = ElevatorConfig::default();
            put("disk.profile", &profile.name);
            profile.changes().iter().for_each(|(key, value)| put(&format!("disk.{key}"), value));
            put("elevator.kind", &elevator.name());
            put("elevator.depth", &defaults.depth);
            put("elevator.request_bytes_max", &defaults.request_bytes_max);
            put("alloc.kind", &AllocKind::default().name());
        }
        let (policy, config, window) =
            self.dispatch.with(|p, _| (p.head().in_use().to_string(), p.head().config().clone(), p.window()));
        put("nrs.policy", &policy);
        // The commands that made the rules are none of them.
        for key in nrs::keys().iter().filter(|key| key.name != "tbf_rule") {
            put(&format!("nrs.{}", key.name), &config.get(key.name).unwrap_or_default());
        }
        put("oss.dispatch_window", &window);
        put("oss.cache_bytes", &self.cache.borrow().capacity_bytes());
        put("oss.cache_first", &self.config.borrow().cache_first);
        put("clock_ns", &self.rt.now().0);
        put("wall_ns", &self.rt.wall().0);
        out
    }

    /// The parameter `trace`.
    pub(crate) fn trace_text(&self) -> String {
        self.dispatch.trace(|ring| ring.text())
    }

    /// Sets how much memory the trace takes.
    pub(crate) fn set_trace_bytes(&self, text: &str) -> Result<(), String> {
        self.config.borrow_mut().trace_bytes = self.dispatch.trace(|ring| ring.set_bytes(text))?;
        Ok(())
    }
}
