//! Requests that are under way together, whose answers are taken as they come: the completion ring of a program.
use std::io;
use std::sync::Arc;

use crate::connection::{Connection, Ticket};
use crate::file::{File, Pending};

/// Requests under way of files of one mount, each with what the program keeps beside it.
pub struct Queue<T> {
    under_way: Vec<(Pending, T)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { under_way: Vec::new() }
    }
}

fn ticket(pending: &Pending) -> Option<&Ticket> {
    match pending {
        Pending::Native(ticket) => Some(ticket),
        Pending::Done(..) => None,
    }
}

impl<T> Queue<T> {
    /// Requests under way and not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.under_way.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }
    fn connection(&self) -> Option<&Arc<Connection>> {
        self.under_way.iter().find_map(|(p, _)| ticket(p)).map(Ticket::connection)
    }
    /// Whether a request of this file can be added: to be asked before it is begun.
    ///
    /// # Errors
    /// EXDEV: what is under way is of another mount's files.
    pub fn takes(&self, file: &File) -> io::Result<()> {
        match (file.usable(), self.connection()) {
            (Some(new), Some(all)) if !Arc::ptr_eq(new.connection(), all) => {
                Err(io::Error::from_raw_os_error(libc::EXDEV))
            }
            _ => Ok(()),
        }
    }
    /// Adds a request that was begun.
    ///
    /// # Errors
    /// EXDEV: what is under way is of another mount's files; the request goes on, and its answer is thrown away.
    pub fn push(&mut self, pending: Pending, beside: T) -> io::Result<()> {
        if let (Some(new), Some(all)) = (ticket(&pending), self.connection())
            && !Arc::ptr_eq(new.connection(), all)
        {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
        self.under_way.push((pending, beside));
        Ok(())
    }
    /// Takes what is done, in the order in which it was begun, at most `max`; waits until there are `min`, or all that are under
    /// way.
    pub fn reap(&mut self, min: usize, max: usize, mut take: impl FnMut(Pending, T)) -> usize {
        let (min, mut taken) = (min.min(max).min(self.len()), 0);
        loop {
            let mut at = 0;
            while at < self.under_way.len() && taken < max {
                if self.under_way[at].0.is_done() {
                    let (pending, beside) = self.under_way.remove(at);
                    take(pending, beside);
                    taken += 1;
                } else {
                    at += 1;
                }
            }
            if taken >= min {
                return taken;
            }
            Ticket::wait_for_one(self.under_way.iter().filter_map(|(p, _)| ticket(p)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_taken_in_order_and_no_more_than_is_wanted() {
        let mut queue = Queue::default();
        for i in 0..5 {
            queue.push(Pending::Done(Ok(i), Vec::new()), i).unwrap();
        }
        let mut seen = Vec::new();
        let mut take = |p: Pending, i| seen.push((p.wait(&mut []).unwrap(), i));
        assert_eq!((queue.reap(0, 2, &mut take), queue.reap(9, 9, &mut take), queue.reap(1, 1, &mut take)), (2, 3, 0));
        assert_eq!((seen, queue.is_empty()), ((0..5).map(|i| (i, i)).collect(), true));
    }
}
