//! `fsstack rule`: placement rules of a mounted pool.

use super::args::{Rule, RuleAction};
use super::show::{self, Style};
use super::table::{Side, Table};
use super::{Failed, pool, typed_dir};
use fsstack_control::api::{RuleRequest, Rules};
use fsstack_pool::escape;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub(crate) fn run(wish: &Rule, style: Style) -> Result<(), Failed> {
    let (word, request) = match &wish.action {
        RuleAction::List { pool } => (pool, RuleRequest::List),
        RuleAction::Set { pool, dir, rule, persist } => {
            let dir = dir_of(pool, dir)?;
            (pool, RuleRequest::Set { dir, rule: rule.clone(), persist: *persist })
        }
        RuleAction::Remove { pool, dir, persist } => {
            let dir = dir_of(pool, dir)?;
            (pool, RuleRequest::Remove { dir, persist: *persist })
        }
    };
    let rules = pool::find(word)?.client().rules(&request)?;
    show::answer(style, &rules, human)
}

/// The directory that `typed` is in the pool `word`, as rules are written.
fn dir_of(word: &OsStr, typed: &Path) -> Result<String, Failed> {
    let symbols =
        escape::unescape(typed.as_os_str().as_bytes()).map_err(|error| Failed::Usage(error.to_string()))?;
    let dir = PathBuf::from(OsString::from_vec(escape::bytes_of(&symbols)));
    Ok(typed_dir::inside(&pool::find(word)?, &dir)?.to_string())
}

fn human(answer: &Rules) -> String {
    let mut text = if answer.rules.is_empty() {
        "no placement rule: create= places everything\n".to_owned()
    } else {
        let mut table =
            Table::new(&[("DIRECTORY", Side::Left), ("RULE", Side::Left), ("BRANCHES", Side::Left)]);
        for rule in &answer.rules {
            let branches =
                if rule.branches.is_empty() { "none".to_owned() } else { rule.branches.join(", ") };
            table.row([rule.dir.clone(), rule.rule.clone(), branches]);
        }
        table.text()
    };
    text.push_str(&misplaced(answer.misplaced));
    if let Some(file) = &answer.persisted {
        let _ = writeln!(text, "written to {file}");
    }
    text
}

/// A line about objects that lie against the rules, if there are any.
pub(super) fn misplaced(count: u64) -> String {
    match count {
        0 => String::new(),
        count => {
            format!("lying against the placement rules: {count} (fsstack balance POOL --rules moves them)\n")
        }
    }
}
