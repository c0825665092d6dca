//! Pages that a kernel wrote back only up to an end of the file which is not the end any more.
//!
//! A kernel learns sizes from answers only. While it believes in an older end, within a page that is mapped, and another client
//! has made the file longer, it writes that page back up to the older end, and fills the rest of it with zeros (Linux since
//! 6.17). Those zeros are nobody's: once the kernel learns the size, and the page is stored to again, they would come back over
//! what the other client wrote. So the page is dropped behind the answer, and until it is gone zeros behind that end are no stores.
use std::cell::RefCell;

use rt::sync::Event;
use types::Extent;

/// Bytes of a kernel's page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Of one file: ranges that its kernel has filled with zeros, in pages that are being dropped.
#[derive(Default)]
pub(crate) struct ShortEnds {
    zeroed: RefCell<Vec<Extent>>,
    gone: Event,
}

impl ShortEnds {
    /// What a write-back of pages up to `end` leaves as zeros in a file that is `size` bytes long, if anything.
    pub(crate) fn zeroed_by(end: u64, size: u64) -> Option<Extent> {
        let zeroed = Extent::new(end, size.min(end.next_multiple_of(PAGE_BYTES)).max(end));
        (!zeroed.is_empty()).then_some(zeroed)
    }
    /// A kernel has zeros there now.
    pub(crate) fn begin(&self, zeroed: Extent) {
        self.zeroed.borrow_mut().push(zeroed);
    }
    /// The page is gone from the kernel.
    pub(crate) fn end(&self, zeroed: Extent) {
        let mut all = self.zeroed.borrow_mut();
        if let Some(i) = all.iter().position(|z| *z == zeroed) {
            all.swap_remove(i);
        }
        drop(all);
        self.gone.notify();
    }
    pub(crate) fn count(&self) -> u64 {
        self.zeroed.borrow().len() as u64
    }
    /// Waits until no page with such zeros is left.
    ///
    /// Cancel: nothing happened.
    pub(crate) async fn none_left(&self) {
        loop {
            let gone = self.gone.wait();
            if self.zeroed.borrow().is_empty() {
                return;
            }
            gone.await;
        }
    }
    /// Which parts of `data`, written back at `offset`, programs have stored: all but zeros where the kernel put some.
    pub(crate) fn stores(&self, offset: u64, data: &[u8]) -> Vec<Extent> {
        let whole = Extent::new(offset, offset + data.len() as u64);
        let zeroed = self.zeroed.borrow();
        let mut parts: Vec<Extent> = zeroed.iter().filter_map(|z| z.intersect(&whole)).collect();
        parts.sort_unstable();
        let (mut at, mut stores) = (offset, Vec::new());
        for part in parts {
            let nothing = |byte: u64| data[(byte - offset) as usize] == 0;
            for byte in part.start.max(at)..part.end {
                if nothing(byte) {
                    stores.push(Extent::new(at, byte));
                    at = byte + 1;
                }
            }
        }
        stores.push(Extent::new(at, whole.end));
        stores.retain(|e| !e.is_empty());
        stores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_within_a_page_of_a_longer_file_leaves_zeros_up_to_the_size_or_the_page() {
        let zeroed = ShortEnds::zeroed_by;
        assert_eq!(zeroed(100, 300), Some(Extent::new(100, 300)));
        assert_eq!(zeroed(4100, 1 << 20), Some(Extent::new(4100, 8192)));
        assert_eq!((zeroed(8192, 1 << 20), zeroed(100, 100), zeroed(100, 50)), (None, None, None));
    }

    #[test]
    fn zeros_behind_a_short_end_are_no_stores_until_the_page_is_gone() {
        let ends = ShortEnds::default();
        let mut page = vec![7; 4096];
        page[100..300].fill(0);
        page[150] = 9;
        let whole = [Extent::new(4096, 8192)];
        assert_eq!(ends.stores(4096, &page), whole);
        let zeroed = Extent::new(4196, 4396);
        ends.begin(zeroed);
        let parts = [Extent::new(4096, 4196), Extent::new(4246, 4247), Extent::new(4396, 8192)];
        assert_eq!(ends.stores(4096, &page), parts);
        ends.begin(Extent::new(4190, 4200));
        assert_eq!(ends.stores(4096, &page), parts, "bytes that are not zero were stored");
        assert_eq!(ends.stores(0, &page), [Extent::new(0, 4096)], "another page");
        assert_eq!(ends.stores(4196, &[0; 200]), []);
        ends.end(zeroed);
        ends.end(Extent::new(4190, 4200));
        assert_eq!((ends.stores(4096, &page), ends.count()), (whole.to_vec(), 0));
    }
}
