//! Running a model: many orders of its threads, until its time is over or an assertion fails.
//!
//! A failure prints the order of the threads, which `shuttle::replay` repeats.

use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

pub use crate::modelled::time::pass as pass_time;

/// Seconds for each model. Without it, a number of orders is tried.
pub const SECONDS: &str = "FSSTACK_MODEL_SECONDS";

/// Orders that are tried without a time.
const ORDERS: usize = 4_000;
/// Points at which a thread is held back, in orders that mostly run one thread.
const HELD_BACK: usize = 3;
/// Steps after which a model stands still.
const MOST_STEPS: usize = 200_000;

/// Runs `model` in many orders: random ones, and such that hold threads back for long.
pub fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse::<u64>().ok());
    let (orders, time) = match seconds {
        Some(seconds) => (usize::MAX, Some(Duration::from_secs(seconds) / 2)),
        None => (ORDERS / 2, None),
    };
    let random = run(RandomScheduler::new(orders), time, model.clone());
    let held_back = run(PctScheduler::new(HELD_BACK, orders), time, model);
    println!("orders tried: {random} random, {held_back} with threads held back");
}

fn run(
    scheduler: impl Scheduler + 'static,
    time: Option<Duration>,
    model: impl Fn() + Send + Sync + 'static,
) -> usize {
    let mut config = Config::new();
    config.max_time = time;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.stack_size = 256 << 10;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || {
        crate::modelled::time::reset();
        model();
    })
}
