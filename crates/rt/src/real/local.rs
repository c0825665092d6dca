//! Message streams within one process: messages pass by reference, between shards or within one.
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use frames::Bulk;

use super::Arrival;
use crate::{BodyLen, Connection, Head, Lane, Listener, LocalFuture, Nid, Sink, Source};

struct Message {
    head: Head,
    body: Vec<u8>,
    bulk: Bulk,
}
type Port = Lane<(Arc<Lane<Message>>, Arc<Lane<Message>>)>;

fn ports() -> MutexGuard<'static, HashMap<String, Arc<Port>>> {
    static PORTS: OnceLock<Mutex<HashMap<String, Arc<Port>>>> = OnceLock::new();
    PORTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn connection(name: &str, out: Arc<Lane<Message>>, inward: Arc<Lane<Message>>) -> Connection {
    Connection {
        sink: Rc::new(LocalSink { name: name.into(), out, back: inward.clone() }),
        source: Box::new(LocalSource { inward, bulk: Arc::new(Mutex::new(Bulk::new())) }),
    }
}

pub(super) fn connect(name: &str) -> io::Result<Connection> {
    let port = ports().get(name).cloned();
    let port = port
        .ok_or_else(|| io::Error::new(io::ErrorKind::ConnectionRefused, format!("nobody listens at local:{name}")))?;
    let (up, down) = (Lane::new(), Lane::new());
    if !port.push((up.clone(), down.clone())) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(connection(name, up, down))
}

pub(super) fn listen(name: &str) -> io::Result<Box<dyn Listener>> {
    let mut ports = ports();
    if ports.contains_key(name) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("local:{name} is taken in this process")));
    }
    let port = Lane::new();
    ports.insert(name.into(), port.clone());
    Ok(Box::new(LocalListener { name: name.into(), port }))
}

struct LocalListener {
    name: String,
    port: Arc<Port>,
}
impl Listener for LocalListener {
    fn accept(&self) -> LocalFuture<io::Result<Connection>> {
        let (port, name) = (self.port.clone(), self.name.clone());
        Box::pin(async move {
            let (inward, out) = port.pop().await.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(connection(&name, out, inward))
        })
    }
    fn accept_parted(&self) -> LocalFuture<io::Result<Arrival>> {
        let (port, name) = (self.port.clone(), self.name.clone());
        Box::pin(async move {
            let (inward, out) = port.pop().await.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(Arrival::local(Parted { name, out, inward }))
        })
    }
    fn nid(&self) -> Nid {
        Nid::Local(self.name.clone())
    }
}
impl Drop for LocalListener {
    fn drop(&mut self) {
        self.port.close();
        ports().remove(&self.name);
    }
}

/// An accepted connection that no shard has opened.
pub(super) struct Parted {
    name: String,
    out: Arc<Lane<Message>>,
    inward: Arc<Lane<Message>>,
}
impl Parted {
    /// Its first message, which whoever opens the connection receives again.
    pub(super) async fn first(&mut self) -> io::Result<(Head, Vec<u8>)> {
        let message = self.inward.pop().await.ok_or(io::ErrorKind::UnexpectedEof)?;
        let first = (message.head, message.body.clone());
        self.inward.put_back(message);
        Ok(first)
    }
    pub(super) fn open(self) -> Connection {
        connection(&self.name, self.out, self.inward)
    }
    pub(super) fn breaker(&self) -> Box<dyn Fn()> {
        let (out, inward) = (self.out.clone(), self.inward.clone());
        Box::new(move || {
            out.close();
            inward.close();
        })
    }
    pub(super) fn peer(&self) -> String {
        format!("local:{}", self.name)
    }
}

struct LocalSink {
    name: String,
    out: Arc<Lane<Message>>,
    back: Arc<Lane<Message>>,
}
impl Sink for LocalSink {
    fn send(&self, head: Head, body: Vec<u8>, bulk: Bulk) {
        self.out.push(Message { head, body, bulk });
    }
    fn shares_memory(&self) -> bool {
        true
    }
    fn is_open_to_the_way(&self) -> bool {
        false
    }
    fn close(&self) {
        self.out.close();
        self.back.close();
    }
    fn peer(&self) -> String {
        format!("local:{}", self.name)
    }
}
impl Drop for LocalSink {
    fn drop(&mut self) {
        self.out.close();
    }
}

struct LocalSource {
    inward: Arc<Lane<Message>>,
    bulk: Arc<Mutex<Bulk>>,
}
impl Source for LocalSource {
    fn recv(&mut self, _: BodyLen) -> LocalFuture<io::Result<(Head, Vec<u8>)>> {
        let (inward, slot) = (self.inward.clone(), self.bulk.clone());
        Box::pin(async move {
            let m = inward.pop().await.ok_or(io::ErrorKind::UnexpectedEof)?;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = m.bulk;
            Ok((m.head, m.body))
        })
    }
    fn recv_bulk(&mut self, _len: usize, _land: &dyn Fn(usize) -> LocalFuture<Bulk>) -> LocalFuture<io::Result<Bulk>> {
        let bulk = std::mem::take(&mut *self.bulk.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(std::future::ready(Ok(bulk)))
    }
    fn skip_bulk(&mut self, _len: usize) -> LocalFuture<io::Result<()>> {
        drop(std::mem::take(&mut *self.bulk.lock().unwrap_or_else(PoisonError::into_inner)));
        Box::pin(std::future::ready(Ok(())))
    }
}
impl Drop for LocalSource {
    fn drop(&mut self) {
        self.inward.close();
    }
}
