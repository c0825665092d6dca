//! The kernel's caches as the client sees them.
use client::KernelCache;
use fuse::Notifier;
use rt::LocalFuture;
use types::{Extent, Fid};

pub(crate) struct Kernel(pub(crate) Notifier);

impl KernelCache for Kernel {
    fn drop_attributes(&self, fid: Fid) -> LocalFuture<()> {
        let done = self.0.inval_attr(fid.to_ino());
        Box::pin(async move {
            if let Err(e) = done.await {
                tracing::debug!("attribute invalidation of {fid}: {e}");
            }
        })
    }
    fn drop_pages(&self, fid: Fid, extent: Extent) -> LocalFuture<()> {
        let len = if extent.end == u64::MAX { 0 } else { extent.len() };
        let done = self.0.inval_inode(fid.to_ino(), extent.start, len);
        Box::pin(async move {
            if let Err(e) = done.await {
                tracing::debug!("page invalidation of {fid}: {e}");
            }
        })
    }
    fn lets_go(&self) -> bool {
        self.0.prunes()
    }
    fn let_go(&self, fids: &[Fid]) {
        let nodes: Vec<u64> = fids.iter().map(|f| f.to_ino()).collect();
        drop(self.0.prune(&nodes));
    }
    fn drop_names(&self) -> LocalFuture<()> {
        let done = self.0.inc_epoch();
        Box::pin(async move {
            if let Err(e) = done.await {
                tracing::debug!("name invalidation: {e}");
            }
        })
    }
}
