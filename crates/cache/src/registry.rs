//! The registry: every policy by name, and the configuration they are built from.
//!
//! One line per policy. The name is the config value, the metric label, the scenario key and the documentation entry.
use crate::ReclaimPolicy;
use crate::table::CAPACITY_MAX;
use crate::two_list::RingSize;
use alloc::{boxed::Box, format, string::String, string::ToString};
use core::fmt::Write as _;
use types::registry::{Entry, Registry};
use types::{MIB, PAGE_BYTES, parse_size};

/// A policy of the registry, or an outsider's.
pub type PolicyEntry = Entry<dyn ReclaimPolicy, CacheConfig>;

/// All policies, the default first.
#[must_use]
pub fn registry() -> Registry<dyn ReclaimPolicy, CacheConfig> {
    Registry::new("cache policy", POLICIES)
}

/// Builds policy `name`.
///
/// # Errors
/// A sentence naming the value and the names that exist.
pub fn build(name: &str, config: &CacheConfig) -> Result<Box<dyn ReclaimPolicy>, String> {
    registry().find(name).map(|entry| (entry.make)(config)).map_err(|e| e.to_string())
}

macro_rules! policies {
    ($($name:literal, $module:ident, $summary:literal;)*) => {
        static POLICIES: &[PolicyEntry] = &[$(Entry::new($name, $summary, crate::$module::build),)*];
    };
}

policies! {
    "lru", lru, "Linux's active and inactive list with referenced bits. The baseline.";
    "fgf_lru", fgf_lru, "Paper 000 to the letter: pages of requests below a stripe stay, coarse pages enter at the reclaim end.";
    "fgf_lru+ring", fgf_ring, "`fgf_lru` whose coarse pages keep a ring of at least two readahead windows, so that nothing read ahead leaves before its use.";
    "adaptive", adaptive, "`lru` or `fgf_lru+ring`, whichever two sampled shadow caches find cheaper; misses weigh what they were measured to cost.";
    "bypass", bypass, "`lru`, and requests of `bypass_bytes` or more do not stay in the cache.";
    "s3fifo", s3fifo, "Small, main and ghost FIFO queue: pages used once leave early.";
    "sieve", sieve, "One queue, a visited bit and a hand that stays where it stopped.";
    "arc", arc, "Recency against frequency, balanced by hits on ghosts.";
    "wtinylfu", wtinylfu, "A window of 1 %, a segmented main cache, and a frequency sketch that decides who enters it.";
}

macro_rules! config {
    ($($(#[$doc:meta])* $key:ident: $type:ty = $default:expr, $parse:ident, $range:expr, $unit:literal, $text:literal;)*) => {
        /// What policies are built from. One table: key, default, range, meaning.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct CacheConfig {
            /// Frames of the cache, 1..2^28 - 1 (1 TiB). No default: the mechanism knows its memory.
            pub capacity_pages: u32,
            $(#[doc = $text] pub $key: $type,)*
        }
        impl CacheConfig {
            /// The defaults for a cache of `capacity_pages` frames.
            ///
            /// # Panics
            /// When `capacity_pages` is 0 or above [`crate::table::CAPACITY_MAX`].
            #[must_use]
            pub fn new(capacity_pages: u32) -> CacheConfig {
                CacheConfig { capacity_pages, $($key: $default,)* }.checked()
            }
            /// Sets one value by key, as `set_param` and scenarios do. Takes effect in policies built afterwards.
            ///
            /// # Errors
            /// A sentence naming key, value and range. Nothing has changed then.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
                match key {
                    $(stringify!($key) => {
                        let v = $parse(key, value)?;
                        let range: core::ops::RangeInclusive<$type> = $range;
                        let v = <$type>::try_from(v).ok().filter(|v| range.contains(v)).ok_or_else(|| {
                            format!("{key} = '{value}' is out of range: {} to {} {}", range.start(), range.end(), $unit)
                        })?;
                        self.$key = v;
                        Ok(())
                    })*
                    _ => Err(format!("'{key}' is not a cache policy key; there are: {}", Self::KEYS.join(", "))),
                }
            }
            /// The value of one key as text, or `None` when there is no such key.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<String> {
                match key {
                    $(stringify!($key) => Some(format!("{}", self.$key)),)*
                    _ => None,
                }
            }
            /// All keys that [`CacheConfig::set`] takes.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            fn markdown_rows(out: &mut String) {
                $({
                    let range: core::ops::RangeInclusive<$type> = $range;
                    let default: $type = $default;
                    let _ = writeln!(out, "| `{}` | {default} | {}..={} {} | {} |",
                        stringify!($key), range.start(), range.end(), $unit, $text);
                })*
            }
        }
    };
}

config! {
    stripe_bytes: u64 = MIB, size, 65_536..=(1 << 32), "bytes", "Stripe size that the mechanism assumes where a request does not know its file's: fewer bytes are fine, equal or more are coarse.";
    readahead_window_bytes: u64 = 4 * MIB, size, 4096..=(1 << 32), "bytes", "Largest readahead window of one stream; the coarse ring holds at least two.";
    coarse_ring_pages: u32 = 0, number, 0..=u32::MAX, "pages", "`fgf_lru+ring`: pages that the coarse ring keeps; 0: two readahead windows. Never more than half of the cache.";
    coarse_ahead_percent: u32 = 50, number, 0..=90, "%", "`fgf_lru+ring`: share of the cache up to which coarse pages read ahead and not yet used are kept, above the ring's own size.";
    bypass_bytes: u64 = 8 * MIB, size, 4096..=(1 << 32), "bytes", "`bypass`: requests of at least this size do not stay in the cache.";
    batch_pages: u32 = 15, number, 1..=15, "pages", "Insertions that `fgf_lru` collects before it links them into the lists, as Linux's pagevec does.";
    duel_sample_one_in: u32 = 32, number, 8..=65_536, "blocks", "`adaptive`: the shadow caches simulate one block in this many.";
    duel_fine_cost_ns: u64 = 10_000_000, number, 1..=1_000_000_000_000, "ns", "`adaptive`: cost of a fine page's miss until one has been measured.";
    duel_coarse_cost_ns: u64 = 100_000, number, 1..=1_000_000_000_000, "ns", "`adaptive`: cost per page of a coarse miss until one has been measured.";
    small_queue_percent: u32 = 10, number, 1..=50, "%", "`s3fifo`: share of the cache that new pages pass through.";
}

fn size(key: &str, value: &str) -> Result<u64, String> {
    parse_size(value).map_err(|e| format!("{key}: {e}"))
}

fn number(key: &str, value: &str) -> Result<u64, String> {
    value.trim().parse().map_err(|_| format!("{key}: '{value}' is not a whole number"))
}

impl CacheConfig {
    /// The same keys for a cache of `capacity_pages` frames.
    ///
    /// # Panics
    /// As [`CacheConfig::new`].
    #[must_use]
    pub fn resized(&self, capacity_pages: u32) -> CacheConfig {
        CacheConfig { capacity_pages, ..self.clone() }.checked()
    }
    fn checked(self) -> CacheConfig {
        assert!((1..=CAPACITY_MAX).contains(&self.capacity_pages), "a cache has 1..2^28 - 1 pages");
        self
    }
    /// Sets keys from a text of `KEY=VALUE`, parted by blanks or commas.
    ///
    /// # Errors
    /// A sentence naming key, value and range; those before it are set then.
    pub fn set_all(&mut self, text: &str) -> Result<(), String> {
        for pair in text.split([' ', ',']).filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("'{pair}': write KEY=VALUE"))?;
            self.set(key, value)?;
        }
        Ok(())
    }
    /// What the coarse ring keeps, from `coarse_ring_pages`, the readahead window and the cache's size.
    pub(crate) fn ring_size(&self) -> RingSize {
        let two_windows = (2 * self.readahead_window_bytes).div_ceil(PAGE_BYTES as u64);
        let wished = if self.coarse_ring_pages > 0 { u64::from(self.coarse_ring_pages) } else { two_windows };
        let capacity = u64::from(self.capacity_pages);
        let kept = wished.min((capacity / 2).max(1)) as u32;
        let ahead = (capacity * u64::from(self.coarse_ahead_percent) / 100) as u32;
        RingSize { kept, ahead }
    }
}

/// The reference page of the room: policies and keys, from the registry and the table.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Cache room\n\nGenerated from the registry; edit the code, not this page.\n\n\
         ## Policies (`cache.policy`)\n\n| name | what it does | bytes per page |\n|---|---|---|\n",
    );
    for p in POLICIES {
        // Metadata at a common size, 1 GiB of 4 KiB pages.
        let bytes = (p.make)(&CacheConfig::new(1 << 18)).metadata_bytes_per_page();
        let _ = writeln!(out, "| `{}` | {} | {bytes} |", p.name, p.summary);
    }
    out.push_str("\n## Keys\n\n| key | default | range | meaning |\n|---|---|---|---|\n");
    CacheConfig::markdown_rows(&mut out);
    out.push_str(
        "\nA running cache takes a key by the parameter `obdfilter.*.cache_KEY` (the cache that the OSTs of a process share) or \
         `llite.*.cache_KEY`; at the start, by `oss.cache_keys` and `client.cache_keys` of the configuration, as in \
         `client.cache_keys = \"bypass_bytes=1M duel_sample_one_in=16\"`. A change puts a fresh policy in the place of the one in use: \
         pages stay, with their advice and granularity and in the order in which they would have left; what the policy had \
         learned (ghosts, use counts, duels) is gone.\n",
    );
    out.push_str(
        "\nAdvice orders frames under every policy: all unadvised frames that may leave go first, then those advised \
         cache, low, med and high.\n",
    );
    out
}
