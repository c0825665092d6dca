//! Message streams over TCP: vectored sends that gather whatever is queued, receives straight into frames.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use frames::{Bulk, FRAME_BYTES};

use types::Instant as Moment;

use super::Arrival;
use super::card::card;
use super::file::vectors;
use super::jobs::Jobs;
use super::movers::{movers_for, note_moved};
use super::op::{Call, submit};
use super::timer::Timers;
use super::tls::{self, Secret};
use crate::sync::{Event, race};
use crate::{
    BINDING_BYTES, BodyLen, Connection, Digest, HEAD_BYTES, Head, Listener, LocalFuture, Moved, Nid, Seal, Sink, Source,
};

/// Bytes gathered into one send at most, bulk included.
const SEND_BYTES_MAX: usize = 4 << 20;
/// Vectors of one send at most.
const SEND_VECTORS_MAX: usize = 1000;
/// How long a server may take until a connection to it is encrypted.
const ENCRYPTED_WITHIN: types::Duration = types::Duration::from_secs(10);
/// Receive buffer for heads and bodies; bulk beyond it lands in its frames.
const RECV_BYTES: usize = 16 << 10;

pub(super) async fn connect(
    addr: SocketAddr,
    encrypted: bool,
    timers: Rc<Timers>,
    jobs: Rc<Jobs>,
) -> io::Result<Connection> {
    let stream = jobs
        .connect(move || TcpStream::connect_timeout(&addr, Duration::from_secs(5)))
        .await
        .unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))?;
    let parted = Parted::new(stream, false)?;
    if encrypted {
        let (fd, encryption) = (parted.inbox.borrow().fd.clone(), parted.inbox.borrow().encryption.clone());
        let late = timers.sleep_until(timers.now() + ENCRYPTED_WITHIN);
        let secret = race(tls::connect(&fd, addr), late).await.unwrap_or_else(|()| {
            let why = format!("{addr} does not answer: the connection was to be encrypted within {ENCRYPTED_WITHIN:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        })?;
        encryption.get_or_init(|| secret);
    }
    parted.open(timers)
}

/// A connection that no shard has opened, with what was received so far.
pub(super) struct Parted {
    inbox: RefCell<Inbox>,
    peer: String,
}

impl Parted {
    fn new(stream: TcpStream, accepted: bool) -> io::Result<Parted> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr().map_or_else(|_| "unknown".into(), |a| a.to_string());
        let (fd, encryption) = (Arc::new(stream.into()), Arc::default());
        let inbox = Inbox { fd, buf: vec![0; RECV_BYTES], at: 0, end: 0, fresh: accepted, encryption, raw: Vec::new() };
        Ok(Parted { inbox: RefCell::new(inbox), peer })
    }
    /// Its first message, which stays in the inbox.
    pub(super) async fn first(&mut self, body_len: BodyLen) -> io::Result<(Head, Vec<u8>)> {
        let (head, len) = need_message(&self.inbox, body_len).await?;
        Ok((head, self.inbox.get_mut().body(len).to_vec()))
    }
    pub(super) fn breaker(&self) -> Box<dyn Fn()> {
        let fd = self.inbox.borrow().fd.clone();
        Box::new(move || shut_down(&fd))
    }
    pub(super) fn peer(&self) -> String {
        self.peer.clone()
    }
    pub(super) fn open(self, timers: Rc<Timers>) -> io::Result<Connection> {
        let (fd, encryption) = (self.inbox.borrow().fd.clone(), self.inbox.borrow().encryption.clone());
        compio::runtime::Runtime::with_current(|r| r.attach(std::os::fd::AsRawFd::as_raw_fd(&*fd)))?;
        let amid_bulk = Rc::new(Cell::new(false));
        let out = Rc::new(Outbox {
            fd,
            encryption,
            amid_bulk: amid_bulk.clone(),
            unsent_bytes: Cell::new(0),
            queue: RefCell::default(),
            more: Event::new(),
            closed: Cell::new(false),
            waiting_bytes: Cell::new(0),
            timers: timers.clone(),
            peer: self.peer,
        });
        let writer = out.clone();
        compio::runtime::spawn(async move { writer.run().await }).detach();
        Ok(Connection {
            sink: Rc::new(TcpSink(out)),
            source: Box::new(TcpSource { inbox: Rc::new(self.inbox), amid_bulk, timers }),
        })
    }
}

/// Where the kernel's `struct tcp_info` has the bytes that the peer acknowledged, and behind them those that came.
const BYTES_ACKED_AT: usize = 120;

/// Bytes that came, that the peer's host has acknowledged, and that wait in the kernel for that.
fn counted(fd: &OwnedFd) -> (u64, u64, u64) {
    let raw = std::os::fd::AsRawFd::as_raw_fd(fd);
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    let mut waiting: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as `fd` lives; the kernel writes at most `len` bytes, and one integer.
    let done = unsafe {
        libc::ioctl(raw, libc::TIOCOUTQ, &raw mut waiting);
        libc::getsockopt(raw, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    let count = |at: usize| {
        let there = done == 0 && at + 8 <= len as usize;
        let bytes = info[at..].first_chunk::<8>().filter(|_| there);
        bytes.map_or(0, |b| u64::from_ne_bytes(*b))
    };
    (count(BYTES_ACKED_AT + 8), count(BYTES_ACKED_AT), u64::try_from(waiting).unwrap_or(0))
}

fn shut_down(fd: &OwnedFd) {
    // SAFETY: the descriptor is open as long as `fd` lives.
    unsafe { libc::shutdown(std::os::fd::AsRawFd::as_raw_fd(fd), libc::SHUT_RDWR) };
}

/// Accepts the next connection of a listening socket.
async fn next_stream(fd: &Arc<OwnedFd>) -> io::Result<TcpStream> {
    let (result, ()) = submit(fd, Call::Accept, Vec::new(), ()).await;
    // SAFETY: accept gave us this descriptor and nobody else owns it.
    Ok(unsafe { TcpStream::from(OwnedFd::from_raw_fd(result? as i32)) })
}

struct TcpIn {
    fd: Arc<OwnedFd>,
    nid: Nid,
    timers: Rc<Timers>,
}

/// How long an address that is in use is tried again. The kernel takes a killed process's ring apart after the process
/// is gone, and the ring holds its sockets until then.
const REBIND_WITHIN: Duration = Duration::from_secs(2);
/// Pause between two tries.
const REBIND_PAUSE: Duration = Duration::from_millis(20);

fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let since = Instant::now();
    loop {
        match TcpListener::bind(addr) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && since.elapsed() < REBIND_WITHIN => {
                // Before anything is served: the shard has nothing else to do.
                std::thread::sleep(REBIND_PAUSE);
            }
            other => return other,
        }
    }
}

pub(super) fn listen(addr: SocketAddr, timers: Rc<Timers>) -> io::Result<Box<dyn Listener>> {
    let listener = bind(addr).map_err(|e| {
        let why = match e.kind() {
            io::ErrorKind::AddrInUse => format!("{addr} is in use by another program: choose another port, or stop it"),
            io::ErrorKind::AddrNotAvailable => format!("{addr} is not an address of this host"),
            _ => format!("cannot listen on {addr}: {e}"),
        };
        io::Error::new(e.kind(), why)
    })?;
    let nid = Nid::Tcp(listener.local_addr()?);
    let fd: Arc<OwnedFd> = Arc::new(listener.into());
    compio::runtime::Runtime::with_current(|r| r.attach(std::os::fd::AsRawFd::as_raw_fd(&*fd)))?;
    Ok(Box::new(TcpIn { fd, nid, timers }))
}

impl Listener for TcpIn {
    fn accept(&self) -> LocalFuture<io::Result<Connection>> {
        let (fd, timers) = (self.fd.clone(), self.timers.clone());
        Box::pin(async move { Parted::new(next_stream(&fd).await?, true)?.open(timers) })
    }
    fn accept_parted(&self) -> LocalFuture<io::Result<Arrival>> {
        let fd = self.fd.clone();
        Box::pin(async move { Parted::new(next_stream(&fd).await?, true).map(Arrival::tcp) })
    }
    fn nid(&self) -> Nid {
        self.nid.clone()
    }
}

/// A message in the queue, as it was handed over: the vectors of a send point into it.
struct Outgoing {
    head: Head,
    body: Vec<u8>,
    bulk: Bulk,
    /// Makes the head ready when it is sent; `None`: it is.
    seal: Option<Seal>,
    /// When an emulated network card lets it go; `None`: at once.
    due: Option<Moment>,
}

impl Outgoing {
    /// Bytes in front of the bulk.
    fn front_bytes(&self) -> usize {
        HEAD_BYTES + self.body.len()
    }
    fn bytes(&self) -> usize {
        self.front_bytes() + self.bulk.len()
    }
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        [&self.head[..], &self.body[..]].into_iter().chain(self.bulk.slices())
    }
}

/// What an encrypted connection is encrypted by; empty as long as it is not.
type Encryption = Arc<OnceLock<Secret>>;

struct Outbox {
    fd: Arc<OwnedFd>,
    encryption: Encryption,
    /// Bulk is being received.
    amid_bulk: Rc<Cell<bool>>,
    /// Bytes of messages that were not handed to the kernel as a whole.
    unsent_bytes: Cell<usize>,
    queue: RefCell<VecDeque<Outgoing>>,
    more: Event,
    closed: Cell<bool>,
    /// Head and body bytes in the queue.
    waiting_bytes: Cell<usize>,
    timers: Rc<Timers>,
    peer: String,
}

impl Outbox {
    async fn run(&self) {
        loop {
            let batch = self.gather();
            if batch.is_empty() {
                if let Some(due) = self.held_until() {
                    self.timers.sleep_until(due).await;
                    continue;
                }
                if self.closed.get() {
                    self.shutdown();
                    return;
                }
                let more = self.more.wait();
                if self.queue.borrow().is_empty() && !self.closed.get() {
                    more.await;
                }
                continue;
            }
            if self.send(batch).await.is_err() {
                // The receiving side of this connection reports the end to the session.
                self.shutdown();
                return;
            }
        }
    }
    /// Until when the emulated network card holds the next message back; `None`: there is none.
    fn held_until(&self) -> Option<Moment> {
        self.queue.borrow().front()?.due
    }
    fn gather(&self) -> Vec<Outgoing> {
        let mut queue = self.queue.borrow_mut();
        let is_held = |m: &Outgoing| m.due.is_some_and(|due| due > self.timers.now());
        let (mut bytes, mut vectors, mut batch) = (0, 0, Vec::new());
        while let Some(m) = queue.front() {
            vectors += 2 + m.bulk.segments().len();
            let is_full = !batch.is_empty() && (bytes >= SEND_BYTES_MAX || vectors > SEND_VECTORS_MAX);
            if is_full || is_held(m) {
                break;
            }
            bytes += m.bytes();
            batch.extend(queue.pop_front());
        }
        let fronts: usize = batch.iter().map(Outgoing::front_bytes).sum();
        self.waiting_bytes.set(self.waiting_bytes.get() - fronts);
        batch
    }
    async fn send(&self, batch: Vec<Outgoing>) -> io::Result<()> {
        let bulk = batch.iter().map(|m| m.bulk.len()).sum();
        let bytes: usize = batch.iter().map(Outgoing::bytes).sum();
        let (fd, encryption) = (self.fd.clone(), self.encryption.clone());
        let sent = match movers_for(bulk) {
            // One batch at a time: the order is kept.
            Some(movers) => movers.run(lane_of(&fd), move || send_batch(fd, encryption, batch)).await,
            None => send_batch(fd, encryption, batch).await,
        };
        self.unsent_bytes.set(self.unsent_bytes.get().saturating_sub(bytes));
        sent
    }
    fn shutdown(&self) {
        self.closed.set(true);
        self.queue.borrow_mut().clear();
        self.waiting_bytes.set(0);
        self.unsent_bytes.set(0);
        self.more.notify();
        shut_down(&self.fd);
    }
}

/// A connection's mover.
fn lane_of(fd: &OwnedFd) -> usize {
    std::os::fd::AsRawFd::as_raw_fd(fd) as usize
}

async fn send_batch(fd: Arc<OwnedFd>, encryption: Encryption, mut batch: Vec<Outgoing>) -> io::Result<()> {
    for m in &mut batch {
        note_moved(m.bulk.len());
        if let Some(seal) = m.seal.take() {
            seal(&mut m.head, &m.body, &m.bulk);
        }
    }
    if let Some(secret) = encryption.get() {
        return secret.send(&fd, batch.iter().flat_map(Outgoing::parts)).await;
    }
    let total: usize = batch.iter().map(Outgoing::bytes).sum();
    let mut done = 0;
    while done < total {
        let iov = batch_vectors(&batch, done);
        let (result, back) = submit(&fd, Call::Send, iov, batch).await;
        batch = back;
        match result {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn batch_vectors(batch: &[Outgoing], skip: usize) -> Vec<libc::iovec> {
    let mut skip = skip;
    let mut iov = Vec::with_capacity(batch.len() * 3);
    for m in batch {
        if iov.len() >= SEND_VECTORS_MAX {
            break;
        }
        for part in [&m.head[..], &m.body[..]] {
            if skip < part.len() {
                let rest = &part[skip..];
                iov.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
                skip = 0;
            } else {
                skip -= part.len();
            }
        }
        if skip < m.bulk.len() {
            iov.extend(vectors(&m.bulk, skip));
            skip = 0;
        } else {
            skip -= m.bulk.len();
        }
    }
    iov.truncate(1024);
    iov
}

struct TcpSink(Rc<Outbox>);
impl Sink for TcpSink {
    fn send(&self, head: Head, body: Vec<u8>, bulk: Bulk) {
        if self.0.closed.get() {
            return;
        }
        self.queue(head, body, bulk, None);
    }
    fn send_sealed(&self, mut head: Head, body: Vec<u8>, bulk: Bulk, seal: Seal) {
        if self.0.closed.get() {
            return;
        }
        if movers_for(bulk.len()).is_some() {
            return self.queue(head, body, bulk, Some(seal));
        }
        note_moved(bulk.len());
        seal(&mut head, &body, &bulk);
        self.queue(head, body, bulk, None);
    }
    fn shares_memory(&self) -> bool {
        false
    }
    fn close(&self) {
        // What is queued still goes out (a refusal's reason, a last answer); then the writer ends the stream.
        self.0.closed.set(true);
        self.0.more.notify();
    }
    fn backlog_bytes(&self) -> usize {
        self.0.waiting_bytes.get()
    }
    fn moved(&self) -> Moved {
        let (in_bytes, out_bytes, in_kernel) = counted(&self.0.fd);
        let waiting_bytes = self.0.unsent_bytes.get() as u64 + in_kernel;
        Moved { in_bytes, out_bytes, waiting_bytes, is_amid_bulk: self.0.amid_bulk.get() }
    }
    fn peer(&self) -> String {
        self.0.peer.clone()
    }
    fn binding(&self) -> Option<[u8; BINDING_BYTES]> {
        self.0.encryption.get().map(Secret::binding)
    }
    fn is_open_to_the_way(&self) -> bool {
        self.0.encryption.get().is_none()
    }
}
impl TcpSink {
    fn queue(&self, head: Head, body: Vec<u8>, bulk: Bulk, seal: Option<Seal>) {
        // Small messages are answered, or followed by the next one, soon.
        if bulk.is_empty() {
            super::expect_soon();
        }
        let mut message = Outgoing { head, body, bulk, seal, due: None };
        message.due = card().map(|c| c.send(self.0.timers.now(), message.bytes()));
        self.0.waiting_bytes.set(self.0.waiting_bytes.get() + message.front_bytes());
        self.0.unsent_bytes.set(self.0.unsent_bytes.get() + message.bytes());
        self.0.queue.borrow_mut().push_back(message);
        self.0.more.notify();
    }
}
impl Drop for TcpSink {
    fn drop(&mut self) {
        self.close();
    }
}

struct Inbox {
    fd: Arc<OwnedFd>,
    buf: Vec<u8>,
    at: usize,
    end: usize,
    /// It was accepted, and its first byte has not come.
    fresh: bool,
    encryption: Encryption,
    /// What is received of an encrypted connection, before it is decrypted into `buf`.
    raw: Vec<u8>,
}

impl Inbox {
    /// Takes a buffer back, with what was received behind its unread bytes; gives what begins the handshake of a connection that is to
    /// be encrypted.
    fn received(&mut self, buf: Vec<u8>, result: io::Result<usize>) -> io::Result<Option<Vec<u8>>> {
        self.buf = buf;
        match result {
            Ok(0) => return Err(closed(self.end > 0)),
            Ok(n) => self.end += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection reset"));
            }
            Err(e) => return Err(e),
        }
        let begins = std::mem::replace(&mut self.fresh, false) && self.buf[0] == tls::FIRST_BYTE;
        Ok(begins.then(|| self.buf[..self.end].to_vec()))
    }
    /// Decrypts received bytes behind those that are unread.
    fn open(&mut self, raw: &[u8]) -> io::Result<()> {
        let Some(secret) = self.encryption.get() else { return Ok(()) };
        self.buf.copy_within(self.at..self.end, 0);
        self.buf.truncate(self.end - self.at);
        let opened = secret.open(raw, &mut self.buf);
        (self.at, self.end) = (0, self.buf.len());
        opened
    }
    /// The body of the message in front, of which all is there.
    fn body(&self, len: usize) -> &[u8] {
        let from = self.at + HEAD_BYTES;
        &self.buf[from..from + len]
    }
}

struct TcpSource {
    inbox: Rc<RefCell<Inbox>>,
    /// Bulk is being received.
    amid_bulk: Rc<Cell<bool>>,
    timers: Rc<Timers>,
}

/// As long as it lives, bulk is being received.
struct Amid(Rc<Cell<bool>>);
impl Amid {
    fn new(flag: &Rc<Cell<bool>>) -> Amid {
        flag.set(true);
        Amid(flag.clone())
    }
}
impl Drop for Amid {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Waits for the emulated network card, if there is one, to have brought `bytes`.
async fn pass_card(timers: &Rc<Timers>, bytes: usize) {
    if let Some(card) = card() {
        let now = timers.now();
        let here = card.receive(now, bytes);
        if here > now {
            timers.sleep_until(here).await;
        }
    }
}

/// Reads until the buffer holds `want` unread bytes.
async fn need(inbox: &RefCell<Inbox>, want: usize) -> io::Result<()> {
    while inbox.borrow().end - inbox.borrow().at < want {
        let encrypted = inbox.borrow().encryption.get().is_some();
        if encrypted { read_encrypted(inbox).await? } else { read_plain(inbox, want).await? }
    }
    Ok(())
}

/// The peer has closed the connection.
fn closed(inside: bool) -> io::Error {
    let why = if inside { "the stream ends inside a message" } else { "the peer closed the connection" };
    io::Error::new(io::ErrorKind::UnexpectedEof, why)
}

async fn read_plain(inbox: &RefCell<Inbox>, want: usize) -> io::Result<()> {
    let (fd, mut buf, end) = {
        let mut i = inbox.borrow_mut();
        let (at, end) = (i.at, i.end);
        i.buf.copy_within(at..end, 0);
        (i.at, i.end) = (0, end - at);
        if i.buf.len() < want {
            i.buf.resize(want.next_power_of_two(), 0);
        }
        (i.fd.clone(), std::mem::take(&mut i.buf), end - at)
    };
    let room = &mut buf[end..];
    let iov = vec![libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
    let (result, buf) = submit(&fd, Call::Recv, iov, buf).await;
    let early = inbox.borrow_mut().received(buf, result)?;
    match early {
        None => Ok(()),
        Some(early) => encrypt_accepted(inbox, &fd, early).await,
    }
}

/// Encrypts a connection whose client has begun a handshake by `early`.
async fn encrypt_accepted(inbox: &RefCell<Inbox>, fd: &Arc<OwnedFd>, early: Vec<u8>) -> io::Result<()> {
    let secret = tls::accept(fd, early).await?;
    let mut i = inbox.borrow_mut();
    i.encryption.get_or_init(|| secret);
    (i.at, i.end) = (0, 0);
    // The client's first message may have come along.
    i.open(&[])
}

async fn read_encrypted(inbox: &RefCell<Inbox>) -> io::Result<()> {
    let (fd, mut raw) = {
        let mut i = inbox.borrow_mut();
        (i.fd.clone(), std::mem::take(&mut i.raw))
    };
    raw.resize(tls::RECEIVE_BYTES, 0);
    let (n, raw) = tls::receive(&fd, raw).await?;
    let mut i = inbox.borrow_mut();
    if n == 0 {
        return Err(closed(i.end > i.at));
    }
    let opened = i.open(&raw[..n]);
    i.raw = raw;
    opened
}

/// Waits for a whole message; gives its head and how long its body is.
async fn need_message(inbox: &RefCell<Inbox>, body_len: BodyLen) -> io::Result<(Head, usize)> {
    need(inbox, HEAD_BYTES).await?;
    super::arrived();
    let mut head = [0; HEAD_BYTES];
    {
        let i = inbox.borrow();
        head.copy_from_slice(&i.buf[i.at..i.at + HEAD_BYTES]);
    }
    let len = body_len(&head)?;
    need(inbox, HEAD_BYTES + len).await?;
    Ok((head, len))
}

impl Source for TcpSource {
    fn recv(&mut self, body_len: BodyLen) -> LocalFuture<io::Result<(Head, Vec<u8>)>> {
        let (inbox, timers) = (self.inbox.clone(), self.timers.clone());
        Box::pin(async move {
            let (head, len) = need_message(&inbox, body_len).await?;
            pass_card(&timers, HEAD_BYTES + len).await;
            let mut i = inbox.borrow_mut();
            let body = i.body(len).to_vec();
            i.at += HEAD_BYTES + len;
            Ok((head, body))
        })
    }
    fn recv_bulk(&mut self, len: usize, land: &dyn Fn(usize) -> LocalFuture<Bulk>) -> LocalFuture<io::Result<Bulk>> {
        let received = self.receive(len, land, None);
        Box::pin(async move { Ok(received.await?.0) })
    }
    fn skip_bulk(&mut self, len: usize) -> LocalFuture<io::Result<()>> {
        let (inbox, timers, amid_bulk) = (self.inbox.clone(), self.timers.clone(), self.amid_bulk.clone());
        Box::pin(async move {
            let _amid = Amid::new(&amid_bulk);
            let mut left = len;
            while left > 0 {
                need(&inbox, 1).await?;
                let mut i = inbox.borrow_mut();
                let n = left.min(i.end - i.at);
                i.at += n;
                left -= n;
            }
            pass_card(&timers, len).await;
            Ok(())
        })
    }
    fn recv_bulk_digested(
        &mut self,
        len: usize,
        land: &dyn Fn(usize) -> LocalFuture<Bulk>,
        digest: Digest,
    ) -> LocalFuture<io::Result<(Bulk, Option<u32>)>> {
        self.receive(len, land, Some(digest))
    }
}

impl TcpSource {
    fn receive(
        &self,
        len: usize,
        land: &dyn Fn(usize) -> LocalFuture<Bulk>,
        digest: Option<Digest>,
    ) -> LocalFuture<io::Result<(Bulk, Option<u32>)>> {
        let (inbox, timers, landing) = (self.inbox.clone(), self.timers.clone(), land(len));
        let amid_bulk = self.amid_bulk.clone();
        Box::pin(async move {
            let mut bulk = landing.await;
            let _amid = Amid::new(&amid_bulk);
            let done = {
                let mut i = inbox.borrow_mut();
                let n = len.min(i.end - i.at);
                bulk.copy_in(0, &i.buf[i.at..i.at + n]);
                i.at += n;
                n
            };
            if inbox.borrow().encryption.get().is_some() {
                let bulk = decrypt_rest(&inbox, bulk, done).await?;
                pass_card(&timers, len).await;
                return Ok((bulk, None));
            }
            let fd = inbox.borrow().fd.clone();
            let received = match movers_for(len - done) {
                // The shard reads nothing of this stream meanwhile.
                Some(movers) => movers.run(lane_of(&fd), move || receive_rest(fd, bulk, done, digest)).await?,
                // Checked by whoever knows whether there is a checksum.
                None => receive_rest(fd, bulk, done, None).await?,
            };
            pass_card(&timers, len).await;
            Ok(received)
        })
    }
}

/// Receives bulk of an encrypted connection from byte `done` on.
async fn decrypt_rest(inbox: &RefCell<Inbox>, mut bulk: Bulk, mut done: usize) -> io::Result<Bulk> {
    note_moved(bulk.len() - done);
    while done < bulk.len() {
        need(inbox, 1).await?;
        let mut i = inbox.borrow_mut();
        let n = (bulk.len() - done).min(i.end - i.at);
        bulk.copy_in(done, &i.buf[i.at..i.at + n]);
        i.at += n;
        done += n;
    }
    Ok(bulk)
}

/// Bytes that are received before they are digested: they are in the CPU's cache then.
const DIGESTED_BYTES: usize = 256 << 10;

/// Receives bulk from byte `done` on.
async fn receive_rest(
    fd: Arc<OwnedFd>,
    mut bulk: Bulk,
    mut done: usize,
    digest: Option<Digest>,
) -> io::Result<(Bulk, Option<u32>)> {
    let len = bulk.len();
    note_moved(len - done);
    let (mut sum, mut digested) = (0, 0);
    while done < len {
        // Kernel copies to page offsets 1..31 are several times slower on some processors: step over them.
        let offset = done % FRAME_BYTES;
        let end = if digest.is_some() { len.min(done + DIGESTED_BYTES) } else { len };
        let step = if (1..32).contains(&offset) { (64 - offset).min(end - done) } else { end - done };
        let iov = cut(vectors(&bulk, done), step);
        let (result, back) = submit(&fd, Call::RecvAll, iov, bulk).await;
        bulk = back;
        match result {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ends inside bulk")),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if let Some(digest) = digest {
            sum = bulk.slice(digested, done - digested).slices().fold(sum, digest);
            digested = done;
        }
    }
    Ok((bulk, digest.map(|_| sum)))
}

/// The first `bytes` of what the vectors name.
fn cut(mut iov: Vec<libc::iovec>, mut bytes: usize) -> Vec<libc::iovec> {
    for i in 0..iov.len() {
        iov[i].iov_len = iov[i].iov_len.min(bytes);
        bytes -= iov[i].iov_len;
        if bytes == 0 {
            iov.truncate(i + 1);
            break;
        }
    }
    iov
}

#[cfg(test)]
mod tests {
    use super::*;
    use frames::FramePool;

    #[test]
    fn a_send_that_was_cut_anywhere_goes_on_behind_its_last_byte() {
        let pool = FramePool::new(1 << 20);
        let message = |n: u8, body: usize, len: usize| {
            let mut bulk = Bulk::alloc(pool, len).unwrap();
            bulk.copy_in(0, &vec![n + 2; len]);
            Outgoing { head: [n; HEAD_BYTES], body: vec![n + 1; body], bulk, seal: None, due: None }
        };
        let batch = [message(1, 5, 4100), message(11, 0, 7), message(21, 3, 0), message(31, 0, 0)];
        let whole: Vec<u8> =
            batch.iter().flat_map(|m| [m.head.to_vec(), m.body.clone(), m.bulk.to_vec()]).flatten().collect();
        assert_eq!(whole.len(), batch.iter().map(Outgoing::bytes).sum::<usize>());
        for skip in 0..whole.len() {
            let rest: Vec<u8> = batch_vectors(&batch, skip)
                .iter()
                // SAFETY: the vectors point into `batch`, which lives, and into frames that it holds.
                .flat_map(|v| unsafe { std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len) }.to_vec())
                .collect();
            assert!(rest == whole[skip..], "cut at {skip}");
        }
    }
}
