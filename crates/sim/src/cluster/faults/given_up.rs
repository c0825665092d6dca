//! An OST is given up and taken back some time later, on one client or by the cluster map for all of them, as with
//! `osc.*.active=0` on a client and at the metadata server.
//!
//! Whoever gives an OST up loses what is not written there, and is told so; everybody else's files are as they were. In the end
//! every client uses every OST again.
use client::Client;
use types::Rng;
use wire::Op;
use wire::connect::{ParamsReply, ParamsRequest};

use super::super::class::FaultClass;
use super::super::nodes::NodeId;
use super::Faults;

/// Virtual seconds for which an OST is given up, at most.
const GIVEN_UP_MAX_S: f64 = 30.0;
/// Seconds within which clients follow the cluster map when they run and reach the metadata server.
const KNOWN_WITHIN_S: u32 = 1800;

impl Faults {
    /// Gives an OST up for a while.
    pub(super) async fn give_up(&self, rng: &mut Rng) {
        let NodeId::Oss(ost) = self.any_oss(rng) else { return };
        let seconds = GIVEN_UP_MAX_S * rng.unit() * rng.unit();
        let NodeId::Client(client) = self.any_client(rng) else { return };
        match rng.chance(0.6) {
            true => self.give_up_on(client, ost, seconds).await,
            false => self.give_up_everywhere(ost, seconds, rng).await,
        }
    }

    async fn give_up_on(&self, client: usize, ost: usize, seconds: f64) {
        let context = &self.context;
        let set = |active| {
            let running = context.cluster.client(client);
            let osc = running.and_then(|c| c.osts().all().get(ost).cloned());
            osc.is_some_and(|osc| {
                osc.set_active(active);
                true
            })
        };
        context.gives_up(client, true);
        if set(false) {
            self.note(FaultClass::GivenUp, &format!("client{client} gives OST {ost} up for {seconds:.3} s"));
            self.sleep(seconds).await;
            // Another process in its place has given nothing up.
            set(true);
            tracing::info!("client{client} takes OST {ost} back");
        }
        context.gives_up(client, false);
    }

    async fn give_up_everywhere(&self, ost: usize, seconds: f64, rng: &mut Rng) {
        let clients = self.context.cluster.clients.len();
        (0..clients).for_each(|c| self.context.gives_up(c, true));
        self.note(FaultClass::GivenUp, &format!("OST {ost} is given up for {seconds:.3} s"));
        self.context.cluster.ost_given_up(ost, true);
        self.set_active_in_map(ost, false, rng).await;
        self.sleep(seconds).await;
        self.set_active_in_map(ost, true, rng).await;
        self.context.cluster.ost_given_up(ost, false);
        tracing::info!("OST {ost} is taken back");
        for client in 0..clients {
            let mut rounds = 0;
            while self.has_given_up(client, ost) && !self.context.failed() {
                self.sleep(0.5).await;
                rounds += 1;
                if rounds > 2 * KNOWN_WITHIN_S {
                    self.context.complain(format!("client{client} does not take OST {ost} back"));
                }
            }
            self.context.gives_up(client, false);
        }
    }

    /// Whether a client that runs does not use an OST that the cluster has.
    fn has_given_up(&self, client: usize, ost: usize) -> bool {
        let Some(c) = self.context.cluster.client(client) else { return true };
        let uses = c.osts().all().get(ost).is_some_and(|osc| osc.is_active());
        !uses && self.context.cluster.ost_indices().contains(&ost)
    }

    /// Sets the parameter of the metadata server, until it answers.
    async fn set_active_in_map(&self, ost: usize, active: bool, rng: &mut Rng) {
        let (pattern, value) = (format!("osp.*-OST{ost:04x}-*.active"), if active { "1" } else { "0" });
        let q =
            ParamsRequest { pattern: pattern.as_str().into(), value: Some(value.into()), ..ParamsRequest::default() };
        while self.context.cluster.ost_indices().contains(&ost) {
            let Some(client) = self.some_client(rng).await else { return };
            let q = q.clone();
            let asked = self.context.on(client, "given up: parameter", async move |c: std::rc::Rc<Client>| {
                c.sessions().mdc().ask::<_, ParamsReply>(Op::Params, &q).await
            });
            match asked.await {
                Some(Ok(reply)) if reply.error.is_empty() => return,
                Some(Ok(reply)) => tracing::info!("{}", String::from_utf8_lossy(&reply.error)),
                Some(Err(e)) => tracing::info!("active={value} of OST {ost}: {e}"),
                None => {}
            }
            self.sleep(0.2).await;
        }
    }
}
