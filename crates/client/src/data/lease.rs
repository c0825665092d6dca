//! The locks that requests need which a kernel waits for with its pages locked.
use std::rc::Rc;

use ldlm::{EnqueueFlags, LockMode, LockPolicyData};
use types::{Extent, FsError};

use super::Data;
use crate::front::KernelRead;
use crate::inode::{Object, Striping};
use crate::locks::Held;
use crate::osc::Osc;

impl Data {
    /// What a kernel's read of pages needs before any byte is looked at: nobody changes the range, and where the pages
    /// may be stored to, the file's leases. They are kept until the read has its bytes.
    pub(crate) async fn lease(&self, s: &Striping, read: &KernelRead) -> Result<Vec<Held>, FsError> {
        let front = read.front();
        loop {
            read.admitted().await?;
            let mut held = Vec::new();
            if front.is_mappable() && !types::planted!("leases-not-taken") {
                held = match self.leases_at_hand(s, front.is_dropping()) {
                    Some(held) => held,
                    None => {
                        let _waiting = read.waiting();
                        if read.has_more() {
                            self.leases_for_the_asking(s).await?
                        } else {
                            self.lock_all(s, LockMode::Pw).await?
                        }
                    }
                };
            }
            if !read.is_shut() {
                read.begins(!held.is_empty());
                return Ok(held);
            }
        }
    }
    /// Write locks over all objects, if they are here; `serve`: a drop of pages is under way, and locks that wait for it
    /// will do.
    fn leases_at_hand(&self, s: &Striping, serve: bool) -> Option<Vec<Held>> {
        let all = LockPolicyData::extent(Extent::ALL);
        let of = |o: &Rc<Object>| {
            let (locks, resource) = (&self.osts.osc(o.ost).locks, o.resource());
            let held = locks.find(resource, LockMode::Pw, &all);
            held.or_else(|| locks.find_revoking(resource, LockMode::Pw, &all).filter(|_| serve))
        };
        s.objects.iter().map(of).collect()
    }
    /// Write locks over all objects, where nobody has to be called back for them: WouldBlock otherwise.
    async fn leases_for_the_asking(&self, s: &Striping) -> Result<Vec<Held>, FsError> {
        let all = LockPolicyData::extent(Extent::ALL);
        let mut held = Vec::with_capacity(s.objects.len());
        for o in &s.objects {
            let locks = &self.osts.osc(o.ost).locks;
            locks.for_the_asking(o.resource())?;
            let asked = locks.acquire(o.resource(), LockMode::Pw, all, EnqueueFlags::NOWAIT);
            held.push(asked.await.map_err(|e| e.error())?);
        }
        Ok(held)
    }
    /// A write lock for a request that changes the object while its kernel may be unable to give up pages: if the kernel
    /// has any that were stored to, the leases are here, perhaps on their way out, and there is nothing to wait for.
    pub(crate) async fn lock_to_cut(
        &self,
        osc: &Rc<Osc>,
        object: &Object,
        data: LockPolicyData,
    ) -> Result<Held, FsError> {
        let mapped =
            object.inode.borrow().upgrade().is_some_and(|i| i.front.is_mappable()) && !types::planted!("cut-waits");
        if mapped && let Some(held) = osc.locks.find_even_leaving(object.resource(), LockMode::Pw, &data) {
            return Ok(held);
        }
        let asked = osc.locks.acquire(object.resource(), LockMode::Pw, data, EnqueueFlags::NONE);
        asked.await.map_err(|e| e.error())
    }
}
