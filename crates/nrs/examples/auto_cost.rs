//! What a request costs its scheduler: `auto_cost POLICY REQUESTS [CLIENTS]`, under a tool that counts instructions; the difference of
//! two counts is that many requests. Clients keep eight requests of 1 MiB each in flight; a disk takes 2 ms a request and 2 ms
//! for each that does not continue the one before in its object.
use nrs::{IoOp, NrsConfig, NrsRequest, Pipeline};
use std::collections::VecDeque;
use types::{ClientId, Extent, Instant, MIB, ObjectId, OstIndex};

const IN_FLIGHT: u64 = 8;
const REQUEST_NS: u64 = 2_000_000;

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let policy = args.next().ok_or("which policy?")?;
    let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
    let requests = number(args.next().ok_or("how many requests?")?)?;
    let clients = args.next().map_or(Ok(56), number)?;
    let mut pipeline = Pipeline::<NrsRequest>::new(&policy, NrsConfig::default(), 16).map_err(|e| e.to_string())?;
    let (mut now, mut serving, mut head) = (1, VecDeque::new(), (ObjectId::default(), 0));
    let mut next = vec![0; clients as usize];
    let mut send = |pipeline: &mut Pipeline<NrsRequest>, now: u64, client: u64| {
        let place = &mut next[client as usize];
        let request = NrsRequest {
            client: ClientId(client),
            object: ObjectId::new(OstIndex(0), client as u32 + 1),
            extent: Extent::at(*place * MIB, MIB),
            bytes: MIB as u32,
            op: IoOp::Write,
            arrived: Instant(now),
            ..NrsRequest::default()
        };
        *place += 1;
        pipeline.on_arrival(Instant(now), request, |r| *r).map_err(|e| e.to_string())
    };
    for i in 0..clients * IN_FLIGHT {
        send(&mut pipeline, now, i % clients)?;
    }
    for _ in 0..requests {
        while let Some(id) = pipeline.next_dispatch(Instant(now)) {
            serving.push_back(id);
        }
        let id = serving.pop_front().ok_or("nothing is served")?;
        let r = *pipeline.job(id);
        now += REQUEST_NS * (1 + u64::from(head != (r.object, r.extent.start)));
        head = (r.object, r.extent.end);
        pipeline.on_completion(Instant(now), id);
        send(&mut pipeline, now, r.client.0)?;
    }
    eprint!("{}", pipeline.head().explain());
    Ok(())
}
