//! Adding, removing and changing branches of a mounted pool.
//!
//! A branch with open files is removed by its own thread, which waits until they are closed; the client repeats its
//! request until the branch is gone. Setting a mode cancels the removal. The first request registers the removal before
//! it begins, so that a branch has at most one thread and one flag that cancels it.

use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::Served;
use super::rules::left_without;
use crate::branches::{self, Demand, Elsewhere};
use crate::keeper;
use crate::pattern;
use crate::problem::Problems;
use crate::remembered::Remembered;
use crate::remount::held_flags;
use crate::restrictions::Restrictions;
use crate::values;
use crate::world::World;
use fsstack_control::Refusal;
use fsstack_control::api::{BranchChanged, BranchRequest};
use fsstack_control::local_locks;
use fsstack_control::registry::{self, DirectoryId, RegistryBranch, RegistryEntry};
use fsstack_engine::admin::live::{BadChange, Position, Removal};
use fsstack_engine::jobs::JobView;
use fsstack_engine::member::Member;
use fsstack_pool::{BranchIx, BranchMode, BranchSpec, Floor, Printable, parse_source};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Branches that are removed when their files are closed, each with its cancel flag.
pub(crate) type Leaving = Arc<Mutex<HashMap<BranchIx, Arc<AtomicBool>>>>;

/// Registration of the one pending removal of a branch, until dropped.
struct Departure {
    of: BranchIx,
    called_off: Arc<AtomicBool>,
    noted: Leaving,
}

impl Departure {
    /// Registers it; `None` if the branch has one already.
    fn note(of: BranchIx, noted: &Leaving) -> Option<Self> {
        match noted.lock().entry(of) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                let called_off = free.insert(Arc::default()).clone();
                Some(Self { of, called_off, noted: noted.clone() })
            }
        }
    }

    fn goes_on(&self) -> bool {
        !self.called_off.load(Relaxed)
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.noted.lock().remove(&self.of);
    }
}

impl Served {
    pub(super) fn change_branch(&self, request: &BranchRequest) -> Result<BranchChanged, Refusal> {
        let changed = match request {
            BranchRequest::Add { branch } => self.add(branch),
            BranchRequest::Remove { branch, only_ask: true, .. } => self.removal(branch),
            BranchRequest::Remove { branch, when_idle, .. } => self.remove(branch, *when_idle),
            BranchRequest::Mode { branch, mode } => self.set_mode(branch, mode),
            BranchRequest::Floor { branch, floor } => self.set_floor(branch, floor),
            BranchRequest::Forget { branch } => self.forget_branch(branch),
        };
        changed.inspect(|_| self.relist())
    }

    fn add(&self, text: &str) -> Result<BranchChanged, Refusal> {
        let specs = parse_source(OsStr::new(text)).map_err(|error| Refusal::usage(error.to_string()))?;
        let [spec] = specs.as_slice() else {
            return Err(Refusal::usage(format!("{text}: one branch at a time")));
        };
        check_presence(spec)?;
        let mut problems = Problems::default();
        let (require, remembered) = {
            let options = &self.settings.lock().options;
            (options.require, Remembered::in_dir(options.engine.state_dir.as_deref()))
        };
        let timeout = Duration::ZERO;
        let demand =
            Demand { require, remembered: remembered.clone(), elsewhere: Elsewhere::default(), timeout };
        let world = World::here();
        let found = branches::find(std::slice::from_ref(spec), &demand, &world, &mut problems);
        // The settings are not locked during a request to a file system, which may hang.
        let mount_point = self.settings.lock().mount_point.clone();
        branches::refuse_around(&mount_point, &found, &mut problems);
        let mut taken = Problems::default();
        branches::refuse_taken(&found, Some(&self.id), &world, &mut taken);
        if let Some(problem) = taken.into_iter().next() {
            return Err(Refusal::busy(problem.text.clone()));
        }
        if let Some(problem) = problems.into_iter().next() {
            return Err(Refusal::usage(problem.text.clone()));
        }
        let [branch] = found.as_slice() else {
            return Err(Refusal::usage(format!(
                "{text}: a pattern for several directories: add them one by one"
            )));
        };
        check_restrictions(&branch.spec.path, &mount_point)?;
        let checked = (branch.id.device, branch.id.inode);
        self.union.add_found_branch(&branch.spec, Some(checked), Position::Last).map_err(refused)?;
        remembered.note(&found, &world);
        Ok(BranchChanged {
            branch: Printable::path(&branch.spec.path).to_string(),
            from: String::new(),
            to: branch.spec.to_string(),
            waits_for: 0,
            notes: Vec::new(),
        })
    }

    fn remove(&self, text: &str, when_idle: bool) -> Result<BranchChanged, Refusal> {
        let branch = self.known(text)?;
        self.check_no_job(&branch)?;
        let notes = left_without(&self.union, &branch);
        let gone = |waits_for| BranchChanged { notes: notes.clone(), ..gone(&branch, waits_for) };
        if !when_idle {
            return self.union.remove_branch(branch.ix, Removal::IfIdle).map(|()| gone(0)).map_err(refused);
        }
        let departure = Departure::note(branch.ix, &self.leaving).filter(|_| !branch.is_leaving());
        let Some(departure) = departure else {
            // The waiting thread may notice the last close a moment later.
            return Ok(gone(branch.open_files().max(1)));
        };
        match self.union.remove_branch(branch.ix, Removal::IfIdle) {
            Ok(()) => Ok(gone(0)),
            Err(BadChange::InUse { open, .. }) => self.wait_for(departure).map(|()| gone(open)),
            Err(error) => Err(refused(error)),
        }
    }

    /// Reports the progress of a removal; a removed branch is unknown.
    fn removal(&self, text: &str) -> Result<BranchChanged, Refusal> {
        // It has left: the registry is brought up to date before the command has its answer.
        let branch = self.known(text).inspect_err(|_| self.relist())?;
        // Registered before its thread starts.
        if branch.is_leaving() || self.leaving.lock().contains_key(&branch.ix) {
            return Ok(gone(&branch, branch.open_files().max(1)));
        }
        let shown = Printable::path(&branch.path);
        Err(Refusal::busy(format!("{shown}: it stays: its removal was called off")))
    }

    fn wait_for(&self, departure: Departure) -> Result<(), Refusal> {
        let (union, served) = (self.union.clone(), self.itself.clone());
        let thread = fsstack_sync::thread::Builder::new().name("branch-leaving".into());
        let waiting = move || {
            let removed = union.remove_branch(departure.of, Removal::WhenIdle(&|| departure.goes_on()));
            match removed {
                // Before the departure is over, which the command waits for.
                Ok(()) => _ = served.upgrade().map(|served| served.relist()),
                Err(why) => tracing::info!(%why, "branch not removed"),
            }
            drop(departure);
        };
        thread.spawn(waiting).map(drop).map_err(|error| Refusal::failed(format!("thread: {error}")))
    }

    /// # Errors
    /// Refuses if a job empties the branch.
    fn check_no_job(&self, branch: &Member) -> Result<(), Refusal> {
        match self.union.jobs().iter().find(|job| job.drained == Some(branch.ix) && !job.state.is_over()) {
            None => Ok(()),
            Some(JobView { id, .. }) => {
                let shown = Printable::path(&branch.path);
                Err(Refusal::busy(format!("{shown}: job {id} empties it; fsstack job cancel ends that")))
            }
        }
    }

    fn set_mode(&self, text: &str, mode: &str) -> Result<BranchChanged, Refusal> {
        let branch = self.known(text)?;
        self.check_no_job(&branch)?;
        let to: BranchMode = mode.parse().map_err(|error| Refusal::usage(format!("{error}")))?;
        if let Some(called_off) = self.leaving.lock().get(&branch.ix) {
            called_off.store(true, Relaxed);
        }
        let from = branch.given_mode();
        self.union.set_branch_mode(branch.ix, to).map_err(refused)?;
        self.union.forget_drain(branch.ix);
        let notes = match to {
            BranchMode::ReadWrite => Vec::new(),
            BranchMode::NoCreate | BranchMode::ReadOnly => left_without(&self.union, &branch),
        };
        Ok(BranchChanged { notes, ..changed(&branch, from.name(), to.name()) })
    }

    fn set_floor(&self, text: &str, floor: &str) -> Result<BranchChanged, Refusal> {
        let branch = self.known(text)?;
        let to: Option<Floor> = match floor {
            "pool" => None,
            own => Some(own.parse().map_err(|error| Refusal::usage(format!("{error}")))?),
        };
        let shown = |floor: Option<Floor>| floor.map_or_else(|| "pool".to_owned(), |floor| floor.to_string());
        let from = branch.floor();
        self.union.set_branch_floor(branch.ix, to, branch.min_inodes()).map_err(refused)?;
        Ok(changed(&branch, &shown(from), &shown(to)))
    }

    /// Finds the branch that `text` names by its path, or a path that resolves to it.
    pub(super) fn known(&self, text: &str) -> Result<Arc<Member>, Refusal> {
        let pool = self.union.pool();
        let path = std::path::Path::new(text);
        let of = |leads: &std::path::Path| pool.branches.iter().find(|branch| branch.path == leads);
        let as_shown =
            || pool.branches.iter().find(|branch| Printable::path(&branch.path).to_string() == text);
        // The path is resolved last: removing a hung branch must not make a request to it.
        let found = of(path)
            .or_else(as_shown)
            .or_else(|| std::fs::canonicalize(path).ok().and_then(|leads| of(&leads)));
        found.cloned().ok_or_else(|| {
            let known: Vec<String> =
                pool.branches.iter().map(|branch| Printable::path(&branch.path).to_string()).collect();
            Refusal::missing(format!(
                "{}: no branch of this pool; there are {}",
                Printable(text.as_bytes()),
                known.join(", ")
            ))
        })
    }

    /// Updates the registry, so that other pools see the present branches.
    pub(super) fn relist(&self) {
        self.note_state();
        let Some(registry) = &self.registry else { return };
        let of = |branch: &Arc<Member>| {
            RegistryBranch::new(DirectoryId { device: branch.dev(), inode: branch.root_ino }, &branch.path)
        };
        let mount_point = self.settings.lock().mount_point.clone();
        let entry = || {
            let branches = self.union.pool().branches.iter().map(of).collect();
            RegistryEntry::of_process(keeper::known_by(self.union.kept()), &mount_point, branches)
        };
        let written = registry::rewrite(registry, &self.id, entry);
        if let Err(error) = written {
            tracing::warn!("{}: cannot be written: {error}", Printable::path(registry));
        }
    }
}

/// Refuses a branch that does not exist: a live pool does not wait for it, as a mount can.
fn check_presence(spec: &BranchSpec) -> Result<(), Refusal> {
    let Some(pattern) = spec.pattern() else {
        let missing =
            std::fs::metadata(&spec.path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        let shown = Printable::path(&spec.path);
        return match missing {
            true => {
                Err(Refusal::missing(format!("branch {shown}: missing; create it, or mount its disk first")))
            }
            false => Ok(()),
        };
    };
    match pattern::directories(pattern) {
        Ok(found) if found.is_empty() => Err(Refusal::missing(format!(
            "branch {}: no directory matches; mount its disk first",
            Printable(pattern.as_bytes())
        ))),
        // Another error is reported when the branch is found.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn changed(branch: &Member, from: &str, to: &str) -> BranchChanged {
    BranchChanged {
        branch: Printable::path(&branch.path).to_string(),
        from: from.to_owned(),
        to: to.to_owned(),
        waits_for: 0,
        notes: Vec::new(),
    }
}

/// Refuses a branch whose mount has restrictions that the pool's mount lacks. They would have to apply to the whole
/// pool, which cannot change by itself; the operator decides that.
fn check_restrictions(branch: &Path, pool: &Path) -> Result<(), Refusal> {
    let table = fsstack_sys::mounts::list().map_err(|error| Refusal::failed(error.to_string()))?;
    let Some(held) = table.iter().rfind(|mount| mount.mount_point == pool).map(held_flags) else {
        return Ok(()); // detached: nobody comes in any more
    };
    let lacking = Restrictions::at(branch, &table).beyond(&held);
    if lacking.is_none() {
        local_locks::warn(branch, &table);
        return Ok(());
    }
    let (branch, pool) = (Printable::path(branch), Printable::path(pool));
    Err(Refusal::usage(format!(
        "branch {branch}: its mount has {lacking}, which would not hold by way of the pool: mount -o remount,{lacking} {pool} \
         first, or mount the branch without"
    )))
}

fn gone(branch: &Member, waits_for: usize) -> BranchChanged {
    BranchChanged {
        branch: Printable::path(&branch.path).to_string(),
        from: branch.given_mode().name().to_owned(),
        to: if waits_for == 0 { String::new() } else { "leaving".to_owned() },
        waits_for: values::count(waits_for),
        notes: Vec::new(),
    }
}

pub(super) fn refused(error: BadChange) -> Refusal {
    match &error {
        BadChange::InUse { .. } => Refusal::busy(format!("{error} (--when-idle)")),
        BadChange::Busy
        | BadChange::Last
        | BadChange::Leaving(_)
        | BadChange::Awaiting(_)
        | BadChange::InPool(_)
        | BadChange::Replaced(_) => Refusal::busy(error.to_string()),
        BadChange::NoBranch(_) => Refusal::missing(error.to_string()),
        BadChange::NotKept | BadChange::Remembered { .. } => Refusal::failed(error.to_string()),
        BadChange::Unopened { .. }
        | BadChange::Double { .. }
        | BadChange::SameId(_)
        | BadChange::TooMany
        | BadChange::NotExported
        | BadChange::NoPassthrough { .. } => Refusal::usage(error.to_string()),
    }
}
