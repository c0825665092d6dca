//! A metadata server that lives on while another one takes its store over.
use simworld::Host;

use super::{Cluster, MdsRole, Running};

/// See the module's head.
pub(super) struct Aside {
    host: Host,
    role: MdsRole,
}

impl Cluster {
    /// The metadata server that runs counts as the one of before from now on: the node starts on its other host next. Where it ran;
    /// `None`: none runs, or the other host is not free.
    #[must_use]
    pub fn step_aside(&self) -> Option<Host> {
        let node = &self.mds;
        let host = node.host().clone();
        if !matches!(&*node.running.borrow(), Running::Mds(_)) || self.aside.borrow().is_some() {
            return None;
        }
        node.change_hosts();
        if node.host().runs() || node.host().name() == host.name() {
            return None;
        }
        let Running::Mds(role) = node.running.replace(Running::Nothing) else { return None };
        node.rt.take();
        *self.aside.borrow_mut() = Some(Aside { host: host.clone(), role });
        Some(host)
    }
    /// A host reaches the database of the metadata store no longer, or again.
    pub fn cut_off_database(&self, host: &Host, is: bool) {
        if let Some(database) = &self.database {
            database.cut_off(host, is);
        }
    }
    /// Whether the metadata server of before knows that another one has its store.
    #[must_use]
    pub fn aside_knows(&self) -> bool {
        self.aside.borrow().as_ref().is_none_or(|aside| aside.role.is_replaced())
    }
    /// Ends the metadata server of before, if there is one.
    pub fn end_aside(&self) {
        let Some(aside) = self.aside.take() else { return };
        aside.host.kill();
        self.keep_evictions_of(&aside.role.server);
        self.cut_off_database(&aside.host, false);
        aside.role.halt();
    }
}
