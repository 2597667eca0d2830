//! The command line as clap parses it; also the source of help, man page and completions.

mod diagnosis;

pub(super) use diagnosis::{Check, Du, Find, Log, Profile, Support};
mod rule;
mod tier;

pub(super) use rule::{Rule, RuleAction};
pub(super) use tier::{Tier, TierAction};

use super::show::Style;
use crate::nfs::Clients;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Shows, switches and explains the pools of this machine.
#[derive(Debug, Parser)]
#[command(name = "fsstack", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(
    after_help = "POOL is a mount point, a name as `fsstack list` shows it, or the beginning of such a name.\n\
Pools are mounted by mount(8): mount -t fsstack /branch1:/branch2 /mount/point\n\
Exit status: 0 done, 1 refused in the current state, 2 usage error, 3 not found, 4 daemon not running, 5 permission denied."
)]
pub struct Arguments {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON (schemas: docs/schema).
    #[arg(long, global = true)]
    pub json: bool,
}

impl Arguments {
    /// Output format.
    pub(crate) fn style(&self) -> Style {
        if self.json { Style::Json } else { Style::Human }
    }
}

/// Subcommands of `fsstack`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the mounted pools.
    List,
    /// Show a pool, or all: branches, free space, errors, open files.
    Status {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: Option<OsString>,
    },
    /// Show the pool's keys, or one.
    Get {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The key: an option of the mount.
        key: Option<String>,
    },
    /// Change keys of a mounted pool, all of them or none.
    Set(Set),
    /// Change the write path; takes effect at the next open of a file that is not open.
    WritePath(WritePathArguments),
    /// Add, remove or change a branch of a mounted pool.
    Branch(BranchArguments),
    /// List, set or remove placement rules: where new files of a directory go.
    Rule(Rule),
    /// Have files of a class of branches move to another class when it is full.
    Tier(Tier),
    /// Move files until the branches of a pool are about as full.
    Balance(Balance),
    /// Move all files below a directory to one branch.
    Consolidate(Consolidate),
    /// List, show, pause or cancel the jobs of a pool.
    Job(Job),
    /// Replace the pool's daemon by another version, or restart it, under open files.
    Upgrade(Upgrade),
    /// Show the branch of each path, and the path there.
    Where {
        /// Paths in a pool.
        #[arg(required = true, value_hint = ValueHint::AnyPath)]
        paths: Vec<PathBuf>,
        /// Look in the pool's catalogue, without asking its branches (catalogue=on); symbolic links in a path are not followed.
        #[arg(long)]
        catalogue: bool,
    },
    /// Show sizes of directories from a pool's catalogue, without asking its branches (catalogue=on).
    Du(Du),
    /// Find names in a pool from its catalogue, without asking its branches (catalogue=on).
    Find(Find),
    /// Explain a path's placement, or where a new file would be put.
    Explain(Explain),
    /// Copy files and trees into a pool, directly onto the branches that its policy chooses.
    Copy(Copy),
    /// Show and check a pool's NFS export.
    Nfs(Nfs),
    /// Compare the branches of a pool name by name: what differs or is hidden; --fix mends it.
    Check(Check),
    /// Check the kernel, limits and branches of a pool, or all: ok, warn or fail.
    Doctor {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: Option<OsString>,
    },
    /// Show live figures: branches, open files, and the CPU of each process in the stack.
    Top {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
    },
    /// Show calls that took long: operation, path, branch, program; sets from when a call is slow.
    Log(Log),
    /// Show who does what: calls, their duration and bytes by program, user or directory, in an interval.
    Profile(Profile),
    /// Write a text with what a bug report needs: versions, options, state, doctor, metrics, log.
    Support(Support),
    /// Print the pool's metrics (OpenMetrics).
    #[command(after_help = "It refuses --json: it prints text only.")]
    Metrics {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
    },
    /// Print a generated page: man page, completions, command reference.
    #[command(hide = true)]
    Print {
        /// The page.
        page: String,
    },
}

/// Arguments of `fsstack set`.
#[derive(Debug, Args)]
pub struct Set {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// KEY=VALUE: options of the mount.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub changes: Vec<String>,
    /// Only show what would change.
    #[arg(long)]
    pub dry_run: bool,
    /// Also write the changes to the pool's config file.
    #[arg(long)]
    pub persist: bool,
}

/// Arguments of `fsstack write-path`.
#[derive(Debug, Args)]
pub struct WritePathArguments {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// auto, passthrough or stacked; with --subtree also inherit, which removes the directory's rule.
    #[arg(value_name = "WAY")]
    pub path: String,
    /// Only for files below this directory of the pool, which need not exist: a path below the mount point, one from the working
    /// directory in the pool, or an absolute one from the pool's root.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub subtree: Option<PathBuf>,
    /// Wait until no file is open by the other path.
    #[arg(long)]
    pub wait: bool,
    /// Also write it to the pool's config file.
    #[arg(long)]
    pub persist: bool,
}

/// Arguments of `fsstack branch`.
#[derive(Debug, Args)]
pub struct BranchArguments {
    /// Subcommand.
    #[command(subcommand)]
    pub action: BranchAction,
}

/// Subcommands of `fsstack branch`.
#[derive(Debug, Subcommand)]
pub enum BranchAction {
    /// Add a branch after the others.
    Add {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The branch, as in SOURCE: /disk=RW,50G.
        branch: String,
    },
    /// Remove a branch from the pool; its files stay on it.
    Remove {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The branch's path.
        #[arg(value_hint = ValueHint::DirPath)]
        branch: PathBuf,
        /// Place nothing new there, wait until no file is open on it, then remove it.
        #[arg(long)]
        when_idle: bool,
    },
    /// Move everything on a branch to the others, so that it can be removed; it takes nothing new from now on.
    Drain(Drain),
    /// Change a branch's mode.
    Mode {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The branch's path.
        #[arg(value_hint = ValueHint::DirPath)]
        branch: PathBuf,
        /// RW, NC (takes nothing new) or RO.
        mode: String,
    },
    /// Change a branch's floor: the free space that new files leave.
    Floor {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The branch's path.
        #[arg(value_hint = ValueHint::DirPath)]
        branch: PathBuf,
        /// A size (50G), a percentage (5%), or "pool" for the pool's own.
        floor: String,
    },
    /// Declare that a branch outside the pool will not come back: NFS handles of its objects become stale.
    Forget {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// Its former path, or its id; `fsstack nfs check` lists both.
        #[arg(value_hint = ValueHint::DirPath)]
        branch: PathBuf,
    },
    /// List what only this branch has, from the pool's catalogue: what is lost if it is dead (catalogue=on).
    Lost {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The branch's path, which may have left the pool.
        #[arg(value_hint = ValueHint::DirPath)]
        branch: PathBuf,
    },
    /// Free the callers stuck in a hung FUSE branch: aborts the branch's own FUSE connection.
    Abort {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The branch's path.
        #[arg(value_hint = ValueHint::DirPath)]
        branch: PathBuf,
    },
}

/// Arguments of `fsstack branch drain`.
#[derive(Debug, Args)]
#[command(
    after_help = "Files move one after the other, under their readers and writers; numbers and NFS handles stay. What cannot be \
moved now (open by passthrough, locked) is waited for; what cannot be moved at all (hidden or immutable files, a \
file with links outside of the pool) is named and stays; see --make-way and --hidden. Ctrl-C ends the display, not the job: see fsstack job. The next mount goes on with it, until it is \
cancelled. The branch stays NC afterwards: fsstack branch mode POOL BRANCH RW takes it back."
)]
pub struct Drain {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// The branch's path.
    #[arg(value_hint = ValueHint::DirPath)]
    pub branch: PathBuf,
    /// Only these branches take the files.
    #[arg(long, value_name = "BRANCH,...", value_delimiter = ',', value_hint = ValueHint::DirPath)]
    pub to: Vec<PathBuf>,
    /// Objects hidden by others of their name: stop refuses to begin and names them; move sets them aside in the hidden folder of
    /// another branch; delete removes those that are the same as what the pool shows.
    #[arg(long, value_name = "HOW", value_parser = ["stop", "move", "delete"], default_value = "stop")]
    pub hidden: String,
    /// How files move.
    #[command(flatten)]
    pub manner: Manner,
}

/// How a job moves files.
#[derive(Debug, Args)]
pub struct Manner {
    /// Maximum bytes a second (100M).
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<String>,
    /// Read each copy back and compare it before the old one goes.
    #[arg(long)]
    pub verify: bool,
    /// Part of the local day in which files move (01:00-06:00, 22:30-05:00); the job is parked outside of it.
    #[arg(long, value_name = "HH:MM-HH:MM")]
    pub window: Option<String>,
    /// Have files that programs keep open by passthrough use the daemon from their next first open on, so that they move while open.
    #[arg(long)]
    pub make_way: bool,
    /// Only show what would move, and what would stay.
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `fsstack balance`.
#[derive(Debug, Args)]
#[command(
    after_help = "Files move from the fullest branches to the emptiest, with links, open files and NFS handles as by fsstack branch drain, and no more \
of them than are needed. With a create= policy that keeps directories together, all files of a directory on a branch move together where that is \
enough. A branch that is NC gives files and takes none; floors hold. A file stays where a balance has put it for a day. Ctrl-C ends the display, \
not the job: see fsstack job. It ends with the mount."
)]
pub struct Balance {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// Only files below this directory move.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Move what lies against the placement rules to branches that they name, instead of filling branches alike.
    #[arg(long, conflicts_with_all = ["by", "until"])]
    pub rules: bool,
    /// Measure that is to be equal: percent (the used share) or free (free bytes).
    #[arg(long, value_name = "MEASURE", value_parser = ["percent", "free"], default_value = "percent")]
    pub by: String,
    /// How far branches may be apart: of their size, or for free bytes of the mean size.
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    pub until: String,
    /// How files move.
    #[command(flatten)]
    pub manner: Manner,
}

/// Arguments of `fsstack consolidate`.
#[derive(Debug, Args)]
pub struct Consolidate {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// The directory; with all below it.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// The branch that takes the files; default: the one that has most of them, if there is room for the rest.
    #[arg(long, value_name = "BRANCH", value_hint = ValueHint::DirPath)]
    pub to: Option<PathBuf>,
    /// How files move.
    #[command(flatten)]
    pub manner: Manner,
}

/// Arguments of `fsstack job`.
#[derive(Debug, Args)]
pub struct Job {
    /// Subcommand.
    #[command(subcommand)]
    pub action: JobAction,
}

/// Subcommands of `fsstack job`.
#[derive(Debug, Subcommand)]
pub enum JobAction {
    /// List the jobs at work, and the last that have ended.
    List {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
    },
    /// Show a job.
    Status {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// Its number; default: the last one.
        job: Option<u64>,
        /// Name what stays, and why.
        #[arg(long)]
        why: bool,
    },
    /// Have a job begin no further move for now; the move under way goes on to its end.
    Pause {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// Its number.
        job: u64,
    },
    /// Have a paused job go on.
    Resume {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// Its number.
        job: u64,
    },
    /// Call a job off; what it has moved stays moved.
    Cancel {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// Its number.
        job: u64,
    },
}

/// Arguments of `fsstack upgrade`.
#[derive(Debug, Args)]
#[command(
    after_help = "Programs notice a pause only: open files, locks, listings and NFS handles go on. The new program first checks the pool's \
state: if it refuses, crashes or hangs in that check, nothing changes. Jobs and fsstack copy go on. \
Only over /dev/fuse (transport=dev), and for pools mounted by root."
)]
pub struct Upgrade {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// The program, owned by root and writable by nobody else; default: the path that the running one was started from.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::ExecutablePath)]
    pub program: Option<PathBuf>,
}

/// Arguments of `fsstack copy`.
#[derive(Debug, Args)]
#[command(
    override_usage = "fsstack copy [OPTIONS] SRC... POOLDIR",
    after_help = "Each SRC is put into POOLDIR under its own name; SRC/. puts its contents there. Owner, mode, times, \
attributes, access lists, flags, holes and hard links are kept. What the pool has already, of the same size and time, is \
passed over, so a copy that was interrupted is finished by starting it again; nothing is replaced. A file gets its name \
when all of it is on disk."
)]
pub struct Copy {
    /// Files and directories, then the target directory in a pool.
    #[arg(required = true, num_args = 1.., value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Number of threads; default: the number of CPUs, at most 8.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub jobs: Option<u8>,
    /// Read back and compare each file before it gets its name; also compare files that exist.
    #[arg(long)]
    pub verify: bool,
}

/// Arguments of `fsstack nfs`.
#[derive(Debug, Args)]
pub struct Nfs {
    /// Subcommand.
    #[command(subcommand)]
    pub action: NfsAction,
}

/// Subcommands of `fsstack nfs`.
#[derive(Debug, Subcommand)]
pub enum NfsAction {
    /// Show the export line for exports(5) and the block for nfs-ganesha.
    Show {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// Clients as in exports(5), separated by blanks: hosts, networks, or "*" for all. Without this option the line
        /// has the word CLIENTS in their place.
        #[arg(long)]
        clients: Option<Clients>,
        /// Write the line to /etc/exports.d, and have a running server read it; only with --clients.
        #[arg(long, requires = "clients")]
        install: bool,
        /// Only clients of this server change files of the pool: caches may keep them for a minute.
        #[arg(long)]
        only_writer: bool,
    },
    /// Check an export: options, identity, index, branches, what the server exports, who holds the pool.
    Check {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
    },
}

/// Arguments of `fsstack explain`.
#[derive(Debug, Args)]
#[command(override_usage = "fsstack explain PATH\n       fsstack explain POOL create PATH [--size N]")]
pub struct Explain {
    /// A path in a pool; or a pool, the word create, and a path that may be missing.
    #[arg(required = true, num_args = 1..=3, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub words: Vec<PathBuf>,
    /// With create: expected size of the file.
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub size: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    #[test]
    fn nothing_is_exported_to_all_clients_unless_requested() {
        let parsed = |words: &str| Arguments::try_parse_from(words.split(' ')).map(drop);
        let refused = parsed("fsstack nfs show pool --install").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::MissingRequiredArgument);
        assert!(refused.to_string().contains("--clients"), "{refused}");
        parsed("fsstack nfs show pool").unwrap();
        parsed("fsstack nfs show pool --install --clients *").unwrap();
    }
}
