//! One page of `stria why`: the sum by stage, and the slowest requests with who stood in their way.
use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};
use trace::op_name;
use trace::why::{Ahead, Group, Split, Stage};
use types::{ClientId, format_size};

use super::names::Names;
use super::rules::Rule;
use super::{Found, Meant, Reach, wall_of};

/// Clients named for each queue.
const CLIENTS_SHOWN: usize = 3;

/// What is told.
pub(super) struct Page<'a> {
    pub meant: &'a Meant,
    /// All of it, the slowest first.
    pub found: &'a [Found<'a>],
    pub shown: &'a [Found<'a>],
    pub names: &'a Names,
    pub reach: &'a [Reach],
}

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

fn client(id: ClientId) -> String {
    if id == ClientId(0) { "the server itself".into() } else { format!("client {:016x}", id.0) }
}

impl Page<'_> {
    fn sum(&self) -> Split {
        self.found.iter().fold(Split::default(), |sum, f| sum.and(f.split))
    }

    /// For people.
    pub fn text(&self) -> String {
        let (sum, mut out) = (self.sum(), String::new());
        let total = ms(sum.total_ns());
        let longest = sum.longest().name();
        let _ =
            writeln!(out, "{}: {} requests, {total} in all, the most: {longest}", self.meant.text(), self.found.len());
        let _ = writeln!(out, "{}", self.stages(&sum));
        for (i, f) in self.shown.iter().enumerate() {
            let _ = write!(out, "\n{}. {}", i + 1, self.one(f));
        }
        let more = self.found.len() - self.shown.len();
        if more > 0 {
            let _ = writeln!(out, "\n{more} more: --top N shows them");
        }
        for reach in self.reach.iter().filter_map(Reach::text) {
            let _ = writeln!(out, "{reach}");
        }
        out
    }

    /// The table of stages.
    fn stages(&self, sum: &Split) -> Table {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_header(["stage", "sum", "%", "longest"]);
        let all = sum.total_ns().max(1) as f64;
        for stage in Stage::ALL.into_iter().filter(|s| sum.ns(*s) > 0) {
            let longest = self.found.iter().map(|f| f.split.ns(stage)).max().unwrap_or(0);
            let share = format!("{:.1}", sum.ns(stage) as f64 * 100.0 / all);
            table.add_row([stage.name().to_string(), ms(sum.ns(stage)), share, ms(longest)]);
        }
        table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        table
    }

    fn one(&self, f: &Found<'_>) -> String {
        let r = f.record;
        let bytes =
            if r.bytes > 0 { format!(" of {} at {}", format_size(r.bytes.into()), r.offset) } else { String::new() };
        let name = match self.names.find(f.target, r) {
            Some(path) => format!(" of {}", path.display()),
            None if f.at_client => String::new(),
            None => format!(" of {}", r.object.0),
        };
        let at = crate::lfs::time_text(wall_of(f.target, r.arrived.0).div_euclid(1_000_000_000));
        let at = if f.at_client { String::new() } else { format!(", {at}") };
        let failed = if r.errno == 0 { String::new() } else { format!(", failed with errno {}", r.errno) };
        let mut out = format!("{}: {}{bytes}{name}{at}{failed}\n", f.id(), op_name(r.op));
        let job = if r.job.0 == 0 { String::new() } else { format!(", job {}", self.job(r.job.0)) };
        let mut stages: Vec<Stage> = Stage::ALL.into_iter().filter(|s| f.split.ns(*s) > 0).collect();
        stages.sort_by_key(|s| std::cmp::Reverse(f.split.ns(*s)));
        let stages: Vec<String> = stages.iter().map(|s| format!("{} {}", s.name(), ms(f.split.ns(*s)))).collect();
        let _ = writeln!(out, "   {}, uid {}{job}", client(r.client), r.uid);
        let _ = writeln!(out, "   {} = {}", ms(f.split.total_ns()), stages.join(" + "));
        if f.at_client {
            let _ = writeln!(out, "   its target kept nothing of it: it waited for nothing there");
        }
        if r.locked_us > 0 {
            let whose = if r.holder == ClientId(0) { "nobody that is known".into() } else { client(r.holder) };
            let _ = writeln!(out, "   lock: held by {whose}");
        }
        // What costs next to nothing needs no reason.
        let matters = f.split.ns(Stage::Queue) >= f.split.total_ns() / 100;
        if let Some(ahead) = f.ahead().filter(|_| matters) {
            out += &queue(f, &ahead);
        }
        out
    }

    fn job(&self, id: u64) -> String {
        match self.meant {
            Meant::Job { name, .. } => name.clone(),
            _ => format!("{id:016x}"),
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let sum = self.sum();
        let reach = self.reach.iter().map(|r| {
            let ago = r.oldest.map(|(_, ago)| ago as f64 / 1e9);
            json!({"target": r.target, "seconds": ago, "overwritten": r.overwritten})
        });
        json!({
            "what": self.meant.text(),
            "requests": self.found.len(),
            "total_ns": sum.total_ns(),
            "longest": sum.longest().key(),
            "stages": by_stage(&sum),
            "slowest": self.shown.iter().map(|f| self.object(f)).collect::<Vec<_>>(),
            "reach": reach.collect::<Vec<_>>(),
        })
    }

    fn object(&self, f: &Found<'_>) -> Value {
        let r = f.record;
        let hex = |id: u64| format!("{id:016x}");
        let file = self.names.find(f.target, r).map(|p| p.display().to_string());
        let holder = (r.holder != ClientId(0)).then(|| hex(r.holder.0));
        let mut out = json!({
            "id": f.id(),
            "target": f.target.name(),
            "op": op_name(r.op),
            "client": hex(r.client.0),
            "uid": r.uid,
            "job": hex(r.job.0),
            "file": file,
            "object": r.object.0.to_string(),
            "offset": r.offset,
            "bytes": r.bytes,
            "wall_ns": wall_of(f.target, r.arrived.0),
            "errno": r.errno,
            "total_ns": f.split.total_ns(),
            "longest": f.split.longest().key(),
            "stages": by_stage(&f.split),
            "lock_holder": holder,
            "only_client": f.at_client,
        });
        if let Some(ahead) = f.ahead() {
            let rule = Rule::of(f.target, r, &ahead);
            let clients = |group: &Group| -> Vec<Value> {
                let shown = |(c, bytes, requests): (ClientId, u64, u64)| json!({"client": hex(c.0), "requests": requests, "bytes": bytes});
                group.clients().into_iter().map(shown).collect()
            };
            out["queue"] = json!({
                "policy": rule.policy,
                "rule": rule.rule,
                "why": rule.why,
                "requests": ahead.went.requests,
                "bytes": ahead.went.bytes,
                "arrived_later": ahead.passed,
                "urgent": ahead.urgent,
                "same_object": ahead.same_object,
                "clients": clients(&ahead.went),
                "found": {"requests": ahead.found.requests, "bytes": ahead.found.bytes, "clients": clients(&ahead.found)},
            });
        }
        out
    }
}

fn by_stage(split: &Split) -> Value {
    let stages = Stage::ALL.into_iter().map(|s| (format!("{}_ns", s.key()), json!(split.ns(s))));
    Value::Object(stages.collect::<Map<_, _>>())
}

/// What the store had when a request came, what it got while that was queued, and why.
fn queue(f: &Found<'_>, ahead: &Ahead) -> String {
    let rule = Rule::of(f.target, f.record, ahead);
    let mut out = format!("   NRS queue: policy {}: {}\n", rule.policy, rule.why);
    if ahead.found.requests > 0 {
        let (requests, bytes) = (ahead.found.requests, format_size(ahead.found.bytes));
        let _ = writeln!(out, "      the store had {requests} requests ({bytes}) when it came");
        out += &whose(f, &ahead.found);
    }
    if ahead.went.requests > 0 {
        let (requests, bytes) = (ahead.went.requests, format_size(ahead.went.bytes));
        let _ =
            writeln!(out, "      before it went {requests} requests ({bytes}), {} of its object", ahead.same_object);
        out += &whose(f, &ahead.went);
    }
    out
}

/// The clients of some requests.
fn whose(f: &Found<'_>, group: &Group) -> String {
    let (clients, mut out) = (group.clients(), String::new());
    for (id, bytes, requests) in clients.iter().take(CLIENTS_SHOWN) {
        let own = if *id == f.record.client { " (its own)" } else { "" };
        let _ = writeln!(out, "         {requests} of {}{own}, {}", client(*id), format_size(*bytes));
    }
    if clients.len() > CLIENTS_SHOWN {
        let _ = writeln!(out, "         {} more clients", clients.len() - CLIENTS_SHOWN);
    }
    out
}
