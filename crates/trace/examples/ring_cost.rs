//! What keeping a record costs: makes and keeps records of requests, as an OST does when one is done; with `unscheduled` behind
//! the count, as a metadata target or a client does. Under `perf stat`, the
//! difference between two counts of rounds is the cost of the records alone.
use nrs::NrsRequest;
use std::hint::black_box;
use std::time::Instant as Clock;
use trace::{Came, Record, Ring};
use types::{ClientId, Extent, Instant, Xid};
use wire::Op;

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000_000);
    let unscheduled = std::env::args().nth(2).as_deref() == Some("unscheduled");
    let mut ring = Ring::new(4 << 20);
    let mut request = NrsRequest { bytes: 1 << 20, client: ClientId(1), ..NrsRequest::default() };
    let began = Clock::now();
    for i in 0..rounds {
        request.extent = Extent::at(i << 20, 1 << 20);
        request.arrived = Instant(i);
        let came = Came { xid: Xid(i + 1), at: Instant(i), ..Came::default() };
        if unscheduled {
            let record = Record::unscheduled(Op::MdtOpen, black_box(&came), Instant(i + 20));
            ring.push(Record { number: i, client: request.client, object: request.object, ..record });
            continue;
        }
        let record = Record::of(i, black_box(&request), Instant(i + 10), Instant(i + 20));
        ring.push(Record { stored: 1 << 20, ..record }.which_came(black_box(&came)));
    }
    let ns = began.elapsed().as_nanos() as f64 / rounds as f64;
    println!("{rounds} records, {ns:.1} ns each; {} kept", black_box(&ring).len());
}
