//! Network namespaces: every server and every mount of a torture in one of its own, joined by a bridge, so that any two of
//! them can be cut off from each other. Needs root and `ip` of iproute2.
//!
//! A cut in one direction gives the sender a neighbour entry with an address that nobody has: what it sends goes nowhere, in
//! silence, and no kernel module beyond veth and bridge is needed. Connections stay, as they do behind a broken switch.
use std::path::{Path, PathBuf};
use std::process::Command;

use super::rig::tool;

/// First two parts of the addresses. They exist within the namespaces only.
const NET: &str = "10.83";
/// A hardware address that nobody has.
const NOBODY: &str = "02:00:00:00:00:01";

/// The namespaces of one torture; they go when this does.
pub struct Nets {
    /// Begins the names of its namespaces.
    prefix: String,
    nodes: Vec<String>,
}

impl Nets {
    /// A namespace for each of `nodes`.
    ///
    /// # Errors
    /// What this machine lacks for it.
    pub fn make(nodes: &[String]) -> Result<Nets, String> {
        let nets = Nets { prefix: format!("stria-{}", std::process::id()), nodes: nodes.to_vec() };
        let switch = nets.switch();
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "bridge", "up"])?;
        for node in nodes {
            let (own, port, address) = (nets.namespace(node), nets.port(node), nets.address(node));
            ip(&["netns", "add", &own])?;
            ip(&["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &own])?;
            ip(&["-n", &switch, "link", "set", &port, "master", "bridge", "up"])?;
            ip(&["-n", &own, "link", "set", "lo", "up"])?;
            ip(&["-n", &own, "address", "add", &format!("{address}/16"), "dev", "eth0"])?;
            ip(&["-n", &own, "link", "set", "eth0", "up"])?;
        }
        Ok(nets)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }
    fn index(&self, node: &str) -> usize {
        self.nodes.iter().position(|n| n == node).expect("only nodes that it was made for are asked about")
    }
    fn port(&self, node: &str) -> String {
        format!("port{}", self.index(node))
    }
    /// The name of a node's namespace.
    #[must_use]
    pub fn namespace(&self, node: &str) -> String {
        format!("{}-{node}", self.prefix)
    }
    /// The file that a process enters a node's namespace by.
    #[must_use]
    pub fn file(&self, node: &str) -> PathBuf {
        Path::new("/run/netns").join(self.namespace(node))
    }
    /// A node's address.
    #[must_use]
    pub fn address(&self, node: &str) -> String {
        let number = self.index(node) + 1;
        format!("{NET}.{}.{}", number / 250, number % 250 + 1)
    }

    /// Takes a node's cable out, or puts it back.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn isolate(&self, node: &str, out: bool) -> Result<(), String> {
        let state = if out { "down" } else { "up" };
        ip(&["-n", &self.switch(), "link", "set", &self.port(node), state])
    }

    /// Loses what `from` sends to `to`, or no longer does.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn drop_between(&self, from: &str, to: &str, drop: bool) -> Result<(), String> {
        let (own, address) = (self.namespace(from), self.address(to));
        if drop {
            ip(&["-n", &own, "neigh", "replace", &address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"])
        } else {
            ip(&["-n", &own, "neigh", "del", &address, "dev", "eth0"])
        }
    }
}

impl Drop for Nets {
    fn drop(&mut self) {
        let own = self.nodes.iter().map(|n| self.namespace(n));
        for name in own.chain([self.switch()]).filter(|n| Path::new("/run/netns").join(n).exists()) {
            if let Err(e) = ip(&["netns", "del", &name]) {
                eprintln!("network namespace {name} stays: {e}");
            }
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    tool(Command::new("ip").args(arguments))
}
