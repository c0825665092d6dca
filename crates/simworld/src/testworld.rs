//! A world of one host, for tests of nodes and stores.
use std::cell::RefCell;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;

use frames::FramePool;
use rt::{Nid, Rt};

use crate::{Host, Sim, SimConfig};

struct Inner {
    sim: Sim,
    host: Host,
    rt: RefCell<Rt>,
}

/// One host and its process; cheap to clone.
#[derive(Clone)]
pub struct TestWorld(Rc<Inner>);

impl TestWorld {
    /// A world from a seed, with `pool_bytes` of page frames.
    #[must_use]
    pub fn new(seed: u64, pool_bytes: u64) -> TestWorld {
        TestWorld::with_pool(seed, FramePool::new(pool_bytes))
    }
    /// A world from a seed over an existing pool.
    #[must_use]
    pub fn with_pool(seed: u64, pool: FramePool) -> TestWorld {
        let sim = Sim::new(SimConfig::new(seed), pool);
        let host = sim.host("host");
        let rt = RefCell::new(host.boot());
        TestWorld(Rc::new(Inner { sim, host, rt }))
    }
    /// The handle that nodes get.
    #[must_use]
    pub fn rt(&self) -> Rt {
        self.0.rt.borrow().clone()
    }
    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.0.host
    }
    /// Runs until `future` has ended.
    ///
    /// # Panics
    /// When nothing can make progress any more.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.sim.run(future)
    }
    /// Lets everything happen that can happen without time passing.
    pub fn settle(&self) {
        self.0.sim.settle();
    }
    /// The next bulk that is sent over a connection arrives with a flipped bit.
    pub fn damage_next_bulk(&self) {
        self.0.sim.corrupt_next_bulk();
    }
    /// Every connection breaks at once, with what is on its way over it.
    pub fn reset_connections(&self) {
        self.0.sim.reset(&self.0.host, &self.0.host);
    }
    /// Nobody listens at an address any more.
    pub fn close_listener(&self, nid: &Nid) {
        self.0.host.close_listener(nid);
    }
    /// Ends every task and takes the disk as a power loss leaves it into a new world.
    #[must_use]
    pub fn power_cycle(&self, seed: u64) -> TestWorld {
        self.0.host.lose_power();
        let next = TestWorld::with_pool(seed, self.rt().frames());
        next.0.host.state.disk.lock().take_over(&self.0.host.state.disk.lock());
        next
    }
    /// Ends every task and boots again, over the disk as it is.
    pub fn reboot(&self) {
        self.0.host.kill();
        *self.0.rt.borrow_mut() = self.0.host.boot();
    }
    /// Changes bytes behind everyone's back.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        self.0.host.damage(path, change);
    }
}
