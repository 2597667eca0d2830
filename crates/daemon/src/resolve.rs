//! Resolves typed options into settings; reports every conflict, not only the first.

use crate::branches::{self, Demand, Elsewhere};
use crate::cli::Invocation;
use crate::gather::{gather, gather_config};
use crate::log::LogTarget;
use crate::options;
use crate::optlist::split;
use crate::outside::UNCHANGED_NAMES_TIMEOUT;
use crate::problem::Problems;
use crate::raw::{PolicyChoice, RawOptions};
use crate::remembered::Remembered;
use crate::settings::{Branch, MountFlags, Options, Privilege, RunIn, Settings};
use crate::transport;
use crate::values;
use crate::world::World;
use fsstack_pool::settings::{ControlFile, Degraded, OutOfBand, PageCache, WritePath, Xattrs};
use fsstack_pool::{Chain, Class, Floor, Printable, Target, parse_source};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of a mount by the config file alone, if it had this text.
///
/// # Errors
/// The text does not mount a pool.
pub(crate) fn resolve_config(file: &Path, text: &str, world: &World) -> Result<Options, Problems> {
    let mut problems = Problems::default();
    let mut raw = gather_config(file, text, &mut problems);
    place(&mut raw, &mut problems);
    raw.options.engine.page_cache = page_cache(&raw, &mut problems);
    let options = raw.options.clone();
    write_path(&mut raw, world, &mut problems);
    if problems.is_empty() { Ok(options) } else { Err(problems) }
}

/// Resolves an invocation, or reports all of its problems.
pub fn resolve(typed: &Invocation, world: &World) -> Result<Settings, Problems> {
    let mut problems = Problems::default();
    let mut raw = gather(typed, &mut problems);
    place(&mut raw, &mut problems);
    raw.options.engine.page_cache = page_cache(&raw, &mut problems);
    raw.options.engine.write_path = write_path(&mut raw, world, &mut problems);
    access(&mut raw, world, &mut problems);
    log(&mut raw, &mut problems);
    let nonempty = raw.options.nonempty;
    let mount_point = mount_point(&typed.target, nonempty, world, &mut problems);
    if world.privilege == Privilege::User {
        raw.options.engine.state_dir = None;
    }
    let branches = branches(&typed.source, &mut raw, world, mount_point.as_deref(), &mut problems);
    own_files(&mut raw, &branches, mount_point.as_deref(), &mut problems);
    branches::refuse_taken(&branches, None, world, &mut problems);
    export(&raw, world, &mut problems);
    transport::check_locks(&raw, &mut problems);
    xattrs(&mut raw, &mut problems);
    transport::settle_restart(&mut raw, world, &mut problems);
    inflight(&mut raw, &mut problems);
    notices(&mut raw, world);
    unknown_targets(&mut raw, &branches);
    believe(&mut raw);
    if !raw.is_given("fsname") {
        raw.options.fsname.clone_from(&typed.source);
    }
    let Some(mount_point) = mount_point.filter(|_| problems.is_empty()) else { return Err(problems) };
    Ok(Settings {
        source: typed.source.clone(),
        branches,
        mount_point,
        flags: flags(&raw, world),
        privilege: world.privilege,
        registry: world.own.clone(),
        given: raw.behind_o(),
        notices: raw.take_notices(),
        remarks: raw.take_remarks(),
        options: raw.options,
    })
}

/// Sets the timeouts of existing and missing names if nothing changes out of band.
fn believe(raw: &mut RawOptions) {
    if raw.options.out_of_band != OutOfBand::Never {
        return;
    }
    for (name, timeout) in [
        ("attr-timeout", &mut raw.options.attr_timeout),
        ("entry-timeout", &mut raw.options.entry_timeout),
        ("negative-timeout", &mut raw.options.negative_timeout),
    ] {
        if !raw.given.contains_key(name) {
            *timeout = UNCHANGED_NAMES_TIMEOUT;
        }
    }
}

/// Notices for the user that are not problems.
fn notices(raw: &mut RawOptions, world: &World) {
    if world.privilege == Privilege::User {
        raw.notice("not root: mounted through fusermount3, and all data goes through the daemon".to_owned());
    }
    if let Some(at) = raw.options.metrics.filter(|at| !at.ip().is_loopback()) {
        raw.notice(format!(
            "metrics={at}: every host that reaches that address can read the pool's figures and paths"
        ));
    }
}

/// Notices targets of placement rules and classes of tiers that no branch is: it may come later (`fsstack branch add`).
fn unknown_targets(raw: &mut RawOptions, branches: &[Branch]) {
    let rules = raw.options.engine.placement.clone();
    let is_known = |target: &Target| {
        branches.iter().any(|branch| match target {
            Target::Class(class) => branch.spec.class.as_ref() == Some(class),
            Target::Branch(path) => branch.spec.path == *path,
        })
    };
    for rule in rules.iter() {
        for target in rule.targets.iter().chain(&rule.then).filter(|target| !is_known(target)) {
            let what = match target {
                Target::Class(_) => "no branch has the class",
                Target::Branch(_) => "no branch has the path",
            };
            raw.notice(format!("{}: {rule}: {what} {target}", options::PLACE_RULES));
        }
    }
    let tiers = raw.options.engine.tiers.clone();
    for tier in tiers.iter() {
        let lacks = |class: &&Class| !is_known(&Target::Class((*class).clone()));
        for class in [&tier.fast, &tier.slow].into_iter().filter(lacks) {
            raw.notice(format!("{}: {tier}: no branch has the class {class}", options::TIERS));
        }
    }
}

/// Limits the calls inside a remote branch, so that one branch cannot take all threads.
fn inflight(raw: &mut RawOptions, problems: &mut Problems) {
    let threads = raw.options.max_threads;
    let calls = &mut raw.options.engine.branch_inflight;
    if !raw.given.contains_key("branch-inflight") {
        *calls = values::most_inflight(threads).min(*calls);
    } else if let Some(why) = values::too_many_inflight(*calls, threads) {
        problems.usage(format!("{}: {why}", raw.spelled("branch-inflight")));
    }
}

fn export(raw: &RawOptions, world: &World, problems: &mut Problems) {
    if raw.options.engine.nfs_export && world.privilege == Privilege::User {
        problems.usage(format!(
            "{}: opening files by their handles needs root; leave it out, or mount as root",
            raw.spelled("nfs-export")
        ));
    }
    if raw.options.engine.catalogue && world.privilege == Privilege::User {
        problems.usage(format!(
            "{}: the catalogue is kept in state-dir, which needs root; leave it out, or mount as root",
            raw.spelled("catalogue")
        ));
    }
    if raw.options.engine.degraded == Degraded::Catalogue && !raw.options.engine.catalogue {
        problems.usage(format!(
            "{}: names of branches out of reach are shown from the catalogue; add catalogue=on",
            raw.spelled("degraded")
        ));
    }
    if raw.options.nfs_identity.is_some() && !raw.options.engine.nfs_export {
        problems.usage(format!(
            "{}: means something only where the pool is exported; add nfs-export",
            raw.spelled("nfs-identity")
        ));
    }
}

/// The control file's keys are extended attributes.
fn xattrs(raw: &mut RawOptions, problems: &mut Problems) {
    if raw.options.xattrs == Xattrs::On || raw.options.engine.control_file == ControlFile::Off {
        return;
    }
    if raw.is_given("mergerfs-control") {
        problems.usage(format!(
            "{} and {}: its keys are extended attributes; leave one of them out",
            raw.spelled("xattr"),
            raw.spelled("mergerfs-control")
        ));
    }
    raw.options.engine.control_file = ControlFile::Off;
}

/// Finds contradictions between the options that were given: what a mount with all of them would refuse.
pub(crate) fn check_together(mut raw: RawOptions, problems: &mut Problems) {
    place(&mut raw, problems);
    page_cache(&raw, problems);
}

/// Combines all spellings into one policy and one floor.
fn place(raw: &mut RawOptions, problems: &mut Problems) {
    let mut choices = raw.policies.clone();
    if let (Some(limit), Some(origin)) = (raw.mlimit, raw.origin("mlimit")) {
        let chain = Chain::mlimit(limit);
        // "create=mlimit,mlimit=8G": the first names the policy, the second its limit.
        choices.retain(|choice| choice.chain != Chain::mlimit(Floor::MLIMIT_DEFAULT));
        choices.push(PolicyChoice {
            name: "mlimit".into(),
            spelled: raw.spelled("mlimit").into(),
            origin,
            chain,
        });
    }
    // The command line overrides the config file instead of conflicting with it.
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
    if by_mlimit && raw.origin("minfreespace") == strongest {
        problems.usage(format!(
            "{} and {}: both say how much is kept free; keep one of them",
            raw.spelled("mlimit"),
            raw.spelled("minfreespace")
        ));
    }
    raw.options.engine.create =
        choices.into_iter().next().map_or_else(Chain::default_create, |choice| choice.chain);
    if let Some(limit) = raw.mlimit.filter(|_| by_mlimit) {
        place_by_mlimit(&mut raw.options, limit);
    }
}

/// Applies `mlimit=`: a policy without a floor. It is a threshold of its own: below it mhddfs still places files on the
/// branch with most free space.
pub(crate) fn place_by_mlimit(options: &mut Options, limit: Floor) {
    options.engine.create = Chain::mlimit(limit);
    options.engine.floor = Floor::NONE;
}

fn page_cache(raw: &RawOptions, problems: &mut Problems) -> PageCache {
    let ours = raw.options.engine.page_cache;
    let spelled = raw.spelled(if raw.cache_writeback { "cache.writeback" } else { "cache.files" });
    let by_mergerfs = match (raw.cache_writeback, raw.cache_files) {
        (true, Some(PageCache::Off)) => {
            problems.usage(format!(
                "{spelled} and {}: writes cannot be gathered in a cache that is off; leave one out",
                raw.spelled("cache.files")
            ));
            PageCache::Off
        }
        (true, _) => PageCache::WriteBack,
        (false, files) => files.unwrap_or(PageCache::Off),
    };
    let theirs = raw.origin("cache.files").max(raw.origin("cache.writeback"));
    let origin = raw.origin("page-cache");
    if origin.is_some() && origin == theirs && ours != by_mergerfs {
        let kept = raw.spelled("page-cache");
        problems.usage(format!("{kept} and {spelled}: both choose the page cache; keep {kept}"));
    }
    if theirs <= origin { ours } else { by_mergerfs }
}

fn write_path(raw: &mut RawOptions, world: &World, problems: &mut Problems) -> WritePath {
    let (asked, cache) = (raw.options.engine.write_path, raw.options.engine.page_cache);
    let spelled = raw.spelled(options::WRITE_PATH).to_owned();
    let relocates =
        (raw.is_given("relocate") && raw.options.engine.relocate).then(|| raw.spelled("relocate").to_owned());
    match asked {
        WritePath::Passthrough => {
            if cache == PageCache::WriteBack {
                problems.usage(format!(
                    "{spelled} and page-cache=writeback: the kernel excludes the one with the other; write-path=stacked or page-cache=on"
                ));
            }
            if world.privilege == Privilege::User {
                problems.usage(format!(
                    "{spelled}: passthrough needs root; write-path=auto, or mount it as root"
                ));
            }
            if let Some(relocates) = relocates {
                problems.usage(format!(
                    "{spelled} and {relocates}: a file that the kernel writes cannot be moved; write-path=auto, or no relocation"
                ));
            }
            asked
        }
        WritePath::Auto if cache == PageCache::WriteBack => {
            raw.remark(
                "page-cache=writeback: the kernel has no passthrough beside it; all data goes through the daemon",
            );
            WritePath::Stacked
        }
        WritePath::Auto if world.privilege == Privilege::User => WritePath::Stacked,
        WritePath::Auto => {
            if let Some(relocates) = relocates {
                raw.notice(format!(
                    "{relocates}: not of a file that is open by passthrough, its writer gets ENOSPC; write-path=stacked has all writes go through the daemon"
                ));
            }
            asked
        }
        WritePath::Stacked => asked,
    }
}

/// Access for other users, and whether the kernel checks permissions. Without those checks every user with access could
/// do everything.
fn access(raw: &mut RawOptions, world: &World, problems: &mut Problems) {
    if !raw.is_given("allow_other") {
        raw.options.allow_other = world.privilege == Privilege::Root;
    }
    if raw.options.allow_other && !raw.options.default_permissions {
        problems.usage(format!(
            "{}: others may enter, and every one of them could read and change every file; leave it out, or add allow_other=false",
            raw.spelled("default_permissions")
        ));
    }
    if !raw.options.idmap {
        return;
    }
    let spelled = raw.spelled("idmap");
    if world.privilege == Privilege::User {
        problems.usage(format!(
            "{spelled}: everything that this user's daemon makes is the user's own; leave it out, or mount the pool as root"
        ));
    }
    if !raw.options.default_permissions {
        problems.usage(format!(
            "{spelled}: the kernel maps owners only where it checks permissions itself; leave out {}",
            raw.spelled("default_permissions")
        ));
    }
}

fn log(raw: &mut RawOptions, problems: &mut Problems) {
    let foreground = raw.options.run_in == RunIn::Foreground;
    if foreground && !raw.is_given("log") {
        raw.options.log.target = LogTarget::Stderr;
    }
    let spelled = raw.spelled("log");
    match &raw.options.log.target {
        LogTarget::Stderr if !foreground => problems.usage(format!(
            "{}: a daemon in the background has no terminal; add foreground, or log to syslog or a file",
            spelled
        )),
        LogTarget::File(path) => {
            let folder = path.parent().unwrap_or(Path::new("/"));
            if path.is_dir() {
                problems.usage(format!("{}: a directory; name a file in it", spelled));
            } else if !folder.is_dir() {
                problems.usage(format!("{}: its directory does not exist; create it first", spelled));
            }
        }
        LogTarget::Stderr | LogTarget::Syslog => {}
    }
}

/// The log that the `lists` of a command line name: for a program that has nothing else of the settings.
pub(crate) fn log_of(lists: &[OsString]) -> LogTarget {
    let words = lists.iter().flat_map(|list| split(list).unwrap_or_default());
    let named =
        words.filter(|word| word.name == "log").filter_map(|word| word.value).next_back().map(PathBuf::from);
    named.filter(|path| path.is_absolute()).map_or(LogTarget::Syslog, LogTarget::File)
}

/// Refuses files of the daemon's own below the mount point: it would wait for itself.
fn own_files(raw: &mut RawOptions, branches: &[Branch], mount_point: Option<&Path>, problems: &mut Problems) {
    let state = raw.options.engine.state_dir.clone().map(|path| ("state-dir", path));
    let log = match &raw.options.log.target {
        LogTarget::File(path) => Some(("log", path.clone())),
        LogTarget::Stderr | LogTarget::Syslog => None,
    };
    for (option, path) in state.iter().chain(&log) {
        let path = resolved(path);
        if mount_point.is_some_and(|pool| path.starts_with(pool)) {
            problems
                .usage(format!("{}: it lies in the pool itself; name another place", raw.spelled(option)));
        } else if let Some(branch) = branches.iter().find(|branch| path.starts_with(&branch.spec.path)) {
            let shown = Printable::path(&branch.spec.path).to_string();
            let spelled = raw.spelled(option).to_owned();
            raw.notice(format!(
                "{spelled}: it lies in branch {shown}, so the pool shows it: name another place"
            ));
        }
    }
}

/// The path without links as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let known = path.ancestors().find_map(|above| Some((above, fs::canonicalize(above).ok()?)));
    known.map_or_else(
        || path.to_owned(),
        |(above, known)| path.strip_prefix(above).map_or(known.clone(), |rest| known.join(rest)),
    )
}

/// Mount flags.
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
    // A pool that was unmounted lazily still runs without a mount.
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
    raw: &mut RawOptions,
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
    // Waiting cannot fix problems found already.
    let timeout = if problems.is_empty() { raw.options.branches_timeout } else { Duration::ZERO };
    let remembered = Remembered::in_dir(raw.options.engine.state_dir.as_deref());
    let require = raw.options.require;
    let device = mount_point.and_then(branches::device_at);
    let elsewhere = Elsewhere {
        waits: device.filter(|_| raw.waits_elsewhere),
        refuses: device.filter(|_| raw.must_be_elsewhere),
    };
    let demand = Demand { require, remembered, elsewhere, timeout };
    let branches = branches::find(&specs, &demand, world, problems);
    let passed_over = branches::passed_over(&specs, &branches, &demand.remembered);
    passed_over.into_iter().for_each(|text| raw.notice(text));
    if let Some(mount_point) = mount_point {
        branches::refuse_around(mount_point, &branches, problems);
    }
    branches
}
