//! Placement rules: where new objects of a directory go.

use serde::{Deserialize, Serialize};

/// Request to show or change placement rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RuleRequest {
    /// Lists the rules.
    List,
    /// Makes a rule for a directory, in place of the one that it has.
    Set {
        /// The directory, from the pool's root, as `place-rules` has it: `\:` for a `:` in a name.
        dir: String,
        /// The rule without its directory: `mspmfs@slow;floor=50G`.
        rule: String,
        /// Write it to the pool's config file too.
        #[serde(default)]
        persist: bool,
    },
    /// Removes the rule for a directory.
    Remove {
        /// The directory, from the pool's root, as `place-rules` has it: `\:` for a `:` in a name.
        dir: String,
        /// Remove it from the pool's config file too.
        #[serde(default)]
        persist: bool,
    },
}

/// The placement rules of a pool, after the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Rules {
    /// The rules, by directory. Of several the innermost applies alone.
    pub rules: Vec<PlacementRule>,
    /// Objects that came to lie against them since the mount, or since a balance by rules counted them.
    pub misplaced: u64,
    /// The config file that was changed too.
    pub persisted: Option<String>,
}

/// Where new objects of a directory go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlacementRule {
    /// The directory, from the pool's root, as `place-rules` has it: `\:` for a `:` in a name.
    pub dir: String,
    /// The rule without its directory, as it is written.
    pub rule: String,
    /// The policy; null for the pool's own.
    pub policy: Option<String>,
    /// Classes, and paths of branches, that take new objects; empty for all branches.
    pub targets: Vec<String>,
    /// Those that take them when no target does.
    pub then: Vec<String>,
    /// Space that these branches keep free; null for their own floors.
    pub floor: Option<String>,
    /// Levels of directories that are spread over the targets; null if all are placed alike.
    pub depth: Option<u32>,
    /// Whether no other branch takes anything.
    pub strict: bool,
    /// Branches of the pool that the rule names, or all if it names none.
    pub branches: Vec<String>,
}
