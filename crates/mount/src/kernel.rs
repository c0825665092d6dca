//! The kernel's caches as the client sees them.
use std::cell::Cell;
use std::rc::Rc;

use client::KernelCache;
use fuse::Notifier;
use rt::LocalFuture;
use types::{Extent, Fid};

/// Answers that may tell the kernel attributes.
#[derive(Default)]
pub(crate) struct Told {
    begun: Cell<u64>,
    under_way: Cell<u32>,
}

/// One such answer is on its way, until this is dropped.
pub(crate) struct Telling(Rc<Told>);

impl Told {
    pub(crate) fn begin(self: &Rc<Self>) -> Telling {
        self.begun.set(self.begun.get() + 1);
        self.under_way.set(self.under_way.get() + 1);
        Telling(self.clone())
    }
    fn is(&self) -> Option<u64> {
        (self.under_way.get() == 0).then(|| self.begun.get())
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

pub(crate) struct Kernel {
    pub(crate) notifier: Notifier,
    pub(crate) told: Rc<Told>,
    /// It keeps names.
    pub(crate) keeps_names: bool,
}

impl KernelCache for Kernel {
    fn drop_attributes(&self, fid: Fid) -> LocalFuture<bool> {
        let done = self.notifier.inval_attr(fid.to_ino());
        Box::pin(async move {
            done.await.unwrap_or_else(|e| {
                tracing::debug!("attribute invalidation of {fid}: {e}");
                true
            })
        })
    }
    // An answer that is made while attributes are dropped brings none that the kernel believes: it compares when it asked.
    fn told(&self) -> Option<u64> {
        self.told.is()
    }
    fn drop_pages(&self, fid: Fid, extent: Extent) -> LocalFuture<()> {
        let len = if extent.end == u64::MAX { 0 } else { extent.len() };
        let done = self.notifier.inval_inode(fid.to_ino(), extent.start, len);
        Box::pin(async move {
            if let Err(e) = done.await {
                tracing::debug!("page invalidation of {fid}: {e}");
            }
        })
    }
    fn lengthen(&self, fid: Fid, size_bytes: u64) -> LocalFuture<()> {
        let done = self.notifier.lengthen(fid.to_ino(), size_bytes);
        Box::pin(async move {
            if let Err(e) = done.await {
                tracing::debug!("the size of {fid}: {e}");
            }
        })
    }
    fn lets_go(&self) -> bool {
        self.notifier.prunes()
    }
    fn let_go(&self, fids: &[Fid]) {
        let nodes: Vec<u64> = fids.iter().map(|f| f.to_ino()).collect();
        drop(self.notifier.prune(&nodes));
    }
    fn drop_names(&self) -> LocalFuture<()> {
        if !self.keeps_names {
            return Box::pin(std::future::ready(()));
        }
        let done = self.notifier.inc_epoch();
        Box::pin(async move {
            if let Err(e) = done.await {
                tracing::debug!("name invalidation: {e}");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_while_an_answer_is_on_its_way_and_every_answer_counts() {
        let told = Rc::new(Told::default());
        assert_eq!(told.is(), Some(0));
        let (one, two) = (told.begin(), told.begin());
        drop(one);
        assert_eq!(told.is(), None);
        drop(two);
        assert_eq!(told.is(), Some(2));
    }
}
