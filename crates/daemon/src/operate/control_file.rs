//! Keys of mergerfs's control file, so that scripts written for mergerfs read a pool and change it.
//!
//! A key is one of mergerfs's options under mergerfs's name. What it means here comes from the option table; only keys that
//! are no option, or whose values have another form there, stand here.
//!
//! Keys are read by the worker thread that has the request. They are set by one thread that is no worker thread: it may ask
//! a branch that hangs, or wait for requests under way. The worker thread stops waiting for it after a while, and another one
//! serves requests meanwhile.

use fsstack_sync::Mutex;
use fsstack_sync::mpsc::{self, Receiver, SyncSender};
use fsstack_sync::time::{Duration, Instant, SystemTime};

use super::Served;
use crate::options::{self, Effect, Key};
use crate::settings::Settings;
use crate::values;
use fsstack_branch::health::reply_takeover;
use fsstack_control::api::{Assignment, BranchRequest, SettingsRequest};
use fsstack_control::{Refusal, RefusalKind};
use fsstack_engine::Union;
use fsstack_engine::settings::{PageCache, StatfsMode};
use fsstack_fuse::{Adapter, ControlKeys, Setter};
use fsstack_pool::settings::{ControlFile, WritePath};
use fsstack_pool::{Floor, Printable};
use fsstack_sys::{Errno, process};
use fsstack_wire::Timestamp;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, OnceLock, Weak};
use tracing::Level;

/// mergerfs's keys that have a meaning here, in the spelling of the oldest version that has them, from 2.33 to 2.41.
const KEYS: &[&str] = &[
    "allow-idmap",
    "branches",
    "cache.attr",
    "cache.entry",
    "cache.files",
    "cache.negative_entry",
    "cache.writeback",
    "category.action",
    "category.create",
    "category.search",
    "config",
    "debug",
    "follow-symlinks",
    "fsname",
    "func.access",
    "func.chmod",
    "func.chown",
    "func.create",
    "func.getattr",
    "func.getxattr",
    "func.link",
    "func.listxattr",
    "func.mkdir",
    "func.mknod",
    "func.open",
    "func.readlink",
    "func.removexattr",
    "func.rename",
    "func.rmdir",
    "func.setxattr",
    "func.symlink",
    "func.truncate",
    "func.unlink",
    "func.utimens",
    "fuse-msg-size",
    "inodecalc",
    "kernel-permissions-check",
    "lazy-umount-mountpoint",
    "link_cow",
    "minfreespace",
    "mount",
    "mountpoint",
    "moveonenospc",
    "nfsopenhack",
    "nullrw",
    "passthrough.io",
    "pid",
    "read-thread-count",
    "srcmounts",
    "statfs",
    "statfs_ignore",
    "symlinkify",
    "threads",
    "version",
    "xattr",
];

/// mergerfs's keys that say how to mount. Their values are not kept afterwards.
const MOUNT_ONLY: [&str; 2] = ["branches-mount-timeout", "branches-mount-timeout-fail"];

/// Bytes of a refused value that are logged at most.
const LOGGED: usize = 200;

/// Time between two lines of the log about refusals to others than the operator, who may repeat them without end.
const REFUSAL_LINES_INTERVAL: Duration = Duration::from_secs(60);

/// How long a caller waits for a change by the control file. It may still be made after that.
const CONTROL_CHANGE_TIMEOUT: Duration = Duration::from_secs(15);

/// Changes that may wait for the thread that makes them, beside the one that it makes.
const WAITING: usize = 1;

/// The keys of a pool.
#[derive(Debug)]
pub(crate) struct Keys {
    served: Arc<OnceLock<Weak<Served>>>,
    /// None: nobody may set a key.
    changes: Option<SyncSender<Asked>>,
    /// Time of the last line about a refusal to another than the operator.
    logged: Mutex<Option<Instant>>,
}

/// A change that a caller waits for.
#[derive(Debug)]
struct Asked {
    key: String,
    value: String,
    answer: mpsc::Sender<Result<(), Errno>>,
}

impl Keys {
    /// Keys of a pool with these settings, and the thread that sets them if that is allowed. It ends when the keys are dropped.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        let served = Arc::new(OnceLock::new());
        let engine = &settings.options.engine;
        // A file server acts as root for clients on other machines.
        let changes = if engine.control_file == ControlFile::On && !engine.nfs_export {
            let (changes, asked) = mpsc::sync_channel(WAITING);
            let pool = served.clone();
            fsstack_sync::thread::Builder::new()
                .name("control-file".into())
                .spawn(move || make_changes(&pool, &asked))?;
            Some(changes)
        } else {
            None
        };
        Ok(Self { served, changes, logged: Mutex::new(None) })
    }

    /// Answers for `served` from now on; earlier requests for keys wait for that.
    pub(crate) fn answer_for(&self, served: &Arc<Served>) {
        let _first = self.served.set(Arc::downgrade(served));
    }

    /// Hands a change to the thread that makes it, and returns the channel of its result.
    fn begin(
        &self,
        key: &[u8],
        value: &[u8],
        setter: Setter,
    ) -> Result<Receiver<Result<(), Errno>>, Refused> {
        let key = std::str::from_utf8(key).ok().filter(|key| known(key).is_some() || is_refused(key));
        let key = key.ok_or(Refused::new(Errno::NODATA, "no such key here"))?;
        let value =
            std::str::from_utf8(value).map_err(|_| Refused::new(Errno::INVAL, "the value is not UTF-8"))?;
        let Some(changes) = &self.changes else {
            return Err(Refused::new(Errno::ROFS, "with nfs-export or mergerfs-control=read no key is set"));
        };
        // Here, while the caller waits: a caller that has given up may have left its number to another program.
        if !is_operator(setter) {
            return Err(Refused::new(Errno::PERM, "only the operator sets keys"));
        }
        let (answer, answered) = mpsc::channel();
        let asked = Asked { key: key.to_owned(), value: value.to_owned(), answer };
        changes.try_send(asked).map_err(|_| Refused::new(Errno::BUSY, "other changes are at work"))?;
        Ok(answered)
    }

    /// Whether a refusal to `setter` is logged: to the operator each, to others one a minute.
    fn is_logged(&self, setter: Setter) -> bool {
        if is_operator(setter) {
            return true;
        }
        let (mut logged, now) = (self.logged.lock(), Instant::now());
        let is_due = logged.is_none_or(|at| REFUSAL_LINES_INTERVAL <= now.saturating_duration_since(at));
        if is_due {
            *logged = Some(now);
        }
        is_due
    }
}

/// Gives the root its control file, before the first request. Returns its keys, if there is one.
pub(crate) fn put(settings: &Settings, adapter: &Adapter, union: &Union) -> io::Result<Option<Arc<Keys>>> {
    if settings.options.engine.control_file == ControlFile::Off {
        return Ok(None);
    }
    let born = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let born = Timestamp { sec: i64::try_from(born.as_secs()).unwrap_or(0), nsec: born.subsec_nanos() };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let keys = Arc::new(Keys::new(settings)?);
    adapter.put_control_file(fsstack_fuse::ControlFile::new(keys.clone(), owner, born));
    union.pool().branches.iter().filter(|branch| branch.has_in_root(ControlFile::NAME)).for_each(|branch| {
        tracing::warn!(
            "branch {}: its .mergerfs is hidden by the pool's control file; mergerfs-control=off shows it",
            Printable::path(&branch.path)
        );
    });
    Ok(Some(keys))
}

impl ControlKeys for Keys {
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let key = known(std::str::from_utf8(key).ok()?)?;
        self.served.wait().upgrade()?.key_of_mergerfs(key)
    }

    fn names(&self) -> Vec<&'static str> {
        KEYS.to_vec()
    }

    fn set(&self, key: &[u8], value: &[u8], setter: Setter) -> Result<(), Errno> {
        let answered = self.begin(key, value, setter).map_err(|refused| {
            if self.is_logged(setter) {
                refused.log(key, value);
            }
            refused.errno
        })?;
        reply_takeover::aside(|| answered.recv_timeout(CONTROL_CHANGE_TIMEOUT)).unwrap_or_else(|_| {
            let refused = Refused::new(Errno::TIMEDOUT, "no result after 15 s; it may still be set");
            refused.log(key, value);
            Err(refused.errno)
        })
    }
}

fn make_changes(pool: &OnceLock<Weak<Served>>, asked: &Receiver<Asked>) {
    while let Ok(Asked { key, value, answer }) = asked.recv() {
        let Some(served) = pool.wait().upgrade() else { return };
        // Dropped before the caller goes on: the pool may be unmounted then.
        let made = served.set_key_of_mergerfs(&key, &value);
        drop(served);
        // The caller may have given up.
        let _ = answer.send(made);
    }
}

impl Served {
    fn key_of_mergerfs(&self, key: &str) -> Option<Vec<u8>> {
        match key {
            "branches" => return Some(self.branches_of_mergerfs(true)),
            "srcmounts" => return Some(self.branches_of_mergerfs(false)),
            // SIGUSR1 and SIGUSR2 change the level, too.
            "debug" => return Some((self.level.get() >= Level::DEBUG).to_string().into_bytes()),
            _ => {}
        }
        let settings = self.settings.lock();
        let (options, engine) = (&settings.options, &settings.options.engine);
        let text = match key {
            "version" => format!("fsstack-{}", env!("CARGO_PKG_VERSION")),
            "pid" => std::process::id().to_string(),
            "mount" | "mountpoint" => return Some(settings.mount_point.as_os_str().as_bytes().to_vec()),
            "fsname" => return Some(options.fsname.as_bytes().to_vec()),
            "threads" | "read-thread-count" => options::find("max-threads")?.get(options)?,
            "fuse-msg-size" => values::message_pages(options.max_write).to_string(),
            "passthrough.io" if engine.write_path == WritePath::Stacked => "off".to_owned(),
            "passthrough.io" => "rw".to_owned(),
            // There is no control file with xattr=off.
            "xattr" => "passthrough".to_owned(),
            "cache.files" if engine.page_cache == PageCache::Off => "off".to_owned(),
            "cache.files" => "auto-full".to_owned(),
            "cache.writeback" => (engine.page_cache == PageCache::WriteBack).to_string(),
            "minfreespace" => match engine.floor {
                Floor::Bytes(bytes) => bytes.to_string(),
                floor @ Floor::PerMille(_) => floor.to_string(),
            },
            "moveonenospc" if !engine.relocate => "false".to_owned(),
            "moveonenospc" => engine.relocation.policy.to_string(),
            "statfs" => "base".to_owned(),
            "statfs_ignore" => match engine.statfs {
                StatfsMode::All => "none",
                StatfsMode::IgnoreNc => "nc",
                StatfsMode::IgnoreRo | StatfsMode::AsPlaced => "ro",
            }
            .to_owned(),
            _ => {
                let row = options::find(key)?;
                match row.effect {
                    Effect::Only(values) => (*values.first()?).to_owned(),
                    _ => row.get(options)?,
                }
            }
        };
        Some(text.into_bytes())
    }

    fn branches_of_mergerfs(&self, with_modes: bool) -> Vec<u8> {
        let shown = |branch: &Arc<fsstack_engine::member::Member>| {
            let mut shown = branch.path.as_os_str().as_bytes().to_vec();
            if with_modes {
                shown.extend(format!("={}", branch.given_mode().name()).into_bytes());
                if let Some(floor) = branch.floor() {
                    shown.extend(format!(",{floor}").into_bytes());
                }
            }
            shown
        };
        self.union.pool().branches.iter().map(shown).collect::<Vec<_>>().join(&b':')
    }

    fn set_key_of_mergerfs(&self, key: &str, value: &str) -> Result<(), Errno> {
        // Not waited for: an upgrade, which holds it, waits for this request.
        let turn = self.handover.operators.try_read();
        let made = turn.ok_or(Refused::new(Errno::BUSY, "an upgrade is at work")).and_then(|_turn| {
            self.change_by_key(known(key).unwrap_or(key), value).inspect(|()| self.note_state())
        });
        made.map_err(|refused| {
            refused.log(key.as_bytes(), value.as_bytes());
            refused.errno
        })
    }

    fn change_by_key(&self, key: &str, value: &str) -> Result<(), Refused> {
        match key {
            "branches" | "srcmounts" => return self.change_branches(value),
            "version" | "pid" | "mount" | "mountpoint" | "fsname" | "threads" | "cache.writeback" => {
                return Err(Refused::new(Errno::ROFS, "it is settled when the pool is mounted"));
            }
            _ => {}
        }
        let row = options::find(key).ok_or(Refused::new(Errno::NODATA, "no such key"))?;
        let (key, value) = match (key, value) {
            ("cache.files", "off") => (options::PAGE_CACHE, "off"),
            ("cache.files", "libfuse" | "partial" | "full" | "auto-full" | "per-process") => {
                (options::PAGE_CACHE, "on")
            }
            ("statfs", "base") | ("xattr", "passthrough") => return Ok(()),
            // Several words of ours are one of mergerfs's: the one in force stays.
            ("debug" | "passthrough.io", _)
                if self.key_of_mergerfs(key).as_deref() == Some(value.as_bytes()) =>
            {
                return Ok(());
            }
            ("debug", "true") => ("log-level", "debug"),
            ("debug", "false") => ("log-level", "info"),
            ("passthrough.io", "rw") => (options::WRITE_PATH, "auto"),
            ("passthrough.io", "off") => (options::WRITE_PATH, "stacked"),
            ("statfs_ignore", "none") => ("statfs", "all"),
            ("statfs_ignore", "nc") => ("statfs", "ignore-nc"),
            ("statfs_ignore", "ro") => ("statfs", "ignore-ro"),
            ("statfs" | "statfs_ignore" | "cache.files" | "debug" | "passthrough.io", _) => {
                return Err(Refused::new(Errno::INVAL, "no such value here"));
            }
            _ => match (row.effect, row.key) {
                (Effect::Only(values), _) if values.contains(&value) => return Ok(()),
                (Effect::Only(_), _) => return Err(Refused::new(Errno::INVAL, row.help)),
                (Effect::Set(_), Key::Live(_)) => (key, value),
                (Effect::Set(_), Key::Settled(_) | Key::None) => {
                    return Err(Refused::new(Errno::ROFS, "it is settled when the pool is mounted"));
                }
                _ => return Err(Refused::new(Errno::OPNOTSUPP, row.help)),
            },
        };
        let change = Assignment { key: key.to_owned(), value: Some(value.to_owned()) };
        let request = SettingsRequest { changes: vec![change], ..SettingsRequest::default() };
        self.make_changes(&request).map(drop).map_err(Refused::from)
    }

    /// `+PATH` and `+>PATH` add a branch, `-PATH` removes one. Whatever replaces the whole list is refused.
    fn change_branches(&self, value: &str) -> Result<(), Refused> {
        let request = match value.split_at_checked(1) {
            Some(("+", added)) if !added.starts_with('<') => {
                let branch = added.strip_prefix('>').unwrap_or(added).to_owned();
                let path = std::path::Path::new(branch.split('=').next().unwrap_or_default());
                let pool = self.settings.lock().mount_point.clone();
                // By its name first: looking at it would be a request to this pool.
                let is_inside = path.starts_with(&pool)
                    || std::fs::canonicalize(path).is_ok_and(|path| path.starts_with(&pool));
                if is_inside {
                    return Err(Refused::new(Errno::INVAL, "it is in the pool itself"));
                }
                BranchRequest::Add { branch }
            }
            Some(("-", gone)) if !gone.is_empty() && !gone.starts_with(['<', '>']) => {
                BranchRequest::Remove { branch: gone.to_owned(), when_idle: false, only_ask: false }
            }
            _ => {
                let why = "only +PATH and -PATH: fsstack branch does all else";
                return Err(Refused::new(Errno::OPNOTSUPP, why));
            }
        };
        self.change_branch(&request).map(drop).map_err(Refused::from)
    }
}

/// Why a key was not set.
struct Refused {
    errno: Errno,
    why: String,
}

impl Refused {
    fn new(errno: Errno, why: &str) -> Self {
        Self { errno, why: why.to_owned() }
    }

    fn log(&self, key: &[u8], value: &[u8]) {
        let (key, value) = (Printable(key), Printable(value.get(..LOGGED).unwrap_or(value)));
        tracing::info!("control file: {key}={value} refused: {}", self.why);
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let errno = match refusal.kind {
            RefusalKind::Usage => Errno::INVAL,
            RefusalKind::Missing => Errno::NOENT,
            RefusalKind::Busy => Errno::BUSY,
            RefusalKind::Failed => Errno::IO,
        };
        Self { errno, why: refusal.error }
    }
}

/// The key in the spelling of the list; `-` and `_` are the same.
fn known(key: &str) -> Option<&'static str> {
    let plain = |name: &str| name.replace('_', "-");
    KEYS.iter().copied().find(|known| plain(known) == plain(key))
}

/// Whether `key` is an option of mergerfs that cannot be read here. Setting it is refused by its name.
fn is_refused(key: &str) -> bool {
    options::find(key).is_some_and(|row| match row.effect {
        Effect::NoMeaning | Effect::Refuse(_) => true,
        Effect::Set(_) => MOUNT_ONLY.contains(&row.name()),
        Effect::Quiet | Effect::Only(_) => false,
    })
}

/// Whether the thread is the operator's: it could ask by the control socket too. Root in a container is not, and neither is
/// the kernel's NFS server.
fn is_operator(setter: Setter) -> bool {
    let own = rustix::process::geteuid().as_raw();
    match setter.uid {
        0 => process::is_program(setter.pid) && process::is_administrator(setter.pid),
        uid if uid == own => process::shares_user_namespace(setter.pid),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listed key can be read, and setting it is decided by a rule that stands here or in the option table.
    #[test]
    fn every_listed_key_is_an_option_or_answered_here() {
        const OWN: [&str; 6] = ["branches", "srcmounts", "version", "pid", "mount", "mountpoint"];
        for key in KEYS {
            assert_eq!(known(key), Some(*key));
            assert!(OWN.contains(key) || options::find(key).is_some(), "{key}");
        }
        assert!(KEYS.is_sorted(), "as getfattr lists them");
        assert_eq!(known("link-cow"), Some("link_cow"));
        assert_eq!(known("write-path"), None, "a key of ours is none of mergerfs's");
        assert!(!is_refused("write-path") && !is_refused("nosuch"));
    }

    /// Keys of mergerfs 2.41, without those that it passes over itself.
    #[test]
    fn every_key_of_mergerfs_is_listed_or_refused_by_its_name() {
        const THEIRS: &str = "allow-idmap async-read branches branches-mount-timeout branches-mount-timeout-fail \
            cache.attr cache.entry cache.files cache.files.process-names cache.negative-entry cache.readdir \
            cache.statfs cache.symlinks cache.writeback category.action category.create category.search config debug \
            direct-io-allow-mmap dropcacheonclose export-support flush-on-close follow-symlinks fsname func.access \
            func.chmod func.chown func.create func.getattr func.getxattr func.link func.listxattr func.mkdir func.mknod \
            func.open func.readdir func.readlink func.removexattr func.rename func.rmdir func.setxattr func.symlink \
            func.truncate func.unlink func.utimens fuse-msg-size gid gid-cache.expire-timeout gid-cache.remove-timeout \
            handle-killpriv handle-killpriv-v2 ignorepponrename inodecalc kernel-permissions-check \
            lazy-umount-mountpoint link-cow link-exdev log.metrics minfreespace mount mountpoint moveonenospc \
            never-forget-nodes nfsopenhack noforget nullrw parallel-direct-writes passthrough.io \
            passthrough.max-stack-depth pid pin-threads posix-acl process-thread-count process-thread-queue-depth \
            proxy-ioprio read-thread-count readahead remember remember-nodes rename-exdev scheduling-priority \
            security-capability srcmounts statfs statfs-ignore symlinkify symlinkify-timeout threads uid umask version \
            xattr";
        for key in THEIRS.split_whitespace() {
            assert!(known(key).is_some() || is_refused(key), "{key}");
        }
    }
}
