//! Descriptors that are none of the facade's: what they are is their owner's business, the shard only waits for them.
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;

use compio::runtime::fd::PollFd;

/// A descriptor of which the calling thread's shard can wait until it is readable.
pub struct Watched<T: AsFd + 'static>(PollFd<T>);

impl<T: AsFd + 'static> Watched<T> {
    /// Watches a descriptor.
    ///
    /// # Errors
    /// None today; the runtime may refuse.
    pub fn new(source: T) -> io::Result<Watched<T>> {
        PollFd::new(source).map(Watched)
    }
    /// Completes when it is readable, or its other end is gone. One wait at a time; one that is dropped is gone on with by the
    /// next.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.read_ready().await
    }
}

impl<T: AsFd + 'static> Deref for Watched<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
