//! Telling the metadata server which of the sizes that this client told stay right whatever happens to it: those whose data
//! are on the stable storage of their OSTs. The server doubts the others when the client is gone (`docs/internals/sizes.md`).
//!
//! Cancel safety: a round that is dropped tells nothing; the next one tells more.
use std::cell::Cell;
use std::rc::{Rc, Weak};

use rt::Rt;
use rt::sync::join_all;
use types::{Duration, Extent, Transno};
use wire::Op;
use wire::mdt::SettledRequest;

use crate::client::Client;
use crate::osc::{Osc, Why};

/// What is to be told.
#[derive(Default)]
pub(crate) struct Settling {
    /// Sizes were told, or the server may have forgotten what was settled.
    unsettled: Cell<bool>,
    /// Sizes that turned out to be wrong, and which the server does not know of yet.
    doubted: Cell<u32>,
}

impl Settling {
    /// A size was told, or a restarted server knows of none that is settled.
    pub(crate) fn needed(&self) {
        self.unsettled.set(true);
    }
    /// A size that was told is wrong; the server is being told so.
    pub(crate) fn doubt_begins(&self) {
        self.doubted.set(self.doubted.get() + 1);
    }
    /// The server knows, or cannot be told.
    pub(crate) fn doubt_ends(&self) {
        self.doubted.set(self.doubted.get() - 1);
    }
}

/// Tells what is settled, at most once in the time after which pages are written out.
pub(crate) async fn keep_settled(client: Weak<Client>) {
    while let Some(me) = running(&client) {
        let (rt, pause) = (me.rt.clone(), me.config.dirty_age_max);
        if me.settling.unsettled.replace(false) {
            drop(me);
            if !settle(&client, &rt, pause).await
                && let Some(me) = running(&client)
            {
                me.settling.needed();
            }
        } else {
            drop(me);
        }
        rt.sleep(pause).await;
    }
}

fn running(client: &Weak<Client>) -> Option<Rc<Client>> {
    client.upgrade().filter(|c| !c.sessions.is_closing())
}

/// Waits until what was written up to now is on stable storage or lost, and tells the server. Whether it knows.
async fn settle(client: &Weak<Client>, rt: &Rt, pause: Duration) -> bool {
    let Some(me) = running(client) else { return false };
    let mdc = me.sessions.mdc();
    // Whatever was told with these transactions was written before now.
    let through = mdc.last_transno().max(mdc.last_committed());
    let written = me.osts.unwritten_objects();
    drop(me);
    if types::planted!("settled-early") {
        return mdc.ask::<_, ()>(Op::MdtSettled, &SettledRequest { through }).await.is_ok();
    }
    // Pages go by their age; what goes on being written is not waited for.
    rt.sleep(pause).await;
    let Some(me) = running(client) else { return false };
    let late = written.into_iter().filter(|o| o.unwritten_pages() > 0).map(|o| {
        let osc = me.osts.osc(o.ost);
        async move { osc.flush(&o, Extent::ALL, Why::Asked).await }
    });
    let late = join_all(late.collect());
    let oscs = me.osts.all();
    drop(me);
    late.await;
    let changed: Vec<Changed> = oscs.iter().filter_map(Changed::of).collect();
    while changed.iter().any(|c| !c.is_over()) {
        rt.sleep(pause).await;
        if running(client).is_none() {
            return false;
        }
    }
    let unknown = running(client).is_none_or(|me| me.settling.doubted.get() > 0);
    !unknown && mdc.ask::<_, ()>(Op::MdtSettled, &SettledRequest { through }).await.is_ok()
}

/// What an OST was asked to change up to a moment.
struct Changed {
    osc: Rc<Osc>,
    last: Transno,
    /// Sessions that it ended before: with the next one all of it is committed or known to be lost.
    evictions: u64,
}

impl Changed {
    fn of(osc: &Rc<Osc>) -> Option<Changed> {
        let import = osc.import_if_any()?;
        Some(Changed { osc: osc.clone(), last: import.last_transno(), evictions: import.evictions() })
    }
    fn is_over(&self) -> bool {
        self.osc.is_committed(self.last) || self.osc.import_if_any().is_none_or(|i| i.evictions() != self.evictions)
    }
}
