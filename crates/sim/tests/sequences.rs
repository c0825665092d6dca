//! Every sequence of one and of two operations, with every death at every point of it.
//!
//! There are 2,352 sequences and some 100,000 cases, with files on one OST and again with striped files. As a test a share of
//! them runs, spread evenly; `STRIA_SEQUENCES=all` runs all, `STRIA_SEQUENCES=17` those whose number leaves 17 when divided
//! by the share. What goes wrong is printed when it is found.
use sim::cluster::sequences::model::{Op, Sync};
use sim::cluster::sequences::{run_sequence, sequences};

/// One of so many sequences of two operations runs as a test.
const SHARE: usize = 97;

fn chosen() -> Vec<(usize, Vec<(Op, Sync)>)> {
    let (share, rest) = match std::env::var("STRIA_SEQUENCES").as_deref() {
        Ok("all") => (1, 0),
        Ok(n) => (SHARE, n.parse().expect("STRIA_SEQUENCES is 'all' or a number")),
        Err(_) => (SHARE, 0),
    };
    sequences().enumerate().filter(|(i, ops)| ops.len() == 1 && i % 4 == 1 || i % share == rest % share).collect()
}

fn run(stripes: u16) {
    let (mut wrong, mut cases) = (0, 0);
    for (i, ops) in chosen() {
        let tally = run_sequence(&ops, 1 + i as u64, stripes);
        cases += tally.cases;
        wrong += tally.wrong.len();
        for (case, complaints) in tally.wrong {
            println!("{case:?}\n    {}", complaints.join("\n    "));
        }
    }
    println!("{cases} cases, {wrong} of them wrong");
    assert!(cases > 100 && wrong == 0, "{wrong} of {cases} cases are wrong");
}

#[test]
fn no_short_sequence_loses_anything_at_any_point_of_a_crash() {
    run(1);
}

#[test]
fn no_short_sequence_on_striped_files_loses_anything_at_any_point_of_a_crash() {
    run(2);
}

/// Cuts of several OSTs' objects that nobody promises, that nobody finishes when their client is gone, or of which a server knows
/// nothing after its death, are seen.
#[test]
fn planted_bugs_of_striped_cuts_are_found() {
    for bug in ["cut-not-promised", "cut-unfinished", "promise-not-stored", "decision-not-stored"] {
        types::planted::plant(Some(bug));
        let cut = |sync| run_sequence(&[(Op::Truncate, sync)], 3, 2);
        let (closed, synced) = (cut(Sync::Close), cut(Sync::Fsync));
        types::planted::plant(None);
        let cases = closed.cases + synced.cases;
        assert!(closed.wrong.len() + synced.wrong.len() > 0, "{bug}: nothing is wrong in {cases} cases");
    }
}
