//! What is told of the cluster map: as it is on stable storage, not as it is being changed. A mount lets go for good of an OST that it takes
//! for removed, and a server strikes it out of its directory: were that told before it is committed, a crash of this server would leave an
//! OST in the map that nobody serves and some do not use.
use std::collections::VecDeque;

use crate::config_service::ClusterMap;

/// The map as it is told, and those that are being committed.
pub(crate) struct ShownMap {
    map: ClusterMap,
    /// With the application each is, ascending.
    coming: VecDeque<(u64, ClusterMap)>,
}

impl ShownMap {
    /// `map` is on stable storage.
    pub fn new(map: ClusterMap) -> ShownMap {
        ShownMap { map, coming: VecDeque::new() }
    }
    /// This map is on stable storage with the application `at`.
    pub fn saved(&mut self, at: u64, map: ClusterMap) {
        self.coming.push_back((at, map));
    }
    /// Something is told otherwise that is not stored.
    pub fn changed(&mut self) {
        self.map.epoch += 1;
    }
    /// The map of which every application up to `durable` is on stable storage.
    pub fn as_of(&mut self, durable: u64) -> &ClusterMap {
        while let Some((_, map)) = self.coming.pop_front_if(|(at, _)| *at <= durable) {
            let epoch = map.epoch.max(self.map.epoch + 1);
            self.map = ClusterMap { epoch, ..map };
        }
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_told_when_its_application_is_on_stable_storage_and_each_has_an_epoch_of_its_own() {
        let map = |epoch, last_change| ClusterMap { epoch, last_change, ..ClusterMap::default() };
        let mut shown = ShownMap::new(map(3, 1));
        shown.saved(10, map(4, 2));
        shown.saved(12, map(5, 3));
        let mut told = |durable| {
            let map = shown.as_of(durable);
            (map.epoch, map.last_change)
        };
        assert_eq!([told(9), told(10), told(11), told(12)], [(3, 1), (4, 2), (4, 2), (5, 3)]);
        shown.saved(13, map(6, 4));
        shown.changed();
        assert_eq!(shown.as_of(12).epoch, 6);
        assert_eq!(shown.as_of(13).epoch, 7);
    }
}
