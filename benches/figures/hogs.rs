//! Processes that never sleep, one a CPU, each in a session of its own: a machine that is busy with something else.

use std::time::{Duration, Instant};

use anyhow::Result;
use fsstack_sys::process::{self, Fork};
use rustix::process::{Pid, Signal, kill_process};

/// The processes; they end when it drops.
#[derive(Debug)]
pub(crate) struct Hogs(Vec<i32>);

/// They end by themselves after this, should nobody end them.
const LIMIT: Duration = Duration::from_secs(600);

impl Hogs {
    /// One a CPU that may be used. The program must have one thread just now.
    pub(crate) fn start() -> Result<Self> {
        let cpus = std::thread::available_parallelism()?.get();
        let mut hogs = Self(Vec::new());
        for _ in 0..cpus {
            match process::fork()? {
                Fork::Parent(hog) => hogs.0.push(hog),
                Fork::Child => spin(),
            }
        }
        Ok(hogs)
    }
}

fn spin() -> ! {
    let own = process::setsid();
    let began = Instant::now();
    while own.is_ok() && began.elapsed() < LIMIT {
        std::hint::spin_loop();
    }
    loop {
        // Nothing of the program it was forked from may run on.
        let _ends = kill_process(rustix::process::getpid(), Signal::KILL);
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for &hog in &self.0 {
            // One that is gone already is what is wanted.
            let _ended = Pid::from_raw(hog).map(|pid| kill_process(pid, Signal::KILL));
            let _reaped = process::wait_for(hog);
        }
    }
}
