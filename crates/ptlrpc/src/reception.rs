//! One address for targets whose servers live on several shards of a process.
//!
//! A connection is read up to its first message, which names the target, and goes as it is to the shard that has it: the
//! server there does the handshake from its beginning. Nothing is decided here but where to.
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use rt::real::Arrival;
use rt::sync::Event;
use rt::{Nid, Rt};
use types::Duration;
use wire::connect::ConnectRequest;
use wire::{Header, Op};

use crate::auth::ClusterKey;
use crate::door::{Door, HANDSHAKE_WITHIN};
use crate::stream;

/// Gives a connection that came to an address to a shard.
pub type HandOver = Box<dyn Fn(usize, Arrival, Nid)>;

/// Accepts connections for several shards.
pub struct Reception {
    rt: Rt,
    here: Nid,
    door: Door,
    shards: BTreeMap<String, usize>,
    hand_over: HandOver,
    stopping: Cell<bool>,
    stopped: Event,
}

impl Reception {
    /// Starts accepting at `nid`, for the shards that have these targets. Who asks for another one goes to the first, which says no.
    /// Returns the address bound.
    ///
    /// # Errors
    /// As [`crate::Server::listen`].
    pub fn listen(
        rt: &Rt,
        key: &ClusterKey,
        nid: &Nid,
        shards: BTreeMap<String, usize>,
        hand_over: HandOver,
    ) -> io::Result<(Rc<Reception>, Nid)> {
        key.may_listen(nid)?;
        let listener = rt.listen(nid)?;
        let bound = listener.nid();
        let me = Rc::new(Reception {
            rt: rt.clone(),
            here: bound.clone(),
            door: Door::new(rt.clone()),
            shards,
            hand_over,
            stopping: Cell::new(false),
            stopped: Event::new(),
        });
        let reception = me.clone();
        rt.spawn(async move {
            while !reception.stopping.get() {
                let stopped = reception.stopped.wait();
                let Ok(accepted) = rt::sync::race(listener.accept_parted(), stopped).await else { break };
                match accepted {
                    Ok(arrival) => {
                        let reception = reception.clone();
                        reception.rt.clone().spawn(async move { reception.receive(arrival).await });
                    }
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => break,
                    Err(e) => {
                        tracing::warn!("accept failed: {e}");
                        reception.rt.sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
        Ok((me, bound))
    }

    /// Accepts nothing any more.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.stopped.notify();
    }

    async fn receive(&self, mut arrival: Arrival) {
        let place = self.door.enter(arrival.peer(), arrival.breaker());
        let first = self.rt.timeout(HANDSHAKE_WITHIN, arrival.first(stream::of_handshake)).await;
        drop(place);
        let why = match first {
            Some(Ok((head, body))) => {
                // What is no question for a target, the first shard refuses in its words.
                let shard = Header::from_bytes(&head).ok().filter(|h| h.op == Op::Connect);
                let shard = shard.and_then(|_| wire::decode::<ConnectRequest>(&body).ok());
                let shard = shard.and_then(|ask| self.shards.get(&*String::from_utf8_lossy(&ask.target)).copied());
                if !self.stopping.get() {
                    (self.hand_over)(shard.unwrap_or(0), arrival, self.here.clone());
                }
                return;
            }
            Some(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => return,
            // Another version, or none at all: the first shard looks at it again, and answers.
            Some(Err(e)) if e.kind() == io::ErrorKind::InvalidData && !self.stopping.get() => {
                return (self.hand_over)(0, arrival, self.here.clone());
            }
            Some(Err(e)) => e.to_string(),
            None => format!("its first message took longer than {HANDSHAKE_WITHIN:?}"),
        };
        self.door.turn_away(&arrival.peer(), &why);
    }
}
