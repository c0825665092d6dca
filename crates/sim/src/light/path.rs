//! A client's path to one file, without bytes: what of it is here, on its way or absent, and what readahead is told.
//!
//! The parts are the product's: `datapath::Pages` with its claims, and the readahead room. The rule by which a reader that has
//! to wait tells the room so is [`Call::of_wait`], the client's own. A unit stands for a page: 4 KiB, a block of the client's
//! cache, or a record. Who fetches, and what that costs, is the node's.
use datapath::{Claimed, Pages};
use readahead::record::{Call, apply};
use readahead::{Budget, Config, Facts, FileReadahead, Plan};
use types::Extent;

/// A frame of the client's cache, or none where there is no cache: what came stays then.
pub(super) type Frame = Option<cache::FrameId>;

/// See the module's head.
pub(super) struct FilePath {
    pages: Pages<Frame>,
    unit: u64,
    units: u64,
    /// Units of a fetch lie between neighbouring multiples of each.
    cuts: [u64; 2],
    ahead: FileReadahead,
    facts: Facts,
}

/// Units that are on their way for one RPC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    claim: Claimed,
    /// Their bytes.
    pub extent: Extent,
}

impl Fetch {
    /// Numbers of its units.
    pub fn units(&self) -> core::ops::Range<u64> {
        self.claim.first..self.claim.end
    }
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
        let mut all_coming = true;
        let mut waits = false;
        for unit in self.units_of(extent) {
            if !self.pages.is_cached(unit) {
                waits = true;
                all_coming &= self.pages.is_loading(unit);
            }
        }
        waits.then(|| Call::of_wait(extent, all_coming))
    }

    /// Somebody reads a unit: its frame, if it is here.
    pub fn used(&mut self, unit: u64) -> Option<Frame> {
        self.pages.on_used(unit).copied()
    }

    /// Whether a unit is here.
    pub fn is_here(&self, unit: u64) -> bool {
        self.pages.is_cached(unit)
    }

    /// Claims what of `extent` is absent, ascending, as fetches.
    pub fn claim(&mut self, extent: Extent) -> Vec<Fetch> {
        let core::ops::Range { start: mut at, end } = self.units_of(extent);
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

    /// A unit of a fetch came. Whether it is to be kept, with [`FilePath::keep`].
    pub fn arrived(&mut self, fetch: &Fetch, unit: u64) -> bool {
        self.pages.on_arrived(fetch.claim, unit)
    }

    /// A unit is here from now on. `ahead`: nobody has asked for it yet.
    pub fn keep(&mut self, unit: u64, frame: Frame, ahead: bool) {
        self.pages.on_put(unit, frame, ahead);
    }

    /// The cache took a unit away: its bytes, if nobody had asked for them.
    pub fn left(&mut self, unit: u64) -> Option<Extent> {
        let (_, unused) = self.pages.on_reclaimed(unit);
        unused.then(|| Extent::at(unit * self.unit, self.unit))
    }

    /// Numbers of the units that `extent` touches.
    pub fn units_of(&self, extent: Extent) -> core::ops::Range<u64> {
        extent.start / self.unit..extent.end.div_ceil(self.unit).min(self.units)
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
        for fetch in first.iter().chain(&rest) {
            for unit in fetch.units() {
                assert!(path.arrived(fetch, unit));
                path.keep(unit, None, unit < 40);
            }
        }
        assert!(path.wait(read).is_none() && path.claim(read).is_empty());
        assert_eq!((path.left(30), path.used(31)), (Some(Extent::at(30 * 4096, 4096)), Some(None)));
        assert!(path.left(31).is_none() && !path.is_here(31), "what was used did not leave in vain");
        path.claim(Extent::at(31 * 4096, 4096));
        assert_eq!(extents(&path.claim(read)), [(120, 124)]);
        let tail = path.claim(Extent::new(3 * MIB, 4 * MIB));
        assert_eq!(extents(&tail), [(3072, 3076)], "nothing is behind the file's last page");
    }
}
