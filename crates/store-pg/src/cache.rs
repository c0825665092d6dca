//! Records in memory, as of the last commit. They are right because only the holder of the store's epoch changes any.
//!
//! Two generations: what is used moves to the young one; when that has half the bytes it becomes the old one, and what the old one had
//! is forgotten.
use std::collections::HashMap;
use std::rc::Rc;

/// A value, or that there is none.
pub(crate) type Value = Option<Rc<[u8]>>;

/// What an entry takes beside its bytes.
const ENTRY_BYTES: usize = 96;

pub(crate) struct Cache {
    young: HashMap<Vec<u8>, Value>,
    old: HashMap<Vec<u8>, Value>,
    young_bytes: usize,
    half_bytes: usize,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Cache {
        Cache { young: HashMap::new(), old: HashMap::new(), young_bytes: 0, half_bytes: bytes_max / 2 }
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Value> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    pub fn put(&mut self, key: &[u8], value: Value) {
        self.old.remove(key);
        self.insert(key.to_vec(), value);
    }

    fn insert(&mut self, key: Vec<u8>, value: Value) {
        let len = |value: &Value| value.as_ref().map_or(0, |v| v.len());
        let more = ENTRY_BYTES + key.len() + len(&value);
        let less = match self.young.get(&key) {
            Some(before) => ENTRY_BYTES + key.len() + len(before),
            None => 0,
        };
        if self.young_bytes + more - less > self.half_bytes {
            self.old = std::mem::take(&mut self.young);
            self.old.remove(&key);
            self.young_bytes = 0;
            if more > self.half_bytes {
                return;
            }
            self.young_bytes = more;
        } else {
            self.young_bytes = self.young_bytes + more - less;
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_what_is_not_goes_and_the_bytes_have_a_limit() {
        let mut cache = Cache::new(20 * (ENTRY_BYTES + 110));
        for i in 0..1000u32 {
            cache.put(&i.to_be_bytes(), Some(vec![i as u8; 100].into()));
            assert!(cache.get(&0u32.to_be_bytes()).is_some(), "used again and again: {i}");
            assert_eq!(cache.get(&i.to_be_bytes()).unwrap().unwrap()[0], i as u8);
            assert!(cache.young.len() + cache.old.len() <= 20);
        }
        assert!(cache.get(&500u32.to_be_bytes()).is_none());
        cache.put(b"absent", None);
        assert_eq!(cache.get(b"absent"), Some(None));
        cache.put(b"large", Some(vec![0; 1 << 20].into()));
        assert!(cache.get(b"large").is_none(), "larger than all of it");
    }

    #[test]
    fn the_newest_value_counts_wherever_the_one_before_was() {
        let mut cache = Cache::new(8 * (ENTRY_BYTES + 20));
        for round in 0..50u8 {
            cache.put(b"k", Some(vec![round].into()));
            for i in 0..round % 6 {
                cache.put(&[i], None);
            }
            assert!(cache.get(b"k").is_none_or(|v| v.unwrap()[0] == round), "round {round}");
        }
    }
}
