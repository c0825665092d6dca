//! Who waited for what: the completions that the requests of a client followed.
use std::collections::HashMap;
use types::ClientId;

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
    pub arrived: u64,
    pub finished: u64,
}

/// Of every request the one whose completion it followed and how long after, if there was one.
///
/// A completion lets one request follow, the one that came next: so a client keeps as many in flight as it had. The latest
/// completion that nobody has followed yet counts: an earlier one may have ended what the client did then. A request that
/// comes when every completion has been followed goes along with the one before it: a window that grew.
pub(super) fn follow(requests: &[Seen]) -> Vec<Option<(u32, u64)>> {
    let mut order: Vec<u32> = (0..requests.len() as u32).collect();
    order.sort_by_key(|i| (requests[*i as usize].arrived, *i));
    let mut ends = order.clone();
    ends.sort_by_key(|i| (requests[*i as usize].finished, *i));
    let mut clients: HashMap<ClientId, (Vec<u32>, Option<u32>)> = HashMap::new();
    let (mut parents, mut ended) = (vec![None; requests.len()], ends.into_iter().peekable());
    for i in order {
        let request = requests[i as usize];
        // What ends in the instant in which it arrives is not followed by itself.
        while let Some(end) = ended.next_if(|e| requests[*e as usize].finished <= request.arrived && *e != i) {
            clients.entry(requests[end as usize].client).or_default().0.push(end);
        }
        let (free, last) = clients.entry(request.client).or_default();
        let parent = free.pop().or(*last);
        if let Some(parent) = parent {
            parents[i as usize] = Some((parent, request.arrived - requests[parent as usize].finished));
            *last = Some(parent);
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(client: u64, arrived: u64, finished: u64) -> Seen {
        Seen { client: ClientId(client), arrived, finished }
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
    fn requests_that_took_no_time_follow_what_was_before_them() {
        let requests = [seen(1, 5, 5), seen(1, 5, 5), seen(1, 5, 5)];
        let parents = follow(&requests);
        assert_eq!(parents[0], None);
        for (i, parent) in parents.iter().enumerate().skip(1) {
            assert!(parent.is_none_or(|(p, think)| (p as usize) < i && think == 0), "{parents:?}");
        }
    }
}
