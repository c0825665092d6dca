//! A program that fills small OSTs to the brim, waits a little, and makes room again: writes of all others then meet full
//! OSTs. That there is no space is said by write(2) and never by fsync(2) or close(2).
use std::rc::Rc;

use types::{Duration, Fid, FsError, MIB, Rng};
use wire::mdt::{Cred, SetBits, SetattrRequest};

use super::context::Context;

const O_RDWR: u32 = 2;
/// Bytes written at a time.
const STEP: u64 = MIB;
/// Writes until it gives up filling.
const STEPS_MAX: u64 = 300;

/// See the module's head.
pub struct Filler {
    context: Rc<Context>,
    fid: Fid,
    rng: Rng,
}

impl Filler {
    /// Over an empty file.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid) -> Filler {
        let rng = context.rng("filler");
        Filler { context, fid, rng }
    }
    /// Fills and makes room until the run is calm; there is room in the end.
    pub async fn run(mut self) {
        while !self.context.calm.get() && !self.context.failed() {
            self.fill().await;
            self.pause(4_000_000).await;
            self.make_room().await;
            self.pause(8_000_000).await;
        }
        self.make_room().await;
    }
    async fn pause(&mut self, most_us: u64) {
        self.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(most_us))).await;
    }
    async fn fill(&mut self) {
        for step in 0..STEPS_MAX {
            if self.context.calm.get() || self.context.failed() {
                return;
            }
            let c = self.context.any_client(&mut self.rng).await;
            let Some(author) = self.context.author(c) else { continue };
            let (fid, sync) = (self.fid, self.rng.chance(0.1));
            let done = self.context.on(c, "filler: write", async move |c| {
                let file = c.open(&Cred::default(), fid, O_RDWR).await?;
                let written = c.data().write(&file, step * STEP, &vec![1; STEP as usize]).await.map(drop);
                let synced = if sync { c.data().fsync(&file, false).await } else { Ok(()) };
                let closed = c.release(&file).await;
                Ok::<_, FsError>((written, synced.and(closed)))
            });
            let sound = |context: &Context| context.is_sound(author);
            match done.await {
                Some(Ok((Ok(()), Ok(())))) => {}
                Some(Ok((Err(e), Ok(())))) if self.context.is_full(c, None, &e.to_string()) => return,
                Some(Ok((Ok(()), Err(e)))) if self.context.is_told_late(c, Some(fid), &e.to_string()) => {}
                Some(Ok((written, kept))) if sound(&self.context) => {
                    return self.context.complain(format!("filler on client{c}: write {written:?}, then {kept:?}"));
                }
                Some(Err(e)) if sound(&self.context) && !self.context.is_full(c, None, &e.to_string()) => {
                    return self.context.complain(format!("filler on client{c}: {e}"));
                }
                _ => self.pause(500_000).await,
            }
        }
    }
    async fn make_room(&mut self) {
        loop {
            let c = self.context.any_client(&mut self.rng).await;
            let Some(author) = self.context.author(c) else { continue };
            let fid = self.fid;
            let request = SetattrRequest { valid: SetBits::SIZE | SetBits::MTIME_NOW, ..SetattrRequest::default() };
            let cut = self.context.on(c, "filler: cut", async move |c| {
                c.setattr(&Cred::default(), &c.meta().inode(fid), request, None).await.map(drop)
            });
            match cut.await {
                Some(Ok(())) => return,
                Some(Err(e)) if self.context.is_sound(author) => {
                    return self.context.complain(format!("filler: cut on client{c}: {e}"));
                }
                _ if self.context.failed() => return,
                _ => self.pause(500_000).await,
            }
        }
    }
}
