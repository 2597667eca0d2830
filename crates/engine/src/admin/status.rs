//! State of the pool, for people and their tools.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use fsstack_branch::health::{Queued, queued};
use fsstack_branch::metrics::{BranchMetricsSnapshot, PoolMetricsSnapshot};
use fsstack_pool::{BranchId, BranchIx, BranchMode, Class, Floor, PlacementRule, ResolvedRule, Space};
use fsstack_sync::atomic::Ordering::Relaxed;

use crate::files::OpenFile;
use crate::files::decision::PathDecision;
use crate::inode::Inode;
use crate::member::Member;
use crate::pool::Pool;
use crate::tree::clashes::Clashes;
use crate::union::{TableCounts, Union};

/// The pool at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// The branches in order.
    pub branches: Vec<BranchStatus>,
    /// Open files.
    pub open: OpenByWritePath,
    /// Sizes of the tables.
    pub held: TableCounts,
    /// Sizes of those that have a bound of their own.
    pub bounded: Vec<TableSize>,
    /// Counters since the mount.
    pub metrics: PoolMetricsSnapshot,
    /// Transport of requests, if known.
    pub transport: Option<&'static str>,
    /// The placement rules, by path.
    pub rules: Vec<RuleStatus>,
    /// Objects that came to lie against them since the mount, or since a job last counted them.
    pub misplaced: u64,
}

/// Size of a table that programs can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Name of its entries.
    pub name: &'static str,
    /// Number of entries.
    pub entries: usize,
    /// The most that there may be.
    pub limit: usize,
}

/// A placement rule in this pool.
#[derive(Clone, Debug)]
pub struct RuleStatus {
    /// The rule.
    pub rule: Arc<PlacementRule>,
    /// Paths of the branches that it names, in order; all, if it names none.
    pub branches: Vec<PathBuf>,
}

/// One branch at one moment.
#[derive(Clone, Debug)]
pub struct BranchStatus {
    /// Its slot.
    pub slot: BranchIx,
    /// Its durable id.
    pub id: BranchId,
    /// Where it was when it was added.
    pub path: PathBuf,
    /// Its class.
    pub class: Option<Class>,
    /// The mode that it was given.
    pub mode: BranchMode,
    /// It goes when its files are closed.
    pub leaving: bool,
    /// It is on a disk of this machine.
    pub local: bool,
    /// Its file system can only be read, whatever its mode.
    pub mounted_read_only: bool,
    /// Its space, as placement sees it; None: it does not answer.
    pub space: Option<Space>,
    /// Its floor in bytes, as placement counts it.
    pub floor: u64,
    /// The floor as it was given to the branch, or to the pool.
    pub floor_set: Floor,
    /// Inodes that it keeps free.
    pub min_inodes: u64,
    /// Bytes promised to copies that are under way.
    pub reserved: u64,
    /// Files open on it.
    pub open_files: usize,
    /// Those that wait for it.
    pub queued: Queued,
    /// Its calls and their results.
    pub metrics: BranchMetricsSnapshot,
    /// The kernel has refused passthrough there.
    pub refuses_passthrough: bool,
}

/// Open files (not handles) by write path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenByWritePath {
    /// The kernel reads and writes them.
    pub passthrough: usize,
    /// The daemon does.
    pub stacked: usize,
    /// Those among them that would go the other way, were they opened now.
    pub other_way: usize,
}

/// An open file that goes another way than it would now.
#[derive(Clone, Debug)]
pub struct OtherWritePath {
    /// Its path below the pool's root, if it still has a name.
    pub path: Option<Vec<u8>>,
    /// Why it goes as it does.
    pub is: PathDecision,
    /// How it would go, were it opened now.
    pub would: PathDecision,
}

impl Union {
    /// The pool as it is now. Asks branches for their space at most once a second.
    pub fn status(&self) -> Status {
        let pool = self.tree.pool.load();
        Status {
            branches: pool.branches.iter().map(|branch| branch_status(&pool, branch)).collect(),
            open: self.open_by_write_path(),
            held: self.held(),
            bounded: bounded_tables(self, &pool),
            metrics: self.tree.metrics.snapshot(),
            transport: self.transport(),
            rules: self.rules(),
            misplaced: self.tree.misplaced.load(Relaxed),
        }
    }

    /// The placement rules, by path.
    pub fn rules(&self) -> Vec<RuleStatus> {
        let pool = self.tree.pool.load();
        let named = |rule: &ResolvedRule| {
            let named = pool.branches.iter().filter(|branch| rule.home().contains(branch.ix));
            RuleStatus {
                rule: rule.rule.clone(),
                branches: named.map(|branch| branch.path.clone()).collect(),
            }
        };
        pool.rules.rules().iter().map(named).collect()
    }

    /// Open files by write path.
    pub fn open_by_write_path(&self) -> OpenByWritePath {
        let pool = self.tree.pool.load();
        let mut ways = OpenByWritePath::default();
        for (inode, file, because) in self.open_regular() {
            if because.is_passthrough() {
                ways.passthrough += 1;
            } else {
                ways.stacked += 1;
            }
            if self.files.choose_again(&pool, &inode, &file).is_passthrough() != because.is_passthrough() {
                ways.other_way += 1;
            }
        }
        ways
    }

    /// The open files that would go another way, were they opened now: `most` of them at most.
    pub fn other_way(&self, most: usize) -> Vec<OtherWritePath> {
        let pool = self.tree.pool.load();
        let differing = self.open_regular().into_iter().filter_map(|(inode, file, is)| {
            let would = self.files.choose_again(&pool, &inode, &file);
            let differs = would.is_passthrough() != is.is_passthrough();
            differs.then(|| OtherWritePath { path: inode.path(), is, would })
        });
        differing.take(most).collect()
    }

    /// Each open regular file once, and why it goes as it does.
    fn open_regular(&self) -> Vec<(Arc<Inode>, Arc<OpenFile>, PathDecision)> {
        let mut seen: HashSet<*const OpenFile> = HashSet::new();
        let mut files = Vec::new();
        for handle in &self.files.handles {
            if handle.inode.kind == fsstack_sys::Kind::File && seen.insert(Arc::as_ptr(&handle.file)) {
                files.push((handle.inode.clone(), handle.file.clone()));
            }
        }
        // What an open file knows is asked with no shard of the table held.
        files
            .into_iter()
            .filter_map(|(inode, file)| {
                let because = file.because()?;
                Some((inode, file, because))
            })
            .collect()
    }
}

fn bounded_tables(union: &Union, pool: &Pool) -> Vec<TableSize> {
    let Union { tree, files, moves, jobs, .. } = union;
    let branches = || pool.branches.iter();
    let tables = [
        ("removed-objects", (tree.unlinked_inodes.open(), tree.unlinked_inodes.limit())),
        ("unsynced-directories", sum(branches().map(|branch| branch.unsynced.size()))),
        ("catalogue-changes", sum(branches().map(|branch| branch.uncatalogued.size()))),
        ("refused-moves", moves.refusals.size()),
        ("conflicts", sum([&tree.clashes, &tree.unlike, &tree.unfit].into_iter().map(Clashes::size))),
        ("files-making-way", files.making_way.size()),
        ("awaited-closes", jobs.list.awaited_size()),
        ("hard-links", jobs.linked.size()),
    ];
    tables.map(|(name, (entries, limit))| TableSize { name, entries, limit }).to_vec()
}

/// Sums the entries and the limits of several tables.
fn sum(sizes: impl Iterator<Item = (usize, usize)>) -> (usize, usize) {
    sizes.fold((0, 0), |(entries, limit), (more, most)| (entries + more, limit + most))
}

fn branch_status(pool: &Pool, branch: &Arc<Member>) -> BranchStatus {
    let space = branch.space().ok();
    let floor_set = branch.floor().unwrap_or(pool.settings.floor);
    BranchStatus {
        slot: branch.ix,
        id: branch.id,
        path: branch.path.clone(),
        class: branch.class.clone(),
        mode: branch.given_mode(),
        leaving: branch.is_leaving(),
        local: branch.kind.is_local(),
        mounted_read_only: branch.is_mounted_read_only(),
        space,
        floor: floor_set.bytes_of(space.map_or(0, |space| space.total)),
        floor_set,
        min_inodes: branch.min_inodes().unwrap_or(pool.settings.min_inodes),
        reserved: branch.reserved(),
        open_files: branch.open_files(),
        queued: queued(branch),
        metrics: branch.metrics.snapshot(),
        refuses_passthrough: branch.refuses_passthrough(),
    }
}
