//! Changing settings of a mounted pool: all requested changes or none.
//!
//! Changes come one after the other. The settings are locked only to read and to replace them: requests of programs and status
//! requests read them too, and the config file of a change may be on a disk that hangs. Trials on branches come before the change.

use super::rules::{check_target, rule_dir};
use super::{Served, persist};
use crate::options::{self, Key, Origin, Row, Typed};
use crate::outside::timeouts;
use crate::problem::Problems;
use crate::raw::RawOptions;
use crate::resolve::{self, place_by_mlimit, resolve_config};
use crate::serve::engine_settings;
use crate::settings::{MountFlags, Options, Privilege, Settings};
use crate::values;
use crate::world::World;
use fsstack_control::Refusal;
use fsstack_control::api::{
    Assignment, Change, Changed, SettingsRequest, WritePathChanged, WritePathRequest,
};
use fsstack_engine::Pool;
use fsstack_engine::settings::Settings as EngineSettings;
use fsstack_pool::settings::{Degraded, PageCache, Words as _, WritePath};
use fsstack_pool::{Chain, Floor, Printable, RuleDir, suggestion};
use fsstack_sys::whole_file;
use std::ffi::OsStr;
use std::path::Path;

impl Served {
    pub(super) fn make_changes(&self, request: &SettingsRequest) -> Result<Changed, Refusal> {
        let assigned = |held: &Settings| {
            let mut wanted = held.clone();
            let mut named = Vec::new();
            for assignment in &request.changes {
                named.push(assign(&mut wanted, assignment, request.remount)?);
            }
            if request.remount {
                take_flags(&mut wanted.flags, &request.changes);
            }
            Ok((wanted, named))
        };
        check_together(&self.settings.lock().options, &request.changes)?;
        let tried = self.try_promise(|held| Ok(assigned(held)?.0))?;
        let _turn = self.changing.lock();
        let mut held = self.settings.lock().clone();
        held.options.log.level = self.level.get();
        let mut notes =
            if request.remount { held_from_the_mount(&held, &request.changes) } else { Vec::new() };
        let (mut wanted, mut named) = assigned(&held)?;
        notes.extend(floor_after_mlimit(&held.options, &mut wanted.options, &request.changes));
        self.check(&held, &wanted, tried)?;
        let changes = difference(&held, &wanted);
        let mut persisted = None;
        if request.persist {
            // One assignment may change several values.
            named.extend(changes.iter().filter_map(|change| options::find(&change.key)));
            named.sort_by_key(|row| row.name());
            named.dedup_by_key(|row| row.name());
            named.retain(|row| row.is_live());
            notes.extend(shadowed(&wanted, &named));
            persisted = self.persist(&wanted, &named, request.dry_run)?;
        }
        if changes.iter().any(|change| change.key == options::PLACE_RULES) {
            notes.extend(unknown_targets(&self.union.pool(), &wanted.options));
        }
        let flags = wanted.flags != held.flags;
        if !request.dry_run && (flags || !changes.is_empty()) {
            self.put_in_force(&wanted)?;
            if flags && wanted.flags.synchronous && 0 < self.union.open_by_write_path().other_way {
                notes.push("sync: files that are open by passthrough are synchronous once they are closed and opened again".to_owned());
            }
            let mut told: Vec<String> = changes.iter().map(|c| format!("{}={}", c.key, c.to)).collect();
            if flags {
                told.push(format!(
                    "sync={} dirsync={}",
                    wanted.flags.synchronous, wanted.flags.synchronous_directories
                ));
            }
            self.replace_settings(wanted);
            tracing::info!("changed by the operator: {}", told.join(", "));
        }
        Ok(Changed { changes, dry_run: request.dry_run, persisted, notes })
    }

    pub(super) fn switch_write_path(&self, request: &WritePathRequest) -> Result<WritePathChanged, Refusal> {
        let path = request.write_path.parse::<WritePath>().ok();
        let switched = |held: &Settings| {
            let mut wanted = held.clone();
            match &request.subtree {
                Some(directory) => {
                    if path.is_none() && request.write_path != "inherit" {
                        return Err(no_path(&request.write_path));
                    }
                    let rules = &mut wanted.options.engine.rules;
                    *rules = rules
                        .with(rule_dir(directory)?.path(), path)
                        .map_err(|error| Refusal::usage(format!("--subtree: {error}")))?;
                }
                None => {
                    wanted.options.engine.write_path = path.ok_or_else(|| no_path(&request.write_path))?;
                }
            }
            Ok(wanted)
        };
        let tried = self.try_promise(switched)?;
        let _turn = self.changing.lock();
        let held = self.settings.lock().clone();
        let wanted = switched(&held)?;
        self.check(&held, &wanted, tried)?;
        let (from, key) = match &request.subtree {
            Some(directory) => (rule_of(&held, &rule_dir(directory)?), options::WRITE_RULES),
            None => (held.options.engine.write_path.to_string(), options::WRITE_PATH),
        };
        let mut persisted = None;
        if !request.only_count {
            if request.persist {
                let row = options::find(key);
                persisted = self.persist(&wanted, row.as_slice(), false)?;
            }
            self.put_in_force(&wanted)?;
            self.replace_settings(wanted);
        }
        Ok(WritePathChanged {
            from,
            to: request.write_path.clone(),
            subtree: request.subtree.clone(),
            other_way: values::count(self.union.open_by_write_path().other_way),
            persisted,
        })
    }

    /// If `change` requires passthrough, checks whether every branch supports it. A branch may hang, so nothing is
    /// locked meanwhile.
    fn try_promise(
        &self,
        change: impl FnOnce(&Settings) -> Result<Settings, Refusal>,
    ) -> Result<Tried, Refusal> {
        let held = self.settings.lock().clone();
        let wanted = change(&held)?;
        if !promises(&held, &wanted) || !self.passthrough {
            return Ok(Tried::Not);
        }
        self.union.try_passthrough().map_err(|error| Refusal::usage(error.to_string()))?;
        Ok(Tried::EveryBranch)
    }

    /// Checks that settings which only the kernel can provide keep their value from the mount.
    fn check(&self, held: &Settings, wanted: &Settings, tried: Tried) -> Result<(), Refusal> {
        let buffered = |settings: &Settings| settings.options.engine.page_cache == PageCache::WriteBack;
        if buffered(held) != buffered(wanted) {
            return Err(Refusal::usage(
                "page-cache=writeback is negotiated at the mount: unmount the pool and mount it with the other value",
            ));
        }
        if wanted.options.engine.degraded == Degraded::Catalogue && !wanted.options.engine.catalogue {
            return Err(Refusal::usage(
                "degraded=catalogue: names of branches out of reach are shown from the catalogue: unmount the pool, add catalogue=on",
            ));
        }
        let calls = wanted.options.engine.branch_inflight;
        if let Some(why) = values::too_many_inflight(calls, wanted.options.max_threads) {
            return Err(Refusal::usage(format!("branch-inflight={calls}: {why}")));
        }
        if !promises(held, wanted) {
            return Ok(());
        }
        if !self.passthrough {
            let why = if wanted.privilege == Privilege::User {
                "it needs root"
            } else if buffered(wanted) {
                "page-cache=writeback excludes it"
            } else {
                "this kernel has no FUSE passthrough (Linux 6.9 and later have it)"
            };
            return Err(Refusal::usage(format!("write-path=passthrough: {why}: use write-path=auto")));
        }
        match tried {
            Tried::EveryBranch => Ok(()),
            Tried::Not => Err(Refusal::busy("another change came at the same time: ask again")),
        }
    }

    /// Replaces the settings by `wanted`, which are in force.
    pub(super) fn replace_settings(&self, wanted: Settings) {
        let mut held = self.settings.lock();
        // The port is known once the server runs, perhaps since the change began.
        let metrics = held.options.metrics;
        *held = wanted;
        held.options.metrics = metrics;
    }

    pub(super) fn put_in_force(&self, settings: &Settings) -> Result<(), Refusal> {
        let engine = engine_settings(settings);
        // Fixed at the mount. The limit that it came from may be lower now: `restart=keep` leaves descriptors to the keeper.
        let change = |now: &mut EngineSettings| *now = EngineSettings { dir_fds: now.dir_fds, ..engine };
        self.union.change(change).map_err(|error| Refusal::usage(error.to_string()))?;
        self.tiers_changed();
        self.adapter.set_timeouts(timeouts(&settings.options));
        if self.level.get() != settings.options.log.level {
            self.level.set(settings.options.log.level);
        }
        Ok(())
    }

    pub(super) fn persist(
        &self,
        wanted: &Settings,
        rows: &[&'static Row],
        dry_run: bool,
    ) -> Result<Option<String>, Refusal> {
        let Some(file) = wanted.options.config.last() else {
            return Err(Refusal::usage(
                "--persist: this pool has no config file: mount it with config=FILE, or change its line in fstab",
            ));
        };
        let value = |row: &&'static Row| Some((row.name(), row.get(&wanted.options)?));
        let values: Vec<(&str, String)> = rows.iter().filter_map(value).collect();
        let shown = Printable::path(file).to_string();
        let edited =
            persist::edited(file, &values).map_err(|why| Refusal::failed(format!("{shown}: {why}")))?;
        check_mounts(file, &edited, &values)?;
        if !dry_run {
            whole_file::replace(file, &edited)
                .map_err(|error| Refusal::failed(format!("{shown}: {error}")))?;
        }
        Ok(Some(shown))
    }
}

/// Refuses a text that would not mount, or not with these values, as another line of it stands against them.
fn check_mounts(file: &Path, text: &str, values: &[(&str, String)]) -> Result<(), Refusal> {
    let shown = Printable::path(file);
    let refused = |why: String| {
        Refusal::usage(format!("--persist: {shown} would not mount with this value: {why}; edit the file"))
    };
    let options = resolve_config(file, text, &World::here()).map_err(|problems| {
        refused(problems.into_iter().map(|problem| problem.text.clone()).collect::<Vec<_>>().join("; "))
    })?;
    for (name, value) in values {
        let read = options::find(name).and_then(|row| row.get(&options));
        if let Some(read) = read.filter(|read| read != value) {
            return Err(refused(format!("another line of it leaves {name}={read}")));
        }
    }
    Ok(())
}

/// Whether the branches were checked for passthrough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    EveryBranch,
    Not,
}

/// True if the change to `wanted` requires passthrough.
fn promises(held: &Settings, wanted: &Settings) -> bool {
    needs_passthrough(wanted) && !needs_passthrough(held)
}

/// Write paths that depend on what the kernel granted at the mount.
fn needs_passthrough(settings: &Settings) -> bool {
    let engine = &settings.options.engine;
    engine.write_path == WritePath::Passthrough
        || engine.rules.iter().any(|rule| rule.how == WritePath::Passthrough)
}

/// Applies one assignment to `wanted`; returns the row that it changes.
fn assign(wanted: &mut Settings, assignment: &Assignment, remount: bool) -> Result<&'static Row, Refusal> {
    let Assignment { key, value } = assignment;
    let row = options::find(key).ok_or_else(|| {
        let known = options::keys().map(Row::name);
        Refusal::usage(format!("{}: unknown key{}", Printable(key.as_bytes()), suggestion(key, known)))
    })?;
    let typed = Typed { name: key, value: value.as_deref().map(OsStr::new), origin: Origin::CommandLine };
    let mut raw = RawOptions::over(wanted.options.clone());
    options::apply(&mut raw, row, &typed).map_err(Refusal::usage)?;
    if let Some(limit) = raw.mlimit {
        place_by_mlimit(&mut wanted.options, limit);
        return Ok(options::find(options::CREATE).unwrap_or(row));
    }
    match row.key {
        Key::Live(_) => wanted.options = raw.options,
        Key::None if remount => take_meaning(wanted, raw, typed.origin)?,
        Key::Settled(_) if remount => {}
        Key::Settled(_) => {
            let text =
                format!("{typed}: settled when the pool is mounted: unmount it and mount it with this value");
            return Err(Refusal::usage(text));
        }
        Key::None => {
            return Err(Refusal::usage(format!("{typed}: no key of a mounted pool: it says how to mount")));
        }
    }
    Ok(row)
}

/// Refuses assignments that a mount with all of them would refuse.
fn check_together(held: &Options, changes: &[Assignment]) -> Result<(), Refusal> {
    let mut raw = RawOptions::over(held.clone());
    for Assignment { key, value } in changes {
        let value = value.as_deref().map(OsStr::new);
        if let Some(row) = options::find(key) {
            options::apply(&mut raw, row, &Typed { name: key, value, origin: Origin::CommandLine })
                .map_err(Refusal::usage)?;
        }
    }
    let mut problems = Problems::default();
    resolve::check_together(raw, &mut problems);
    let problem = problems.into_iter().next().map(|problem| Refusal::usage(problem.text.clone()));
    problem.map_or(Ok(()), Err)
}

/// Takes over the flags that the daemon acts on. The kernel does not change `dirsync` at a remount, and the mount table does not show
/// one that was added: so it is only ever added.
fn take_flags(flags: &mut MountFlags, changes: &[Assignment]) {
    let words = || changes.iter().map(|assignment| assignment.key.as_str());
    flags.synchronous = words().rfind(|word| matches!(*word, "sync" | "async")) == Some("sync");
    flags.synchronous_directories |= words().any(|word| word == "dirsync");
}

/// Changes `wanted` as another program's option means, which was applied to it in `raw`: as far as it can change while mounted.
///
/// # Errors
/// A value that `fsstack set` would refuse.
fn take_meaning(wanted: &mut Settings, mut raw: RawOptions, origin: Origin) -> Result<(), Refusal> {
    take_page_cache(&mut raw);
    for row in options::keys().filter(|row| matches!(row.key, Key::Live(_))) {
        let (Some(is), Some(asked)) = (row.get(&wanted.options), row.get(&raw.options)) else { continue };
        if is != asked {
            let typed = Typed { name: row.name(), value: Some(OsStr::new(&asked)), origin };
            let mut changed = RawOptions::over(wanted.options.clone());
            options::apply(&mut changed, row, &typed).map_err(Refusal::usage)?;
            wanted.options = changed.options;
        }
    }
    Ok(())
}

/// The page cache by mergerfs's options, of which the mount makes one.
fn take_page_cache(raw: &mut RawOptions) {
    let is_given = raw.is_given("cache.writeback");
    let is = &mut raw.options.engine.page_cache;
    match (raw.cache_writeback, raw.cache_files) {
        (true, _) => *is = PageCache::WriteBack,
        (false, None) if is_given && *is == PageCache::WriteBack => *is = PageCache::Off,
        // Beside `cache.writeback`.
        (false, Some(PageCache::On)) if *is == PageCache::WriteBack => {}
        (false, Some(files)) => *is = files,
        (false, None) => {}
    }
}

/// Notices options of a remount that have another value, and keep that of the mount.
fn held_from_the_mount(held: &Settings, changes: &[Assignment]) -> Vec<String> {
    let note = |assignment: &Assignment| {
        let Assignment { key, value } = assignment;
        let row = options::find(key).filter(|row| !matches!(row.key, Key::Live(_)))?;
        let typed = Typed { name: key, value: value.as_deref().map(OsStr::new), origin: Origin::CommandLine };
        let mut raw = RawOptions::over(held.options.clone());
        options::apply(&mut raw, row, &typed).ok()?;
        let stays = options::keys().filter(|key| matches!(key.key, Key::Settled(_))).find_map(|settled| {
            let (is, asked) = (settled.get(&held.options)?, settled.get(&raw.options)?);
            // `auto` was resolved at the mount.
            (is != asked && asked != "auto").then_some((settled.name(), is))
        });
        stays.map(|(name, is)| {
            let of = if name == row.name() { String::new() } else { format!("{name} ") };
            format!("{typed}: {of}stays {is}: unmount the pool and mount it with the new value")
        })
    };
    changes.iter().filter_map(note).collect()
}

/// Restores the floor that `mlimit=` had removed, where another policy is chosen without one. Returns a notice of it.
fn floor_after_mlimit(held: &Options, wanted: &mut Options, changes: &[Assignment]) -> Option<String> {
    let is_mlimit = |options: &Options| options.engine.create == Chain::mlimit(options.engine.create.limit());
    let is_named = |assignment: &Assignment| {
        options::find(&assignment.key).is_some_and(|row| row.name() == options::FLOOR)
    };
    let had_none = held.engine.floor == Floor::NONE && wanted.engine.floor == Floor::NONE;
    if !had_none || !is_mlimit(held) || is_mlimit(wanted) || changes.iter().any(is_named) {
        return None;
    }
    wanted.engine.floor = RawOptions::default().options.engine.floor;
    let floor = wanted.engine.floor;
    Some(format!("{name}: {floor} now, the default: mlimit= had set it to 0", name = options::FLOOR))
}

/// Notices targets of placement rules that no branch is.
fn unknown_targets(pool: &Pool, options: &Options) -> Vec<String> {
    let rules = options.engine.placement.iter();
    let named =
        rules.flat_map(|rule| rule.targets.iter().chain(&rule.then).map(move |target| (rule, target)));
    let note = |(rule, target)| {
        let refusal = check_target(pool, target).err()?;
        Some(format!("{}: {rule}: {}", options::PLACE_RULES, refusal.error))
    };
    named.filter_map(note).collect()
}

fn difference(held: &Settings, wanted: &Settings) -> Vec<Change> {
    let change = |row: &Row| {
        let (from, to) = (row.get(&held.options)?, row.get(&wanted.options)?);
        (from != to).then(|| Change { key: row.name().to_owned(), from, to })
    };
    options::keys().filter_map(change).collect()
}

/// Warns of options that `-o` gave: they override the file at the next mount.
fn shadowed(settings: &Settings, rows: &[&'static Row]) -> Vec<String> {
    let given = rows.iter().map(|row| row.name()).filter(|name| settings.given.contains(name));
    given
        .map(|name| {
            format!("{name}: also stands behind -o (in fstab?), which goes before the file at the next mount")
        })
        .collect()
}

fn no_path(text: &str) -> Refusal {
    let known = WritePath::VARIANTS;
    Refusal::usage(format!(
        "{}: not a write path: {}{}",
        Printable(text.as_bytes()),
        known.join(", "),
        suggestion(text, known.iter().copied())
    ))
}

/// Returns a directory's own rule.
fn rule_of(settings: &Settings, dir: &RuleDir) -> String {
    let own = settings.options.engine.rules.iter().find(|rule| rule.dir == *dir);
    own.map_or_else(|| "inherit".to_owned(), |rule| rule.how.to_string())
}
