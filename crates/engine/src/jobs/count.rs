//! The first walk of a drain: it counts what is on the branch, and finds out whether the other branches have room for it.

use std::sync::Arc;

use fsstack_branch::admin_state::moving_here;
use fsstack_pool::{BranchIx, BranchSet, Printable, Size};
use fsstack_sync::atomic::Ordering::Relaxed;

use super::planning::room::Plan;
use super::walk::{HIDDEN, MetFile, Visitor};
use super::{Amount, HiddenCopies, Job, Jobs};
use crate::inode::Inode;
use crate::moves::hidden::HiddenName;
use crate::moves::reasons::HIDES;
use crate::tree::placement::placement_of;

/// Names in a refusal.
const SHOWN: usize = 5;
/// Parts of a file of which only names are counted.
const PARTS: u64 = 1 << 32;

impl Jobs {
    /// Counts what is on the branch, and finds out whether it can leave.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub(super) fn check_room(
        &self,
        job: &Job,
        from: BranchIx,
        targets: &[BranchIx],
    ) -> std::result::Result<(), String> {
        self.check_keeps_none(job, from)?;
        let (mut rooms, others) = (self.rooms(targets), self.left_by_others(job));
        // The bytes that another drain is copying are reserved here, and count as left to move there.
        for room in rooms.iter_mut().filter(|room| others.iter().any(|(dev, _)| *dev == room.dev)) {
            room.bytes =
                room.bytes.saturating_add(moving_here(self.pool().branch(room.branch)).load(Relaxed));
        }
        let mut plan = Plan::new(rooms).from_device(self.pool().branch(from).dev());
        for (dev, left) in others {
            plan.take(dev, left.files, left.bytes);
        }
        let mut count = Count {
            jobs: self,
            job,
            from,
            plan,
            hidden: Vec::new(),
            hides: 0,
            ruled: 0,
            left_out: LeftOut::default(),
        };
        self.walk_branch(job, from, &mut count);
        count.place_left_out(true);
        let Count { plan, hidden, hides, ruled, .. } = count;
        job.progress.lock().shares = plan.shares().to_vec();
        if hides > 0 {
            let names: Vec<String> = hidden.iter().map(|path| Printable(path).to_string()).collect();
            let more = if hides > names.len() as u64 { ", ..." } else { "" };
            return Err(format!(
                "{}: {hides} of its objects are hidden by other branches' objects of the same name: {}{more}: --hidden=move \
                 sets them aside on another branch, --hidden=delete removes those that are the same",
                job.subject,
                names.join(", ")
            ));
        }
        if plan.lacking() == 0 && plan.homeless() > 0 {
            return Err(format!(
                "{}: the other branches lack free inodes for {} of its files, above their min-inodes",
                job.subject,
                plan.homeless()
            ));
        }
        if plan.lacking() > 0 {
            let kept = match ruled {
                0 => String::new(),
                ruled => format!(
                    "; strict placement rules keep {ruled} of its files from the others (fsstack rule)"
                ),
            };
            return Err(format!(
                "{}: the other branches lack room for {} of it, above their floors{kept}",
                job.subject,
                Size(plan.lacking()).approx()
            ));
        }
        Ok(())
    }

    /// Files that other drains at work have still to move, by the device numbers of the file systems that they are planned for.
    fn left_by_others(&self, job: &Job) -> Vec<(u64, Amount)> {
        let others: Vec<Arc<Job>> = self.list.state.lock().jobs.to_vec();
        let pool = self.pool();
        let mut all = Vec::new();
        for other in others.iter().filter(|other| other.id != job.id && !other.work.manner().dry_run) {
            let Some(from) = other.work.drained() else { continue };
            let progress = other.progress.lock();
            if progress.state.is_over() {
                continue;
            }
            let (found, moved) = (progress.found, progress.moved);
            for share in &progress.shares {
                let dev = pool.branch(share.branch).dev();
                if dev != pool.branch(from).dev() {
                    let files = part_left(share.files, found.files, moved.files);
                    all.push((
                        dev,
                        Amount { files, bytes: part_left(share.bytes, found.bytes, moved.bytes) },
                    ));
                }
            }
        }
        all
    }
}

/// How much of a `share` in `found` is left when `moved` of these are gone.
fn part_left(share: u64, found: u64, moved: u64) -> u64 {
    let left = u128::from(share) * u128::from(found.saturating_sub(moved)) / u128::from(found.max(1));
    u64::try_from(left).unwrap_or(u64::MAX)
}

/// The first walk.
struct Count<'a> {
    jobs: &'a Jobs,
    job: &'a Job,
    from: BranchIx,
    plan: Plan,
    /// The first of the names that are hidden, and how many there are.
    hidden: Vec<Vec<u8>>,
    hides: u64,
    /// Files that a strict placement rule keeps from all branches with room.
    ruled: u64,
    left_out: LeftOut,
}

/// Files that the first walk leaves out as it remembers too many names. Each name is its share of a file.
#[derive(Debug, Default)]
struct LeftOut {
    /// In [`PARTS`] of a file.
    files: u64,
    /// Those that the plan has.
    placed: u64,
    /// Bytes of the others.
    bytes: u64,
}

impl Count<'_> {
    /// Takes the files that are left out and whole by now into the plan; at the end the rest of one too.
    fn place_left_out(&mut self, rest: bool) {
        let LeftOut { files, placed, bytes } = &mut self.left_out;
        let whole = if rest { files.div_ceil(PARTS) } else { *files / PARTS };
        if whole > *placed {
            *placed += 1;
            let bytes = std::mem::take(bytes);
            self.plan.place(bytes, &[BranchSet::ALL]);
            self.job.progress.lock().found.add(bytes);
        }
    }
}

impl<'a> Visitor<'a> for Count<'_> {
    fn files(&mut self, files: Vec<MetFile<'a>>) {
        let mut found = Amount::default();
        for file in files {
            let pool = self.jobs.pool();
            let hides_may_go = self.job.work.hidden() != HiddenCopies::Stop;
            let why = |name| {
                let why = self.jobs.tree.why_not_from(&pool, name, self.from);
                why.filter(|why| !hides_may_go || *why != HIDES)
            };
            if let Some(why) = file.names.iter().find_map(why).or(file.why_frozen()) {
                self.stays(file.path, why);
                continue;
            }
            let placement = placement_of(&pool, &file.names);
            let allowed = placement.allowed();
            if self.plan.place(file.bytes, &[placement.home(), allowed]).is_none()
                && allowed != BranchSet::ALL
            {
                self.ruled += 1;
            }
            found.add(file.bytes);
        }
        let mut progress = self.job.progress.lock();
        progress.found.files += found.files;
        progress.found.bytes += found.bytes;
    }

    fn hidden(&mut self, hidden: &HiddenName<'_>) {
        let how = (self.job.work.hidden(), self.job.work.manner());
        match how.0 {
            HiddenCopies::Stop => self.stays(hidden.path.to_vec(), HIDDEN),
            HiddenCopies::Move | HiddenCopies::Delete => match self.jobs.moves.foresee_hidden(hidden, how) {
                // A copy that is set aside takes its room; it does not count as moved.
                Ok(bytes) if how.0 == HiddenCopies::Move => _ = self.plan.place(bytes, &[BranchSet::ALL]),
                Ok(_) => {}
                Err(why) => self.stays(hidden.path.to_vec(), why),
            },
        }
    }

    fn left_out(&mut self, _path: Vec<u8>, bytes: u64, links: u32, _why: &'static str) {
        let links = u64::from(links);
        self.left_out.files += PARTS / links;
        self.left_out.bytes += bytes / links;
        self.place_left_out(false);
    }

    fn stays(&mut self, path: Vec<u8>, why: &'static str) {
        if why == HIDDEN {
            self.hides += 1;
            if self.hidden.len() < SHOWN {
                self.hidden.push(path.clone());
            }
        }
        self.job.leaves_out(path, why);
    }

    fn dir(&mut self, _: &Arc<Inode>) {}
}
