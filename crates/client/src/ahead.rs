//! Readahead settings of a client, changed while files are open.
use readahead::{Config, FileReadahead, POLICIES, PolicyEntry, UnknownPolicy};

use crate::client::Client;

/// What an open gets, and every open file after a change.
#[derive(Clone)]
pub(crate) struct Ahead {
    entry: &'static PolicyEntry,
    config: Config,
}

impl Ahead {
    /// # Errors
    /// A sentence that names the policies there are.
    pub(crate) fn new(policy: &str, config: Config) -> Result<Ahead, String> {
        let entry = POLICIES.iter().find(|p| p.name == policy);
        let entry = entry.ok_or_else(|| UnknownPolicy(policy.into()).to_string())?;
        Ok(Ahead { entry, config })
    }
    pub(crate) fn of_file(&self) -> FileReadahead {
        FileReadahead::with_entry(self.entry, &self.config)
    }
}

impl Client {
    /// The readahead policy in use.
    #[must_use]
    pub fn readahead_policy(&self) -> &'static str {
        self.ahead.borrow().entry.name
    }
    /// Changes the readahead policy of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence that names the policies there are.
    pub fn set_readahead_policy(&self, name: &str) -> Result<(), String> {
        let config = self.ahead.borrow().config.clone();
        self.set_ahead(Ahead::new(name, config)?);
        Ok(())
    }
    /// A readahead setting by its key or Lustre's name for it, in bytes or what the key counts.
    #[must_use]
    pub fn readahead_setting(&self, key: &str) -> Option<u64> {
        let row = Config::KEYS.iter().find(|k| k.key == key || !key.is_empty() && k.alias_mb == key)?;
        self.ahead.borrow().config.get(row.key)
    }
    /// Changes a readahead setting (Lustre's names count MiB) of every file, open or to be opened.
    ///
    /// # Errors
    /// A sentence with the key's range.
    pub fn set_readahead(&self, key: &str, value: &str) -> Result<(), String> {
        let mut ahead = self.ahead.borrow().clone();
        ahead.config.set(key, value).map_err(|e| e.to_string())?;
        self.set_ahead(ahead);
        Ok(())
    }

    fn set_ahead(&self, ahead: Ahead) {
        for file in self.opens.borrow().values() {
            file.readahead.borrow_mut().switch(ahead.entry, &ahead.config);
        }
        self.readahead_budget.borrow_mut().set_limit(ahead.config.budget_bytes_max);
        *self.ahead.borrow_mut() = ahead;
    }
}
