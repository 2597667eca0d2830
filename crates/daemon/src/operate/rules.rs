//! Placement rules, as the operator sets and sees them.

use super::Served;
use crate::options;
use fsstack_control::Refusal;
use fsstack_control::api::{PlacementRule as RuleShown, RuleRequest, Rules};
use fsstack_engine::admin::status::RuleStatus;
use fsstack_engine::member::Member;
use fsstack_engine::pool::Pool;
use fsstack_engine::union::Union;
use fsstack_pool::{BranchMode, Class, PlacementRule, Printable, RuleDir, Target, escape, suggestion};
use std::path::PathBuf;
use std::sync::Arc;

impl Served {
    pub(super) fn obey_rule(&self, request: &RuleRequest) -> Result<Rules, Refusal> {
        let persisted = match request {
            RuleRequest::List => None,
            RuleRequest::Set { dir, rule, persist } => {
                let dir = rule_dir(dir)?;
                let rule = PlacementRule::parse(dir.clone(), rule)
                    .map_err(|error| Refusal::usage(format!("{dir}: {error}")))?;
                for target in rule.targets.iter().chain(&rule.then) {
                    check_target(&self.union.pool(), target)?;
                }
                self.change_rules(*persist, |rules| Ok(rules.with(rule.clone())))?
            }
            RuleRequest::Remove { dir, persist } => {
                let dir = rule_dir(dir)?;
                self.change_rules(*persist, |rules| match rules.of(&dir) {
                    Some(_) => Ok(rules.without(&dir)),
                    None => Err(Refusal::missing(format!("{dir}: no placement rule for this directory"))),
                })?
            }
        };
        let known = self.union.status();
        Ok(Rules { rules: known.rules.iter().map(shown).collect(), misplaced: known.misplaced, persisted })
    }

    fn change_rules(
        &self,
        persist: bool,
        edit: impl FnOnce(&fsstack_pool::PlacementRules) -> Result<fsstack_pool::PlacementRules, Refusal>,
    ) -> Result<Option<String>, Refusal> {
        let _turn = self.changing.lock();
        let mut wanted = self.settings.lock().clone();
        let rules = &mut wanted.options.engine.placement;
        *rules = edit(rules)?;
        let row = options::find(options::PLACE_RULES);
        let persisted = if persist { self.persist(&wanted, row.as_slice(), false)? } else { None };
        self.put_in_force(&wanted)?;
        tracing::info!("placement rules changed by the operator: {}", wanted.options.engine.placement);
        self.replace_settings(wanted);
        Ok(persisted)
    }
}

/// The path of a directory from the pool's root, as requests have it: with the escapes of a rule, or empty for the root.
pub(super) fn dir_of(text: &str) -> Result<Vec<u8>, Refusal> {
    if text.is_empty() { Ok(Vec::new()) } else { rule_dir(text).map(|dir| dir.path().to_vec()) }
}

pub(super) fn rule_dir(text: &str) -> Result<RuleDir, Refusal> {
    let symbols = escape::unescape(text.as_bytes()).map_err(|error| Refusal::usage(error.to_string()))?;
    RuleDir::new(&escape::bytes_of(&symbols)).map_err(|error| Refusal::usage(error.to_string()))
}

/// Notes on the strict rules that no other branch is left for when `branch` takes nothing new any more.
pub(super) fn left_without(union: &Union, branch: &Member) -> Vec<String> {
    let takes = |at: &&Arc<Member>| at.ix != branch.ix && at.mode() == BranchMode::ReadWrite;
    let pool = union.pool();
    let others: Vec<&PathBuf> = pool.branches.iter().filter(takes).map(|at| &at.path).collect();
    let is_left = |rule: &&RuleStatus| {
        rule.rule.strict
            && rule.branches.contains(&branch.path)
            && !rule.branches.iter().any(|named| others.contains(&named))
    };
    let text = |rule: &RuleStatus| {
        format!("placement rule {}: no branch is left that takes anything new there: ENOSPC", rule.rule)
    };
    union.rules().iter().filter(is_left).map(text).collect()
}

/// Refuses a target that no branch of the pool is, as a mistyped one would take nothing.
pub(super) fn check_target(pool: &Pool, target: &Target) -> Result<(), Refusal> {
    match target {
        Target::Class(class) => {
            let mut known: Vec<&str> =
                pool.branches.iter().filter_map(|branch| branch.class.as_ref()).map(Class::name).collect();
            known.sort_unstable();
            known.dedup();
            if known.contains(&class.name()) {
                return Ok(());
            }
            let near = match known.as_slice() {
                [] => "; branches get a class by class=NAME in SOURCE".to_owned(),
                known => format!(
                    "; there are {}{}",
                    known.join(", "),
                    suggestion(class.name(), known.iter().copied())
                ),
            };
            Err(Refusal::missing(format!("@{class}: no branch of this pool has that class{near}")))
        }
        Target::Branch(path) => {
            let shown: Vec<String> =
                pool.branches.iter().map(|branch| Printable::path(&branch.path).to_string()).collect();
            if pool.branches.iter().any(|branch| branch.path == *path) {
                return Ok(());
            }
            Err(Refusal::missing(format!(
                "{}: no branch of this pool; there are {}",
                Printable::path(path),
                shown.join(", ")
            )))
        }
    }
}

pub(super) fn shown(status: &RuleStatus) -> RuleShown {
    let RuleStatus { rule, branches } = status;
    let named = |targets: &[Target]| targets.iter().map(Target::to_string).collect();
    RuleShown {
        dir: rule.dir.to_string(),
        rule: rule.text().to_string(),
        policy: rule.policy.as_ref().map(ToString::to_string),
        targets: named(&rule.targets),
        then: named(&rule.then),
        floor: rule.floor.map(|floor| floor.to_string()),
        depth: rule.depth,
        strict: rule.strict,
        branches: branches.iter().map(|path| Printable::path(path).to_string()).collect(),
    }
}
