//! The native path, the daemon's side: what open files are offered, the socket, and how many may connect. What a connection
//! asks is carried out by [`crate::rings`]; why it is as it is stands in `docs/decisions/0006-native-path.md`.
//!
//! An open file is offered to whoever has its descriptor: an ioctl brings a token of 128 secret bits, good once and until the
//! last descriptor is closed. A connection alone can do nothing; it costs memory, so that users have few.
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ::native::area::Area;
use ::native::offer::Offer;
use ::native::pass;
use ::native::ring::{AREA_BYTES, DaemonEnd};
use client::{Client, OpenFile};
use fuse::abi::{IOCTL_DIR, IoctlIn};
use fuse::{Op, Replied, Request};
use rt::real::Watched;
use rt::sync::{Event, race};
use types::Duration;

use crate::StriaFs;
use crate::rings::{Rings, pause};

/// Connections of a user; of root and the daemon's user each so many, too. A process has one for each mount.
const OF_USER_MAX: usize = 32;
/// Connections of all other users. Each is 4 MiB of shared memory at most.
const OF_OTHERS_MAX: usize = 128;
/// How long nobody is let in when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// The native path of one mount.
pub(crate) struct Native {
    client: Rc<Client>,
    socket: PathBuf,
    uid: u32,
    /// Of open files that were offered and not taken.
    tokens: RefCell<HashMap<u64, [u64; 2]>>,
    /// Open files of which the kernel keeps pages that are read.
    paged: RefCell<HashSet<u64>>,
    users: RefCell<HashMap<u32, usize>>,
    /// Ended connections whose programs have not taken what they were sent.
    unread: RefCell<Vec<(UnixStream, Place)>>,
    over: Cell<bool>,
    ends: Event,
}

/// A native path that is served; it ends when this is dropped.
pub struct ServedNatively(Rc<Native>);

impl Drop for ServedNatively {
    fn drop(&mut self) {
        self.0.over.set(true);
        self.0.ends.notify();
        self.0.unread.take();
        if let Err(e) = std::fs::remove_file(&self.0.socket) {
            tracing::debug!("{}: {e}", self.0.socket.display());
        }
    }
}

/// A connection's place, free again when dropped.
pub(crate) struct Place(Rc<Native>, u32);

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.0.users.borrow_mut();
        if let Some(n) = users.get_mut(&self.1) {
            *n -= 1;
            if *n == 0 {
                users.remove(&self.1);
            }
        }
    }
}

fn name(connection: u32) -> String {
    format!("native-{connection}-")
}

/// The socket of this process for a FUSE connection, whose number is nobody else's now: names of earlier ones go.
fn bind(dir: &Path, connection: u32) -> io::Result<(UnixListener, PathBuf)> {
    let prefix = name(connection);
    for old in std::fs::read_dir(dir)?.flatten() {
        if old.file_name().to_str().is_some_and(|n| n.starts_with(&prefix)) {
            std::fs::remove_file(old.path())?;
        }
    }
    let path = std::path::absolute(dir)?.join(format!("{prefix}{}", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    listener.set_nonblocking(true)?;
    pass::take_no_descriptors(listener.as_fd());
    // Everybody may connect: what is asked is judged by the open file.
    std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    Ok((listener, path))
}

impl StriaFs {
    /// Offers the native path of open files, over a socket in `dir`: a directory of which its owner alone makes names, and that
    /// others may pass. `connection`: the mount's number.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn serve_natively(self: &Rc<Self>, dir: &Path, connection: u32) -> io::Result<ServedNatively> {
        let (listener, socket) = bind(dir, connection)?;
        // SAFETY: plain system call without arguments.
        let uid = unsafe { libc::geteuid() };
        let native = Rc::new(Native {
            client: self.client.clone(),
            socket,
            uid,
            tokens: RefCell::default(),
            paged: RefCell::default(),
            users: RefCell::default(),
            unread: RefCell::default(),
            over: Cell::new(false),
            ends: Event::new(),
        });
        let served = ServedNatively(native.clone());
        let listener = Watched::new(listener)?;
        let serving = native.clone();
        self.client.rt().spawn(async move { serving.listen(listener).await });
        *self.native.borrow_mut() = Some(native);
        Ok(served)
    }

    /// The ioctl by which a program asks for the native path of an open file.
    pub(crate) fn offer(&self, req: Request<'_>, arg: &IoctlIn) -> Replied {
        match self.offered(arg) {
            Ok(bytes) => req.into_reply().ioctl(0, &bytes),
            Err(errno) => req.err(errno),
        }
    }

    fn offered(&self, arg: &IoctlIn) -> Result<[u8; Offer::BYTES], i32> {
        if arg.flags & IOCTL_DIR != 0 {
            return Err(libc::ENOTTY);
        }
        let native = self.native.borrow().clone().filter(|n| !n.over.get()).ok_or(libc::ENOTSUP)?;
        let file = self.client.meta().file(arg.fh).ok_or(libc::EBADF)?;
        let secret = u128::from_ne_bytes(self.client.rt().secret_bytes::<16>());
        let token = [secret as u64, (secret >> 64) as u64];
        let paged = native.paged.borrow().contains(&file.id());
        let offer = Offer { uid: native.uid, file: file.id(), token, paged, socket: native.socket.clone() };
        let bytes = offer.bytes().ok_or(libc::ENOTSUP)?;
        native.tokens.borrow_mut().insert(file.id(), token);
        Ok(bytes)
    }

    /// The last descriptor of an open file is closed.
    pub(crate) fn forget_offer(&self, file: u64) {
        if let Some(native) = self.native.borrow().as_ref() {
            native.tokens.borrow_mut().remove(&file);
            native.paged.borrow_mut().remove(&file);
        }
    }

    /// The kernel keeps pages of what is read through an open file.
    pub(crate) fn note_paged(&self, file: u64) {
        if let Some(native) = self.native.borrow().as_ref() {
            native.paged.borrow_mut().insert(file);
        }
    }

    /// Whether this request is [`StriaFs::offer`]'s.
    pub(crate) fn asks_for_offer(req: &Request<'_>) -> Option<IoctlIn> {
        match req.op() {
            Op::Ioctl { arg, .. } if arg.cmd == ::native::offer::OFFER => Some(arg),
            _ => None,
        }
    }
}

impl Native {
    pub(crate) fn client(&self) -> &Rc<Client> {
        &self.client
    }

    /// An open file for its token, which is good for nothing from then on.
    pub(crate) fn take(&self, id: u64, token: [u64; 2]) -> Option<Rc<OpenFile>> {
        let mut tokens = self.tokens.borrow_mut();
        tokens.get(&id).filter(|t| **t == token)?;
        tokens.remove(&id);
        self.client.meta().file(id).filter(|f| f.is_open())
    }

    /// Whether the mount has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Completes when the mount ends.
    pub(crate) async fn ended(&self) {
        let ends = self.ends.wait();
        if !self.over.get() {
            ends.await;
        }
    }

    /// A connection has ended. Its place is free when its memory is given back, and its program has taken what it was sent, descriptors among
    /// it, or is gone: these count for the daemon's user.
    pub(crate) fn leave(self: &Rc<Self>, stream: &UnixStream, area: Arc<Area>, place: Place) {
        if self.over.get() {
            return;
        }
        match (stream.try_clone(), gives_back(area)) {
            (Ok(stream), Ok(given)) => {
                let me = self.clone();
                self.client.rt().spawn(async move {
                    drop(given.readable().await);
                    if pass::is_unread(&stream) && !me.over.get() {
                        me.unread.borrow_mut().push((stream, place));
                    }
                });
            }
            (Err(e), _) | (_, Err(e)) => {
                tracing::debug!("native path: what a connection had stays with its program: {e}");
            }
        }
    }

    fn admit(self: &Rc<Self>, uid: u32) -> Option<Place> {
        self.unread.borrow_mut().retain(|(stream, _)| pass::is_unread(stream));
        let privileged = |u: u32| u == 0 || u == self.uid;
        let mut users = self.users.borrow_mut();
        let of_others: usize = users.iter().filter(|(u, _)| !privileged(**u)).map(|(_, n)| n).sum();
        let mine = users.get(&uid).copied().unwrap_or(0);
        if mine >= OF_USER_MAX || !privileged(uid) && of_others >= OF_OTHERS_MAX {
            return None;
        }
        users.insert(uid, mine + 1);
        Some(Place(self.clone(), uid))
    }

    async fn listen(self: Rc<Self>, listener: Watched<UnixListener>) {
        while !self.over.get() {
            let next = || match (self.over.get(), pass::may_part()) {
                (true, _) => Err(io::ErrorKind::WouldBlock.into()),
                (_, false) => Err(io::ErrorKind::ResourceBusy.into()),
                _ => listener.accept(),
            };
            let e = let_in(next, |(stream, _)| self.welcome(stream)).await;
            if e.kind() != io::ErrorKind::WouldBlock {
                tracing::debug!("native path: {e}");
                self.client.rt().sleep(PAUSE).await;
                continue;
            }
            let came = race(listener.readable(), self.ended()).await;
            if let Ok(Err(e)) = came {
                tracing::warn!("the native path of this mount takes no more programs: {e}");
                return;
            }
        }
    }

    /// A program connects: it gets its memory and bells, or is hung up on.
    fn welcome(self: &Rc<Self>, stream: UnixStream) {
        let Ok(peer) = pass::peer(&stream) else { return };
        let Some(place) = self.admit(peer.uid) else {
            tracing::debug!(uid = peer.uid, "native path: too many connections; one is turned away");
            pass::part(&stream);
            return;
        };
        match greet(&stream).and_then(|(end, bell)| Ok((end, Watched::new(bell)?))) {
            Ok((end, bell)) => match Watched::new(stream) {
                Ok(stream) => self.serve(Rings::new(self.clone(), end, (stream, bell), peer.pid.unsigned_abs(), place)),
                Err(e) => tracing::debug!("native path: {e}"),
            },
            Err(e) => {
                tracing::debug!("native path: {e}");
                pass::part(&stream);
            }
        }
    }

    fn serve(&self, rings: Rc<Rings>) {
        self.client.rt().spawn(async move { rings.serve().await });
    }
}

/// Lets in who is there; others have their turn after each, however fast they come. The reason why there is no next one.
async fn let_in<T>(mut next: impl FnMut() -> io::Result<T>, mut welcome: impl FnMut(T)) -> io::Error {
    loop {
        match next() {
            Ok(one) => welcome(one),
            Err(e) => return e,
        }
        pause().await;
    }
}

/// Gives the memory of a connection back, by a thread of its own: programs can make that wait. What becomes readable then.
fn gives_back(area: Arc<Area>) -> io::Result<Watched<OwnedFd>> {
    let given = pass::eventfd()?;
    let bell = given.try_clone()?;
    std::thread::Builder::new().name("ending".into()).spawn(move || {
        area.give_back();
        drop(area);
        pass::ring_bell(bell.as_fd());
    })?;
    Watched::new(given)
}

/// A program's memory and the daemon's bell, and the program has them, too.
fn greet(stream: &UnixStream) -> io::Result<(DaemonEnd, OwnedFd)> {
    let ((area, memory), bell) = (Area::make(AREA_BYTES)?, pass::eventfd()?);
    pass::greet(stream, [memory.as_fd(), bell.as_fd()])?;
    Ok((DaemonEnd::new(area), bell))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn programs_that_connect_without_end_let_others_have_their_turn_after_each() {
        let welcomed = Cell::new(0);
        let mut cx = Context::from_waker(Waker::noop());
        let next = || if welcomed.get() < 3 { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) };
        let mut letting = pin!(let_in(next, |()| welcomed.set(welcomed.get() + 1)));
        for n in 1..=3 {
            assert!(letting.as_mut().poll(&mut cx).is_pending());
            assert_eq!(welcomed.get(), n);
        }
        assert!(letting.as_mut().poll(&mut cx).is_ready());
    }
}
