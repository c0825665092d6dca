//! Clients with credentials of their own, on hosts beside those of the usual clients: nothing but the program that made their credentials
//! uses them.
use std::rc::Rc;

use client::{Client, ClientConfig};
use ptlrpc::{ClusterKey, Limits};
use types::{ClientId, Duration};
use wire::credential::Credential;

use super::{Cluster, Running, inside};

impl Cluster {
    /// The key of a credential as its file holds it.
    ///
    /// # Errors
    /// What it says is no credential.
    pub fn key_of(&self, credential: Credential) -> Result<ClusterKey, String> {
        let limits = Limits::new(credential)?;
        let key = self.key.credential_of(limits).ok_or("the cluster's key makes no credentials")?;
        let text = key.credential_text().ok_or("a credential has no text")?;
        ClusterKey::from_text(text.as_bytes())
    }
    /// Starts a client on a guest's host, with a key.
    ///
    /// # Errors
    /// Why it does not join within `patience`.
    ///
    /// # Panics
    /// When one runs there already.
    pub async fn start_guest(&self, index: usize, key: ClusterKey, patience: Duration) -> Result<ClientId, String> {
        let node = self.guests[index].clone();
        let rt = node.host().boot();
        node.starts.set(node.starts.get() + 1);
        *node.rt.borrow_mut() = Some(rt.clone());
        let identity = ClientId(rt.random() << 8 | node.starts.get());
        node.identities.borrow_mut().push(identity);
        let noatime = key.limits().is_some_and(|l| l.is_read_only());
        let config = ClientConfig {
            client: identity,
            cache_bytes: self.config.client_cache_bytes,
            dirty_bytes_max: self.dirty_bytes_max(),
            dirty_age_max: self.config.dirty_age_max,
            noatime,
            key,
            ..ClientConfig::new(self.mds_nid())
        };
        let (osts, own) = (self.osts_to_join(), rt.clone());
        let joined = inside(&rt, Box::pin(async move { roles::join(&own, config, osts, patience).await })).await;
        match joined {
            Some(Ok(client)) => {
                *node.running.borrow_mut() = Running::Client(client);
                Ok(identity)
            }
            Some(Err(e)) => {
                self.end_guest(index);
                Err(e.to_string())
            }
            None => Err(format!("{} died while it started", node.id)),
        }
    }
    /// Ends a guest's process.
    pub fn end_guest(&self, index: usize) {
        self.guests[index].host().kill();
        self.guests[index].forget();
    }
    /// The client on a guest's host, when it runs.
    #[must_use]
    pub fn guest(&self, index: usize) -> Option<Rc<Client>> {
        match &*self.guests[index].running.borrow() {
            Running::Client(client) => Some(client.clone()),
            _ => None,
        }
    }
    /// Runs `work` as a task of a guest's process; `None` when it does not run, or died meanwhile.
    pub async fn on_guest<T: 'static>(
        &self,
        index: usize,
        work: impl AsyncFnOnce(Rc<Client>) -> T + 'static,
    ) -> Option<T> {
        let client = self.guest(index)?;
        let rt = client.rt().clone();
        inside(&rt, Box::pin(async move { work(client).await })).await
    }
    /// How many times servers have evicted a client, those that run no more among them.
    #[must_use]
    pub fn evictions_of(&self, id: ClientId) -> u64 {
        let past = self.past_evictions.borrow().get(&id).copied().unwrap_or(0);
        let servers = std::iter::once(&self.mds).chain(self.osses()).filter_map(|n| n.server());
        past + servers.map(|s| s.evictions(id)).sum::<u64>()
    }
    /// Servers that run and know a client.
    #[must_use]
    pub fn who_knows(&self, id: ClientId) -> Vec<String> {
        self.targets().filter(|(s, t)| s.knows(t, id)).map(|(_, t)| t.to_string()).collect()
    }
}
