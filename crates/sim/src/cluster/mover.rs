//! A program that gives files of others other objects (`lfs migrate`) while they are worked on and things go wrong: what their programs
//! check has to hold as it does without.
use std::rc::Rc;

use client::{Client, Migrate};
use layout::{LayoutSpec, StripeCount, StripeSize};
use types::{Duration, Fid, FsError, OstIndex, Rng};
use wire::mdt::Cred;

use super::class::FaultClass;
use super::context::Context;

/// Files in the root directory that other programs work on; those of a run that are there.
const FILES: [&[u8]; 8] = [b"blocks", b"log", b"counter", b"overlap", b"crowd", b"kept0", b"kept1", b"witnessed0"];
/// Virtual seconds after which nobody waits for a migration any more.
const PATIENCE_S: u64 = 120;

/// See the module's head.
pub struct Mover {
    context: Rc<Context>,
    rng: Rng,
    /// Longest time between two migrations, in milliseconds.
    every_ms: u64,
}

impl Mover {
    /// Over whatever files there are.
    #[must_use]
    pub fn new(context: Rc<Context>) -> Mover {
        let mut rng = context.rng("mover");
        let every_ms = [200, 2000, 8000][rng.below(3) as usize];
        Mover { context, rng, every_ms }
    }
    /// Works until no fault begins any more.
    pub async fn run(mut self) {
        while !self.context.ending.get() && !self.context.failed() {
            self.context.cluster.sim.sleep(Duration::from_millis(self.rng.below(self.every_ms))).await;
            self.one().await;
        }
    }
    async fn one(&mut self) {
        let client = self.context.any_client(&mut self.rng).await;
        let name = FILES[self.rng.below(FILES.len() as u64) as usize];
        let how = self.wish();
        let patience = Duration::from_millis(self.rng.below(PATIENCE_S * 1000));
        let work = async move |c: Rc<Client>| migrate(c, name, how, patience).await;
        match self.context.on(client, "mover: migrate", work).await {
            Some(Ok(())) => self.context.count(|c| c.by_class[FaultClass::Migrate.index()] += 1),
            Some(Err(FsError::Invalid)) if self.context.cluster.config.spare_osts > 0 => {}
            Some(Err(e @ (FsError::Invalid | FsError::Protocol | FsError::NoData | FsError::Access))) => {
                let name = String::from_utf8_lossy(name).into_owned();
                self.context.complain(format!("client{client}: migration of {name}: {e}"));
            }
            // Somebody was in the way, a server was away, a client died: the file has its objects.
            _ => {}
        }
    }
    /// A layout: as many stripes of another size, beginning at any OST; in three of ten cases with a rate.
    fn wish(&mut self) -> Migrate {
        // Where OSTs come and go, it may be closed or gone when its turn has come.
        let all = self.context.cluster.ost_indices();
        let osts = all.len() as u64;
        let mut spec = LayoutSpec::default();
        spec.stripe_size = StripeSize::new([1 << 16, 1 << 18, 1 << 20][self.rng.below(3) as usize]).ok();
        spec.stripe_count = StripeCount::Exactly(1 + self.rng.below(osts) as u16);
        spec.index = Some(OstIndex(all[self.rng.below(osts) as usize] as u16));
        let gives_way = self.rng.chance(0.2);
        let bytes_per_s = if self.rng.chance(0.3) { [50_000, 1 << 20][self.rng.below(2) as usize] } else { 0 };
        Migrate { layout: layout::xattr::encode_spec(&spec), gives_way, bytes_per_s }
    }
}

async fn migrate(c: Rc<Client>, name: &[u8], how: Migrate, patience: Duration) -> Result<(), FsError> {
    let cred = Cred::default();
    let entry = c.lookup(&cred, Fid::ROOT, name).await?;
    if entry.attr.fid.is_zero() {
        return Err(FsError::NotFound);
    }
    let file = c.open(&cred, entry.attr.fid, 0).await?;
    let began = c.rt().now();
    let stopped = || c.rt().now().since(began) > patience;
    let done = c.migrate(&cred, file.inode(), &how, &stopped).await.map(drop);
    let released = c.release(&file).await;
    done.and(released)
}
