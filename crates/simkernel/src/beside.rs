//! A program reads a page through a mapping while another one's asynchronous write of it is on its way: a kernel has more requests for
//! that than it may have under way, and the read passes those that stand in line. What it brings is older than what was written.
use std::pin::Pin;
use std::rc::Rc;

use rt::LocalFuture;
use rt::sync::join_all;
use types::Duration;

use crate::pages::PAGE;
use crate::run::{RunConfig, Work, World};

/// Rounds of a run: in each a page is written and read.
const ROUNDS: u64 = 40;
/// Pages of the file, all of which are written at once, and of a request.
const PAGES: u64 = 32;
const REQUEST_PAGES: u64 = 2;
/// Requests that a kernel has under way in the background.
const BACKGROUND: u16 = 8;
/// The write begins so much later than the read, or the read so much later than it, at most.
const LATER_MAX_US: u64 = 2_000;

/// The run of a seed.
#[must_use]
pub fn config(seed: u64) -> RunConfig {
    let mut config = RunConfig { programs: 2, ..RunConfig::draw(seed, Work::Script(steps), 1) };
    config.session.max_background = BACKGROUND;
    config.session.max_write_bytes = (REQUEST_PAGES * PAGE) as u32;
    config
}

fn steps(w: Rc<World>) -> LocalFuture<Option<()>> {
    Box::pin(async move {
        let (w, k) = (&w, w.kernel(0));
        let (writer, reader) = (&w.caller(0, 0, 2), &w.caller(0, 1, 2));
        let flags = libc::O_WRONLY | libc::O_CREAT;
        let file = w.must(0, "create", k.open(writer, &k.root(), b"f", flags)).await?;
        w.must(0, "write", k.write(writer, &file, 0, &[0; (PAGES * PAGE) as usize])).await?;
        w.must(0, "close", k.close(writer, &file)).await?;
        let read = &w.must(0, "open", k.open(reader, &k.root(), b"f", libc::O_RDONLY)).await?;
        let mapping = w.must(0, "mmap", k.map(read, false)).await?;
        w.must(0, "fstat", k.fstat(reader, read)).await?;
        let sim = &w.context.cluster.sim;
        let mut rng = w.context.rng("beside");
        for round in 1..=ROUNDS {
            // Nobody here may store to the file.
            let file = &w.must(0, "open", k.open(writer, &k.root(), b"f", flags)).await?;
            let at = PAGE * rng.below(PAGES);
            let mut later = || Duration::from_micros(rng.below(LATER_MAX_US));
            let (first, then) = (later(), later());
            let write: Pin<Box<dyn Future<Output = Option<bool>> + '_>> = Box::pin(async move {
                sim.sleep(first).await;
                let bytes = round.to_ne_bytes().repeat((PAGES * PAGE) as usize / 8);
                // There may be too many requests: then a part is written.
                match w.op(0, "asynchronous write", k.write_async(writer, file, 0, Ok(&bytes))).await? {
                    Err(libc::EAGAIN) => Some(false),
                    written => w.must(0, "asynchronous write", async { written }).await.map(|_| true),
                }
            });
            let load = Box::pin(async move {
                sim.sleep(then).await;
                let loaded = w.op(0, "load", k.load(reader, read, at, &mut [0; 8])).await?;
                w.context.expect("load", loaded.map_err(|e| format!("{e:?}")));
                Some(true)
            });
            let whole = join_all(vec![write, load]).await.into_iter().collect::<Option<Vec<bool>>>()?;
            let mut bytes = [0; 8];
            let loaded = w.op(0, "load", k.load(reader, read, at, &mut bytes)).await?;
            let found = loaded.map(|()| u64::from_ne_bytes(bytes)).map_err(|e| format!("{e:?}"));
            let right = if found == Ok(round) || whole.contains(&false) {
                Ok(())
            } else {
                Err(format!("{found:?} instead of {round}"))
            };
            w.context.expect(&format!("byte {at} after the write"), right);
            w.must(0, "close", k.close(writer, file)).await?;
        }
        w.op(0, "munmap", k.unmap(mapping)).await?;
        w.must(0, "close", k.close(reader, read)).await
    })
}
