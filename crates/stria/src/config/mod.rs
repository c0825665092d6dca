//! Configuration: the keys of all nodes and of the process, read from TOML. Unknown keys are refused with their line and the nearest
//! known key.
mod explain;
mod table;

pub use explain::{explain, reference_markdown};
pub use table::Own;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use toml::de::{DeTable, DeValue};
use types::params::{Keys, Kind, Refused, Row};

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}
fn transports() -> Vec<String> {
    names(&["auto", "uring", "dev"])
}
fn kernel_caching() -> Vec<String> {
    names(&["never", "reopened", "fitting", "always"])
}
fn kernel_names() -> Vec<String> {
    names(&["kept", "asked"])
}
fn net_profiles() -> Vec<String> {
    [vec!["none".to_string()], names(&rt::real::NET_PROFILES.map(|p| p.name))].concat()
}
fn securities() -> Vec<String> {
    names(&ptlrpc::Security::NAMES)
}
fn idle_depths() -> Vec<String> {
    names(&["auto", "deep", "shallow", "polling"])
}
fn store_kinds() -> Vec<String> {
    names(&["file", "memory", "null", "emulated"])
}
fn device_profiles() -> Vec<String> {
    names(&devices::profile_names())
}
fn elevators() -> Vec<String> {
    names(&devices::ElevatorKind::NAMES)
}
fn fast_profiles() -> Vec<String> {
    [vec!["none".to_string()], device_profiles()].concat()
}
fn fast_admissions() -> Vec<String> {
    oss::fast::ADMISSIONS.iter().map(|p| p.name.to_string()).collect()
}

/// Sizes that have no key: they go by the memory of the process alone.
#[derive(Clone, PartialEq, Debug)]
pub struct Sizes {
    /// Page frames beyond the caches: transfers under way, zero pages, writes that are answered and not stable yet.
    pub frames_beyond_bytes: u64,
    /// The own cache of a metadata target's database.
    pub mdt_db_bytes: u64,
    /// The own cache of an OST's database.
    pub ost_db_bytes: u64,
    /// Objects that an OST's store remembers.
    pub ost_objects_max: u64,
    /// Block checksums that it remembers.
    pub ost_blocks_max: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        let of_ost = store_file::FileStoreConfig::default();
        Sizes {
            frames_beyond_bytes: 512 * types::MIB,
            mdt_db_bytes: store_redb::CACHE_BYTES_DEFAULT as u64,
            ost_db_bytes: of_ost.db_cache_bytes as u64,
            ost_objects_max: of_ost.objects_max as u64,
            ost_blocks_max: of_ost.mapped_blocks_max as u64,
        }
    }
}

/// All settings: what belongs to no node (its fields are this struct's), and the keys of each kind of node.
#[derive(Clone, Debug, Default)]
pub struct Config {
    own: Own,
    /// Of clients.
    pub client: client::Keys,
    /// Of object servers.
    pub oss: oss::Keys,
    /// Of metadata servers.
    pub mds: mds::Keys,
    /// What has no key.
    pub sizes: Sizes,
    /// Keys that somebody set, to whatever value.
    set: BTreeSet<&'static str>,
}

/// Whoever set a value, it is the same.
impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        (&self.own, &self.client, &self.oss) == (&other.own, &other.client, &other.oss)
            && (&self.mds, &self.sizes) == (&other.mds, &other.sizes)
    }
}

impl From<Own> for Config {
    fn from(own: Own) -> Config {
        Config { own, ..Config::default() }
    }
}
impl Deref for Config {
    type Target = Own;
    fn deref(&self) -> &Own {
        &self.own
    }
}
impl DerefMut for Config {
    fn deref_mut(&mut self) -> &mut Own {
        &mut self.own
    }
}

/// Every key there is.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [Own::ROWS, client::Keys::ROWS, oss::Keys::ROWS, mds::Keys::ROWS].into_iter().flatten()
}

/// The refusal of an unknown key, with the nearest known one.
pub(crate) fn unknown(key: &str) -> Refused {
    Refused::unknown(key, rows())
}

impl Config {
    /// Sets a key from its text.
    ///
    /// # Errors
    /// No such key, or what the value should be.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), Refused> {
        let known = self.own.put(key, text)?
            || self.client.put(key, text)?
            || self.oss.put(key, text)?
            || self.mds.put(key, text)?;
        if !known {
            return Err(unknown(key));
        }
        self.set.extend(rows().map(|row| row.key).filter(|k| *k == key));
        Ok(())
    }
    /// Whether somebody set a key, if only to its default.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.set.contains(key)
    }
    /// A key's value as text that [`Config::set`] reads back.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        let own = self.own.get(key).or_else(|| self.client.get(key));
        own.or_else(|| self.oss.get(key)).or_else(|| self.mds.get(key))
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// A sentence with file, line, value and remedy.
    pub fn load(path: &Path) -> Result<Config, String> {
        let mut config = Config::default();
        config.read(path)?;
        Ok(config)
    }

    /// Reads a file over what is set already.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn read(&mut self, path: &Path) -> Result<(), String> {
        let at = |e: String| format!("configuration {}: {e}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| at(e.to_string()))?;
        self.parse_over(&text).map_err(at)
    }

    /// Reads TOML; keys that are not there keep their defaults.
    ///
    /// # Errors
    /// A sentence with line, value and remedy.
    #[cfg(test)]
    pub fn parse(text: &str) -> Result<Config, String> {
        let mut config = Config::default();
        config.parse_over(text)?;
        Ok(config)
    }

    fn parse_over(&mut self, text: &str) -> Result<(), String> {
        let document = DeTable::parse(text).map_err(|e| match e.span() {
            Some(span) => format!("line {}: {}", line_of(text, span.start), e.message()),
            None => e.message().to_string(),
        })?;
        self.take(text, "", document.get_ref())?;
        self.check()
    }

    fn take(&mut self, text: &str, prefix: &str, table: &DeTable<'_>) -> Result<(), String> {
        for (name, value) in table {
            let line = line_of(text, name.span().start);
            let key =
                if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
            let at = |e: String| format!("line {line}: {e}");
            match value.get_ref() {
                DeValue::Table(inner) => {
                    let known = rows().any(|r| r.key.strip_prefix(&*key).is_some_and(|rest| rest.starts_with('.')));
                    if !known {
                        if let Some(row) = rows().find(|r| r.key == key) {
                            return Err(at(format!("{key} takes one value, like {:?}, and no table", row.default)));
                        }
                        return Err(at(unknown(&key).into()));
                    }
                    self.take(text, &key, inner)?;
                }
                DeValue::String(s) => self.set(&key, s).map_err(|e| at(e.into()))?,
                DeValue::Integer(i) => {
                    let written = match i.radix() {
                        10 => i.as_str().to_string(),
                        radix => i64::from_str_radix(i.as_str(), radix).map_err(|e| at(e.to_string()))?.to_string(),
                    };
                    self.set(&key, &written).map_err(|e| at(e.into()))?;
                }
                DeValue::Boolean(b) => self.set(&key, &b.to_string()).map_err(|e| at(e.into()))?,
                _ => return Err(at(format!("{key}: write a text, a number, true or false"))),
            }
        }
        Ok(())
    }

    /// Which connections are encrypted.
    #[must_use]
    pub fn security(&self) -> ptlrpc::Security {
        ptlrpc::Security::of_name(&self.net_security).unwrap_or_default()
    }

    /// What the ranges of single keys cannot say.
    ///
    /// # Errors
    /// A sentence with value and remedy.
    pub fn check(&self) -> Result<(), String> {
        layout::LayoutSpec::from_raw(self.layout_stripe_size, self.layout_stripe_count, -1)
            .map_err(|e| format!("layout: {e}"))?;
        if !self.oss.bulk_bytes_max.is_power_of_two() {
            return Err(format!(
                "oss.bulk_bytes_max = {}: write a power of two from 1M to 64M",
                self.oss.bulk_bytes_max
            ));
        }
        mds::mkfs::check_name(&self.fsname).map_err(|e| format!("cluster.fsname: {e}"))?;
        if !self.mdt_store.is_empty() {
            store_pg::Place::parse(&self.mdt_store, None).map_err(|e| format!("mdt.store: {e}"))?;
        }
        rt::Nid::parse(&self.listen).map_err(|e| format!("net.listen: {e}"))?;
        crate::metrics::address_of(&self.metrics_listen, self.metrics_allow_remote)?;
        for (key, ids) in [("mount.squash_all", &self.mount_squash_all), ("mount.squash_root", &self.mount_squash_root)]
        {
            parse_ids(ids).map_err(|e| format!("{key} = \"{ids}\": {e}"))?;
        }
        if self.store_fast_dir.is_empty() != (self.store_fast_bytes == 0) {
            return Err(format!(
                "store.fast.dir = \"{}\" and store.fast.size = {}: a fast tier needs both, a directory on a faster device and a size",
                self.store_fast_dir, self.store_fast_bytes
            ));
        }
        for (key, keys) in [("client.cache_keys", &self.client.cache_keys), ("oss.cache_keys", &self.oss.cache_keys)] {
            cache_config(keys).map_err(|e| format!("{key}: {e}"))?;
        }
        let (bytes, in_files) = (self.store_capacity_bytes, matches!(&*self.store_kind, "file" | "emulated"));
        if in_files && (1..store_file::CAPACITY_MIN).contains(&bytes) {
            return Err(format!("store.capacity_bytes = {bytes}: write 16M or more, or 0 for all that there is"));
        }
        devices::DeviceProfile::parse(&self.store_profile, &self.store_profile_keys)
            .map_err(|e| format!("store.profile_keys: {e}"))?;
        Ok(())
    }

    /// The configuration as TOML that reads back.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Keys of one section may belong to the process and to a node; a file has each section once.
        let mut sections: Vec<(&str, String)> = Vec::new();
        for row in rows() {
            let (head, name) = row.key.split_once('.').unwrap_or(("", row.key));
            let value = self.get(row.key).unwrap_or_default();
            let bare = matches!(row.kind, Kind::Number { .. } | Kind::Signed { .. } | Kind::Switch);
            let shown = if bare { value } else { toml::Value::String(value).to_string() };
            let line = format!("{name} = {shown}\n");
            match sections.iter_mut().find(|(section, _)| *section == head) {
                Some((_, lines)) => *lines += &line,
                None => sections.push((head, format!("[{head}]\n{line}"))),
            }
        }
        sections.into_iter().map(|(_, lines)| lines).collect::<Vec<_>>().join("\n")
    }
}

/// Keys of the cache policies, as `client.cache_keys` and `oss.cache_keys` spell them; the capacity says nothing.
///
/// # Errors
/// What they should be.
pub fn cache_config(keys: &str) -> Result<cache::CacheConfig, String> {
    let mut config = cache::CacheConfig::new(1);
    config.set_all(keys).map(|()| config)
}

/// Reads `UID:GID`; empty is nobody.
///
/// # Errors
/// What it should be.
pub fn parse_ids(text: &str) -> Result<Option<(u32, u32)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let ids = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    ids.map(Some).ok_or_else(|| "write UID:GID in numbers, like 65534:65534".into())
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_legal_and_read_back() {
        let config = Config::default();
        config.check().unwrap();
        for row in rows() {
            let mut other = config.clone();
            other.set(row.key, row.default).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(other, config, "{}", row.key);
            other.set(row.key, &config.get(row.key).unwrap()).unwrap();
            assert_eq!(other, config, "{} reads back", row.key);
        }
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
    }

    #[test]
    fn no_configuration_file_panics_and_what_is_read_is_written_the_same() {
        use formats::fuzz::{Target, outcome_of};
        let target = Target {
            name: "config",
            root: env!("CARGO_MANIFEST_DIR"),
            seeds: vec![Config::default().to_toml().into_bytes(), b"[client]\ncache_bytes = \"1G\"\n".to_vec()],
            words: &[
                b"[client]\n",
                b" = ",
                b"\"",
                b"0x",
                b"18446744073709551615",
                b"[[[[[[[[[[[[[[[[",
                b"-1",
                b"\"\"\"",
            ],
            mend: None,
            memory: (1 << 20, 1 << 10),
        };
        target.run(|input| match Config::parse(&String::from_utf8_lossy(input)) {
            Ok(config) => {
                assert_eq!(Config::parse(&config.to_toml()), Ok(config));
                1
            }
            Err(e) => outcome_of(&e),
        });
    }

    #[test]
    fn keys_are_declared_once() {
        let mut keys: Vec<_> = rows().map(|r| r.key).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|w| w[0] != w[1]));
    }

    #[test]
    fn unknown_keys_are_refused_with_line_and_nearest_key() {
        let e = Config::parse("[client]\n\ncache_byte = \"1G\"\n").unwrap_err();
        assert_eq!(e, "line 3: unknown key 'client.cache_byte': did you mean 'client.cache_bytes'?");
        let e = Config::parse("[cleint]\nx = 1\n").unwrap_err();
        assert!(e.starts_with("line 1: unknown key 'cleint'"), "{e}");
        let e = Config::parse("[client.cache_bytes]\nx = 1\n").unwrap_err();
        assert!(e.starts_with("line 1: client.cache_bytes takes one value"), "{e}");
        let e = Config::parse("a = [1\n").unwrap_err();
        assert!(e.starts_with("line "), "{e}");
    }

    #[test]
    fn values_out_of_range_are_refused_with_value_and_range() {
        let error = |text: &str| Config::parse(text).unwrap_err();
        assert_eq!(
            error("client.max_rpcs_in_flight = 257"),
            "line 1: client.max_rpcs_in_flight = 257: out of range: write a number, 1 to 256 RPCs"
        );
        assert!(error("nrs.policy = \"fifi\"").contains("one of fifo"), "{}", error("nrs.policy = \"fifi\""));
        assert!(error("store.direct = \"maybe\"").contains("true or false"));
        assert!(error("client.cache_bytes = []").contains("write a text"));
        assert!(error("layout.default_stripe_size = \"65K\"").contains("not a multiple of 64K"));
        assert!(error("oss.bulk_bytes_max = \"3M\"").contains("power of two"));
        assert!(error("mount.squash_all = \"nobody\"").contains("UID:GID"));
    }

    #[test]
    fn an_address_is_numeric_with_its_port() {
        assert!(Config::parse("net.listen = \"0.0.0.0:7988\"").is_ok());
        assert!(Config::parse("net.listen = \"localhost\"").unwrap_err().contains("not an address"));
    }

    #[test]
    fn the_reference_page_is_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/config.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(
            page == reference_markdown(),
            "write it anew: cargo run -- config explain --markdown > docs/reference/config.md"
        );
    }
}
