//! Two mounts that read each other's stored-to files asynchronously, several programs at once, while their kernels have two
//! places in the background: each read waits until the other kernel has written its pages back, in that same background.
use std::rc::Rc;

use rt::LocalFuture;
use rt::sync::join_all;
use types::Duration;

use crate::pages::PAGE;
use crate::run::{RunConfig, Work, World};

const PROGRAMS: usize = 2;

/// The run of a seed.
#[must_use]
pub fn config(seed: u64) -> RunConfig {
    let mut config = RunConfig { programs: PROGRAMS, ..RunConfig::draw(seed, Work::Script(steps), 2) };
    config.session.max_background = PROGRAMS as u16;
    config.kernel.dirty_age_max = Duration::from_secs(3600);
    config
}

fn steps(w: Rc<World>) -> LocalFuture<Option<()>> {
    Box::pin(async move {
        let names: [&[u8]; 2] = [b"f", b"g"];
        let mut own = Vec::new();
        for (mount, name) in names.into_iter().enumerate() {
            let (kernel, caller) = (w.kernel(mount), w.caller(mount, 0, PROGRAMS));
            let flags = libc::O_RDWR | libc::O_CREAT;
            let file = w.must(mount, "create", kernel.open(&caller, &kernel.root(), name, flags)).await?;
            w.must(mount, "write", kernel.write(&caller, &file, 0, &[b'.'; 4 * PAGE as usize])).await?;
            own.push(file);
        }
        let (mut others, direct) = (Vec::new(), w.context.rng("cross").chance(0.5));
        for (mount, name) in names.into_iter().rev().enumerate() {
            let (kernel, caller) = (w.kernel(mount), w.caller(mount, 0, PROGRAMS));
            // Past the page cache either way.
            let flags = if direct { libc::O_RDONLY | libc::O_DIRECT } else { libc::O_RDWR };
            others.push(w.must(mount, "open", kernel.open(&caller, &kernel.root(), name, flags)).await?);
        }
        let mut mappings = Vec::new();
        for (mount, file) in own.iter().enumerate() {
            let (kernel, caller) = (w.kernel(mount), w.caller(mount, 0, PROGRAMS));
            mappings.push(w.must(mount, "mmap", kernel.map(file, true)).await?);
            let stored = w.op(mount, "store", kernel.store(&caller, file, PAGE, b"new")).await?;
            w.context.expect("store", stored.map_err(|e| format!("{e:?}")));
        }
        let reads = (0..2 * PROGRAMS).map(|i| {
            let (w, mount, file) = (w.clone(), i / PROGRAMS, others[i / PROGRAMS].clone());
            async move {
                let caller = w.caller(mount, i % PROGRAMS, PROGRAMS);
                let read =
                    w.op(mount, "asynchronous read", w.kernel(mount).read_async(&caller, &file, PAGE, PAGE)).await?;
                let outcome = match read {
                    Ok(bytes) if bytes.starts_with(b"new") => Ok(()),
                    Err(libc::EAGAIN) => Ok(()),
                    other => Err(format!("{:?}", other.map(|b| b.len()))),
                };
                w.context.expect("what was stored", outcome);
                Some(())
            }
        });
        join_all(reads.collect()).await.into_iter().collect::<Option<Vec<()>>>()?;
        for (mount, mapping) in mappings.into_iter().enumerate() {
            w.op(mount, "munmap", w.kernel(mount).unmap(mapping)).await?;
        }
        for (mount, file) in own.iter().enumerate() {
            for file in [file, &others[mount]] {
                let (kernel, caller) = (w.kernel(mount), w.caller(mount, 0, PROGRAMS));
                w.must(mount, "close", kernel.close(&caller, file)).await?;
            }
        }
        Some(())
    })
}
