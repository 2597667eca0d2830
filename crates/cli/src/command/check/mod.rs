//! `fsstack check`: compares the branches of a pool name by name, and changes nothing.
//!
//! It reads the branches itself, so that it costs the daemon nothing; the daemon only says which branches there are.
//! Names that move or change meanwhile may be found twice or not at all: a second run tells.

mod compare;
mod output;
mod places;
mod walk;

use super::args::Check;
use super::pool::{self, Pool};
use super::show::Style;
use super::time_limit::{HUNG_AFTER, unless_it_hangs};
use super::write_path::inside;
use super::{Failed, doctor};
use fsstack_pool::Printable;
use fsstack_sys::process::{Signal, SignalFd, block_signals};
use fsstack_sys::{at, thread};
use output::CheckOutput;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use walk::Walk;

/// A branch that is read.
struct OpenBranch {
    /// Its path in printable form.
    shown: String,
    root: OwnedFd,
}

/// Compares the branches of a pool.
pub(crate) fn run(wish: &Check, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let dir = wish.dir.as_deref().map(|dir| inside(&pool, dir)).transpose()?.unwrap_or_default();
    let from = wish.from.as_deref().map(components).transpose()?.unwrap_or_default();
    // A deep tree takes a descriptor for each level and branch.
    thread::raise_nofile_limit();
    let stop = stop_at_signals().map_err(|error| Failed::system("signals", &error))?;
    let mut output = CheckOutput::begin(style)?;
    let branches = open_branches(&pool, &mut output)?;
    if dir.trim_matches('/').is_empty() && from.is_empty() {
        places::check(&pool, &branches, &mut output)?;
    }
    let mut walk = Walk::new(&branches, &mut output, &stop);
    let next = walk.run(&components(Path::new(&dir))?, &from)?;
    output.end(next.as_deref())?;
    match (next, output.found()) {
        (Some(next), _) => Err(Failed::Refused(format!("check: interrupted; --from {next} goes on there"))),
        (None, 0) => Ok(()),
        (None, found) => Err(Failed::Refused(format!("check: findings: {found}"))),
    }
}

/// The names in a path from the pool's root.
fn components(path: &Path) -> Result<Vec<Vec<u8>>, Failed> {
    let name = |part: Component<'_>| match part {
        Component::RootDir | Component::CurDir => None,
        Component::Normal(name) => Some(Ok(name.as_bytes().to_vec())),
        _ => {
            let shown = Printable::path(path);
            Some(Err(Failed::Usage(format!("{shown}: leads out of the pool; give a path from its root"))))
        }
    };
    path.components().filter_map(name).collect()
}

/// Opens the roots of the branches that answer; names the others.
fn open_branches(pool: &Pool, output: &mut CheckOutput) -> Result<Vec<OpenBranch>, Failed> {
    let mut open = Vec::new();
    for branch in &pool.client().status()?.branches {
        let shown = branch.path.clone();
        let path: PathBuf = doctor::path_of(pool, branch);
        let answers = matches!(branch.state.as_str(), "up" | "read-only" | "leaving");
        let opened = if answers {
            unless_it_hangs(HUNG_AFTER, move || at::open_root(&path))
                .map(|root| root.map_err(|e| e.to_string()))
        } else {
            Some(Err(format!("it is {}", branch.state)))
        };
        match opened {
            Some(Ok(root)) => open.push(OpenBranch { shown, root }),
            Some(Err(reason)) => output.not_checked("/", &format!("branch {shown}: {reason}"))?,
            None => output.not_checked("/", &format!("branch {shown}: it hangs"))?,
        }
    }
    Ok(open)
}

/// True once SIGINT or SIGTERM has come. SIGQUIT ends the process at once, also where a branch hangs.
fn stop_at_signals() -> io::Result<Arc<AtomicBool>> {
    const SIGNALS: [Signal; 2] = [Signal::Int, Signal::Term];
    block_signals(&SIGNALS)?;
    let signals = SignalFd::new(&SIGNALS)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            told.store(true, Ordering::Relaxed);
        }
    });
    Ok(stop)
}
