//! The grammar of placement rules: `/media=mspmfs@slow;floor=50G:/inbox=@fast;then=slow`.
//!
//! A rule is for a directory and all below it, except what another rule is for: the innermost rule applies alone. Rules are
//! separated by `:`. After the first `=` come a policy (left out, or `pool`: the pool's own), after `@` the targets, joined by `+`,
//! and after each `;` one more word. A target is a class, or a branch by its path. The escapes are those of `escape.rs`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::chain::{Chain, ChainError};
use crate::class::{BadClass, Class};
use crate::escape::{self, BadEscape, Escaped, Symbol};
use crate::nearest::suggestion;
use crate::printable::Printable;
use crate::rule_dir::{BadRuleDir, RuleDir};
use crate::size::{Floor, SizeError};

/// Word for the pool's own policy.
const POOL: &str = "pool";
/// Bytes of the longest rule, without its directory.
const LONGEST: usize = 4096;
/// Words after `;`.
const WORDS: [&str; 4] = ["then=", "floor=", "depth=", "strict"];

/// Branches that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All branches of a class.
    Class(Class),
    /// The branch at this path.
    Branch(PathBuf),
}

/// Where new objects of one directory go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRule {
    /// The directory.
    pub dir: RuleDir,
    /// How branches are ranked; None: by the pool's policy.
    pub policy: Option<Chain>,
    /// Branches that take new objects; none: all.
    pub targets: Vec<Target>,
    /// Branches that take them when no target does.
    pub then: Vec<Target>,
    /// Space that the targets keep free, in place of their own floors.
    pub floor: Option<Floor>,
    /// Directories at most so many levels below are spread over the targets; what lies deeper stays with its directory.
    pub depth: Option<u32>,
    /// No other branch takes anything: ENOSPC instead.
    pub strict: bool,
}

/// A text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPlacementRule {
    /// No `=` after the directory.
    #[error(
        "`{0}` is not a rule: write /DIR=[POLICY][@TARGET+TARGET][;then=TARGET][;floor=SIZE][;depth=N][;strict], and `\\:` for a `:` in a name"
    )]
    Form(String),
    /// Not UTF-8 where it must be.
    #[error("`{0}` is not UTF-8")]
    NotText(String),
    /// Longer than a rule can be.
    #[error("a rule of {0} bytes: it can have {LONGEST} at most: give its branches a class")]
    TooLong(usize),
    /// The directory.
    #[error(transparent)]
    Dir(#[from] BadRuleDir),
    /// A wrong escape.
    #[error(transparent)]
    Escape(#[from] BadEscape),
    /// The policy.
    #[error(transparent)]
    Policy(#[from] ChainError),
    /// A target.
    #[error("`{0}`: {1}; a branch is named by its path, from /")]
    Target(String, BadClass),
    /// The floor.
    #[error("floor=: {0}")]
    Floor(#[from] SizeError),
    /// The depth.
    #[error("`depth={0}`: not a number of directories: write depth=1")]
    Depth(String),
    /// A word that is none of a rule's.
    #[error("`{word}` is no word of a rule: write then=, floor=, depth= or strict{near}")]
    Word {
        /// The word.
        word: String,
        /// The word that may have been meant.
        near: String,
    },
    /// A word that stands there twice.
    #[error("`{0}` stands twice in one rule: leave one out")]
    Twice(&'static str),
    /// `then=` where all branches are targets.
    #[error("then= needs targets before it: write @TARGET")]
    ThenAlone,
}

impl PlacementRule {
    /// Parses a rule as it is written without its directory and the `=` behind that.
    ///
    /// # Errors
    /// The text is no rule.
    pub fn parse(dir: RuleDir, text: &str) -> Result<Self, BadPlacementRule> {
        Self::of_symbols(dir, &escape::unescape(text.as_bytes())?)
    }

    fn of_symbols(dir: RuleDir, symbols: &[Symbol]) -> Result<Self, BadPlacementRule> {
        if symbols.len() > LONGEST {
            return Err(BadPlacementRule::TooLong(symbols.len()));
        }
        let mut words = escape::split(symbols, b';');
        let (policy, targets) = escape::cut(words.next().unwrap_or_default(), b"@");
        let policy = match text_of(policy)?.as_str() {
            "" | POOL => None,
            named => Some(named.parse()?),
        };
        let targets = targets.map(|(_, targets)| parse_targets(targets)).transpose()?.unwrap_or_default();
        let mut rule =
            Self { dir, policy, targets, then: Vec::new(), floor: None, depth: None, strict: false };
        let mut seen = Vec::new();
        for word in words {
            let named = rule.take_word(word)?;
            if seen.contains(&named) {
                return Err(BadPlacementRule::Twice(named));
            }
            seen.push(named);
        }
        if rule.targets.is_empty() && !rule.then.is_empty() {
            return Err(BadPlacementRule::ThenAlone);
        }
        Ok(rule)
    }

    /// Applies the word after a `;`; returns its name.
    fn take_word(&mut self, word: &[Symbol]) -> Result<&'static str, BadPlacementRule> {
        let (name, value) = escape::cut(word, b"=");
        let name = text_of(name)?;
        let shown = || Printable(&escape::bytes_of(word)).to_string();
        match (name.as_str(), value) {
            ("then", Some((_, value))) => {
                let value = value.strip_prefix(&[Symbol { byte: b'@', escaped: false }]).unwrap_or(value);
                self.then = parse_targets(value)?;
                Ok("then=")
            }
            ("floor", Some((_, value))) => {
                self.floor = Some(text_of(value)?.parse()?);
                Ok("floor=")
            }
            ("depth", Some((_, value))) => {
                let text = text_of(value)?;
                self.depth = Some(text.parse().map_err(|_| BadPlacementRule::Depth(text))?);
                Ok("depth=")
            }
            ("strict", None) => {
                self.strict = true;
                Ok("strict")
            }
            _ => Err(BadPlacementRule::Word { word: shown(), near: suggestion(&shown(), WORDS) }),
        }
    }

    /// The rule without its directory, as it is written.
    pub fn text(&self) -> impl fmt::Display + use<'_> {
        fmt::from_fn(|out| {
            match &self.policy {
                Some(policy) => write!(out, "{policy}")?,
                None if self.targets.is_empty() => out.write_str(POOL)?,
                None => {}
            }
            if !self.targets.is_empty() {
                write!(out, "@{}", joined(&self.targets))?;
            }
            if !self.then.is_empty() {
                write!(out, ";then={}", joined(&self.then))?;
            }
            if let Some(floor) = self.floor {
                write!(out, ";floor={floor}")?;
            }
            if let Some(depth) = self.depth {
                write!(out, ";depth={depth}")?;
            }
            out.write_str(if self.strict { ";strict" } else { "" })
        })
    }
}

fn text_of(symbols: &[Symbol]) -> Result<String, BadPlacementRule> {
    String::from_utf8(escape::bytes_of(symbols))
        .map_err(|error| BadPlacementRule::NotText(Printable(error.as_bytes()).to_string()))
}

fn parse_targets(symbols: &[Symbol]) -> Result<Vec<Target>, BadPlacementRule> {
    let target = |symbols: &[Symbol]| {
        let bytes = escape::bytes_of(symbols);
        if let [b'/', ..] = *bytes {
            let length = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
            return Ok(Target::Branch(PathBuf::from(OsString::from_vec(bytes[..length].to_vec()))));
        }
        let text = text_of(symbols)?;
        text.parse().map(Target::Class).map_err(|error| BadPlacementRule::Target(text, error))
    };
    escape::split(symbols, b'+').map(target).collect()
}

fn joined(targets: &[Target]) -> String {
    targets.iter().map(Target::to_string).collect::<Vec<_>>().join("+")
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(class) => write!(out, "{class}"),
            Self::Branch(path) => write!(out, "{}", Escaped(path.as_os_str().as_bytes())),
        }
    }
}

/// Prints the form that a list of rules reads back as the same rule.
impl fmt::Display for PlacementRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.dir, self.text())
    }
}

/// The placement rules of a pool, by directory: cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRules(Arc<[Arc<PlacementRule>]>);

impl PlacementRules {
    /// These rules and `rule`, in place of another one for its directory.
    #[must_use]
    pub fn with(&self, rule: PlacementRule) -> Self {
        let mut rules = self.without(&rule.dir).0.to_vec();
        rules.push(Arc::new(rule));
        rules.sort_by(|one, other| one.dir.cmp(&other.dir));
        Self(rules.into())
    }

    /// These rules but the one for `dir`.
    #[must_use]
    pub fn without(&self, dir: &RuleDir) -> Self {
        Self(self.0.iter().filter(|rule| rule.dir != *dir).cloned().collect())
    }

    /// The rule for the directory itself.
    pub fn of(&self, dir: &RuleDir) -> Option<&Arc<PlacementRule>> {
        self.0.iter().find(|rule| rule.dir == *dir)
    }

    /// All of them, by path.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PlacementRule>> {
        self.0.iter()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for PlacementRules {
    type Err = BadPlacementRule;

    /// Reads a list; of two rules for one directory the later one holds.
    fn from_str(text: &str) -> Result<Self, BadPlacementRule> {
        let symbols = escape::unescape(text.as_bytes())?;
        let mut rules: Vec<Arc<PlacementRule>> = Vec::new();
        for rule in escape::split(&symbols, b':').filter(|rule| !rule.is_empty()) {
            let (dir, after) = escape::cut(rule, b"=");
            let no_form = || BadPlacementRule::Form(Printable(&escape::bytes_of(rule)).to_string());
            let (_, after) = after.ok_or_else(no_form)?;
            let dir = RuleDir::new(&escape::bytes_of(dir))?;
            rules.push(Arc::new(PlacementRule::of_symbols(dir, after)?));
        }
        rules.reverse();
        rules.sort_by(|one, other| one.dir.cmp(&other.dir));
        rules.dedup_by(|later, first| later.dir == first.dir);
        Ok(Self(rules.into()))
    }
}

impl fmt::Display for PlacementRules {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.0.iter().enumerate() {
            write!(out, "{}{rule}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::POLICIES;

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(
            &text.parse::<PlacementRules>().map_or_else(|e| e.to_string(), |rules| rules.to_string()),
        );
    }

    #[test]
    fn rules() {
        check("", expect![""]);
        check(
            "/media=mspmfs@slow;floor=50G:/inbox=@fast;then=@slow",
            expect!["/inbox=@fast;then=slow:/media=mspmfs@slow;floor=50G"],
        );
        check("/a=epmfs>mfs@fast+/srv/b/;depth=2;strict", expect!["/a=epmfs>mfs@fast+/srv/b;depth=2;strict"]);
        check("/a=:/b=pool:/c=;floor=5%:/=ff", expect!["/=ff:/a=pool:/b=pool:/c=pool;floor=5%"]);
        check(r"/a\:b\=c=ff@/srv/x\:y", expect![[r"/a\:b\=c=ff@/srv/x\:y"]]);
        check("/a=ff:/a/=lfs", expect!["/a=lfs"]);
    }

    #[test]
    fn refusals() {
        check(
            "/a:b=ff",
            expect![[
                "`/a` is not a rule: write /DIR=[POLICY][@TARGET+TARGET][;then=TARGET][;floor=SIZE][;depth=N][;strict], and `\\:` for a `:` in a name"
            ]],
        );
        check("/a=mfss", expect!["`mfss` is not a placement policy: did you mean `mfs`?"]);
        check(
            "/a=@",
            expect![
                "``: not a class: write 1 to 32 letters, digits, `.`, `_` or `-`, as class=fast; a branch is named by its path, from /"
            ],
        );
        check(
            "/a=@fast;strickt",
            expect![[
                r#"`strickt` is no word of a rule: write then=, floor=, depth= or strict; did you mean "strict"?"#
            ]],
        );
        check(
            "/a=@fast;strict=yes",
            expect!["`strict=yes` is no word of a rule: write then=, floor=, depth= or strict"],
        );
        check(
            "/a=@fast;floor=much",
            expect!["floor=: `much` is not a floor: write a size, as 50G or 100M, or a percentage, as 5%"],
        );
        check("/a=@fast;depth=-1", expect!["`depth=-1`: not a number of directories: write depth=1"]);
        check("/a=@fast;strict;strict", expect!["`strict` stands twice in one rule: leave one out"]);
        check("/a=ff;then=slow", expect!["then= needs targets before it: write @TARGET"]);
        check(
            "/a/../b=ff",
            expect![
                "`/a/../b` is no directory of the pool: write its path from the pool's root, without . and .."
            ],
        );
        check(
            r"/a\b=ff",
            expect![[
                r#"`\b=f` is not an escape: write `\\` for a backslash, `\:` `\=` for separators, `\040` for a byte"#
            ]],
        );
    }

    #[test]
    fn a_rule_has_a_bounded_length() {
        let of = |bytes: usize| {
            let branch = "x".repeat(bytes - "@/".len());
            PlacementRule::parse(RuleDir::new(b"/a").unwrap(), &format!("@/{branch}"))
        };
        assert!(of(LONGEST).is_ok());
        assert_eq!(of(LONGEST + 1), Err(BadPlacementRule::TooLong(LONGEST + 1)));
        check(
            &format!("/{}=ff", "x".repeat(5000)),
            expect!["a directory's path of 5001 bytes: it can have 4096 at most"],
        );
    }

    fn target() -> impl Strategy<Value = Target> {
        let class = "[a-z0-9._-]{1,8}".prop_map(|name| Target::Class(name.parse().unwrap()));
        let path = prop::collection::vec(prop::sample::select(b"ab:;=@+,\\\"\xff \n".to_vec()), 1..8);
        let path = path.prop_map(|rest| {
            Target::Branch(PathBuf::from(OsString::from_vec([b"/", rest.as_slice()].concat())))
        });
        prop_oneof![class, path]
    }

    fn rule() -> impl Strategy<Value = PlacementRule> {
        let dir = prop::collection::vec(1_u8..=255, 1..12)
            .prop_filter_map("a path", |path| RuleDir::new(&path).ok());
        let policy =
            prop::option::of(prop::sample::select(POLICIES).prop_map(|(name, ..)| name.parse().unwrap()));
        let targets = (prop::collection::vec(target(), 0..3), prop::collection::vec(target(), 0..3));
        let words =
            (prop::option::of((0_u16..=1000).prop_map(Floor::PerMille)), any::<Option<u32>>(), any::<bool>());
        (dir, policy, targets, words).prop_map(|(dir, policy, (targets, then), (floor, depth, strict))| {
            let then = if targets.is_empty() { Vec::new() } else { then };
            PlacementRule { dir, policy, targets, then, floor, depth, strict }
        })
    }

    proptest! {
        #[test]
        fn printed_rules_are_read_back(rules in prop::collection::vec(rule(), 0..5)) {
            let all = rules.iter().fold(PlacementRules::default(), |all, rule| all.with(rule.clone()));
            let text = all.to_string();
            prop_assert!(!text.contains(','), "it would end the option");
            prop_assert_eq!(text.parse::<PlacementRules>(), Ok(all));
            for rule in rules {
                prop_assert_eq!(PlacementRule::parse(rule.dir.clone(), &rule.text().to_string()), Ok(rule));
            }
        }

        #[test]
        fn no_text_panics_and_what_is_read_prints_the_same(text in "[/a:=@+;>,fdrstic0-9\\\\]{0,30}") {
            if let Ok(rules) = text.parse::<PlacementRules>() {
                prop_assert_eq!(rules.to_string().parse::<PlacementRules>(), Ok(rules));
            }
        }
    }
}
