//! How the world drives clients that read call by call ([`Node`]).
use super::config::{LightConfig, Operation};
use super::node::{Hands, Node};
use super::world::{Event, World};

impl World<'_> {
    /// Starts the programs of all clients, when this phase has programs. A mix goes on with what caches hold.
    pub(super) fn begin_programs(&mut self, accesses: u32, measured: bool) -> bool {
        let config: &LightConfig = self.config;
        let Some(calling) = config.calling.as_ref().filter(|_| self.operation == Operation::Read) else { return false };
        let per_client = (calling.files_per_client() * config.stripe_count) as usize;
        let mut f = 0;
        while f < self.flows.len() {
            if self.flows[f].urgent {
                f += 1;
                continue;
            }
            // A client's objects follow each other.
            let flows = &mut self.flows[f..f + per_client];
            let node = flows[0].home;
            if self.nodes.len() == node as usize {
                let osts = flows.iter().map(|flow| flow.ost - self.first_ost).collect();
                self.nodes.push(Node::new(config, calling, flows[0].client, f as u32, osts));
            }
            self.nodes[node as usize].begin(accesses, measured);
            for p in 0..calling.programs {
                let at = self.begin + flows[0].start + u64::from(p) * 10_000;
                self.queue.at(flows[0].ost - self.first_ost, at, Event::Step { program: node * calling.programs + p });
            }
            // Records may come any number of times.
            flows.iter_mut().for_each(|flow| flow.total = u32::MAX);
            f += per_client;
        }
        true
    }

    /// A program makes its next call, or goes on with a large one.
    pub(super) fn on_step(&mut self, now: u64, program: u32) {
        let programs = self.calling().programs;
        let (node, p) = (program / programs, program % programs);
        let next = self.with_node(node, |node, hands| node.step(now, p, hands));
        self.go_on(node, next.map(|at| (p, at)));
    }

    /// An RPC reaches a client whose programs read.
    pub(super) fn on_here(&mut self, now: u64, node: u32, rpc: u32) {
        let next = self.with_node(node, |node, hands| node.on_rpc(now, rpc, hands));
        self.go_on(node, next);
    }

    /// A reply reaches the client of an object at `at`: its RPC is there when it has been handled.
    pub(super) fn on_node_reply(&mut self, at: u64, f: u32, rpc: u32) {
        let flow = &self.flows[f as usize];
        let (node, ost, limit) = (flow.home, flow.ost - self.first_ost, flow.limit);
        let (calling, asked) = (self.calling(), *self.rpcs.get(rpc));
        let reader = &mut self.nodes[node as usize];
        reader.on_credits(ost, limit);
        let here = reader.received(at, &asked, calling);
        self.queue.at(ost, here, Event::Here { node, rpc });
    }

    fn go_on(&mut self, node: u32, next: Option<(u32, u64)>) {
        if let Some((p, at)) = next {
            let program = node * self.calling().programs + p;
            let ost = self.nodes[node as usize].first_ost();
            self.queue.at(ost, at, Event::Step { program });
        }
    }

    fn with_node<T>(&mut self, node: u32, work: impl FnOnce(&mut Node, &mut Hands) -> T) -> T {
        let (config, calling) = (self.config, self.calling());
        let World { nodes, rpcs, stats, sends, .. } = self;
        let mut hands = Hands { config, calling, rpcs, calls: &mut stats.calls, sends };
        let done = work(&mut nodes[node as usize], &mut hands);
        for (rpc, at) in self.sends.drain(..) {
            let flow = self.rpcs.get(rpc).flow;
            let ost = self.flows[flow as usize].ost - self.first_ost;
            self.queue.at(ost, at + config.latency_ns, Event::Arrive { flow, rpc });
        }
        done
    }
}
