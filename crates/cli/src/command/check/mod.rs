//! `fsstack check`: compares the branches of a pool name by name; changes nothing but with `--fix` and `--prune`.
//!
//! It reads the branches itself, so that it costs the daemon nothing; the daemon only says which branches there are, and
//! whether it finds marked objects by their numbers.
//! Names that move or change meanwhile may be found twice or not at all: a second run tells.

mod beside;
mod compare;
mod fix;
mod kept;
mod marks;
mod output;
mod places;
mod rows;
mod rules;
mod walk;
mod watch;

use fsstack_sync::atomic::{AtomicBool, Ordering};

use super::apart::ending_signals;
use super::args::Check;
use super::pool::{self, Pool};
use super::show::Style;
use super::time_limit::{HUNG_AFTER, unless_it_hangs};
use super::{Failed, doctor, mounted, typed_dir};
use beside::BesideDaemon;
use fsstack_control::api::{RuleRequest, Status, bytes_of, exact};
use fsstack_pool::{HIDDEN_FOLDERS, Printable};
use fsstack_sys::at::{self, Mounts};
use fsstack_sys::process::{SignalFd, block_signals};
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{SysError, thread};
use output::CheckOutput;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;
use watch::Scope;

/// Attribute of a pool's root: how many pools are stacked there.
const LEVEL: &CStr = c"user.fsstack.level";

/// A branch that is read.
struct OpenBranch {
    /// Its path in printable form.
    shown: String,
    root: OwnedFd,
    /// Whether the pool shows what is mounted inside it.
    mounts: Mounts,
    /// Whether the pool changes it.
    writable: bool,
    /// Whether its removal from the pool waits for open files.
    leaving: bool,
    /// Its hidden folder.
    folder: &'static CStr,
}

/// Compares the branches of a pool.
pub(crate) fn run(wish: &Check, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let dir = wish.dir.as_deref().map(|dir| typed_dir::or_from_root(&pool, dir)).transpose()?;
    let dir = dir.map(|dir| [b"/", dir.path()].concat()).unwrap_or_default();
    let start = components(Path::new(OsStr::from_bytes(&dir)))?;
    let from = wish.from.as_deref().map(|from| cursor_below(from, &start)).transpose()?.unwrap_or_default();
    let stale_after = places::age(&wish.older_than)?;
    // A deep tree takes a descriptor for each level and branch.
    thread::raise_nofile_limit();
    let status = pool.client().status()?;
    if wish.fix || wish.prune {
        mounted::check_writable(&pool.entry.mount_point(), 0)?;
    }
    if wish.prune {
        let daemon = Arc::new(BesideDaemon::new(daemon_of_this_user(&pool)?, pool.client(), &status));
        let (branches, lacking) = open_branches(&pool, &status);
        return match lacking.first() {
            Some(reason) => Err(Failed::Refused(format!("check: {reason}; nothing was removed"))),
            None => kept::prune(&daemon, &branches, &dir, style),
        };
    }
    let fixes_beside = if wish.fix {
        Some(Arc::new(BesideDaemon::new(daemon_of_this_user(&pool)?, pool.client(), &status)))
    } else {
        None
    };
    let stop = stop_at_signals().map_err(|error| Failed::system("signals", &error))?;
    let rules = rules::of(&pool.client().rules(&RuleRequest::List)?)?.into();
    let mut output = CheckOutput::new(style);
    let scope = Scope { start, from, fixes_beside, complete: false, rules };
    let walked = compare_all((&pool, &status), scope, stale_after, &mut output, &stop);
    let (next, kept) = match walked {
        Ok(walked) => walked,
        Err(failed) => {
            output.fail(&cursor(&dir));
            return Err(failed);
        }
    };
    output.end(next.as_deref(), kept)?;
    match (next, output.found()) {
        (Some(next), _) => {
            let next = shell_word(&next);
            Err(Failed::Refused(format!("check: interrupted; --from {next} goes on there")))
        }
        (None, (found, fixed)) if found == fixed => Ok(()),
        (None, (found, 0)) => Err(Failed::Refused(format!("check: findings: {found}"))),
        (None, (found, fixed)) => {
            Err(Failed::Refused(format!("check: findings: {found}, of which were fixed: {fixed}")))
        }
    }
}

/// Compares the branches that answer. Returns where it was interrupted, and the number of objects that are kept.
fn compare_all(
    (pool, status): (&Pool, &Status),
    mut scope: Scope,
    stale_after: Duration,
    output: &mut CheckOutput,
    stop: &Arc<AtomicBool>,
) -> Result<(Option<String>, u64), Failed> {
    let (mut branches, lacking) = open_branches(pool, status);
    for reason in lacking {
        output.not_checked(b"/", &reason)?;
    }
    if scope.start.is_empty() && scope.from.is_empty() {
        let places = places::Places { pool, stale_after, fixes: scope.fixes_beside.is_some() };
        places.check(&mut branches, output)?;
        if !rows::check(&pool.client(), scope.fixes_beside.is_some(), output, stop)? {
            return Ok((Some(cursor(b"/")), kept::count(&branches)));
        }
    }
    scope.complete = branches.len() == status.branches.len();
    let next = watch::walk(branches.clone(), scope, &pool.client(), output, stop)?;
    Ok((next, kept::count(&branches)))
}

/// The daemon's process; this must be the user that the daemon runs as, whose hidden folders the branches have.
fn daemon_of_this_user(pool: &Pool) -> Result<u32, Failed> {
    let pid = pool.daemon()?;
    let of = std::fs::metadata(format!("/proc/{pid}"))
        .map_err(|error| Failed::system(format!("the daemon's process {pid}"), &error))?;
    let own = rustix::process::geteuid().as_raw();
    if of.uid() == own {
        return Ok(pid);
    }
    Err(Failed::Denied(format!(
        "check: the pool's daemon is of user {}, and this is user {own}: run it as that user",
        of.uid()
    )))
}

/// Begin of a cursor whose path cannot be typed as it is shown.
const ENCODED: &str = "base64:";

/// Where an interrupted walk at `path` goes on, for `--from`.
fn cursor(path: &[u8]) -> String {
    let path = if path.is_empty() { b"/" } else { path };
    match exact(path) {
        Some(encoded) => format!("{ENCODED}{encoded}"),
        None => Printable(path).to_string(),
    }
}

/// The names in a cursor, which is below the directory `start`.
fn cursor_below(from: &Path, start: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Failed> {
    let refused = |why: &str| Failed::Usage(format!("--from {}: {why}", Printable::path(from)));
    let typed = from.as_os_str().as_bytes();
    let path = match typed.strip_prefix(ENCODED.as_bytes()) {
        Some(encoded) => bytes_of("", std::str::from_utf8(encoded).ok()),
        None => typed.to_vec(),
    };
    if path.is_empty() {
        return Err(refused("not as a check has printed it"));
    }
    let names = components(Path::new(OsStr::from_bytes(&path)))?;
    if names.is_empty() || names.starts_with(start) {
        return Ok(names);
    }
    Err(refused("not below the directory that is to be checked"))
}

/// `text` as a word of a shell's command line.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
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

/// Opens the roots of the branches that answer, and says of the others why not.
fn open_branches(pool: &Pool, status: &Status) -> (Vec<Arc<OpenBranch>>, Vec<String>) {
    let (mut open, mut lacking) = (Vec::new(), Vec::new());
    for branch in &status.branches {
        let shown = branch.path.clone();
        if !matches!(branch.state.as_str(), "up" | "read-only" | "leaving") {
            lacking.push(format!("branch {shown}: it is {}", branch.state));
            continue;
        }
        let (path, local) = (doctor::path_of(pool, branch), branch.local);
        let opened = unless_it_hangs(HUNG_AFTER, move || {
            let root = at::open_root(&path)?;
            let level = if local { 0 } else { level_of(root.as_fd()) };
            Ok::<_, SysError>((root, level))
        });
        match opened {
            Some(Ok((root, level))) => open.push(Arc::new(OpenBranch {
                shown,
                root,
                mounts: if branch.cross_mounts { Mounts::Cross } else { Mounts::Stay },
                writable: branch.mode != "RO" && branch.state != "read-only",
                leaving: branch.state == "leaving",
                folder: HIDDEN_FOLDERS[level.min(HIDDEN_FOLDERS.len() - 1)],
            })),
            Some(Err(error)) => lacking.push(format!("branch {shown}: {error}")),
            None => lacking.push(format!("branch {shown}: it hangs")),
        }
    }
    (open, lacking)
}

/// Number of pools stacked below the directory, if it is the root of one.
fn level_of(root: BorrowedFd<'_>) -> usize {
    let told = xattr::get_vec(On::Fd(root), LEVEL).unwrap_or_default();
    std::str::from_utf8(&told).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// True once SIGINT, SIGTERM or SIGHUP has come.
fn stop_at_signals() -> io::Result<Arc<AtomicBool>> {
    let signals = ending_signals();
    block_signals(&signals)?;
    let signals = SignalFd::new(&signals)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    fsstack_sync::thread::spawn(move || {
        while signals.wait().is_ok() {
            told.store(true, Ordering::Relaxed);
        }
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_to_where_it_was_made_and_is_one_word_of_a_shell() {
        let names = |path: &str| cursor_below(Path::new(path), &[]);
        for path in [&b"/"[..], b"/films/old", b"/it's $(here)", b"/new\nline/caf\xe9", b"/a\\012b"] {
            let of_path = components(Path::new(OsStr::from_bytes(path)));
            assert_eq!(names(&cursor(path)).ok(), of_path.ok(), "{path:?}");
        }
        assert!(names("base64:%").is_err() && names("").is_err());
        assert_eq!(
            [shell_word("/films"), shell_word("/it's")],
            ["/films".to_owned(), r"'/it'\''s'".to_owned()]
        );
    }
}
