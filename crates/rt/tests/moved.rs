//! How far a connection is, as the kernel counts it.
#![allow(clippy::unwrap_used)]
use std::cell::Cell;
use std::io::Write;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::mpsc::channel;

use frames::{Bulk, FramePool};
use rt::{HEAD_BYTES, Head, LocalFuture, Moved, Nid};
use types::Duration;

const BULK_BYTES: usize = 32 << 20;

fn no_body(_: &Head) -> std::io::Result<usize> {
    Ok(0)
}

#[test]
fn bytes_of_a_message_count_before_it_is_all_there() {
    rt::real::run(FramePool::new(128 << 20), async |rt| {
        let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
        let Nid::Tcp(addr) = listener.nid() else { unreachable!("it listens over TCP") };
        let (go_on, may_go_on) = channel();
        let peer = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(addr).unwrap();
            stream.write_all(&[7; HEAD_BYTES]).unwrap();
            stream.write_all(&vec![1; BULK_BYTES / 2]).unwrap();
            may_go_on.recv().unwrap();
            stream.write_all(&vec![1; BULK_BYTES / 2]).unwrap();
            stream
        });
        let mut connection = listener.accept().await.unwrap();
        let sink = connection.sink.clone();
        let (done, of_task, frames) = (Rc::new(Cell::new(false)), rt.clone(), rt.frames());
        let is_done = done.clone();
        of_task.spawn(async move {
            connection.source.recv(no_body).await.unwrap();
            let land = |len: usize| -> LocalFuture<Bulk> { Box::pin(async move { Bulk::alloc(frames, len).unwrap() }) };
            assert_eq!(connection.source.recv_bulk(BULK_BYTES, &land).await.unwrap().len(), BULK_BYTES);
            is_done.set(true);
        });
        let half = (HEAD_BYTES + BULK_BYTES / 2) as u64;
        while sink.moved().in_bytes < half || !sink.moved().is_amid_bulk {
            rt.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((sink.moved().in_bytes, done.get()), (half, false));
        go_on.send(()).unwrap();
        while !done.get() {
            rt.sleep(Duration::from_millis(1)).await;
        }
        let moved = sink.moved();
        assert_eq!((moved.in_bytes, moved.is_amid_bulk), (half + (BULK_BYTES / 2) as u64, false));
        drop(peer.join().unwrap());
    })
    .unwrap();
}

#[test]
fn bytes_that_the_peer_does_not_take_wait() {
    rt::real::run(FramePool::new(128 << 20), async |rt| {
        let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
        let there = rt.connect(&listener.nid()).await.unwrap();
        let mut here = listener.accept().await.unwrap();
        assert_eq!(there.sink.moved().waiting_bytes, 0);
        let all = (HEAD_BYTES + BULK_BYTES) as u64;
        there.sink.send([7; HEAD_BYTES], Vec::new(), Bulk::alloc(rt.frames(), BULK_BYTES).unwrap());
        assert!(there.sink.moved().waiting_bytes >= all, "nothing is sent yet");
        here.source.recv(no_body).await.unwrap();
        let moved = there.sink.moved();
        assert!(moved.out_bytes > 0 && moved.waiting_bytes > 0, "{moved:?}: no buffer takes all of it");
        let frames = rt.frames();
        let land = |len: usize| -> LocalFuture<Bulk> { Box::pin(async move { Bulk::alloc(frames, len).unwrap() }) };
        here.source.recv_bulk(BULK_BYTES, &land).await.unwrap();
        while there.sink.moved().waiting_bytes > 0 {
            rt.sleep(Duration::from_millis(1)).await;
        }
        let Moved { out_bytes, .. } = there.sink.moved();
        assert!((all..=all + 1).contains(&out_bytes), "{out_bytes}");
    })
    .unwrap();
}
