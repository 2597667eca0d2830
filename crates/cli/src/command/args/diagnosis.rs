//! Arguments of the commands that look for what is wrong.

use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `fsstack check`.
#[derive(Debug, Args)]
#[command(
    after_help = "A finding is a line: the path in the pool, what was found, and what --fix does or what to do by hand. Found are: copies of a \
directory that differ in owner, mode, ACL or extended attributes; files hidden by another branch's file, and whether their content is the same; a file \
and a directory of one name; marks of another object, objects that the index does not find, and its rows of objects that are gone; leftovers of \
interrupted moves; files below the mount points of the pool and its branches; and what could not be read. Without --fix it changes nothing. --fix makes \
copies of directories like the one that the pool shows, sets hidden duplicates (the same content, owner, mode and attributes) aside, and removes marks \
of other objects, rows of objects that are gone, and old leftovers that no process has locked. It leaves hidden files that differ, and never removes \
the only copy of anything: what it replaces is kept in the branch, in .fsstack.moving/kept. Directories that another file system is mounted on are \
entered only where the branch says cross-mounts. Run it as the daemon's user, usually root. Exit status 1 says that something was found and not fixed, \
rows of the index aside, which take space only, or that it was interrupted."
)]
pub struct Check {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// Only this directory and all below it.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Go on at this path of the pool, as an interrupted check has printed it.
    #[arg(long, value_name = "PATH")]
    pub from: Option<PathBuf>,
    /// Fix what can be fixed without loss; what is replaced is kept until --prune.
    #[arg(long)]
    pub fix: bool,
    /// List and remove what earlier runs with --fix have kept; checks nothing.
    #[arg(long, conflicts_with_all = ["fix", "from"])]
    pub prune: bool,
    /// Age from which an object in a branch's hidden folder is a leftover (30m, 1h, 2d).
    #[arg(long, value_name = "AGE", default_value = "1h")]
    pub older_than: String,
}

/// Arguments of `fsstack find`.
#[derive(Debug, Args)]
#[command(
    after_help = "It prints the paths of the pool's catalogue, without asking a branch: for branches that sleep, are slow or dead. Changes made through \
the pool show within a second or so, sizes and times of a file after it was closed; changes made on a branch directly \
show with out-of-band=watch, else at the next mount. A branch whose names are not all known is named at the end."
)]
pub struct Find {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// Only names below this directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Only names that match this pattern of the shell: *.mkv
    #[arg(long, value_name = "GLOB")]
    pub name: Option<String>,
    /// Only names of this branch, which may be dead or have left the pool.
    #[arg(long, value_name = "BRANCH", value_hint = ValueHint::DirPath)]
    pub branch: Option<PathBuf>,
}

/// Arguments of `fsstack du`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each line has the bytes of the files below a directory, the number of names below it, and its path. It is the sum of file sizes, not of the \
space that they use, and a file with several hard links counts with each. A file on several branches counts once, as the pool shows it. The figures are \
those of fsstack find, and as late."
)]
pub struct Du {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// Only this directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Show directories so many names below it; 0: the sum only.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: usize,
    /// Only files of this branch, which may be dead or have left the pool.
    #[arg(long, value_name = "BRANCH", value_hint = ValueHint::DirPath)]
    pub branch: Option<PathBuf>,
}

/// Arguments of `fsstack log`.
#[derive(Debug, Args)]
#[command(
    after_help = "The daemon keeps the last 1000 slow calls in memory from the moment that a threshold is set, until it is set to off, or the pool is \
upgraded or unmounted. A call counts from when the daemon takes it until it is answered; what passthrough reads and writes does not come to the daemon. A call \
that waits for a lock is slow too. Without a threshold nothing is measured."
)]
pub struct Log {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// From when a call is slow (500us, 100ms, 2s), or off; without it what was set before stays.
    #[arg(long, value_name = "TIME")]
    pub slow: Option<String>,
    /// Go on with calls as they end, until Ctrl-C; with --json one object a line.
    #[arg(short, long)]
    pub follow: bool,
}

/// Arguments of `fsstack support`.
#[derive(Debug, Args)]
#[command(
    after_help = "Names of files, directories, branches, programs and hosts are left out, unless --with-names: paths of branches are <branch 1> and so \
on, that of the pool is <pool>; of the last 200 log lines only level, place in the source, error and branch are given. Read it before you send it. \
It refuses --json."
)]
pub struct Support {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// Leave names in.
    #[arg(long)]
    pub with_names: bool,
    /// The file to write, which must not exist; default: standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// Arguments of `fsstack profile`.
#[derive(Debug, Args)]
#[command(
    after_help = "On a terminal it goes on until Ctrl-C; else, and with --json, it prints one interval. BUSY is the time spent in calls per second. Calls \
are counted only while somebody looks. What passthrough reads and writes does not come to the daemon."
)]
pub struct Profile {
    /// The pool.
    #[arg(value_hint = ValueHint::DirPath)]
    pub pool: OsString,
    /// By process; the default.
    #[arg(long, conflicts_with_all = ["uid", "dir"])]
    pub pid: bool,
    /// By user.
    #[arg(long, conflicts_with = "dir")]
    pub uid: bool,
    /// By directory.
    #[arg(long)]
    pub dir: bool,
    /// Length of an interval (500ms, 2s).
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: String,
}
