//! Finds the pool that the user names: by its mount point or a bind mount of it, its name, or the beginning of its name.

use super::Failed;
use super::bind_mount;
use super::dead::{self, DeadMount};
use fsstack_control::Client;
use fsstack_control::registry::{self, RegistryEntry};
use fsstack_pool::Printable;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A live pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) entry: RegistryEntry,
    pub(crate) socket: PathBuf,
}

impl Pool {
    /// The daemon's process id.
    ///
    /// # Errors
    /// It is in another PID namespace: here the number means another process.
    pub(crate) fn daemon(&self) -> Result<u32, Failed> {
        if self.entry.is_visible() {
            return Ok(self.entry.pid);
        }
        Err(Failed::Refused(format!(
            "{}: its daemon is in another PID namespace, as that of a container: run the command there",
            self.shown()
        )))
    }

    /// Client of the pool's daemon.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    /// Its mount point in printable form.
    pub(crate) fn shown(&self) -> String {
        Printable::path(&self.entry.mount_point()).to_string()
    }
}

/// Pools of this machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pub(crate) live: Vec<Pool>,
    /// Names of pools whose daemons were killed, and whose leftovers were just removed.
    pub(crate) swept: Vec<String>,
}

/// Finds every pool visible to this user.
pub(crate) fn all() -> Pools {
    let (roots, own) = (Path::new(registry::REGISTRY), registry::own());
    let mut pools = Pools::default();
    let users = own.as_deref().filter(|own| *own != roots);
    for registry in std::iter::once(roots).chain(users) {
        if own.as_deref() == Some(registry) {
            // A registry that cannot be locked by this user is not swept.
            pools.swept.extend(registry::sweep(registry).unwrap_or_default());
        }
        let live = registry::read(registry).into_iter();
        pools.live.extend(live.map(|entry| Pool { socket: registry::socket_of(registry, &entry.id), entry }));
    }
    pools
}

/// Finds the pool that `word` names.
pub(crate) fn find(word: impl AsRef<OsStr>) -> Result<Pool, Failed> {
    let word = word.as_ref();
    let Pools { live, swept } = all();
    let is_named =
        |pool: &&Pool| word == pool.entry.id.as_str() || pool.entry.mount_point() == Path::new(word);
    // If two daemons have one mount point, the later one is visible to programs.
    if let Some(pool) = live.iter().rfind(is_named) {
        return Ok(pool.clone());
    }
    // The path is resolved last: that blocks if a pool's daemon is stopped.
    let place = std::fs::canonicalize(word).ok();
    if let Some(pool) = live.iter().rfind(|pool| place.as_ref() == Some(&pool.entry.mount_point())) {
        return Ok(pool.clone());
    }
    if let Some(pool) = place.as_ref().and_then(|place| bind_mount::at(place, &live)) {
        return Ok(pool);
    }
    // Before the beginnings of names: a dead pool's whole name may begin that of a live one.
    let typed = std::path::absolute(word).unwrap_or_else(|_| PathBuf::from(word));
    let place = place.unwrap_or(typed);
    let is_word = |at: &Path| at == place || word == registry::pool_id(at).as_str();
    if let Some(mount) = dead::mounts(&live, is_word).pop() {
        return Err(is_dead(word, &mount));
    }
    if swept.iter().any(|id| word == id.as_str() || *id == registry::pool_id(&place)) {
        return Err(Failed::Dead(format!(
            "{}: its daemon is dead; what it left in /run was cleaned up; mount it again",
            Printable::os(word)
        )));
    }
    begun_by(word, &live)
}

/// Finds the only pool whose name begins with `word`. A path is matched as a whole only, and an empty word, as of an unset variable in
/// a script, names no pool.
fn begun_by(word: &OsStr, live: &[Pool]) -> Result<Pool, Failed> {
    // A name is text.
    let Some(begins) = word.to_str().filter(|begins| !begins.is_empty() && !begins.contains('/')) else {
        return Err(unknown(word, live));
    };
    let begun: Vec<&Pool> = live.iter().filter(|pool| pool.entry.id.starts_with(begins)).collect();
    let dead = dead::mounts(live, |at| registry::pool_id(at).starts_with(begins));
    match (begun.as_slice(), dead.as_slice()) {
        ([pool], []) => Ok((*pool).clone()),
        ([], [mount]) => Err(is_dead(word, mount)),
        ([], []) => Err(unknown(word, live)),
        _ => {
            let names = begun.iter().map(|pool| pool.entry.id.clone()).chain(dead.iter().map(DeadMount::id));
            let names: Vec<String> = names.collect();
            let shown = Printable::os(word);
            Err(Failed::Usage(format!("{shown}: begins the names of {}", names.join(", "))))
        }
    }
}

fn is_dead(word: &OsStr, mount: &DeadMount) -> Failed {
    Failed::Dead(format!("{}: {}", Printable::os(word), mount.reason()))
}

fn unknown(word: &OsStr, live: &[Pool]) -> Failed {
    let shown = Printable::os(word);
    if live.is_empty() {
        return Failed::Missing(format!("{shown}: no such pool; none is mounted"));
    }
    let names: Vec<String> =
        live.iter().map(|pool| format!("{} ({})", pool.shown(), pool.entry.id)).collect();
    Failed::Missing(format!("{shown}: no such pool; there are {}", names.join(", ")))
}

/// The pool that holds `path`, and the path from the pool's root. The last name need not exist.
pub(crate) fn holding(path: &Path) -> Result<(Pool, Vec<u8>), Failed> {
    let Pools { live, .. } = all();
    let full = absolute(path).map_err(|failed| in_dead_mount(path, path, &live).unwrap_or(failed))?;
    holding_in(path, &full, &live)
}

/// Like [`holding`], by the path as it is written: nothing in the pool is asked, and no symbolic link is followed.
pub(crate) fn holding_by_name(path: &Path) -> Result<(Pool, Vec<u8>), Failed> {
    let full = std::path::absolute(path).map_err(|error| Failed::system(Printable::path(path), &error))?;
    holding_in(path, &full, &all().live)
}

/// The pool of `live` that holds `full`, which was typed as `path`.
fn holding_in(path: &Path, full: &Path, live: &[Pool]) -> Result<(Pool, Vec<u8>), Failed> {
    let holds = |pool: &&Pool| full.starts_with(pool.entry.mount_point());
    let found = live.iter().filter(holds).max_by_key(|pool| pool.entry.mount_point().as_os_str().len());
    let inside = |pool: &Pool| full.strip_prefix(pool.entry.mount_point()).unwrap_or(full).to_owned();
    let found = found.map(|pool| (pool.clone(), inside(pool)));
    let found = found.or_else(|| bind_mount::holding(full, live));
    found.map(|(pool, inside)| (pool, inside.into_os_string().into_encoded_bytes())).ok_or_else(|| {
        in_dead_mount(path, full, live).unwrap_or_else(|| {
            let shown = Printable::path(path);
            Failed::Missing(format!("{shown}: not in a pool; `fsstack list` shows the pools"))
        })
    })
}

/// Returns the failure for a path in a mount without a daemon; `full` is as much of it as could be resolved.
fn in_dead_mount(path: &Path, full: &Path, live: &[Pool]) -> Option<Failed> {
    let full = std::path::absolute(full).ok()?;
    let mount = dead::mounts(live, |at| full.starts_with(at)).pop()?;
    Some(Failed::Dead(format!(
        "{}: in the pool {}: {}",
        Printable::path(path),
        mount.shown(),
        mount.reason()
    )))
}

/// Resolves symbolic links in the path's directory, but not in its last component.
fn absolute(path: &Path) -> Result<PathBuf, Failed> {
    let failed = |error: std::io::Error| Failed::system(Printable::path(path), &error);
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(std::fs::canonicalize(parent).map_err(failed)?.join(name))
        }
        _ => std::fs::canonicalize(path).map_err(failed),
    }
}
