//! A client's path to one file, without bytes: what of it is here, on its way or absent, and what readahead is told.
//!
//! The parts are the product's: `datapath::Pages` with its claims, and the readahead room. The rule by which a reader that has
//! to wait tells the room so is [`Call::of_wait`], the client's own. A unit stands for a page: in world `readahead` 4 KiB, for
//! light clients a record. Who fetches, and what that costs, is the world's.
use datapath::{Claimed, Pages};
use readahead::record::{Call, apply};
use readahead::{Budget, Config, Facts, FileReadahead, Plan};
use types::Extent;

/// See the module's head.
pub(crate) struct FilePath {
    pages: Pages<()>,
    unit: u64,
    units: u64,
    /// Units of a fetch lie between neighbouring multiples of each.
    cuts: [u64; 2],
    ahead: FileReadahead,
    facts: Facts,
}

/// Units that are on their way for one RPC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    claim: Claimed,
    /// Their bytes.
    pub extent: Extent,
}

impl FilePath {
    /// A file of which nothing is here. Fetches are cut at multiples of `cuts` bytes.
    ///
    /// # Errors
    /// A sentence, when the policy does not exist.
    pub fn new(policy: &str, config: &Config, facts: Facts, unit: u64, cuts: [u64; 2]) -> Result<FilePath, String> {
        Ok(FilePath {
            pages: Pages::default(),
            unit,
            units: facts.file_size.div_ceil(unit),
            cuts: cuts.map(|c| (c / unit).max(1)),
            ahead: FileReadahead::new(policy, config).map_err(|e| e.to_string())?,
            facts,
        })
    }

    /// Tells readahead something; what it wants then is the plan.
    pub fn tell(&mut self, call: Call, budget: &mut Budget, plan: &mut Plan) {
        apply(call, &mut self.ahead, &self.facts, budget, plan);
    }

    /// What a reader of `extent` tells readahead when it has to wait; `None`: all of it is here.
    pub fn wait(&self, extent: Extent) -> Option<Call> {
        let (first, end) = self.units_of(extent);
        let mut all_coming = true;
        let mut waits = false;
        for unit in first..end {
            if !self.pages.is_cached(unit) {
                waits = true;
                all_coming &= self.pages.is_loading(unit);
            }
        }
        waits.then(|| Call::of_wait(extent, all_coming))
    }

    /// Whether all of `extent` is here.
    pub fn is_here(&self, extent: Extent) -> bool {
        let (first, end) = self.units_of(extent);
        (first..end).all(|unit| self.pages.is_cached(unit))
    }

    /// Claims what of `extent` is absent, ascending, as fetches.
    pub fn claim(&mut self, extent: Extent) -> Vec<Fetch> {
        let (mut at, end) = self.units_of(extent);
        let mut fetches = Vec::new();
        while at < end {
            let stop = self.cuts.iter().fold(end, |stop, cut| stop.min((at / cut + 1) * cut));
            for claim in self.pages.on_missing(at, stop, stop - at) {
                let extent = Extent::new(claim.first * self.unit, claim.end * self.unit);
                fetches.push(Fetch { claim, extent });
            }
            at = stop;
        }
        fetches
    }

    /// A fetch came.
    pub fn arrived(&mut self, fetch: Fetch) {
        for unit in fetch.claim.first..fetch.claim.end {
            if self.pages.on_arrived(fetch.claim, unit) {
                self.pages.on_put(unit, (), false);
            }
        }
    }

    /// A unit left the cache.
    pub fn left(&mut self, unit: u64) {
        let _ = self.pages.on_reclaimed(unit);
    }

    fn units_of(&self, extent: Extent) -> (u64, u64) {
        (extent.start / self.unit, extent.end.div_ceil(self.unit).min(self.units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{KIB, MIB};

    #[test]
    fn what_is_absent_is_claimed_once_and_cut_where_rpcs_and_stripes_end() {
        let facts = Facts { file_size: 3 * MIB + 5, stripe_size: 256 * KIB, rpc_bytes: MIB, lock: Extent::ALL };
        let cuts = [MIB, 256 * KIB];
        let mut path = FilePath::new("none", &Config::default(), facts, 4096, cuts).unwrap();
        let read = Extent::new(100 * KIB, 600 * KIB);
        assert_eq!(path.wait(read), Some(Call::Miss(read)));
        let first = path.claim(Extent::new(200 * KIB, 300 * KIB));
        let extents = |f: &[Fetch]| f.iter().map(|f| (f.extent.start / KIB, f.extent.end / KIB)).collect::<Vec<_>>();
        assert_eq!(extents(&first), [(200, 256), (256, 300)]);
        let rest = path.claim(read);
        assert_eq!(extents(&rest), [(100, 200), (300, 512), (512, 600)]);
        assert_eq!(path.wait(read), Some(Call::Blocked), "all of it is on its way");
        first.iter().chain(&rest).for_each(|f| path.arrived(*f));
        assert!(path.is_here(read) && path.wait(read).is_none() && path.claim(read).is_empty());
        path.left(30);
        assert_eq!(extents(&path.claim(read)), [(120, 124)]);
        let tail = path.claim(Extent::new(3 * MIB, 4 * MIB));
        assert_eq!(extents(&tail), [(3072, 3076)], "nothing is behind the file's last page");
    }
}
