//! Moments for faults: what is half done when a node dies is what recovery has to put right, and a death at any time seldom
//! meets an operation that several servers carry out. So faults may wait until a program begins one, and programs may ask for one.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rt::Head;
use rt::sync::{Event, OneSender, oneshot};
use types::{Duration, Rng};
use wire::{Header, Op};

/// Words in the names of operations that change something; those that several servers carry out more than once.
const WORDS: &[&str] = &[
    "truncate", "truncate", "truncate", "truncate", "Cut", "Cut", "append", "write", "create", "rename", "rename",
    "unlink", "link", "fsync", "close", "Make", "Remove", "Stamp", "Zero",
];
/// Scales of the time between an operation's beginning and the fault: within its first message, or after some of them.
const SCALES: [Duration; 4] =
    [Duration::from_micros(100), Duration::from_millis(1), Duration::from_millis(5), Duration::from_millis(30)];

/// Requests by which a file is cut that lies on several OSTs: what is half done then is for servers to finish.
const CUT: &[Op] = &[Op::OstPromise, Op::MdtCut, Op::OstPunch];

/// Requests that are one step of several.
const STEPS: &[Op] = &[
    Op::OstPromise,
    Op::MdtCut,
    Op::MdtCut,
    Op::OstPunch,
    Op::OstPunch,
    Op::OstWrite,
    Op::OstSync,
    Op::OstPrecreate,
    Op::OstDestroy,
    Op::MdtClose,
    Op::MdtSettled,
    Op::MdtRename,
    Op::MdtUnlink,
    Op::MdtSync,
    Op::LockCancel,
    Op::LockBlocking,
];

struct Waiting {
    word: &'static str,
    told: OneSender<usize>,
}

/// Faults that wait for operations of programs.
#[derive(Default)]
pub struct Moments {
    waiting: RefCell<Vec<Waiting>>,
}

impl Moments {
    /// An operation begins on a client.
    pub fn on_begin(&self, client: usize, operation: &str) {
        let mut waiting = self.waiting.borrow_mut();
        let met = waiting.extract_if(.., |w| operation.contains(w.word));
        met.for_each(|w| w.told.send(client));
    }
    /// Waits for the beginning of an operation of some kind on any client: answers the client, and how much later the
    /// fault is due. A node that dies may do so by what it sends instead ([`LastWords`]).
    pub async fn drawn(&self, rng: &mut Rng) -> Option<(usize, Duration)> {
        let word = WORDS[rng.below(WORDS.len() as u64) as usize];
        let scale = SCALES[rng.below(SCALES.len() as u64) as usize];
        let later = Duration::from_nanos((scale.as_nanos() as f64 * rng.unit()) as u64);
        let (told, begun) = oneshot();
        self.waiting.borrow_mut().push(Waiting { word, told });
        begun.await.map(|client| (client, later))
    }
}

/// What a program asks for: a client dies and all OSTs lose their power at the same moment.
pub struct Strike {
    /// Which client.
    pub client: usize,
}

/// What a program asks for: clients stand still for moments, again and again, as long as the program says.
pub struct Stutter {
    /// Which clients.
    pub clients: Vec<usize>,
    /// Whether they still do.
    pub goes_on: Rc<Cell<bool>>,
}

/// How a client leaves OSTs at which its changes wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// It stands still until servers have evicted it, and dies.
    Evicted,
    /// It gives all OSTs up, and takes them back a moment later.
    GivenUp,
}

/// What a program asks for: the disks of all OSTs stand still, and a client whose changes are on their way to them leaves them.
pub struct Strand {
    /// Which client.
    pub client: usize,
    /// How it leaves.
    pub how: Leaves,
    /// Told when the disks work again and the client goes on.
    pub over: OneSender<()>,
}

/// What a program asks for: a client and the metadata server die, and the server dies once more when it has been told that the client
/// does not come back, while another client holds its recovery up.
pub struct Gap {
    /// Who dies.
    pub dies: usize,
    /// Who stands still meanwhile.
    pub late: usize,
    /// Told when all of them run again.
    pub over: OneSender<()>,
}

/// What a program asks for: a client that is left alone is cut off from OSTs, and these die.
pub struct Absence {
    /// Which client.
    pub client: usize,
    /// Told when it is cut off, before the OSTs die.
    pub cut: OneSender<()>,
    /// Told when they reach each other again.
    pub over: OneSender<()>,
}

/// Faults of a kind that programs ask for, where the seed has such.
pub struct Wishes<T> {
    open: Cell<bool>,
    wished: RefCell<Option<T>>,
    come: Event,
}

impl<T> Default for Wishes<T> {
    fn default() -> Wishes<T> {
        Wishes { open: Cell::new(false), wished: RefCell::new(None), come: Event::default() }
    }
}

impl<T> Wishes<T> {
    /// They are carried out from now on, or no longer.
    pub fn open(&self, open: bool) {
        self.open.set(open);
        self.come.notify();
    }
    /// Whether they are carried out.
    pub fn is_open(&self) -> bool {
        self.open.get()
    }
    /// Asks for one; whether it is carried out.
    pub fn wish(&self, wish: T) -> bool {
        let taken = self.open.get() && self.wished.borrow().is_none();
        if taken {
            *self.wished.borrow_mut() = Some(wish);
            self.come.notify();
        }
        taken
    }
    /// The next one; `None` when there are none any more.
    pub async fn next(&self) -> Option<T> {
        loop {
            let come = self.come.wait();
            if let Some(wish) = self.wished.borrow_mut().take() {
                return Some(wish);
            }
            if !self.open.get() {
                return None;
            }
            come.await;
        }
    }
}

/// Messages amid which a node dies.
pub struct LastWords {
    /// The count begins with a request or an answer of this kind; `None`: with any.
    pub from: Option<Op>,
    /// How many are sent.
    pub messages: u64,
}

impl LastWords {
    /// Draws some, most often few.
    pub fn drawn(rng: &mut Rng) -> LastWords {
        let from = match rng.below(4) {
            0 => None,
            1 => Some(Op::ALL[rng.below(Op::ALL.len() as u64) as usize]),
            _ => Some(STEPS[rng.below(STEPS.len() as u64) as usize]),
        };
        let most = 2 << rng.below(5);
        LastWords { from, messages: 1 + rng.below(most) }
    }
    /// Draws some amid a cut of a striped file: promised, decided or begun.
    pub fn of_a_cut(rng: &mut Rng) -> LastWords {
        let (from, most) = match rng.below(4) {
            0 => (Op::OstPromise, 4),
            1 => (Op::MdtCut, 3),
            _ => (Op::OstPunch, 2),
        };
        LastWords { from: Some(from), messages: 1 + rng.below(most) }
    }
    /// Whether a cut may be half done then.
    pub fn is_amid_a_cut(&self) -> bool {
        self.from.is_some_and(|op| CUT.contains(&op))
    }
    /// Whether the count begins with a message of this head.
    pub fn begin_with(&self, head: &Head) -> bool {
        self.from.is_none_or(|op| Header::from_bytes(head).is_ok_and(|h| h.op == op))
    }
}
