//! The room's configuration.

types::config_table! {
    /// Configuration of the advice room. Live: takes effect at the next advice.
    struct Config in "advice" {
        /// Percent of a tier that advised bytes may hold together; the rest stays for reads nobody advised.
        advised_percent_max = 80, 0, 100;
        /// Percent of a tier that one project's advised bytes may hold, unless the project has a budget of its own.
        project_percent_max = 50, 0, 100;
        /// Smallest part in bytes of an extent that is placed when the whole does not fit.
        part_bytes_min = 1048576, 4096, 1073741824;
        /// Bytes of one piece of a background prefetch. Larger: fewer seeks, longer waits for others.
        piece_bytes = 8388608, 65536, 67108864;
        /// Pieces of background prefetch in flight at a time, per object store.
        pieces_in_flight_max = 2, 1, 64;
        /// Advised extents remembered at most; further advice is refused.
        extents_max = 1048576, 1, 16777216;
        /// Seconds within which a second read of a block earns it a copy in the fast tier (`second_touch`).
        fast_window_s = 600, 1, 86400;
        /// Reads of so many bytes and more earn no copy in the fast tier: the slow device serves them well.
        fast_scan_bytes = 1048576, 4096, 67108864;
        /// Units of 64 KiB whose touched blocks are remembered for that, 24 bytes each. Takes effect when the admission policy is set, or the target starts.
        fast_remembered_max = 262144, 4, 268435456;
    }
}
