//! The room's configuration.

types::config_table! {
    /// Configuration of the OST allocators. Live: takes effect at the next create.
    struct AllocConfig in "layout" {
        /// Percent by which the emptiest and the fullest OST's free space may differ before `auto` leaves round robin.
        balanced_within_percent = 17, 0, 100;
        /// An OST whose free space is at most this share of its size, in thousandths, gets no new objects.
        full_permille = 1, 0, 500;
    }
}
