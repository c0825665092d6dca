//! Messages through an emulated network card, over real sockets. A process of its own: the card is the process's.
#![allow(clippy::unwrap_used)]
use frames::{Bulk, FramePool};
use rt::{HEAD_BYTES, Nid};

#[test]
fn every_byte_passes_the_card_in_both_directions_and_arrives_as_it_was() {
    rt::real::set_net_profile("10gbe").unwrap();
    rt::real::set_net_profile("10gbe").unwrap();
    assert!(rt::real::set_net_profile("gbe").unwrap_err().contains("another network profile"));
    let pool = FramePool::new(4 << 20);
    let message = |n: u8| {
        let mut bulk = Bulk::alloc(pool, 100_000).unwrap();
        bulk.copy_in(0, &vec![n; 100_000]);
        ([n; HEAD_BYTES], vec![n; 10], bulk)
    };
    let got = rt::real::run(pool, async |rt| {
        let listener = rt.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
        let near = rt.connect(&listener.nid()).await.unwrap();
        let mut far = listener.accept().await.unwrap();
        for n in 1..=8 {
            let (head, body, bulk) = message(n);
            near.sink.send(head, body, bulk);
        }
        let mut got = Vec::new();
        for _ in 0..8 {
            let (head, body) = far.source.recv(|_| Ok(10)).await.unwrap();
            let land =
                |len: usize| -> rt::LocalFuture<Bulk> { Box::pin(std::future::ready(Bulk::alloc(pool, len).unwrap())) };
            let bulk = far.source.recv_bulk(100_000, &land).await.unwrap();
            got.push((head, body, bulk.to_vec()));
        }
        // Closing sends what is queued first.
        far.sink.send([9; HEAD_BYTES], Vec::new(), Bulk::default());
        far.sink.close();
        let mut near = near;
        assert_eq!(near.source.recv(|_| Ok(0)).await.unwrap().0, [9; HEAD_BYTES]);
        assert!(near.source.recv(|_| Ok(0)).await.is_err());
        got
    })
    .unwrap();
    let expected: Vec<_> = (1..=8).map(message).map(|(head, body, bulk)| (head, body, bulk.to_vec())).collect();
    assert!(got == expected);
    let bytes = 8 * (HEAD_BYTES as u64 + 10 + 100_000) + HEAD_BYTES as u64;
    assert_eq!(rt::real::net_profile_bytes(), Some((bytes, bytes)));
}
