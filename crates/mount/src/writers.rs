//! Files that programs have open for writing through this kernel.
//!
//! A kernel lets the first open whose pages it may keep wait for every write in place that is on its way (`fuse_file_cached_io_open`),
//! and SIGKILL does not end that wait: with an OST away, whoever opens the file for reading would hang as long as who writes it.
//! So no open may keep pages while another one may write.
use std::cell::RefCell;
use std::collections::HashMap;

use types::Fid;

/// Opens for writing, by file.
#[derive(Default)]
pub(crate) struct Writers(RefCell<HashMap<Fid, u32>>);

impl Writers {
    /// A kernel is told of an open for writing.
    pub(crate) fn came(&self, fid: Fid) {
        *self.0.borrow_mut().entry(fid).or_default() += 1;
    }
    /// The kernel ended one.
    pub(crate) fn went(&self, fid: Fid) {
        let mut all = self.0.borrow_mut();
        if let Some(n) = all.get_mut(&fid) {
            *n -= 1;
            if *n == 0 {
                all.remove(&fid);
            }
        }
    }
    /// Whether a program has the file open for writing.
    pub(crate) fn has(&self, fid: Fid) -> bool {
        self.0.borrow().contains_key(&fid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_writers_until_the_last_one_went() {
        let (writers, one, other) = (Writers::default(), Fid::new(1, 1), Fid::new(1, 2));
        writers.came(one);
        writers.came(one);
        assert!(writers.has(one) && !writers.has(other));
        writers.went(one);
        writers.went(other);
        assert!(writers.has(one));
        writers.went(one);
        assert!(!writers.has(one) && writers.0.borrow().is_empty());
    }
}
