//! Encrypted connections: what is sent arrives as it was, nobody on the way reads it or changes it, and each connection has a
//! binding of its own.
#![allow(clippy::unwrap_used)]
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use frames::{Bulk, FramePool};
use rt::{Connection, HEAD_BYTES, Head, Listener, LocalFuture, Nid, Rt};

const POOL_BYTES: u64 = 64 << 20;
/// Stands in every message.
const MARK: &[u8] = b"nobody on the way shall read these words";

/// Bodies here say their length in the first bytes of the head.
fn body_len(head: &Head) -> std::io::Result<usize> {
    Ok(u32::from_le_bytes(head[..4].try_into().unwrap()) as usize)
}

fn head(body: usize, bulk: usize) -> Head {
    let mut head = [7; HEAD_BYTES];
    head[..4].copy_from_slice(&(body as u32).to_le_bytes());
    head[4..8].copy_from_slice(&(bulk as u32).to_le_bytes());
    head
}

fn filled(len: usize) -> Vec<u8> {
    MARK.iter().copied().cycle().take(len).collect()
}

fn send(rt: &Rt, to: &Connection, body: usize, bulk: usize) {
    let mut bytes = Bulk::alloc(rt.frames(), bulk).unwrap();
    bytes.copy_in(0, &filled(bulk));
    to.sink.send(head(body, bulk), filled(body), bytes);
}

async fn receive(rt: &Rt, from: &mut Connection) -> std::io::Result<(usize, usize)> {
    let (head, body) = from.source.recv(body_len).await?;
    assert!(body == filled(body.len()));
    let bulk = u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize;
    if bulk > 0 {
        let frames = rt.frames();
        let land = |len: usize| -> LocalFuture<Bulk> { Box::pin(async move { Bulk::alloc(frames, len).unwrap() }) };
        let got = from.source.recv_bulk(bulk, &land).await?;
        assert!(got.to_vec() == filled(bulk));
    }
    Ok((body.len(), bulk))
}

/// What a proxy does to the bytes that go to the server.
type Change = fn(u64, &mut [u8]);

/// Passes one connection on to `to`; gives what the client sent.
fn proxy(to: SocketAddr, change: Change) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        let (mut back, mut out) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let answers = std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut out);
            let _ = out.shutdown(Shutdown::Both);
        });
        let (mut seen, mut buf, mut from, mut to) = (Vec::new(), vec![0; 64 << 10], client, server);
        while let Ok(n) = from.read(&mut buf) {
            if n == 0 {
                break;
            }
            seen.extend_from_slice(&buf[..n]);
            let at = (seen.len() - n) as u64;
            change(at, &mut buf[..n]);
            if to.write_all(&buf[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        answers.join().unwrap();
        seen
    });
    (addr, thread)
}

fn tcp(listener: &dyn Listener) -> SocketAddr {
    match listener.nid() {
        Nid::Tcp(addr) => addr,
        other => panic!("{other}"),
    }
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|w| w == what)
}

#[test]
fn messages_arrive_as_they_were_and_nobody_on_the_way_reads_them() {
    for movers in [0, 1] {
        let seen = rt::real::run_with_movers(FramePool::new(POOL_BYTES), movers, async |rt| {
            let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
            let (through, thread) = proxy(tcp(&*listener), |_, _| {});
            let nid = Nid::Tcp(through);
            let (mine, theirs) = (rt.connect_encrypted(&nid), listener.accept());
            let their_rt = rt.clone();
            let sizes = [(0, 0), (5, 0), (70_000, 0), (3, 1), (0, 4096), (100, 65_537), (9, 5 << 20), (1, 131_072)];
            let (tell, told) = rt::sync::oneshot();
            rt.spawn(async move {
                let mut theirs = theirs.await.unwrap();
                assert_eq!(theirs.sink.binding(), None, "nothing has come");
                for size in sizes {
                    assert_eq!(receive(&their_rt, &mut theirs).await.unwrap(), size);
                    send(&their_rt, &theirs, size.0, size.1);
                }
                tell.send(theirs.sink.binding());
                // As long as the answers go out.
                let end = receive(&their_rt, &mut theirs).await.unwrap_err();
                assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
            });
            let mut mine = mine.await.unwrap();
            sizes.iter().for_each(|size| send(&rt, &mine, size.0, size.1));
            for size in sizes {
                assert_eq!(receive(&rt, &mut mine).await.unwrap(), size);
            }
            let binding = mine.sink.binding();
            assert!(binding.is_some() && binding == told.await.unwrap());
            drop(mine);
            thread
        });
        let seen = seen.unwrap().join().unwrap();
        assert!(seen.len() > 5 << 20 && !contains(&seen, &MARK[..16]), "{} bytes", seen.len());
    }
}

#[test]
fn a_byte_that_somebody_changes_ends_the_connection() {
    // In the handshake, and behind it.
    let changes: [Change; 2] = [
        |at, bytes| (0..bytes.len()).filter(|i| at + *i as u64 == 100).for_each(|i| bytes[i] ^= 1),
        |at, bytes| (0..bytes.len()).filter(|i| at + *i as u64 == 40_000).for_each(|i| bytes[i] ^= 1),
    ];
    for change in changes {
        let ended = rt::real::run(FramePool::new(POOL_BYTES), async |rt| {
            let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
            let (through, thread) = proxy(tcp(&*listener), change);
            let (nid, their_rt) = (Nid::Tcp(through), rt.clone());
            let (tell, told) = rt::sync::oneshot();
            rt.spawn(async move {
                let mut theirs = listener.accept().await.unwrap();
                let end = loop {
                    if let Err(e) = receive(&their_rt, &mut theirs).await {
                        break e.kind();
                    }
                };
                tell.send(end);
            });
            let mine = rt.connect_encrypted(&nid).await;
            if let Ok(mine) = &mine {
                (0..10).for_each(|_| send(&rt, mine, 0, 8192));
            }
            let kind = told.await.unwrap();
            drop(mine);
            (kind, thread)
        });
        let (ended, thread) = ended.unwrap();
        thread.join().unwrap();
        assert_eq!(ended, ErrorKind::InvalidData);
    }
}

#[test]
fn each_connection_has_a_binding_of_its_own_and_one_that_is_not_encrypted_has_none() {
    let bindings = rt::real::run(FramePool::new(POOL_BYTES), async |rt| {
        let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
        let nid = listener.nid();
        let their_rt = rt.clone();
        rt.spawn(async move {
            while let Ok(mut theirs) = listener.accept().await {
                let rt = their_rt.clone();
                their_rt.spawn(async move {
                    while let Ok((body, bulk)) = receive(&rt, &mut theirs).await {
                        send(&rt, &theirs, body, bulk);
                    }
                });
            }
        });
        let mut bindings = Vec::new();
        for _ in 0..2 {
            bindings.push(rt.connect_encrypted(&nid).await.unwrap().sink.binding().unwrap());
        }
        // Both kinds at one address.
        let mut plain = rt.connect(&nid).await.unwrap();
        send(&rt, &plain, 9, 4096);
        assert_eq!(receive(&rt, &mut plain).await.unwrap(), (9, 4096));
        assert_eq!(plain.sink.binding(), None);
        bindings
    });
    let bindings = bindings.unwrap();
    assert_ne!(bindings[0], bindings[1]);
}

/// A peer that is no server of ours: sends `says` to whoever comes, and closes.
fn stranger(says: &'static [u8]) -> (Nid, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nid = Nid::Tcp(listener.local_addr().unwrap());
    let (tell, done) = channel();
    std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let _ = peer.read(&mut [0; 4096]);
        let _ = peer.write_all(says);
        let _ = peer.shutdown(Shutdown::Write);
        let _ = tell.send(());
    });
    (nid, done)
}

#[test]
fn who_does_not_encrypt_is_an_error_in_words() {
    for (says, kind) in
        [(&b""[..], ErrorKind::UnexpectedEof), (b"HTTP/1.1 400 Bad Request\r\n\r\n", ErrorKind::InvalidData)]
    {
        let (nid, done) = stranger(says);
        let refused =
            rt::real::run(FramePool::new(1 << 20), async |rt| rt.connect_encrypted(&nid).await.err().unwrap());
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), kind, "{refused}");
        assert!(refused.to_string().contains("encrypted"), "{refused}");
        done.recv().unwrap();
    }
}

#[test]
fn a_client_that_begins_a_handshake_and_says_nonsense_is_told_so_by_an_alert_and_loses_its_connection() {
    let (kind, said) = rt::real::run(FramePool::new(1 << 20), async |rt| {
        let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
        let addr = tcp(&*listener);
        let thread = std::thread::spawn(move || {
            let mut peer = TcpStream::connect(addr).unwrap();
            peer.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0]).unwrap();
            let mut said = Vec::new();
            let _ = peer.read_to_end(&mut said);
            said
        });
        let mut theirs = listener.accept().await.unwrap();
        let kind = receive(&rt, &mut theirs).await.unwrap_err().kind();
        drop(theirs);
        (kind, thread)
    })
    .unwrap();
    assert_eq!(kind, ErrorKind::InvalidData);
    // A record of type alert.
    assert_eq!(said.join().unwrap()[0], 21);
}

#[test]
fn bulk_that_is_skipped_leaves_what_comes_behind_it_as_it_was() {
    for (encrypted, movers) in [(false, 0), (false, 1), (true, 0)] {
        let skipped = rt::real::run_with_movers(FramePool::new(POOL_BYTES), movers, async |rt| {
            let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
            let (nid, their_rt) = (listener.nid(), rt.clone());
            rt.spawn(async move {
                let mut theirs = listener.accept().await.unwrap();
                assert_eq!(receive(&their_rt, &mut theirs).await.unwrap(), (0, 0), "it encrypts for who does");
                for size in [(0, 5 << 20), (70_000, 1), (3, 131_072), (9, 4097)] {
                    send(&their_rt, &theirs, size.0, size.1);
                }
                // As long as they go out.
                let end = receive(&their_rt, &mut theirs).await.unwrap_err();
                assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
            });
            let mut mine = if encrypted { rt.connect_encrypted(&nid).await } else { rt.connect(&nid).await }.unwrap();
            send(&rt, &mine, 0, 0);
            let mut skipped = 0;
            for size in [(0, 5 << 20), (70_000, 1), (3, 131_072)] {
                let (head, body) = mine.source.recv(body_len).await.unwrap();
                assert!(body == filled(size.0));
                let bulk = u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize;
                assert_eq!(bulk, size.1);
                mine.source.skip_bulk(bulk).await.unwrap();
                skipped += bulk;
            }
            assert_eq!(receive(&rt, &mut mine).await.unwrap(), (9, 4097));
            skipped
        });
        assert_eq!(skipped.unwrap(), (5 << 20) + 1 + 131_072, "encrypted {encrypted}, movers {movers}");
    }
}
