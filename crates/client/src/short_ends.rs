//! Pages of a kernel with bytes behind an end that are not the file's.
//!
//! A kernel learns sizes from answers only. While it believes in an older end, within a page that is mapped, and another client
//! has made the file longer, it writes that page back up to the older end, and fills the rest of it with zeros (Linux since
//! 6.17). Those zeros are nobody's: once the kernel learns the size, and the page is stored to again, they would come back over
//! what the other client wrote. And when such a file is cut to the very end that the kernel believes in, it keeps its pages, with
//! bytes that the cut took away. So the page is dropped behind the answer, and until it is gone zeros behind that end, or all bytes
//! behind a cut, are no stores.
use std::cell::{Cell, RefCell};

use rt::sync::Event;
use types::Extent;

/// Bytes of a kernel's page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// What a kernel has where nothing is, or something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Zeros: what is not zero there was stored since.
    Zeros,
    /// What a cut took away.
    Cut,
}

struct Range {
    number: u64,
    /// Within a page; empty: that page is gone, others may not be.
    extent: Extent,
    left: Left,
}

/// Of one file: ranges that are not the file's, in pages that are being dropped.
#[derive(Default)]
pub(crate) struct ShortEnds {
    ranges: RefCell<Vec<Range>>,
    begun: Cell<u64>,
    gone: Event,
}

impl ShortEnds {
    /// What a write-back of pages up to `end` leaves as zeros in a file that is `size` bytes long, if anything.
    pub(crate) fn zeroed_by(end: u64, size: u64) -> Option<Extent> {
        let zeroed = Extent::new(end, size.min(end.next_multiple_of(PAGE_BYTES)).max(end));
        (!zeroed.is_empty()).then_some(zeroed)
    }
    /// A kernel may have such bytes there now, within a page; gives its number.
    pub(crate) fn begin(&self, extent: Extent, left: Left) -> u64 {
        let number = self.begun.get();
        self.begun.set(number + 1);
        self.ranges.borrow_mut().push(Range { number, extent, left });
        number
    }
    /// Its pages are gone from the kernel.
    pub(crate) fn end(&self, number: u64) {
        self.ranges.borrow_mut().retain(|r| r.number != number);
        self.gone.notify();
    }
    /// A kernel reads pages, which it does not have then: what it has of them next is the file's, and what programs store to it.
    pub(crate) fn read_anew(&self, pages: Extent) {
        let pages = pages.align_out(PAGE_BYTES);
        for range in self.ranges.borrow_mut().iter_mut().filter(|r| r.extent.overlaps(&pages)) {
            range.extent.end = range.extent.start;
        }
    }
    pub(crate) fn count(&self) -> u64 {
        self.ranges.borrow().len() as u64
    }
    /// Waits until no such page is left.
    ///
    /// Cancel: nothing happened.
    pub(crate) async fn none_left(&self) {
        loop {
            let gone = self.gone.wait();
            if self.ranges.borrow().is_empty() {
                return;
            }
            gone.await;
        }
    }
    /// Which parts of `data`, written back at `offset`, programs have stored.
    pub(crate) fn stores(&self, offset: u64, data: &[u8]) -> Vec<Extent> {
        let whole = Extent::new(offset, offset + data.len() as u64);
        let ranges = self.ranges.borrow();
        let mut parts: Vec<(Extent, Left)> =
            ranges.iter().filter_map(|r| Some((r.extent.intersect(&whole)?, r.left))).collect();
        parts.sort_unstable_by_key(|(part, _)| *part);
        let (mut at, mut stores) = (offset, Vec::new());
        for (part, left) in parts {
            let is_store = |byte: u64| left == Left::Zeros && data[(byte - offset) as usize] != 0;
            for byte in part.start.max(at)..part.end {
                if !is_store(byte) {
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
        let zeroed = ends.begin(Extent::new(4196, 4396), Left::Zeros);
        let parts = [Extent::new(4096, 4196), Extent::new(4246, 4247), Extent::new(4396, 8192)];
        assert_eq!(ends.stores(4096, &page), parts);
        let other = ends.begin(Extent::new(4190, 4200), Left::Zeros);
        assert_eq!(ends.stores(4096, &page), parts, "bytes that are not zero were stored");
        assert_eq!(ends.stores(0, &page), [Extent::new(0, 4096)], "another page");
        assert_eq!(ends.stores(4196, &[0; 200]), []);
        ends.end(zeroed);
        ends.end(other);
        assert_eq!((ends.stores(4096, &page), ends.count()), (whole.to_vec(), 0));
    }

    #[test]
    fn nothing_behind_a_cut_is_a_store_until_the_page_was_read_anew() {
        let ends = ShortEnds::default();
        let page = vec![7; 4096];
        let cut = ends.begin(Extent::new(4196, 8192), Left::Cut);
        let zeroed = ends.begin(Extent::new(4150, 4300), Left::Zeros);
        assert_eq!(ends.stores(4096, &page), [Extent::new(4096, 4196)]);
        ends.read_anew(Extent::new(0, 4096));
        ends.read_anew(Extent::new(8192, 16384));
        assert_eq!(ends.stores(4096, &page), [Extent::new(4096, 4196)], "other pages");
        ends.read_anew(Extent::new(4096, 4097));
        assert_eq!((ends.stores(4096, &page), ends.count()), (vec![Extent::new(4096, 8192)], 2));
        ends.end(cut);
        ends.end(zeroed);
        assert_eq!(ends.count(), 0);
    }
}
