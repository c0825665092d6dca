//! One mount looks files up for the first time while another one cuts them, by name or by a listing that brings attributes: the lock on what
//! the answer told may go before the kernel has the inode that it is about.
use std::pin::Pin;
use std::rc::Rc;

use rt::LocalFuture;
use rt::sync::join_all;
use types::Duration;

use crate::run::{RunConfig, Work, World};

/// Files, one after the other.
const FILES: u64 = 60;
/// Bytes of a file before and after.
const BYTES: (usize, u64) = (5000, 100);
/// Until servers have heard of everything.
const SETTLED: Duration = Duration::from_millis(100);
/// The cut begins so much later than the look-up at most.
const LATER_MAX_US: u64 = 15_000;

/// The run of a seed: whoever waits for an answer goes on up to 5 ms after it. Odd seeds look by listings.
#[must_use]
pub fn config(seed: u64) -> RunConfig {
    let looks = if seed.is_multiple_of(2) { by_name } else { by_listing };
    let mut config = RunConfig::draw(seed, Work::Script(looks), 2);
    config.kernel.delays.step_max = Duration::from_millis(5);
    config
}

/// The same, but for that the other mount gives the file one more name: attributes come with that, too.
#[must_use]
pub fn links(seed: u64) -> RunConfig {
    RunConfig { work: Work::Script(by_link), ..config(seed) }
}

/// How the other mount is told of the file.
#[derive(Clone, Copy)]
enum By {
    Name,
    Listing,
    Link,
}

fn by_link(w: Rc<World>) -> LocalFuture<Option<()>> {
    steps(w, By::Link)
}
fn by_name(w: Rc<World>) -> LocalFuture<Option<()>> {
    steps(w, By::Name)
}
fn by_listing(w: Rc<World>) -> LocalFuture<Option<()>> {
    steps(w, By::Listing)
}

fn steps(w: Rc<World>, by: By) -> LocalFuture<Option<()>> {
    Box::pin(async move {
        let (a, b) = (w.kernel(0), w.kernel(1));
        let (alice, bob) = (w.callers[0].clone(), w.callers[w.callers.len() - 1].clone());
        let (here, there) = (a.root(), b.root());
        let sim = &w.context.cluster.sim;
        let mut rng = w.context.rng("looks");
        for n in 0..FILES {
            let name = format!("f{n}").into_bytes();
            let file = w.must(0, "create", a.open(&alice, &here, &name, libc::O_RDWR | libc::O_CREAT)).await?;
            w.must(0, "write", a.write(&alice, &file, 0, &[1; BYTES.0])).await?;
            w.must(0, "close", a.close(&alice, &file)).await?;
            sim.sleep(SETTLED).await;
            let later = Duration::from_micros(rng.below(LATER_MAX_US));
            let cut = async {
                sim.sleep(later).await;
                let file = w.must(0, "open", a.open(&alice, &here, &name, libc::O_RDWR)).await?;
                w.must(0, "ftruncate", a.truncate(&alice, &file.inode, Some(&file), BYTES.1)).await?;
                w.must(0, "close", a.close(&alice, &file)).await
            };
            let look = async {
                match by {
                    By::Listing => w.must(1, "list", b.list(&bob, &there, true)).await.map(drop),
                    By::Name => w.must(1, "stat", b.stat(&bob, &there, &name)).await.map(drop),
                    By::Link => {
                        let other = [&name[..], b"-too"].concat();
                        w.must(1, "link", b.link(&bob, &there, &name, &other)).await
                    }
                }
            };
            let both: Vec<Pin<Box<dyn Future<Output = Option<()>> + '_>>> = vec![Box::pin(cut), Box::pin(look)];
            join_all(both).await.into_iter().collect::<Option<Vec<()>>>()?;
            sim.sleep(SETTLED).await;
            let (_, size) = w.must(1, "stat", b.stat(&bob, &there, &name)).await?;
            let right = if size == BYTES.1 { Ok(()) } else { Err(format!("{size} bytes instead of {}", BYTES.1)) };
            w.context.expect(&format!("size of f{n}"), right);
        }
        Some(())
    })
}
