//! A slab whose members hang in FIFO lists through their own links: lists of turns, rounds and buckets cost no memory
//! of their own, and a member leaves its list in O(1).
use crate::prefetch::prefetch_head;
use alloc::vec::Vec;

/// "None" in a link field.
pub(crate) const NIL: u32 = u32::MAX;

/// In the link of a member whose index was given back.
const FREE: u32 = NIL - 1;

/// Ends of a FIFO list; the links live in the members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        List { head: NIL, tail: NIL }
    }
}

impl List {
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

/// Makes a member begin where a cache line does: for members that are whole lines long.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Line;

#[derive(Debug)]
#[repr(C)]
struct Member<T, A> {
    align: [A; 0],
    prev: u32,
    next: u32,
    value: T,
}

/// Values by slab index, each in at most one [`List`]; aligned as `A` is.
#[derive(Debug)]
pub(crate) struct Chain<T, A = ()> {
    members: Vec<Member<T, A>>,
    free: Vec<u32>,
}

impl<T, A> Default for Chain<T, A> {
    fn default() -> Self {
        Chain { members: Vec::new(), free: Vec::new() }
    }
}

impl<T, A> Chain<T, A> {
    /// Stores `value`; the index stays valid until [`Chain::free`].
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let member = Member { align: [], prev: NIL, next: NIL, value };
        if let Some(at) = self.free.pop() {
            self.members[at as usize] = member;
            return at;
        }
        self.members.push(member);
        u32::try_from(self.members.len() - 1).expect("there are fewer members than request ids")
    }
    /// Gives the index `at` back; it hangs in no list. Its value lives on until the index is used again.
    pub(crate) fn free(&mut self, at: u32) {
        self.members[at as usize].next = FREE;
        self.free.push(at);
    }
    /// The value at `at`, which may have been given back, or never been there.
    pub(crate) fn get_live(&self, at: u32) -> Option<&T> {
        self.members.get(at as usize).filter(|member| member.next != FREE).map(|member| &member.value)
    }
    pub(crate) fn get(&self, at: u32) -> &T {
        &self.members[at as usize].value
    }
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.members[at as usize].value
    }
    /// Fetches the beginning of the member `at` for a use that is near.
    pub(crate) fn prefetch(&self, at: u32) {
        prefetch_head(&self.members[at as usize]);
    }
    /// As [`Chain::prefetch`], for an index that may be nobody's.
    pub(crate) fn prefetch_live(&self, at: u32) {
        if let Some(member) = self.members.get(at as usize) {
            prefetch_head(member);
        }
    }
    /// The member behind `at` in its list.
    pub(crate) fn next(&self, at: u32) -> Option<u32> {
        Some(self.members[at as usize].next).filter(|next| *next != NIL)
    }
    /// Appends the unlinked member `at` to `list`.
    pub(crate) fn push_back(&mut self, list: &mut List, at: u32) {
        let member = &mut self.members[at as usize];
        (member.prev, member.next) = (list.tail, NIL);
        match list.tail {
            NIL => list.head = at,
            tail => self.members[tail as usize].next = at,
        }
        list.tail = at;
    }
    /// Puts the unlinked member `at` before all others of `list`.
    pub(crate) fn push_front(&mut self, list: &mut List, at: u32) {
        let member = &mut self.members[at as usize];
        (member.prev, member.next) = (NIL, list.head);
        match list.head {
            NIL => list.tail = at,
            head => self.members[head as usize].prev = at,
        }
        list.head = at;
    }
    /// Puts the unlinked member `at` right behind `before`, which hangs in `list`.
    pub(crate) fn insert_after(&mut self, list: &mut List, before: u32, at: u32) {
        let next = self.members[before as usize].next;
        let member = &mut self.members[at as usize];
        (member.prev, member.next) = (before, next);
        self.members[before as usize].next = at;
        match next {
            NIL => list.tail = at,
            next => self.members[next as usize].prev = at,
        }
    }
    /// Takes the member `at` out of `list`, in which it hangs.
    pub(crate) fn unlink(&mut self, list: &mut List, at: u32) {
        let Member { prev, next, .. } = self.members[at as usize];
        match prev {
            NIL => list.head = next,
            prev => self.members[prev as usize].next = next,
        }
        match next {
            NIL => list.tail = prev,
            next => self.members[next as usize].prev = prev,
        }
    }
}
