//! What is left of a run that is over.
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::cluster::context::{Context, Manners};
use crate::cluster::run::to_its_end;

/// A run with a task that holds it and waits for good; whether anything of it is left.
fn is_left(carry_out: impl FnOnce(&Rc<Context>)) -> bool {
    let sim = Sim::new(SimConfig::new(7), FramePool::new(64 * MIB));
    let context = Context::new(Cluster::new(sim, ClusterConfig::default()), 7, Manners::default());
    let (run, held) = (Rc::downgrade(&context), context.clone());
    let ran = AssertUnwindSafe(|| {
        to_its_end(context, |context| {
            context.cluster.sim.spawn(async move {
                std::future::pending::<()>().await;
                drop(held);
            });
            carry_out(context);
        });
    });
    // Whether it panics is no matter.
    let _ = catch_unwind(ran);
    run.upgrade().is_some()
}

async fn start(context: &Rc<Context>) {
    context.cluster.format().await.unwrap();
    for id in context.cluster.nodes().map(|n| n.id).collect::<Vec<_>>() {
        context.cluster.start(id).await.unwrap();
    }
}

#[test]
fn a_run_is_dropped_with_the_tasks_that_hold_it() {
    assert!(!is_left(|context| context.cluster.sim.run(start(context))));
}

#[test]
fn a_run_that_panics_is_dropped_with_the_tasks_that_hold_it() {
    assert!(!is_left(|context| {
        let fails = async {
            start(context).await;
            panic!("a check that fails");
        };
        context.cluster.sim.run(fails);
    }));
}
