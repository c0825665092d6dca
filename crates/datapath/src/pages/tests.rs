//! Pages of one object: claims, loads, cuts and write-out, step by step.
use super::*;
use crate::{Answer, Target, TargetLimits};

fn write(t: &mut Target<()>, o: &mut Pages<u8>, page: u64) -> bool {
    write_at(t, o, Extent::at(page * PAGE, PAGE))
}

/// A write within a page.
fn write_at(t: &mut Target<()>, o: &mut Pages<u8>, extent: Extent) -> bool {
    let page = extent.start / PAGE;
    if !o.is_cached(page) {
        o.on_overwritten(page);
        o.on_put(page, 7, false);
    }
    let was_clean = o.on_written(page);
    o.on_grown(extent.end);
    t.on_written(o, page, was_clean)
}

#[test]
fn what_arrives_after_its_page_was_dropped_or_claimed_anew_does_not_count() {
    let mut o = Pages::<u8>::default();
    let mut t = Target::<()>::new(TargetLimits::DEFAULT);
    o.on_size(100 * PAGE);
    let first = o.on_missing(0, 4, 64)[0];
    let _ = t.discard(&mut o, 1, 2);
    let second = o.on_missing(0, 4, 64)[0];
    assert_eq!((second.first, second.end), (1, 2), "the others are on their way");
    assert!(o.on_arrived(first, 0) && !o.on_arrived(first, 1) && o.on_arrived(second, 1));
    o.on_unclaimed(first);
    assert!(!o.is_loading(2) && !o.on_arrived(first, 2));
}

#[test]
fn nobody_claims_what_is_being_changed_and_changes_of_the_same_pages_wait() {
    let mut o = Pages::<u8>::default();
    assert!(o.on_change(5, 7) && !o.on_change(6, 9) && o.on_change(20, 21));
    let runs: Vec<_> = o.on_missing(3, 9, 64).iter().map(|c| (c.first, c.end)).collect();
    assert_eq!(runs, [(3, 5), (7, 9)]);
    o.on_changed(5, 7);
    o.on_changed(20, 21);
    assert!(!o.is_changing(0, u64::MAX) && o.on_change(6, 9));
}

#[test]
fn a_page_is_taken_once_at_a_time_and_what_is_behind_the_end_is_dropped() {
    let (mut o, mut t) = (Pages::<u8>::default(), Target::<()>::new(TargetLimits::DEFAULT));
    t.books.on_session(1, false, 3 * PAGE);
    assert_eq!([0, 1, 2, 70, 71].map(|p| write(&mut t, &mut o, p)), [true, true, true, false, false]);
    let out = t.take(&mut o, Extent::new(0, 2 * PAGE), 10).out.unwrap();
    assert_eq!((&out.pages[..], out.granted, &out.extents[..]), (&[0, 1][..], 2, &[Extent::new(0, 2 * PAGE)][..]));
    assert!(!write(&mut t, &mut o, 0), "dirty anew, beside its write");
    assert_eq!(o.first_due(Due::all(Extent::ALL)), Some(2));
    o.set_size(70 * PAGE + 100);
    let rest = t.take(&mut o, Extent::ALL, 10);
    let more = rest.out.unwrap();
    assert_eq!((&more.pages[..], more.granted, rest.gone.len()), (&[2][..], 1, 1), "only what has grant, as the first");
    let last = t.take(&mut o, Extent::ALL, 10).out.unwrap();
    assert_eq!(last.extents, [Extent::at(70 * PAGE, 100)]);
    let _ = t.on_write_ended(&mut o, &out, Answer::Done, true);
    let _ = t.on_write_ended(&mut o, &last, Answer::Done, true);
    let _ = t.on_write_ended(&mut o, &more, Answer::Failed, true);
    assert_eq!((o.unwritten_pages(), t.books.dirty_bytes(), t.books.charged_bytes()), (1, PAGE, 0));
    assert_eq!(t.books.grant_bytes(), PAGE, "the write that was not carried out gives it back");
}

#[test]
fn pages_stay_where_another_lock_covers_them() {
    let (mut o, mut t) = (Pages::<u8>::default(), Target::<()>::new(TargetLimits::DEFAULT));
    t.books.on_session(1, false, 90 * PAGE);
    o.on_size(100 * PAGE);
    assert!([1, 2, 3].map(|p| write(&mut t, &mut o, p)).iter().all(|granted| *granted));
    let claim = o.on_missing(4, 7, 64)[0];
    (4..7).for_each(|p| {
        assert!(o.on_arrived(claim, p));
        o.on_put(p, 1, true);
    });
    // Another write lock over page 2 and half of page 3; a read lock over 5 and 6.
    let (writing, all) = ([Extent::new(2 * PAGE, 3 * PAGE + 7)], [Extent::new(5 * PAGE, 90 * PAGE)]);
    let gone = t.discard_uncovered(&mut o, Extent::new(0, 6 * PAGE), &writing, &all);
    assert_eq!((gone.dropped, gone.pages.len(), &gone.ahead[..]), (Dropped { dirty: 2, granted: 2 }, 3, &[4][..]));
    let left: Vec<u64> = (0..10).filter(|p| o.is_cached(*p)).collect();
    assert_eq!((left, o.dirty_pages(), t.books.grant_bytes()), (alloc::vec![2, 5, 6], 1, 89 * PAGE));
}

#[test]
fn unwritten_pages_keep_no_size_alive_that_lies_behind_them() {
    let (mut o, mut t) = (Pages::<u8>::default(), Target::<()>::new(TargetLimits::DEFAULT));
    o.on_size(300_000);
    assert!(!write(&mut t, &mut o, 70));
    assert_eq!((o.size(), o.unwritten_end()), (300_000, 71 * PAGE));
    let out = t.take(&mut o, Extent::ALL, 10).out.unwrap();
    assert_eq!(o.unwritten_end(), 71 * PAGE, "on its way is not there yet");
    o.on_size(0);
    assert_eq!(o.size(), 71 * PAGE);
    let _ = t.on_write_ended(&mut o, &out, Answer::Failed, true);
    let _ = o.on_not_written(&out.pages);
    assert_eq!((o.size(), o.unwritten_end(), o.is_cached(70)), (0, 0, false));
}

#[test]
fn what_could_not_be_written_takes_its_length_along_to_the_byte() {
    let (mut o, mut t) = (Pages::<u8>::default(), Target::<()>::new(TargetLimits::DEFAULT));
    t.books.on_session(1, false, 10 * PAGE);
    o.set_size(3000);
    write_at(&mut t, &mut o, Extent::new(4096, 4500));
    let sent = t.take(&mut o, Extent::ALL, 10).out.unwrap();
    assert_eq!(sent.extents, [Extent::new(4096, 4500)]);
    // One page far behind the end that was; one between them, which is written to its end, for the object is longer.
    write_at(&mut t, &mut o, Extent::new(7 * PAGE, 30_000));
    write_at(&mut t, &mut o, Extent::new(3 * PAGE, 3 * PAGE + 100));
    assert_eq!((o.size(), o.unwritten_end()), (30_000, 30_000));
    let far = t.take(&mut o, Extent::from(7 * PAGE), 10).out.unwrap();
    let _ = t.on_write_ended(&mut o, &far, Answer::Failed, true);
    let _ = o.on_not_written(&far.pages);
    assert_eq!(o.size(), 3 * PAGE + 100, "the end of the last byte that is to be written");
    write_at(&mut t, &mut o, Extent::new(7 * PAGE, 30_000));
    let both = t.take(&mut o, Extent::from(2 * PAGE), 10).out.unwrap();
    assert_eq!(both.extents, [Extent::new(3 * PAGE, 4 * PAGE), Extent::new(7 * PAGE, 30_000)]);
    let _ = t.on_write_ended(&mut o, &both, Answer::Failed, true);
    let _ = o.on_not_written(&both.pages);
    assert_eq!(o.size(), 4500);
    // Bytes that follow, in the same page and over its end.
    write_at(&mut t, &mut o, Extent::new(4500, 4600));
    assert_eq!(o.unwritten_end(), 4600);
    write_at(&mut t, &mut o, Extent::new(4600, 2 * PAGE));
    assert_eq!(o.unwritten_end(), 2 * PAGE);
    o.on_stored(4500);
    assert_eq!(o.size(), 2 * PAGE);
}

#[test]
fn an_answer_from_before_a_write_takes_nothing_away_while_a_lock_is_held() {
    let mut o = Pages::<u8>::default();
    o.on_size(824);
    o.on_assured(21_483);
    o.on_size(824);
    assert_eq!((o.size(), o.stored()), (21_483, 21_483), "asked before the write, answered after it");
    o.on_size(30_000);
    assert_eq!(o.size(), 30_000);
    o.on_size(21_483);
    o.on_lock_gone(u64::MAX);
    o.on_size(0);
    assert_eq!(o.size(), 21_483, "the lock that went was not the last one");
    o.on_lock_gone(8192);
    o.on_size(0);
    assert_eq!(o.size(), 8192, "another one reaches so far, and the object did when that was there");
    o.on_lock_gone(0);
    o.on_size(0);
    assert_eq!(o.size(), 0, "others may have cut it");
    o.on_assured(21_483);
    o.set_size(100);
    o.on_size(50);
    assert_eq!(o.size(), 100, "we have cut it ourselves");
}

#[test]
fn a_flush_is_over_when_what_was_written_before_it_is_out_whoever_goes_on_writing() {
    let (mut t, mut o) = (Target::<()>::new(TargetLimits::DEFAULT), Pages::default());
    let out = |t: &mut Target<()>, o: &mut Pages<u8>, due: Due| {
        let first = o.first_due(due).expect("something is due");
        t.take(o, Extent::from(first * PAGE), 1).out.expect("it is ready")
    };
    let ends = |t: &mut Target<()>, o: &mut Pages<u8>, out: &WriteOut| {
        let _ = t.window.on_try();
        let _ = t.on_write_ended(o, out, Answer::Done, true);
    };
    write(&mut t, &mut o, 5);
    write(&mut t, &mut o, 70);
    let under_way = out(&mut t, &mut o, Due::all(Extent::ALL));
    assert_eq!(under_way.pages, [5]);
    let due = o.due_now(Extent::ALL);
    // What is written from now on is due to nobody but a flush of everything; page 70 stays due though it is written to again.
    [0, 5, 6, 70, 71].into_iter().for_each(|page| _ = write(&mut t, &mut o, page));
    assert_eq!((o.first_due(due), o.first_due(Due::all(Extent::ALL))), (Some(70), Some(0)));
    let second = out(&mut t, &mut o, due);
    assert_eq!((second.pages.as_slice(), o.flushing(due)), ([70].as_slice(), Flushing::UnderWay));
    ends(&mut t, &mut o, &second);
    write(&mut t, &mut o, 70);
    assert_eq!(o.flushing(due), Flushing::UnderWay, "the older version of page 5 is on its way");
    ends(&mut t, &mut o, &under_way);
    assert_eq!((o.flushing(due), o.flushing(Due::all(Extent::ALL))), (Flushing::Over, Flushing::Ready));
    let next = o.due_now(Extent::at(0, 6 * PAGE));
    assert_eq!((o.first_due(next), o.flushing(due)), (Some(0), Flushing::Over));
}
