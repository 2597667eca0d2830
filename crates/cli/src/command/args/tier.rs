//! Arguments of `fsstack tier`.

use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;

/// Arguments of `fsstack tier`.
#[derive(Debug, Args)]
pub struct Tier {
    /// Subcommand.
    #[command(subcommand)]
    pub action: TierAction,
}

/// Subcommands of `fsstack tier`.
#[derive(Debug, Subcommand)]
pub enum TierAction {
    /// Show the tiers: how full their classes are, and what they do.
    Status {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
    },
    /// Have files of a class move to another class when it is full, in place of the tier that the class has.
    #[command(
        after_help = "FAST and SLOW are classes of branches (class=NAME in SOURCE). When the branches of FAST together are fuller than --start, the \
daemon moves files to those of SLOW until they are as full as --stop. A strict placement rule for FAST holds files there; a rule without then= that \
names FAST places new files on SLOW when FAST is full. A tier makes way: another job, an upgrade and branch remove end its job, and it begins again \
afterwards.\n\
Example: fsstack tier set /mnt/pool fast slow --start 90% --stop 70% --min-age 7d --window 01:00-06:00"
    )]
    Set {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The class that files leave; or both classes as one word, such as 'fast>slow'.
        fast: String,
        /// The class that takes them.
        slow: Option<String>,
        /// Used share of FAST above which files leave.
        #[arg(long, value_name = "PERCENT", default_value = "80%")]
        start: String,
        /// Used share of FAST at which they stop.
        #[arg(long, value_name = "PERCENT", default_value = "60%")]
        stop: String,
        /// Files that leave first: atime (used least recently), mtime (written least recently) or size (the largest).
        #[arg(long, value_name = "ORDER", value_parser = ["atime", "mtime", "size"], default_value = "atime")]
        order: String,
        /// Files that were used in this time stay (7d, 12h); with --order mtime: that were written.
        #[arg(long, value_name = "TIME")]
        min_age: Option<String>,
        /// Part of the local day in which files leave (01:00-06:00, 22:30-05:00).
        #[arg(long, value_name = "HH:MM-HH:MM")]
        window: Option<String>,
        /// Maximum bytes a second (50M).
        #[arg(long, value_name = "SIZE")]
        rate: Option<String>,
        /// Have files that programs keep open by passthrough use the daemon from their next first open on, so that they move while open.
        #[arg(long)]
        make_way: bool,
        /// Only show what the tier would move now; nothing is set.
        #[arg(long, conflicts_with = "persist")]
        dry_run: bool,
        /// Also write it to the pool's config file.
        #[arg(long)]
        persist: bool,
    },
    /// Remove the tier of a class; what was moved stays moved.
    Remove {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The class that files leave.
        fast: String,
        /// Also remove it from the pool's config file.
        #[arg(long)]
        persist: bool,
    },
}
