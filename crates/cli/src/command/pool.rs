//! Finds the pool that the user names: by mount point, name, or the beginning of either.

use super::Failed;
use fsstack_control::Client;
use fsstack_control::registry::{self, RegistryEntry};
use fsstack_pool::Printable;
use std::path::{Path, PathBuf};

/// A live pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) entry: RegistryEntry,
    pub(crate) socket: PathBuf,
}

impl Pool {
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
pub(crate) fn find(word: &str) -> Result<Pool, Failed> {
    let Pools { live, swept } = all();
    let is_named = |pool: &&Pool| pool.entry.id == word || pool.entry.mount_point() == Path::new(word);
    // If two daemons have one mount point, the later one is visible to programs.
    if let Some(pool) = live.iter().rfind(is_named) {
        return Ok(pool.clone());
    }
    // The path is resolved last: that blocks if a pool's daemon is stopped.
    let place = std::fs::canonicalize(word).ok();
    if let Some(pool) = live.iter().rfind(|pool| place.as_ref() == Some(&pool.entry.mount_point())) {
        return Ok(pool.clone());
    }
    // An unset variable in a script names no pool.
    let names_none = word.is_empty() || word == "/";
    let begins = |pool: &&Pool| {
        let mount_point = pool.entry.mount_point();
        let named = pool.entry.id.starts_with(word)
            || mount_point.as_os_str().as_encoded_bytes().starts_with(word.as_bytes());
        named && !names_none
    };
    let shown = Printable(word.as_bytes());
    match live.iter().filter(begins).collect::<Vec<_>>().as_slice() {
        [pool] => return Ok((*pool).clone()),
        [] => {}
        several => {
            let names: Vec<String> = several.iter().map(|pool| pool.entry.id.clone()).collect();
            return Err(Failed::Usage(format!("{shown}: begins the names of {}", names.join(", "))));
        }
    }
    let dead = place.unwrap_or_else(|| PathBuf::from(word));
    if swept.iter().any(|id| id == word || *id == registry::pool_id(&dead)) {
        return Err(Failed::Dead(format!(
            "{shown}: its daemon is dead; what it left in /run was cleaned up; take the dead mount off with umount, and mount it again"
        )));
    }
    Err(unknown(word, &live))
}

fn unknown(word: &str, live: &[Pool]) -> Failed {
    let shown = Printable(word.as_bytes());
    if live.is_empty() {
        return Failed::Missing(format!("{shown}: no such pool; none is mounted"));
    }
    let names: Vec<String> =
        live.iter().map(|pool| format!("{} ({})", pool.shown(), pool.entry.id)).collect();
    Failed::Missing(format!("{shown}: no such pool; there are {}", names.join(", ")))
}

/// The pool that holds `path`, and the path from the pool's root. The last name need not exist.
pub(crate) fn holding(path: &Path) -> Result<(Pool, Vec<u8>), Failed> {
    let full = absolute(path)?;
    let Pools { live, .. } = all();
    let holds = |pool: &&Pool| full.starts_with(pool.entry.mount_point());
    let found = live.iter().filter(holds).max_by_key(|pool| pool.entry.mount_point().as_os_str().len());
    match found {
        Some(pool) => {
            let inside = full.strip_prefix(pool.entry.mount_point()).unwrap_or(&full);
            Ok((pool.clone(), inside.as_os_str().as_encoded_bytes().to_vec()))
        }
        None => Err(Failed::Missing(format!(
            "{}: not in a pool; `fsstack list` shows the pools",
            Printable::path(path)
        ))),
    }
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
