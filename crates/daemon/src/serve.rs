//! Serving the engine over a transport, from the mount to the unmount.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use fsstack_control::local_locks;
use fsstack_control::registry::Registration;
use fsstack_control::{ListenAt, Listeners, Server};
use fsstack_engine::admin::mount_watch::MountWatch;
use fsstack_engine::files::noatime::NoatimeScope;
use fsstack_engine::files::route::{Backings, NoBackings};
use fsstack_engine::jobs::JobsLeft;
use fsstack_engine::kept::Kept;
use fsstack_engine::ops::sync_earlier_names;
use fsstack_engine::settings::{self as engine, Locks, PageCache, WritePath};
use fsstack_engine::{Pool, Union};
use fsstack_fuse::mount::mount;
use fsstack_fuse::notify::send_again;
use fsstack_fuse::transport::device::DeviceBackings;
use fsstack_fuse::{Adapter, LockWait, Mounted, OpenTransport, Pauser, Plan, Transport};
use fsstack_pool::settings::{OutOfBand, Restart};
use fsstack_pool::{BranchSpec, Printable};
use fsstack_sync::Mutex;
use fsstack_sync::atomic::AtomicBool;
use fsstack_sync::mpsc;
use fsstack_sync::time::{Duration, Instant};
use fsstack_sys::mounts::MountFlags as KernelFlags;
use fsstack_sys::process::SignalFd;
use fsstack_wire::Abi;

use crate::background::Ready;
use crate::confine::keep_to_known_calls;
use crate::handover::{Handover, own_program};
use crate::identity::Device;
use crate::keeper;
use crate::launch::LaunchError;
use crate::log::{LogHandle, LogLevel};
use crate::operate::{Leaving, Served, control_file};
use crate::outside;
use crate::remembered::Remembered;
use crate::restrictions;
use crate::settings::{AccessTimes, MountFlags, Options, Privilege, Settings};
use crate::signals::{End, Taker, listen};
use crate::values;
use crate::world::World;

/// Names and offsets that open listings keep at most, all together: some 13 bytes each.
const LISTING_ENTRIES: usize = 4 << 20;
/// How long a mount waits for names that an earlier daemon changed to be on disk.
const EARLIER_NAMES_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the pool waits where calls on branches have no time limit.
const POOL_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Mounts the pool and serves it until it is unmounted.
pub(crate) fn serve(
    settings: &Settings,
    ready: &Ready,
    signals: SignalFd,
    log: &LogHandle,
    (listed, kept): (Option<&Registration>, Option<Arc<Kept>>),
) -> Result<(), LaunchError> {
    let system = |what: &str, error: io::Error| LaunchError::system(format!("{what}: {error}"));
    let program = own_program();
    std::env::set_current_dir("/").map_err(|error| system("/", error))?;
    let table = fsstack_sys::mounts::list().map_err(|error| system("the mount table", error))?;
    let settings = &restrictions::inherited(settings, &table);
    settings.branches.iter().for_each(|branch| local_locks::warn(&branch.spec.path, &table));
    let pool = open_pool(settings)?;
    sync_earlier_names(&pool, EARLIER_NAMES_TIMEOUT);
    let transport = settle_transport(settings)?;
    let device = identity_device(settings)?;
    let plan = plan(settings, transport, device.as_ref());
    let mounted = mount(&plan).map_err(|error| LaunchError::mount(error.to_string()))?;
    // Given up now, it goes with the mount.
    drop(device);
    let unmounter = mounted.unmounter();
    let handover = |pauser| Handover { program: program.clone(), ..Handover::new(pauser, &mounted, log) };
    let beginning = Beginning {
        waits: Vec::new(),
        uptime: Duration::ZERO,
        kept: kept.clone(),
        take_over: &mut |_| Ok(()),
        handover: &handover,
    };
    let opened = open_transport(settings, pool, &mounted, log.level.clone(), listed, beginning);
    let ended = opened.and_then(|mut attended| {
        let served = attended.served.clone();
        attended.begin();
        attend(settings, signals, listed, &mounted, (attended, Listeners::default()), || {
            served.begin_moves(JobsLeft::All);
            answers(settings)?;
            served.start_keeping();
            *served.handover.calls.lock() = keep_to_known_calls(settings);
            ready.announce();
            Remembered::in_dir(settings.options.engine.state_dir.as_deref())
                .note(&settings.branches, &World::here());
            log_mounted(settings, &mounted);
            log_want_of_room(settings, &served.union);
            Ok(())
        })
    });
    if ended.is_err()
        && let Err(error) = unmounter.unmount(None, Duration::ZERO)
    {
        tracing::error!(%error, "failed mount still there; use umount -l");
    }
    mounted.ended();
    keeper::end_with_daemon(kept.as_ref());
    ended
}

/// Serves a pool whose transport is open until it is unmounted; `begin` is the last step before.
pub(crate) fn attend(
    settings: &Settings,
    signals: SignalFd,
    listed: Option<&Registration>,
    mounted: &Mounted,
    (Attended { transport, served, .. }, listeners): (Attended, Listeners),
    begin: impl FnOnce() -> Result<(), LaunchError>,
) -> Result<(), LaunchError> {
    let system = |what: &str, error: io::Error| LaunchError::system(format!("{what}: {error}"));
    let (end, ended) = mpsc::channel();
    let told = end.clone();
    let exported = settings.options.engine.nfs_export.then(|| settings.mount_point.clone());
    let taker = Taker { unmounter: mounted.unmounter(), closer: transport.closer(), served: served.clone() };
    listen(signals, taker, end, exported).map_err(|error| system("thread", error))?;
    let _control = control(settings, listed, &served, listeners);
    let union = served.union.clone();
    // A branch that is unmounted under the pool is seen in the mount table; the pool does without. So is a remount of the pool.
    let pool = Arc::downgrade(&served);
    let watch = MountWatch::start(&union, move || {
        if let Some(pool) = pool.upgrade() {
            pool.mounts_changed();
        }
    });
    // The table may have changed before it was watched.
    served.mounts_changed();
    if let Err(error) = &watch {
        tracing::warn!(%error, "mount table not watched; unmounts are noticed at the next call only");
    }
    begin()?;
    let waiting = fsstack_sync::thread::Builder::new().name("fuse-wait".into());
    let waits_for = union.clone();
    waiting
        .spawn(move || {
            transport.wait(timeout(&waits_for));
            // Nobody may be listening any more.
            let _heard = told.send(End::Unmounted);
        })
        .map_err(|error| system("thread", error))?;
    let end = ended.recv();
    drop(watch);
    if end == Ok(End::Detached) {
        // Programs that still use the pool get errors from here on: the connection ends with the process.
        tracing::warn!("daemon ends while the pool is in use; programs that use it see errors");
    }
    let held = union.held();
    union.end(timeout(&union)).map_err(|error| system("thread", error))?;
    tracing::debug!(?held, "unmounted");
    Ok(())
}

/// How long the end of the pool waits for what may not end by itself.
pub(crate) fn timeout(union: &Union) -> Duration {
    let timeout = union.pool().settings.branch_timeout;
    if timeout.is_zero() { POOL_END_TIMEOUT } else { timeout }
}

fn log_mounted(settings: &Settings, mounted: &Mounted) {
    let passthrough = mounted.granted.passthrough && settings.options.engine.write_path != WritePath::Stacked;
    tracing::info!(
        "{}: {} branches mounted, {}, requests by {}",
        Printable::path(&settings.mount_point),
        settings.branches.len(),
        if passthrough { "passthrough" } else { "stacked path only" },
        if mounted.granted.ring { "io_uring" } else { "/dev/fuse" },
    );
}

/// A pool in which nothing can be made is mounted all the same: what is there can be read, and room may come.
fn log_want_of_room(settings: &Settings, union: &Union) {
    if let Some(reasons) = union.nothing_fits() {
        tracing::warn!(
            "create={}: nothing can be made now: {}; set a lower minfreespace=, or end create= with >any",
            settings.options.engine.create,
            reasons.join("; ")
        );
    }
}

fn open_pool(settings: &Settings) -> Result<Pool, LaunchError> {
    let specs: Vec<BranchSpec> = settings.branches.iter().map(|branch| branch.spec.clone()).collect();
    let pool = Pool::open(&specs, engine_settings(settings))
        .map_err(|error| LaunchError::mount(error.to_string()))?;
    // What was checked before must be what was opened now.
    for (branch, checked) in pool.branches.iter().zip(&settings.branches) {
        if (branch.dev(), branch.root_ino) != (checked.id.device, checked.id.inode) {
            let path = Printable::path(&branch.path);
            return Err(LaunchError::mount(format!(
                "branch {path}: another directory is there than a moment ago: mount again when it is settled"
            )));
        }
    }
    Ok(pool)
}

/// The engine's part of the settings.
pub(crate) fn engine_settings(settings: &Settings) -> engine::Settings {
    engine::Settings {
        synced: match settings.flags {
            MountFlags { synchronous: true, .. } => engine::Synced::All,
            MountFlags { synchronous_directories: true, .. } => engine::Synced::Names,
            _ => engine::Synced::ByRequest,
        },
        recheck: outside::recheck(&settings.options),
        exclusive: settings.options.out_of_band == OutOfBand::Never,
        privileged: settings.privilege == Privilege::Root,
        // Half of what may be open is for directories, half for files.
        // Each keeps a directory of its branch in the kernel's memory.
        listing_entries: LISTING_ENTRIES,
        dir_fds: usize::try_from(fsstack_sys::thread::nofile_limit() / 2).unwrap_or(512).min(1 << 18),
        ..settings.options.engine.clone()
    }
}

fn settle_transport(settings: &Settings) -> Result<Transport, LaunchError> {
    if settings.options.engine.locks == Locks::Branch || settings.options.restart == Restart::Keep {
        return Ok(Transport::Dev); // the ring beside them was refused
    }
    settings
        .options
        .transport
        .settled()
        .map_err(|why| LaunchError::mount(format!("transport=ring: {why}: use transport=auto")))
}

fn identity_device(settings: &Settings) -> Result<Option<Device>, LaunchError> {
    let Some((uuid, folder)) =
        settings.options.nfs_identity.zip(settings.options.engine.state_dir.as_deref())
    else {
        return Ok(None);
    };
    Device::make(folder, uuid).map(Some).map_err(LaunchError::mount)
}

fn plan(settings: &Settings, transport: Transport, device: Option<&Device>) -> Plan {
    Plan {
        device: device.map(Device::path),
        target: settings.mount_point.clone(),
        fsname: settings.options.fsname.clone(),
        subtype: settings.options.subtype.clone(),
        flags: kernel_flags(&settings.flags),
        allow_other: settings.options.allow_other,
        default_permissions: settings.options.default_permissions,
        privileged: settings.privilege == Privilege::Root,
        max_write: settings.options.max_write,
        max_background: values::background_requests(settings.options.max_threads),
        // Also where nothing goes by it now: the write path may change while the pool is mounted.
        passthrough: settings.options.engine.page_cache != PageCache::WriteBack
            && settings.privilege == Privilege::Root,
        writeback: settings.options.engine.page_cache == PageCache::WriteBack,
        ring: transport == Transport::Ring,
        forward_locks: settings.options.engine.locks == Locks::Branch,
        export: settings.options.engine.nfs_export,
        xattrs: settings.options.xattrs,
        idmap: settings.options.idmap,
    }
}

/// Flags for mount(2).
pub(crate) fn kernel_flags(flags: &MountFlags) -> KernelFlags {
    let times = match flags.access_times {
        AccessTimes::Relative => KernelFlags::RELATIME,
        AccessTimes::Strict => KernelFlags::STRICTATIME,
        AccessTimes::Never => KernelFlags::NOATIME,
    };
    let chosen = [
        (flags.read_only, KernelFlags::RDONLY),
        (!flags.directory_access_times, KernelFlags::NODIRATIME),
        (!flags.suid, KernelFlags::NOSUID),
        (!flags.devices, KernelFlags::NODEV),
        (!flags.execute, KernelFlags::NOEXEC),
        (flags.synchronous, KernelFlags::SYNCHRONOUS),
        (flags.synchronous_directories, KernelFlags::DIRSYNC),
    ];
    chosen.into_iter().filter(|(on, _)| *on).fold(times, |all, (_, flag)| all | flag)
}

/// A pool that cannot be asked is a pool all the same.
fn control(
    settings: &Settings,
    listed: Option<&Registration>,
    served: &Arc<Served>,
    inherited: Listeners,
) -> Option<Server> {
    let socket = listed.map(Registration::socket);
    let listen_at = ListenAt { socket, metrics: settings.options.metrics, inherited };
    let start = |listen_at: &ListenAt| {
        if listen_at.socket.is_none() && listen_at.metrics.is_none() {
            return None;
        }
        Server::start(listen_at, served.clone())
            .inspect_err(|error| match listen_at.metrics {
                Some(at) => tracing::warn!("metrics={at}: {error}; no metrics are served"),
                None => tracing::warn!("control socket: {error}; the fsstack command cannot reach the pool"),
            })
            .ok()
    };
    // A port that is taken does not cost the socket.
    let server = start(&listen_at).or_else(|| {
        settings.options.metrics.and_then(|_| start(&ListenAt { metrics: None, ..listen_at.clone() }))
    })?;
    served.settings.lock().options.metrics = server.metrics();
    *served.handover.listeners.lock() = server.listeners();
    *served.handover.connections.lock() = Some(server.connections());
    Some(server)
}

/// An open transport, and the operations that an operator has.
#[derive(Debug)]
pub(crate) struct Attended {
    transport: OpenTransport,
    /// Requests that wait for locks, until it begins.
    waits: Vec<LockWait>,
    pub(crate) served: Arc<Served>,
}

impl Attended {
    /// Serves requests from now on.
    pub(crate) fn begin(&mut self) {
        self.transport.begin(std::mem::take(&mut self.waits));
    }
}

/// Beginning of a pool: empty, or with what another program has handed over.
pub(crate) struct Beginning<'a> {
    /// Requests that wait for locks.
    pub(crate) waits: Vec<LockWait>,
    /// Time since the mount.
    pub(crate) uptime: Duration,
    /// Memory that outlives the daemon.
    pub(crate) kept: Option<Arc<Kept>>,
    /// Fills the tables, before the first request.
    pub(crate) take_over: &'a mut dyn FnMut(&Arc<Union>) -> Result<(), String>,
    /// Makes what the next handover needs.
    pub(crate) handover: &'a dyn Fn(Option<Pauser>) -> Handover,
}

/// Opens the transport of a pool. Requests are not served before [`Attended::begin`].
pub(crate) fn open_transport(
    settings: &Settings,
    pool: Pool,
    mounted: &Mounted,
    level: LogLevel,
    listed: Option<&Registration>,
    beginning: Beginning<'_>,
) -> Result<Attended, LaunchError> {
    let system = |error: io::Error| LaunchError::system(format!("{}: {error}", "/dev/fuse"));
    let options = &settings.options;
    let backings = backings(settings, &pool, mounted)?;
    let union = Arc::new(Union::new(pool, backings));
    keep_in(beginning.kept, &union, mounted)?;
    let files = settings.flags.access_times == AccessTimes::Never;
    union.set_noatime_scope(NoatimeScope {
        files,
        directories: files || !settings.flags.directory_access_times,
    });
    (beginning.take_over)(&union).map_err(LaunchError::mount)?;
    // Before the first request: a change that it does not see would be missing.
    union.start_catalogue();
    outside::keep_informed(options, &union, mounted).map_err(system)?;
    check_granted(options, mounted)?;
    let abi = Abi { setxattr_ext: mounted.granted.setxattr_ext };
    let adapter = Adapter::new(union.clone(), outside::timeouts(options), abi, options.xattrs);
    let adapter = Arc::new(adapter.mapping_callers(mounted.granted.allows_idmap()));
    let device = mounted.device().try_clone_to_owned().map_err(system)?;
    let (threads, scheduling) = (options.max_threads.map(NonZeroUsize::get), options.scheduling);
    union.set_transport(if mounted.granted.ring { "ring" } else { "dev" });
    let granted = mounted.granted;
    let control_file = control_file::put(settings, &adapter, &union)
        .map_err(|error| LaunchError::system(format!("thread: {error}")))?;
    let transport =
        OpenTransport::open(granted.ring, adapter.clone(), device, granted.payload, (threads, scheduling));
    let transport = transport.map_err(|error| match granted.ring {
        true => {
            LaunchError::mount(format!("FUSE over io_uring: no thread or ring: {error}: use transport=dev"))
        }
        false => system(error),
    })?;
    let served = Arc::new_cyclic(|served| Served {
        itself: served.clone(),
        handover: (beginning.handover)(transport.pauser()),
        id: listed.map(|listed| listed.id().to_owned()).unwrap_or_default(),
        registry: listed.map(|listed| listed.registry().to_owned()),
        union,
        adapter,
        level,
        transport: if granted.ring { "ring" } else { "dev" },
        passthrough: granted.passthrough,
        since: Instant::now().checked_sub(beginning.uptime).unwrap_or_else(Instant::now),
        changing: Mutex::default(),
        settings: Mutex::new(settings.clone()),
        leaving: Leaving::default(),
        moves_wait: AtomicBool::new(false),
    });
    if let Some(keys) = control_file {
        keys.answer_for(&served);
    }
    Ok(Attended { transport, waits: beginning.waits, served })
}

/// Refuses what was asked for by name where the kernel has not granted it.
fn check_granted(options: &Options, mounted: &Mounted) -> Result<(), LaunchError> {
    let lacks = if options.transport == Transport::Ring && !mounted.granted.ring {
        "transport=ring: the kernel did not grant FUSE over io_uring to this mount: use transport=auto"
    } else if options.idmap && !mounted.granted.allows_idmap() {
        "idmap=on: this kernel has no idmapped mounts of FUSE (Linux 6.12 and later have them): leave it out"
    } else {
        return Ok(());
    };
    Err(LaunchError::mount(lacks))
}

/// Notes handles where they outlive the daemon, if that was asked for.
fn keep_in(kept: Option<Arc<Kept>>, union: &Union, mounted: &Mounted) -> Result<(), LaunchError> {
    let Some(kept) = kept else { return Ok(()) };
    // None was read yet, or all were sent again already.
    send_again(mounted.device()).map_err(|error| {
        LaunchError::mount(format!(
            "restart=keep: this kernel does not send requests again (Linux 6.9 and later do): {error}"
        ))
    })?;
    union.keep_in(kept);
    Ok(())
}

/// Where the kernel keeps files of branches for passthrough, as far as it does.
fn backings(settings: &Settings, pool: &Pool, mounted: &Mounted) -> Result<Arc<dyn Backings>, LaunchError> {
    if mounted.granted.passthrough {
        let backings = DeviceBackings::new(mounted.device())
            .map_err(|error| LaunchError::system(format!("/dev/fuse: {error}")))?;
        check_passthrough(settings, pool, &backings)?;
        Ok(Arc::new(backings))
    } else if settings.options.engine.write_path == WritePath::Passthrough {
        let text = "write-path=passthrough: this kernel has no FUSE passthrough (Linux 6.9 and later have it): \
                    use write-path=auto";
        Err(LaunchError::mount(text))
    } else {
        if settings.options.engine.write_path == WritePath::Auto {
            tracing::info!("kernel without FUSE passthrough; files use the stacked path");
        }
        Ok(Arc::new(NoBackings))
    }
}

/// `write-path=passthrough` is a promise: every branch that takes writes must be able to keep it.
fn check_passthrough(settings: &Settings, pool: &Pool, backings: &DeviceBackings) -> Result<(), LaunchError> {
    if settings.options.engine.write_path != WritePath::Passthrough {
        return Ok(());
    }
    // One that is down, after the death of a daemon, was asked by the first.
    for branch in pool.branches.iter().filter(|branch| branch.is_open()) {
        let path = Printable::path(&branch.path);
        match branch.try_passthrough(backings) {
            Ok(()) => {}
            Err(error) => {
                return Err(LaunchError::mount(format!(
                    "branch {path}: the kernel refuses passthrough there ({error}): use write-path=auto"
                )));
            }
        }
    }
    Ok(())
}

/// The mount answers when it tells its size.
fn answers(settings: &Settings) -> Result<(), LaunchError> {
    std::fs::metadata(&settings.mount_point).map(drop).map_err(|error| {
        let mount_point = Printable::path(&settings.mount_point);
        LaunchError::mount(format!("{mount_point}: mounted, but it does not answer: {error}"))
    })
}
