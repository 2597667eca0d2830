//! Busy processes, one per CPU, each in a session of its own: a machine with other work.

use std::time::{Duration, Instant};

use anyhow::Result;
use fsstack_sys::process::{self, Fork};
use rustix::process::{Pid, Signal, kill_process};

/// The processes; killed on drop.
#[derive(Debug)]
pub(crate) struct Hogs(Vec<i32>);

/// They end by themselves after this.
const LIMIT: Duration = Duration::from_secs(600);

impl Hogs {
    /// Starts one per allowed CPU. The program must have one thread.
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
        // No code of the parent program may run on in the child.
        let _ends = kill_process(rustix::process::getpid(), Signal::KILL);
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for &hog in &self.0 {
            // It may have ended already.
            let _ended = Pid::from_raw(hog).map(|pid| kill_process(pid, Signal::KILL));
            let _reaped = process::wait_for(hog);
        }
    }
}
