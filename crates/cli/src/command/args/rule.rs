//! Arguments of `fsstack rule`.

use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `fsstack rule`.
#[derive(Debug, Args)]
pub struct Rule {
    /// Subcommand.
    #[command(subcommand)]
    pub action: RuleAction,
}

/// Subcommands of `fsstack rule`.
#[derive(Debug, Subcommand)]
pub enum RuleAction {
    /// List the placement rules, and the branches that they name.
    List {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
    },
    /// Make a rule for a directory and all below it, in place of the one that it has.
    #[command(
        after_help = "RULE is [POLICY][@TARGET+TARGET...][;then=TARGET+TARGET...][;floor=SIZE][;depth=N][;strict].\n\
A TARGET is a class of branches (class=NAME in SOURCE) or a branch's path. New objects go to the targets, ranked by POLICY (the pool's \
without one), then to those after then=, then to all others; with strict nowhere else: ENOSPC. floor= is the free space that the targets \
keep for this directory. depth=N spreads directories down to N levels below over the targets, and keeps together what lies deeper. \
\"pool\" alone places as without a rule, below a directory that has one. The innermost rule applies alone.\n\
Example: fsstack rule set /mnt/pool /media 'mspmfs@slow;floor=50G'"
    )]
    Set {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The directory, which need not exist: a path below the mount point, one from the working directory in the pool, or an
        /// absolute one from the pool's root; with the escapes of place-rules, as `\:`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The rule.
        rule: String,
        /// Also write it to the pool's config file.
        #[arg(long)]
        persist: bool,
    },
    /// Remove the rule for a directory.
    Remove {
        /// The pool.
        #[arg(value_hint = ValueHint::DirPath)]
        pool: OsString,
        /// The directory, as in `rule set` or as `rule list` prints it.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Also remove it from the pool's config file.
        #[arg(long)]
        persist: bool,
    },
}
