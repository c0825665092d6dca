//! Telling the metadata server which of the sizes that this client told stay right whatever happens to it: those whose data
//! are on the stable storage of their OSTs. The server doubts the others when the client is gone (`docs/internals/sizes.md`).
//!
//! Cancel safety: a round that is dropped tells nothing; the next one tells more.
use std::cell::Cell;
use std::rc::{Rc, Weak};

use rt::Rt;
use types::{Duration, Transno};
use wire::Op;
use wire::mdt::SettledRequest;

use crate::in_use::InUse;
use crate::osc::{Osc, Osts};
use crate::sessions::Sessions;

/// What is to be told.
pub(crate) struct Settling {
    sessions: Rc<Sessions>,
    osts: Rc<Osts>,
    /// How long pages stay dirty, and how often it is told at most.
    pause: Duration,
    /// Sizes were told, or the server may have forgotten what was settled.
    unsettled: Cell<bool>,
    /// Sizes that turned out to be wrong, and which the server does not know of yet.
    doubted: Cell<u32>,
}

impl Settling {
    pub(crate) fn new(sessions: Rc<Sessions>, osts: Rc<Osts>, pause: Duration) -> Rc<Settling> {
        Rc::new(Settling { sessions, osts, pause, unsettled: Cell::new(false), doubted: Cell::new(0) })
    }
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
    pub(crate) fn note_use(&self, into: &mut InUse) {
        into.add("doubted sizes", self.doubted.get().into());
    }
    /// Tells what is settled, at most once in the time after which pages are written out; until the client leaves.
    pub(crate) fn keep(self: &Rc<Self>) {
        let rt = self.sessions.rt();
        rt.spawn(keep(Rc::downgrade(self), rt.clone(), self.pause));
    }
}

async fn keep(settling: Weak<Settling>, rt: Rt, pause: Duration) {
    while let Some(me) = running(&settling) {
        if me.unsettled.replace(false) {
            drop(me);
            if !settle(&settling, &rt, pause).await
                && let Some(me) = running(&settling)
            {
                me.needed();
            }
        } else {
            drop(me);
        }
        rt.sleep(pause).await;
    }
}

fn running(settling: &Weak<Settling>) -> Option<Rc<Settling>> {
    settling.upgrade().filter(|s| !s.sessions.is_closing())
}

/// Waits until what was written up to now is on stable storage or lost, and tells the server. Whether it knows.
async fn settle(settling: &Weak<Settling>, rt: &Rt, pause: Duration) -> bool {
    let Some(me) = running(settling) else { return false };
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
    let Some(me) = running(settling) else { return false };
    let late: Vec<_> = written.into_iter().filter(|o| o.unwritten_pages() > 0).collect();
    let osts = me.osts.clone();
    drop(me);
    osts.flush(&late).await;
    let changed: Vec<Changed> = osts.all().iter().filter_map(Changed::of).collect();
    drop(osts);
    while changed.iter().any(|c| !c.is_over()) {
        rt.sleep(pause).await;
        if running(settling).is_none() {
            return false;
        }
    }
    let unknown = running(settling).is_none_or(|me| me.doubted.get() > 0);
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
        let is_gone = |i: std::rc::Rc<ptlrpc::Import>| i.is_out_of_service() || i.evictions() != self.evictions;
        self.osc.is_committed(self.last) || self.osc.import_if_any().is_none_or(is_gone)
    }
}
