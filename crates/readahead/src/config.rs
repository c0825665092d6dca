//! The room's configuration.
use types::{KIB, MIB};

types::config_table! {
    /// Configuration of readahead. Live: a file takes it up at its next open or [`crate::FileReadahead::new`].
    struct Config in "readahead" {
        /// Bytes that all files of one client shard may have prefetched and unused. 0 switches readahead off.
        budget_bytes_max ["max_read_ahead_mb"] = 256 * MIB, 0, 1 << 40;
        /// Bytes that one file may have prefetched and unused. 0 switches readahead off.
        window_bytes_max ["max_read_ahead_per_file_mb"] = 64 * MIB, 0, 1 << 36;
        /// Files up to this size are fetched whole, on a first miss at offset 0 or on a second miss anywhere.
        whole_file_bytes_max ["max_read_ahead_whole_mb"] = 2 * MIB, 0, 1 << 30;
        /// Smallest first window of a stream.
        window_bytes_initial_min = 64 * KIB, 4 * KIB, 1 << 30;
        /// Largest first window of a stream (it is 4 times the first read, within these bounds). Larger: faster start, more waste.
        window_bytes_initial_max = MIB, 4 * KIB, 1 << 30;
        /// The window grows to this by itself, and beyond it (to the file's maximum) only when readers had to wait.
        window_bytes_unforced_max = 32 * MIB, 64 * KIB, 1 << 36;
        /// Bytes beyond a miss that the reader fetches along with it and waits for.
        sync_bytes_max = MIB, 0, 64 * MIB;
        /// A file may prefetch this many bytes before any use ...
        waste_allowance_bytes = 4 * MIB, 64 * KIB, 1 << 30;
        /// ... and this share, in percent, of the bytes it used: the bound on bytes prefetched per bytes used. 400 = 4 to 1.
        waste_percent_max = 400, 100, 100_000;
        /// Records that a stride is prefetched ahead, within the window: by itself up to this many ...
        records_ahead_unforced_max = 64, 1, 4096;
        /// ... and up to this many when readers had to wait, as they do where records are small and answers take long.
        records_ahead_max = 1024, 1, 4096;
        /// Window of the `miss` baseline.
        miss_window_bytes = 2 * MIB, 4 * KIB, 1 << 30;
        /// Window of the `ondemand` baseline.
        ondemand_window_bytes = 40 * MIB, 4 * KIB, 1 << 30;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lustres_names_count_mib() {
        let mut c = Config::default();
        c.set("max_read_ahead_mb", "128").unwrap();
        c.set("max_read_ahead_per_file_mb", "0").unwrap();
        c.set("max_read_ahead_whole_mb", "8").unwrap();
        assert_eq!((c.budget_bytes_max, c.window_bytes_max, c.whole_file_bytes_max), (128 * MIB, 0, 8 * MIB));
    }
}
