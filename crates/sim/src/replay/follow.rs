//! Who waited for what: the completions that the requests of a client followed.
use std::collections::HashMap;
use types::{ClientId, ObjectId};

/// When requests arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loop {
    /// When they did.
    Open,
    /// So long after the completion that they followed as they did.
    Closed,
}

/// A request as `follow` sees it, on a clock that all targets share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub client: ClientId,
    pub object: ObjectId,
    pub target: u32,
    pub arrived: u64,
    pub finished: u64,
}

/// Completions of a client that nobody has followed yet, at most.
const FREE_MAX: usize = 256;
/// How much nearer a completion of another object of the same target has to lie to be what a request followed, ..
const OTHER_OBJECT: u64 = 8;
/// .. and one of another target.
const OTHER_TARGET: u64 = 64;

/// What a client did so far.
#[derive(Default)]
struct Client {
    /// Completions that nobody has followed yet, the latest last.
    free: Vec<u32>,
    /// The one that was followed last.
    last: Option<u32>,
}

/// Of every request the one whose completion it followed and how long after, if there was one.
///
/// A completion lets one request follow, the one that came next: so a client keeps as many in flight as it had. Of the
/// completions that nobody has followed yet the latest of the same object counts, for a stream goes on where it was, unless
/// one of another object, or of another target, lies much nearer. A request that comes when every completion has been
/// followed goes along with the one before it: a window that grew.
pub(super) fn follow(requests: &[Seen]) -> Vec<Option<(u32, u64)>> {
    let mut order: Vec<u32> = (0..requests.len() as u32).collect();
    order.sort_by_key(|i| (requests[*i as usize].arrived, *i));
    let mut ends = order.clone();
    ends.sort_by_key(|i| (requests[*i as usize].finished, *i));
    let mut clients: HashMap<ClientId, Client> = HashMap::new();
    let (mut parents, mut ended) = (vec![None; requests.len()], ends.into_iter().peekable());
    for i in order {
        let request = requests[i as usize];
        // What ends in the instant in which it arrives is not followed by itself.
        while let Some(end) = ended.next_if(|e| requests[*e as usize].finished <= request.arrived && *e != i) {
            let free = &mut clients.entry(requests[end as usize].client).or_default().free;
            if free.len() == FREE_MAX {
                free.remove(0);
            }
            free.push(end);
        }
        let client = clients.entry(request.client).or_default();
        let after = |end: &u32| request.arrived - requests[*end as usize].finished;
        let distance = |end: &u32| match requests[*end as usize] {
            Seen { object, target, .. } if (object, target) == (request.object, request.target) => after(end),
            Seen { target, .. } if target == request.target => after(end).saturating_mul(OTHER_OBJECT),
            _ => after(end).saturating_mul(OTHER_TARGET),
        };
        let nearest = client.free.iter().enumerate().rev().min_by_key(|(_, end)| distance(end)).map(|(at, _)| at);
        let parent = nearest.map(|at| client.free.remove(at)).or(client.last);
        if let Some(parent) = parent {
            parents[i as usize] = Some((parent, after(&parent)));
            client.last = Some(parent);
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(client: u64, arrived: u64, finished: u64) -> Seen {
        Seen { client: ClientId(client), object: ObjectId::default(), target: 0, arrived, finished }
    }
    fn of(object: u32, target: u32, seen: Seen) -> Seen {
        Seen { object: ObjectId(types::Fid::new(1, object)), target, ..seen }
    }

    #[test]
    fn a_window_of_two_stays_one_of_two() {
        let requests = [seen(1, 0, 10), seen(1, 1, 20), seen(1, 11, 30), seen(1, 22, 40), seen(1, 33, 50)];
        assert_eq!(follow(&requests), [None, None, Some((0, 1)), Some((1, 2)), Some((2, 3))]);
    }

    #[test]
    fn a_pause_is_kept_and_clients_do_not_wait_for_each_other() {
        let requests = [seen(1, 0, 10), seen(2, 0, 5), seen(2, 6, 8), seen(1, 1000, 1010), seen(1, 1001, 1011)];
        assert_eq!(follow(&requests), [None, None, Some((1, 1)), Some((0, 990)), Some((0, 991))]);
    }

    #[test]
    fn streams_of_one_client_go_on_where_they_were() {
        // Two programs read an object each, on two targets; the second one ends between the end and the next request of the first.
        let requests = [
            of(1, 0, seen(1, 0, 100)),
            of(2, 1, seen(1, 0, 101)),
            of(1, 0, seen(1, 105, 200)),
            of(2, 1, seen(1, 107, 190)),
        ];
        assert_eq!(follow(&requests), [None, None, Some((0, 5)), Some((1, 6))]);
        // A program that goes from object to object, and comes back.
        let requests = [of(1, 0, seen(1, 0, 10)), of(2, 0, seen(1, 11, 900)), of(1, 0, seen(1, 901, 910))];
        assert_eq!(follow(&requests), [None, Some((0, 1)), Some((1, 1))]);
    }

    #[test]
    fn requests_that_took_no_time_follow_what_was_before_them() {
        let requests = [seen(1, 5, 5), seen(1, 5, 5), seen(1, 5, 5)];
        let parents = follow(&requests);
        assert_eq!(parents[0], None);
        for (i, parent) in parents.iter().enumerate().skip(1) {
            assert!(parent.is_none_or(|(p, think)| (p as usize) < i && think == 0), "{parents:?}");
        }
    }
}
