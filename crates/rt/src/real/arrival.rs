//! Connections on their way from the shard that accepted them to the one whose target they are for.
use std::io;
use std::rc::Rc;

use super::timer::Timers;
use super::{local, tcp};
use crate::{BodyLen, Connection, Head};

/// A connection that was accepted and belongs to no shard yet. It may cross threads. Dropped, it is closed.
pub struct Arrival(Way);

enum Way {
    Tcp(tcp::Parted),
    Local(local::Parted),
}

impl Arrival {
    pub(super) fn tcp(parted: tcp::Parted) -> Arrival {
        Arrival(Way::Tcp(parted))
    }
    pub(super) fn local(parted: local::Parted) -> Arrival {
        Arrival(Way::Local(parted))
    }
    /// Its first message; whoever opens the connection receives it again. When the wait is dropped the connection is of no
    /// more use.
    ///
    /// # Errors
    /// As [`crate::Source::recv`].
    pub async fn first(&mut self, body_len: BodyLen) -> io::Result<(Head, Vec<u8>)> {
        match &mut self.0 {
            Way::Tcp(parted) => parted.first(body_len).await,
            Way::Local(parted) => parted.first().await,
        }
    }
    /// Ends the connection from outside, while somebody waits for its first message.
    #[must_use]
    pub fn breaker(&self) -> Box<dyn Fn()> {
        match &self.0 {
            Way::Tcp(parted) => parted.breaker(),
            Way::Local(parted) => parted.breaker(),
        }
    }
    /// Whose end is on the other side, for logs.
    #[must_use]
    pub fn peer(&self) -> String {
        match &self.0 {
            Way::Tcp(parted) => parted.peer(),
            Way::Local(parted) => parted.peer(),
        }
    }
    pub(super) fn open(self, timers: Rc<Timers>) -> io::Result<Connection> {
        match self.0 {
            Way::Tcp(parted) => parted.open(timers),
            Way::Local(parted) => Ok(parted.open()),
        }
    }
}
