//! Readahead of a client, changed and recorded while files are open.
use readahead::{Config, EachFile, Recorded};
use types::record::Recordable as _;

use crate::client::Client;

/// The same settings with a budget that leaves most of a cache of `cache_bytes` to what was read ahead earlier and is
/// not read yet: several readers, each of them ahead of itself, must not push out each other's pages.
pub(crate) fn within_cache(config: Config, cache_bytes: u64) -> Config {
    let budget_bytes_max = config.budget_bytes_max.min(cache_bytes / 4);
    Config { budget_bytes_max, ..config }
}

impl Client {
    /// The readahead policy in use.
    #[must_use]
    pub fn readahead_policy(&self) -> &'static str {
        self.ahead.borrow().policy()
    }
    /// Changes the readahead policy of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence that names the policies there are.
    pub fn set_readahead_policy(&self, name: &str) -> Result<(), String> {
        let config = self.ahead.borrow().config().clone();
        self.switch_readahead(name, config)
    }
    /// A readahead setting by its key or Lustre's name for it, in bytes or what the key counts.
    #[must_use]
    pub fn readahead_setting(&self, key: &str) -> Option<u64> {
        let row = Config::KEYS.iter().find(|k| k.key == key || !key.is_empty() && k.alias_mb == key)?;
        self.ahead.borrow().config().get(row.key)
    }
    /// Changes a readahead setting (Lustre's names count MiB) of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence with the key's range.
    pub fn set_readahead(&self, key: &str, value: &str) -> Result<(), String> {
        let mut config = self.ahead.borrow().config().clone();
        config.set(key, value).map_err(|e| e.to_string())?;
        self.switch_readahead(self.readahead_policy(), config)
    }
    fn switch_readahead(&self, policy: &str, config: Config) -> Result<(), String> {
        let config = within_cache(config, self.config.cache_bytes);
        self.each_ahead(|files| self.ahead.borrow_mut().switch(policy, config, files)).map_err(|e| e.to_string())
    }

    /// The recording of readahead: `on`, what the last check said, or `off`.
    #[must_use]
    pub fn readahead_record(&self) -> String {
        self.ahead_recorded(|r| r.record_param())
    }
    /// Records readahead: a size of memory starts, `check` ends and replays, `off` drops.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_readahead_record(&self, text: &str) -> Result<(), String> {
        self.ahead_recorded(|r| r.set_record_param(text))
    }
    /// Ends the recording of readahead and hands it out, for [`readahead::record::replay`].
    #[must_use]
    pub fn take_readahead_record(&self) -> Option<types::record::Recording> {
        self.ahead_recorded(|r| r.tape().take())
    }

    fn ahead_recorded<T>(&self, work: impl FnOnce(&mut Recorded<'_>) -> T) -> T {
        self.each_ahead(|files| work(&mut Recorded { ahead: &mut self.ahead.borrow_mut(), files }))
    }
    fn each_ahead<T>(&self, work: impl FnOnce(EachFile<'_>) -> T) -> T {
        let opens = self.opens.borrow();
        work(&mut |each| opens.values().for_each(|file| each(&mut file.readahead.borrow_mut())))
    }
}
