//! Changing settings while the pool is served: all that is asked for, or nothing.
//!
//! The settings are locked while they change, and requests for the pool's state wait for them. So no branch is asked
//! anything meanwhile: trials on branches come before.

use super::keys::{self, KEYS, KeyRow};
use super::{Served, persist};
use crate::options::{self, Origin, Typed};
use crate::outside::timeouts;
use crate::raw::RawOptions;
use crate::serve::engine_settings;
use crate::settings::{PageCache, Privilege, Settings, WritePath};
use crate::values::{self, suggestion};
use crate::whole_file;
use fsstack_control::Refusal;
use fsstack_control::api::{
    Assignment, Change, Changed, SettingsRequest, WritePathChanged, WritePathRequest,
};
use fsstack_pool::Printable;
use std::ffi::OsStr;

impl Served {
    pub(super) fn make_changes(&self, request: &SettingsRequest) -> Result<Changed, Refusal> {
        let assigned = |held: &Settings| {
            let mut wanted = held.clone();
            let mut named = Vec::new();
            for assignment in &request.changes {
                named.push(assign(&mut wanted, assignment, request.remount)?);
            }
            Ok((wanted, named))
        };
        let tried = self.try_promise(|held| Ok(assigned(held)?.0))?;
        let mut held = self.settings.lock();
        held.log.level = self.level.get();
        let (wanted, mut named) = assigned(&held)?;
        self.check(&held, &wanted, tried)?;
        let changes = difference(&held, &wanted);
        let mut notes = Vec::new();
        let mut persisted = None;
        if request.persist {
            named.retain(|name| KEYS.iter().any(|row| row.name == *name && row.set.is_some()));
            notes.extend(shadowed(&wanted, &named));
            persisted = self.persist(&wanted, &named, request.dry_run)?;
        }
        if !request.dry_run && !changes.is_empty() {
            self.put_in_force(&wanted)?;
            *held = wanted;
            let told: Vec<String> = changes.iter().map(|c| format!("{}={}", c.key, c.to)).collect();
            tracing::info!("changed by the operator: {}", told.join(", "));
        }
        Ok(Changed { changes, dry_run: request.dry_run, persisted, notes })
    }

    pub(super) fn switch_write_path(&self, request: &WritePathRequest) -> Result<WritePathChanged, Refusal> {
        let path = WritePath::by_name(&request.write_path);
        let switched = |held: &Settings| {
            let mut wanted = held.clone();
            match &request.subtree {
                Some(directory) => {
                    if path.is_none() && request.write_path != "inherit" {
                        return Err(no_path(&request.write_path));
                    }
                    let rules =
                        wanted.write_rules.with(directory.as_bytes(), path.map(WritePath::for_engine));
                    wanted.write_rules =
                        rules.map_err(|error| Refusal::usage(format!("--subtree: {error}")))?;
                }
                None => wanted.write_path = path.ok_or_else(|| no_path(&request.write_path))?,
            }
            Ok(wanted)
        };
        let tried = self.try_promise(switched)?;
        let mut held = self.settings.lock();
        let wanted = switched(&held)?;
        self.check(&held, &wanted, tried)?;
        let (from, key) = match &request.subtree {
            Some(directory) => (rule_of(&held, directory), "write-rules"),
            None => (held.write_path.name().to_owned(), "write-path"),
        };
        let mut persisted = None;
        if !request.only_count {
            if request.persist {
                persisted = self.persist(&wanted, &[key], false)?;
            }
            self.put_in_force(&wanted)?;
            *held = wanted;
        }
        Ok(WritePathChanged {
            from,
            to: request.write_path.clone(),
            subtree: request.subtree.clone(),
            other_way: values::count(self.union.open_by_write_path().other_way),
            persisted,
        })
    }

    /// If `change` makes a promise of passthrough: whether every branch can keep it. A branch may hang: nothing is
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

    /// Promises that only the kernel can keep must be those it made at the mount.
    fn check(&self, held: &Settings, wanted: &Settings, tried: Tried) -> Result<(), Refusal> {
        let buffered = |settings: &Settings| settings.page_cache == PageCache::Writeback;
        if buffered(held) != buffered(wanted) {
            return Err(Refusal::usage(
                "page-cache=writeback: the kernel is told when the pool is mounted: unmount it and mount it with the other value",
            ));
        }
        if let Some(why) = values::too_many_inflight(wanted.branch_inflight, wanted.max_threads) {
            return Err(Refusal::usage(format!("branch-inflight={}: {why}", wanted.branch_inflight)));
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

    fn put_in_force(&self, settings: &Settings) -> Result<(), Refusal> {
        let engine = engine_settings(settings);
        self.union.change(|now| *now = engine).map_err(|error| Refusal::usage(error.to_string()))?;
        self.adapter.set_timeouts(timeouts(settings));
        if self.level.get() != settings.log.level {
            self.level.set(settings.log.level);
        }
        Ok(())
    }

    fn persist(
        &self,
        wanted: &Settings,
        names: &[&'static str],
        dry_run: bool,
    ) -> Result<Option<String>, Refusal> {
        let Some(file) = &wanted.config else {
            return Err(Refusal::usage(
                "--persist: this pool has no config file: mount it with config=FILE, or change its line in fstab",
            ));
        };
        let rows = names.iter().filter_map(|name| KEYS.iter().find(|row| row.name == *name));
        let values: Vec<(&str, String)> = rows.map(|row| (row.name, (row.get)(wanted))).collect();
        let shown = Printable::path(file).to_string();
        let edited =
            persist::edited(file, &values).map_err(|why| Refusal::failed(format!("{shown}: {why}")))?;
        if !dry_run {
            whole_file::replace(file, &edited)
                .map_err(|error| Refusal::failed(format!("{shown}: {error}")))?;
        }
        Ok(Some(shown))
    }
}

/// Whether branches were asked if they can keep a promise of passthrough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    EveryBranch,
    Not,
}

/// Whether the change to `wanted` is a promise of passthrough.
fn promises(held: &Settings, wanted: &Settings) -> bool {
    keys::needs_passthrough(wanted) && !keys::needs_passthrough(held)
}

/// Takes one assignment over into `wanted`: the name of its key.
fn assign(wanted: &mut Settings, assignment: &Assignment, remount: bool) -> Result<&'static str, Refusal> {
    let Assignment { key, value } = assignment;
    let row = options::find(key).ok_or_else(|| {
        let known = KEYS.iter().map(|row| row.name);
        Refusal::usage(format!("{}: unknown key{}", Printable(key.as_bytes()), suggestion(key, known)))
    })?;
    let typed = Typed { name: key, value: value.as_deref().map(OsStr::new), origin: Origin::CommandLine };
    let mut raw = RawOptions::default();
    options::apply(&mut raw, row, &typed).map_err(Refusal::usage)?;
    if let Some(limit) = raw.mlimit.get() {
        keys::set_mlimit(wanted, *limit);
        return Ok("create");
    }
    let name = row.name();
    match KEYS.iter().find(|known| known.name == name) {
        Some(KeyRow { set: Some(set), .. }) => set(wanted, &raw),
        Some(_) | None if remount => {}
        Some(_) => {
            let text =
                format!("{typed}: settled when the pool is mounted: unmount it and mount it with this value");
            return Err(Refusal::usage(text));
        }
        None => {
            return Err(Refusal::usage(format!("{typed}: no key of a mounted pool: it says how to mount")));
        }
    }
    Ok(name)
}

fn difference(held: &Settings, wanted: &Settings) -> Vec<Change> {
    let change = |row: &KeyRow| {
        let (from, to) = ((row.get)(held), (row.get)(wanted));
        (from != to).then(|| Change { key: row.name.to_owned(), from, to })
    };
    KEYS.iter().filter_map(change).collect()
}

/// Options given with `-o` apply again at the next mount, whatever the file says.
fn shadowed(settings: &Settings, names: &[&'static str]) -> Vec<String> {
    let given = names.iter().filter(|name| settings.given.contains(name));
    given
        .map(|name| {
            format!("{name}: also stands behind -o (in fstab?), which goes before the file at the next mount")
        })
        .collect()
}

fn no_path(text: &str) -> Refusal {
    let known = WritePath::NAMES.map(|(name, _)| name);
    Refusal::usage(format!(
        "{}: not a write path: {}{}",
        Printable(text.as_bytes()),
        known.join(", "),
        suggestion(text, known)
    ))
}

/// The rule that a directory has of its own.
fn rule_of(settings: &Settings, directory: &str) -> String {
    let plain = directory.trim_matches('/').as_bytes();
    let own = settings.write_rules.iter().find(|rule| &*rule.dir == plain);
    own.map_or_else(|| "inherit".to_owned(), |rule| rule.how.to_string())
}
