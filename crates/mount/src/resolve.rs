//! From what was typed to what holds: every conflict is reported, not only the first.

use crate::branches::{self, Demand};
use crate::cli::Invocation;
use crate::gather::gather;
use crate::log::{LogSettings, LogTarget};
use crate::outside::{NEVER_CHANGED, WATCHED};
use crate::problem::Problems;
use crate::raw::{PolicyChoice, RawOptions};
use crate::remembered::Remembered;
use crate::settings::*;
use crate::values;
use crate::world::World;
use fsstack_engine::rules::Rules;
use fsstack_engine::settings::Relocation;
use fsstack_pool::{Chain, Floor, Printable, Size, parse_source};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::Level;

/// Settles an invocation, or tells everything that stands against it.
#[expect(clippy::too_many_lines, reason = "a line for each setting")]
pub fn resolve(typed: &Invocation, world: &World) -> Result<Settings, Problems> {
    let mut problems = Problems::default();
    let mut raw = gather(typed, &mut problems);
    let (create, floor) = placement(&raw, &mut problems);
    let page_cache = page_cache(&raw, &mut problems);
    let write_path = write_path(&mut raw, page_cache, world, &mut problems);
    let (allow_other, default_permissions) = access(&raw, world, &mut problems);
    let log = log(&raw, &mut problems);
    let mount_point = mount_point(&typed.target, raw.nonempty.or(false), world, &mut problems);
    let branches = branches(&typed.source, &raw, world, mount_point.as_deref(), &mut problems);
    branches::refuse_taken(&branches, world, &mut problems);
    export(&raw, world, &mut problems);
    transport(&raw, &mut problems);
    let branch_inflight = inflight(&raw, &mut problems);
    notices(&mut raw, world);
    let Some(mount_point) = mount_point.filter(|_| problems.is_empty()) else { return Err(problems) };
    let (out_of_band, expiry, negative) = beliefs(&raw);
    Ok(Settings {
        source: typed.source.clone(),
        branches,
        mount_point,
        create,
        floor,
        min_inodes: raw.min_inodes.or(0),
        relocate: raw.relocation(),
        relocate_policy: raw.relocate_policy.or(Relocation::to_the_roomiest().policy),
        relocate_verify: raw.relocate_verify.or(Verify::Size),
        relocate_speed: raw.relocate_speed.or(None),
        write_path,
        page_cache,
        passthrough_headroom: raw.passthrough_headroom.or(Size(1 << 30)),
        branch_timeout: raw.branch_timeout.or(Duration::from_secs(10)),
        branch_inflight,
        degraded: raw.degraded.or(Degraded::Strict),
        attr_timeout: raw.attr_timeout.or(expiry),
        entry_timeout: raw.entry_timeout.or(expiry),
        negative_timeout: raw.negative_timeout.or(negative),
        out_of_band,
        watched_timeouts: (raw.entry_timeout.or(WATCHED), raw.negative_timeout.or(WATCHED)),
        transport: raw.transport.get().copied().unwrap_or(Transport::Auto),
        transport_scheduling: raw.transport_scheduling.get().copied().unwrap_or(TransportScheduling::Auto),
        seccomp: raw.seccomp.or(Seccomp::On),
        max_threads: raw.max_threads.get().copied(),
        max_write: raw.max_write.or(1 << 20),
        statfs: raw.statfs.or(StatfsView::All),
        locks: raw.locks.or(Locks::Local),
        nfs_export: raw.nfs_export.or(false),
        nfs_identity: raw.nfs_identity.get().copied(),
        require: raw.require.or(Require::Same),
        state_dir: state_dir(&raw, world),
        flags: flags(&raw, world),
        fsname: raw.fsname.or(typed.source.clone()),
        subtype: raw.subtype.or("fsstack".to_owned()),
        allow_other,
        default_permissions,
        privilege: world.privilege,
        run_in: raw.run_in.or(RunIn::Background),
        log,
        registry: world.own.clone(),
        config: raw.config.last().cloned(),
        given: raw.given().to_vec(),
        metrics: raw.metrics.get().copied(),
        write_rules: raw.write_rules.or(Rules::default()),
        notices: raw.take_notices(),
        remarks: raw.take_remarks(),
    })
}

/// Where root's pools keep state.
fn state_dir(raw: &RawOptions, world: &World) -> Option<PathBuf> {
    (world.privilege == Privilege::Root).then(|| raw.state_dir.or(PathBuf::from("/var/lib/fsstack")))
}

/// How out-of-band changes are noticed, and so the timeouts of existing and missing names.
fn beliefs(raw: &RawOptions) -> (OutOfBand, Duration, Duration) {
    let out_of_band = raw.out_of_band.or(OutOfBand::Timeout);
    match out_of_band {
        OutOfBand::Watch | OutOfBand::Timeout => (out_of_band, Duration::from_secs(1), Duration::ZERO),
        OutOfBand::Never => (out_of_band, NEVER_CHANGED, NEVER_CHANGED),
    }
}

/// Notices for the user that are no problems.
fn notices(raw: &mut RawOptions, world: &World) {
    if world.privilege == Privilege::User {
        raw.notice("not root: mounted through fusermount3, and all data goes through the daemon".to_owned());
    }
    if let Some(at) = raw.metrics.get().copied().filter(|at| !at.ip().is_loopback()) {
        raw.notice(format!(
            "metrics={at}: whoever reaches that address can read the pool's figures and paths"
        ));
    }
}

/// How many calls may be inside a branch that others serve: never so many that one branch can have all threads.
fn inflight(raw: &RawOptions, problems: &mut Problems) -> usize {
    let threads = raw.max_threads.get().copied();
    let asked = raw.branch_inflight.or(values::most_inflight(threads).min(values::DEFAULT_INFLIGHT));
    if let Some(why) =
        values::too_many_inflight(asked, threads).filter(|_| raw.branch_inflight.get().is_some())
    {
        problems.usage(format!("{}: {why}", raw.branch_inflight.spelled()));
    }
    asked
}

fn export(raw: &RawOptions, world: &World, problems: &mut Problems) {
    if raw.nfs_export.or(false) && world.privilege == Privilege::User {
        problems.usage(format!(
            "{}: opening files by their handles needs root; leave it out, or mount as root",
            raw.nfs_export.spelled()
        ));
    }
    if raw.nfs_identity.get().is_some() && !raw.nfs_export.or(false) {
        problems.usage(format!(
            "{}: means something only where the pool is exported; add nfs-export",
            raw.nfs_identity.spelled()
        ));
    }
}

/// A wait for a lock holds what it came by until it is over: an entry of a ring, of which there are few.
fn transport(raw: &RawOptions, problems: &mut Problems) {
    if (raw.transport.get(), raw.locks.get()) == (Some(&Transport::Ring), Some(&Locks::Branch)) {
        problems.usage(format!(
            "{} and {}: waits for locks would use up the ring; use transport=dev",
            raw.transport.spelled(),
            raw.locks.spelled()
        ));
    }
}

/// One policy and one floor, whichever of their spellings were used.
fn placement(raw: &RawOptions, problems: &mut Problems) -> (Chain, Floor) {
    let mut choices = raw.policies.clone();
    if let (Some(limit), Some(origin)) = (raw.mlimit.get(), raw.mlimit.origin()) {
        let chain = Chain::mlimit(*limit);
        // "create=mlimit,mlimit=8G": the one names the policy, the other its limit.
        choices.retain(|choice| choice.chain != Chain::mlimit(Floor::MLIMIT_DEFAULT));
        choices.push(PolicyChoice {
            name: "mlimit".into(),
            spelled: raw.mlimit.spelled().into(),
            origin,
            chain,
        });
    }
    // The command line goes before the config file, not against it.
    let strongest = choices.iter().map(|choice| choice.origin).max();
    choices.retain(|choice| Some(choice.origin) == strongest);
    let differing = choices.iter().find(|choice| choice.chain != choices[0].chain);
    if let Some(other) = differing {
        problems.usage(format!(
            "{} and {}: two placement policies, and one holds for all that is made; keep one of them",
            choices[0].spelled, other.spelled
        ));
    }
    let by_mlimit = choices.iter().any(|choice| choice.name == "mlimit");
    if by_mlimit && raw.floor.origin() == strongest {
        problems.usage(format!(
            "{} and {}: both say how much is kept free; keep one of them",
            raw.mlimit.spelled(),
            raw.floor.spelled()
        ));
    }
    // mlimit is a threshold of its own: below it mhddfs still places on the roomiest branch.
    let floor = if by_mlimit { Floor::NONE } else { raw.floor.or(Floor::MLIMIT_DEFAULT) };
    (choices.into_iter().next().map_or_else(Chain::default_create, |choice| choice.chain), floor)
}

fn page_cache(raw: &RawOptions, problems: &mut Problems) -> PageCache {
    let by_mergerfs = match (raw.cache_writeback.or(false), raw.cache_files.get()) {
        (true, Some(PageCache::Off)) => {
            problems.usage(format!(
                "{} and {}: writes cannot be gathered in a cache that is off; leave one out",
                raw.cache_writeback.spelled(),
                raw.cache_files.spelled()
            ));
            PageCache::Off
        }
        (true, _) => PageCache::Writeback,
        (false, files) => files.copied().unwrap_or(PageCache::Off),
    };
    let spelled =
        if raw.cache_writeback.or(false) { raw.cache_writeback.spelled() } else { raw.cache_files.spelled() };
    let origin = raw.cache_files.origin().max(raw.cache_writeback.origin());
    match (raw.page_cache.get(), origin) {
        (Some(ours), Some(theirs)) if *ours != by_mergerfs && raw.page_cache.origin() == Some(theirs) => {
            problems.usage(format!(
                "{} and {spelled}: both choose the page cache; keep {}",
                raw.page_cache.spelled(),
                raw.page_cache.spelled()
            ));
            *ours
        }
        (Some(ours), theirs) if theirs <= raw.page_cache.origin() => *ours,
        _ => by_mergerfs,
    }
}

fn write_path(raw: &mut RawOptions, cache: PageCache, world: &World, problems: &mut Problems) -> WritePath {
    let asked = raw.write_path.or(WritePath::Auto);
    let spelled = raw.write_path.spelled().to_owned();
    match asked {
        WritePath::Passthrough => {
            if cache == PageCache::Writeback {
                problems.usage(format!(
                    "{spelled} and page-cache=writeback: the kernel excludes the one with the other; write-path=stacked or page-cache=on"
                ));
            }
            if world.privilege == Privilege::User {
                problems.usage(format!(
                    "{spelled}: passthrough needs root; write-path=auto, or mount it as root"
                ));
            }
            if raw.relocate.or(false) {
                problems.usage(format!(
                    "{spelled} and {}: a file that the kernel writes cannot be moved; write-path=auto, or no relocation",
                    raw.relocate.spelled()
                ));
            }
            asked
        }
        WritePath::Auto if cache == PageCache::Writeback => {
            raw.remark(
                "page-cache=writeback: the kernel has no passthrough beside it; all data goes through the daemon",
            );
            WritePath::Stacked
        }
        WritePath::Auto if world.privilege == Privilege::User => WritePath::Stacked,
        WritePath::Auto => {
            if raw.relocate.or(false) {
                raw.notice(format!(
                    "{}: not of a file that is open by passthrough, its writer is told that the branch is full; write-path=stacked has all writes go through the daemon",
                    raw.relocate.spelled()
                ));
            }
            asked
        }
        WritePath::Stacked => asked,
    }
}

/// Access for other users, and whether the kernel checks permissions: without that, every user who may enter may do
/// everything.
fn access(raw: &RawOptions, world: &World, problems: &mut Problems) -> (bool, bool) {
    let allow_other = raw.allow_other.or(world.privilege == Privilege::Root);
    let checked = raw.default_permissions.or(true);
    if allow_other && !checked {
        problems.usage(format!(
            "{}: others may enter, and every one of them could read and change every file; leave it out, or add allow_other=false",
            raw.default_permissions.spelled()
        ));
    }
    (allow_other, checked)
}

fn log(raw: &RawOptions, problems: &mut Problems) -> LogSettings {
    let foreground = raw.run_in.get() == Some(&RunIn::Foreground);
    let target = raw.log.or(if foreground { LogTarget::Stderr } else { LogTarget::Syslog });
    match &target {
        LogTarget::Stderr if !foreground => problems.usage(format!(
            "{}: a daemon in the background has no terminal; add foreground, or log to syslog or a file",
            raw.log.spelled()
        )),
        LogTarget::File(path) => {
            let folder = path.parent().unwrap_or(Path::new("/"));
            if path.is_dir() {
                problems.usage(format!("{}: a directory; name a file in it", raw.log.spelled()));
            } else if !folder.is_dir() {
                problems
                    .usage(format!("{}: its directory does not exist; create it first", raw.log.spelled()));
            }
        }
        LogTarget::Stderr | LogTarget::Syslog => {}
    }
    LogSettings { target, level: raw.log_level.or(Level::INFO) }
}

/// The flags of the mount itself.
pub(crate) fn flags(raw: &RawOptions, world: &World) -> MountFlags {
    let root = world.privilege == Privilege::Root;
    MountFlags {
        read_only: raw.flags.read_only.holds(),
        access_times: raw.flags.access_times,
        directory_access_times: raw.flags.directory_access_times,
        suid: root && !raw.flags.no_suid.holds(),
        devices: root && !raw.flags.no_devices.holds(),
        execute: raw.flags.execute,
        synchronous: raw.flags.synchronous,
        synchronous_directories: raw.flags.synchronous_directories,
    }
}

fn mount_point(target: &OsStr, nonempty: bool, world: &World, problems: &mut Problems) -> Option<PathBuf> {
    let shown = Printable::os(target);
    let found = fs::metadata(target).and_then(|metadata| Ok((metadata, fs::canonicalize(target)?)));
    let (metadata, path) = match found {
        Ok(found) => found,
        Err(error) => {
            problems.mount(match error.kind() {
                io::ErrorKind::NotFound => format!("mount point {shown}: missing; create it with mkdir"),
                io::ErrorKind::NotConnected => {
                    format!(
                        "mount point {shown}: a dead FUSE mount lies there; take it off with umount first"
                    )
                }
                _ => format!("mount point {shown}: cannot be reached: {error}"),
            });
            return None;
        }
    };
    if !metadata.is_dir() {
        problems.mount(format!("mount point {shown}: not a directory; a pool is mounted on one"));
        return None;
    }
    // One that was unmounted lazily lives on without it.
    if World::may_be_pool(&path) && world.running_pools().iter().any(|pool| pool.mount_point() == path) {
        problems.mount(format!("mount point {shown}: a pool is mounted there already; unmount it first"));
        return Some(path);
    }
    match fs::read_dir(&path).map(|mut entries| entries.next().is_some()) {
        Ok(true) if !nonempty => {
            problems.mount(format!(
                "mount point {shown}: not empty; its files would be hidden, which nonempty allows"
            ));
        }
        Ok(_) => {}
        Err(error) => problems.mount(format!("mount point {shown}: cannot be listed: {error}")),
    }
    Some(path)
}

fn branches(
    source: &OsStr,
    raw: &RawOptions,
    world: &World,
    mount_point: Option<&Path>,
    problems: &mut Problems,
) -> Vec<Branch> {
    let specs = match parse_source(source) {
        Ok(specs) => specs,
        Err(error) => {
            problems.usage(error.to_string());
            return Vec::new();
        }
    };
    // What is wrong already does not get better by waiting.
    let timeout = if problems.is_empty() { raw.branches_timeout.or(Duration::ZERO) } else { Duration::ZERO };
    let remembered = Remembered::in_dir(state_dir(raw, world).as_deref());
    let require = raw.require.or(Require::Same);
    let demand = Demand { require, remembered, wait_for_mounts: raw.wait_for_mounts.or(false), timeout };
    let branches = branches::find(&specs, &demand, world, problems);
    if let Some(mount_point) = mount_point {
        branches::refuse_around(mount_point, &branches, problems);
    }
    branches
}
