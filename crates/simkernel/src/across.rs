//! One mount reads pages on both sides of a stripe's end through a mapping, in one request, while another one writes on both sides: what was read
//! of one object may be old by the time the lock of the other one has come.
use std::pin::Pin;
use std::rc::Rc;

use rt::LocalFuture;
use rt::sync::join_all;
use types::Duration;

use crate::pages::PAGE;
use crate::run::{RunConfig, Work, World};

/// Rounds of a run: in each both sides are written and read.
const ROUNDS: u64 = 40;
/// Pages of a stripe.
const STRIPE_PAGES: u64 = 16;
/// The writes begin so much later than the read, or the read so much later than they, at most.
const LATER_MAX_US: u64 = 12_000;

/// The run of a seed.
#[must_use]
pub fn config(seed: u64) -> RunConfig {
    let mut config = RunConfig { programs: 2, ..RunConfig::draw(seed, Work::Script(steps), 2) };
    (config.cluster.osts, config.cluster.stripe_count) = (2, 2);
    config.cluster.stripe_bytes = STRIPE_PAGES * PAGE;
    config.session.max_write_bytes = 1 << 20;
    config.kernel.read_around_pages = STRIPE_PAGES;
    config
}

fn steps(w: Rc<World>) -> LocalFuture<Option<()>> {
    Box::pin(async move {
        let w = &w;
        let (a, b) = (w.kernel(0), w.kernel(1));
        let writers = [w.caller(0, 0, 2), w.caller(0, 1, 2)];
        let reader = w.caller(1, 0, 2);
        let flags = libc::O_RDWR | libc::O_CREAT;
        let file = w.must(0, "create", a.open(&writers[0], &a.root(), b"f", flags)).await?;
        w.must(0, "write", a.write(&writers[0], &file, 0, &[0; 2 * (STRIPE_PAGES * PAGE) as usize])).await?;
        let there = w.must(1, "open", b.open(&reader, &b.root(), b"f", libc::O_RDONLY)).await?;
        let mapping = w.must(1, "mmap", b.map(&there, false)).await?;
        // The last page of one stripe, the first of the next.
        let places = [(STRIPE_PAGES - 1) * PAGE, STRIPE_PAGES * PAGE];
        let sim = &w.context.cluster.sim;
        let mut rng = w.context.rng("across");
        for round in 1..=ROUNDS {
            let mut all: Vec<Pin<Box<dyn Future<Output = Option<()>> + '_>>> = Vec::new();
            for (place, caller) in places.into_iter().zip(&writers) {
                let (later, file) = (Duration::from_micros(rng.below(LATER_MAX_US)), &file);
                all.push(Box::pin(async move {
                    sim.sleep(later).await;
                    w.must(0, "write", a.write(caller, file, place, &round.to_ne_bytes())).await.map(drop)
                }));
            }
            let (first, later) = (places[rng.below(2) as usize], Duration::from_micros(rng.below(LATER_MAX_US)));
            let (there, reader) = (&there, &reader);
            all.push(Box::pin(async move {
                sim.sleep(later).await;
                let loaded = w.op(1, "load", b.load(reader, there, first, &mut [0; 8])).await?;
                w.context.expect("load", loaded.map_err(|e| format!("{e:?}")));
                Some(())
            }));
            join_all(all).await.into_iter().collect::<Option<Vec<()>>>()?;
            for place in places {
                let mut bytes = [0; 8];
                let loaded = w.op(1, "load", b.load(reader, there, place, &mut bytes)).await?;
                let found = loaded.map(|()| u64::from_ne_bytes(bytes)).map_err(|e| format!("{e:?}"));
                let right = if found == Ok(round) { Ok(()) } else { Err(format!("{found:?} instead of {round}")) };
                w.context.expect(&format!("byte {place} after both writes"), right);
            }
        }
        w.op(1, "munmap", b.unmap(mapping)).await?;
        w.must(1, "close", b.close(&reader, &there)).await?;
        w.must(0, "close", a.close(&writers[0], &file)).await
    })
}
