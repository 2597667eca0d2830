//! `fsstack rule`: placement rules of a mounted pool.

use super::args::{Rule, RuleAction};
use super::show::{self, Style};
use super::table::{Side, Table};
use super::write_path::inside;
use super::{Failed, pool};
use fsstack_control::api::{RuleRequest, Rules};
use std::fmt::Write as _;

pub(crate) fn run(wish: &Rule, style: Style) -> Result<(), Failed> {
    let (word, request) = match &wish.action {
        RuleAction::List { pool } => (pool, RuleRequest::List),
        RuleAction::Set { pool, dir, rule, persist } => {
            let dir = inside(&pool::find(pool)?, dir)?;
            (pool, RuleRequest::Set { dir, rule: rule.clone(), persist: *persist })
        }
        RuleAction::Remove { pool, dir, persist } => {
            let dir = inside(&pool::find(pool)?, dir)?;
            (pool, RuleRequest::Remove { dir, persist: *persist })
        }
    };
    let rules = pool::find(word)?.client().rules(&request)?;
    show::answer(style, &rules, human)
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
