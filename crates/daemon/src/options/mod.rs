//! The option table: one row per option, used by the parser, `--help`, docs/options.md, the man page and completions.

mod mergerfs;
mod mount8;
mod pool;
mod typed;

pub(crate) use pool::{CREATE, FLOOR, PAGE_CACHE, PLACE_RULES, TIERS, WRITE_PATH, WRITE_RULES};
pub use typed::{Origin, Typed};

use crate::raw::RawOptions;
use crate::settings::Options;
use std::ffi::OsStr;

/// Value of an option.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// Nothing, or `=true` or `=false`.
    Switch,
    /// A value of this kind.
    Value(&'static str),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Nothing, on or off, or a value of this kind.
    SwitchOr(&'static str),
    /// Any value, which is ignored.
    Anything,
}

/// Effect of an option.
#[derive(Clone, Copy)]
pub enum Effect {
    /// Sets a field; the error says what would be right.
    Set(fn(&mut RawOptions, &Typed<'_>) -> Result<(), String>),
    /// mount(8) or fstab has handled it.
    Quiet,
    /// Accepted with a notice: it has no effect here, for the reason in the row's help.
    NoMeaning,
    /// A mergerfs option of which fsstack supports these values only; others are refused with the row's help as the
    /// reason.
    Only(&'static [&'static str]),
    /// An option of this program that is refused, with the row's help as the reason.
    Refuse(&'static str),
}

/// Use of an option in `fsstack get` and `set`.
#[derive(Clone, Copy)]
pub enum Key {
    /// No key: the option only concerns the mount.
    None,
    /// Shown as it would be typed; fixed at the mount.
    Settled(fn(&Options) -> String),
    /// Shown, and can change while the pool is mounted.
    Live(fn(&Options) -> String),
}

/// One option.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name, then its other spellings; `-` and `_` are the same; a trailing `*` stands for any ending.
    pub names: &'static [&'static str],
    /// Its value.
    pub takes: Takes,
    /// Its default; empty if none is shown.
    pub default: &'static str,
    /// Its purpose, or the reason for its refusal.
    pub help: &'static str,
    /// True if its default depends on other options or on the user.
    pub settled_later: bool,
    /// Its effect.
    pub effect: Effect,
    /// Its use while the pool is mounted.
    pub key: Key,
}

impl Row {
    /// Its name in the documentation.
    pub fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// Name and value as documented: `create=POLICY`.
    pub fn usage(&self) -> String {
        let name = self.name();
        match self.takes {
            Takes::Nothing | Takes::Anything => name.to_owned(),
            Takes::Switch => format!("{name}[=true|false]"),
            Takes::Value(kind) => format!("{name}={kind}"),
            Takes::Choice(words) => format!("{name}={}", words.join("|")),
            Takes::SwitchOr(kind) => format!("{name}[=on|off|{kind}]"),
        }
    }

    /// Returns its value in a mounted pool, as it would be typed; `None` if it is no key.
    pub fn get(&self, now: &Options) -> Option<String> {
        match self.key {
            Key::None => None,
            Key::Settled(get) | Key::Live(get) => Some(get(now)),
        }
    }

    /// True if it can change while the pool is mounted.
    pub fn is_live(&self) -> bool {
        matches!(self.key, Key::Live(_))
    }

    const fn live(self, get: fn(&Options) -> String) -> Self {
        Self { key: Key::Live(get), ..self }
    }

    const fn settled(self, get: fn(&Options) -> String) -> Self {
        Self { key: Key::Settled(get), ..self }
    }

    const fn settled_later(self) -> Self {
        Self { settled_later: true, ..self }
    }

    fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => same(start, name.get(..start.len()).unwrap_or_default()),
            None => same(known, name),
        })
    }
}

/// Related rows under one heading.
pub struct Group {
    /// The heading.
    pub title: &'static str,
    /// Documents in which the group appears.
    pub shown: Shown,
    /// The options.
    pub rows: &'static [Row],
}

/// Documents in which a group appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Everywhere.
    InHelp,
    /// In docs/options.md and the man page only: options of other programs, in lines that users copy.
    InManual,
}

/// Every known option.
pub const OPTIONS: &[Group] = &[
    Group { title: "Branches and placement", shown: Shown::InHelp, rows: pool::PLACEMENT },
    Group { title: "Data and caches", shown: Shown::InHelp, rows: pool::DATA },
    Group { title: "What a program sees", shown: Shown::InHelp, rows: pool::VIEW },
    Group { title: "Mounting and logging", shown: Shown::InHelp, rows: pool::RUNNING },
    Group { title: "Options of mount(8)", shown: Shown::InManual, rows: mount8::FLAGS },
    Group { title: "Left to mount(8), accepted quietly", shown: Shown::InManual, rows: mount8::QUIET },
    Group {
        title: "mhddfs and mergerfs: with a meaning here",
        shown: Shown::InManual,
        rows: mergerfs::MEANT,
    },
    Group {
        title: "libfuse, mhddfs and mergerfs: accepted without a meaning",
        shown: Shown::InManual,
        rows: mergerfs::NO_MEANING,
    },
    Group { title: "Only as fsstack has it", shown: Shown::InManual, rows: mergerfs::ONLY },
    Group { title: "Refused", shown: Shown::InManual, rows: mergerfs::REFUSED },
];

/// All rows in the order of the documentation.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    OPTIONS.iter().flat_map(|group| group.rows)
}

/// The row of an option.
pub fn find(name: &str) -> Option<&'static Row> {
    rows().find(|row| row.is_called(name))
}

/// The rows of the keys of `fsstack get`.
pub fn keys() -> impl Iterator<Item = &'static Row> {
    rows().filter(|row| !matches!(row.key, Key::None))
}

/// True for an option of the pool itself, not a mount flag.
pub(crate) fn is_of_the_pool(name: &str) -> bool {
    let flag = mount8::FLAGS.iter().any(|row| row.is_called(name));
    !flag && find(name).is_some_and(|row| matches!(row.effect, Effect::Set(_)))
}

/// Whether the values of the option `name` may be no text.
pub(crate) fn is_path(name: &str) -> bool {
    pool::PATHS.contains(&name)
}

/// Applies one option to `raw`. The error is one line.
pub fn apply(raw: &mut RawOptions, row: &'static Row, typed: &Typed<'_>) -> Result<(), String> {
    check_shape(row, typed)?;
    match row.effect {
        Effect::Set(set) => {
            set(raw, typed).map_err(|right| format!("{typed}: {right}"))?;
            raw.note(row.name(), typed);
            Ok(())
        }
        Effect::Quiet => Ok(()),
        Effect::NoMeaning => {
            raw.notice(format!("{typed}: no meaning here: {}", row.help));
            Ok(())
        }
        Effect::Only(accepted) => {
            let value = typed.value.and_then(OsStr::to_str).unwrap_or_default();
            if accepted.contains(&value) {
                return Ok(());
            }
            let refused = refusal(typed, "mergerfs", row.help);
            Err(format!("{refused}; leave it out (only {} is taken)", accepted.join(" or ")))
        }
        Effect::Refuse(whose) => Err(refusal(typed, whose, row.help)),
    }
}

fn refusal(typed: &Typed<'_>, whose: &str, reason: &str) -> String {
    format!("{typed}: an option of {whose} that is not supported here: {reason}")
}

fn check_shape(row: &Row, typed: &Typed<'_>) -> Result<(), String> {
    let right = match (row.takes, typed.value) {
        (Takes::Nothing, Some(_)) => "takes no value".to_owned(),
        (Takes::Value(kind), None) => format!("needs a value: {}={kind}", typed.name),
        (Takes::Choice(words), None) => format!("needs a value: {}={}", typed.name, words.join("|")),
        (Takes::Choice(words), Some(value)) if !words.iter().any(|word| *word == value) => {
            format!("not one of {}", words.join(", "))
        }
        _ => return Ok(()),
    };
    Err(format!("{typed}: {right}"))
}

fn same(left: &str, right: &str) -> bool {
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte };
    left.len() == right.len() && left.bytes().map(plain).eq(right.bytes().map(plain))
}

const fn option(
    names: &'static [&'static str],
    takes: Takes,
    default: &'static str,
    help: &'static str,
    set: fn(&mut RawOptions, &Typed<'_>) -> Result<(), String>,
) -> Row {
    Row { names, takes, default, help, settled_later: false, effect: Effect::Set(set), key: Key::None }
}

const fn foreign(names: &'static [&'static str], takes: Takes, help: &'static str, effect: Effect) -> Row {
    Row { names, takes, default: "", help, settled_later: false, effect, key: Key::None }
}

const fn quiet(names: &'static [&'static str], help: &'static str) -> Row {
    foreign(names, Takes::Anything, help, Effect::Quiet)
}

const fn no_meaning(names: &'static [&'static str], reason: &'static str) -> Row {
    foreign(names, Takes::Anything, reason, Effect::NoMeaning)
}

const fn only(
    names: &'static [&'static str],
    accepted: &'static [&'static str],
    reason: &'static str,
) -> Row {
    foreign(names, Takes::Value("WORD"), reason, Effect::Only(accepted))
}

const fn refused(names: &'static [&'static str], whose: &'static str, reason: &'static str) -> Row {
    foreign(names, Takes::Anything, reason, Effect::Refuse(whose))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_spelling_leads_to_its_own_row() {
        let mut seen = HashSet::new();
        for row in rows() {
            for name in row.names {
                assert!(seen.insert(name.replace('_', "-")), "{name} stands in the table twice");
                let found = find(name.trim_end_matches('*')).expect("a name in the table is found");
                assert_eq!(found.name(), row.name(), "{name}");
            }
        }
    }

    #[test]
    fn every_row_says_what_it_is_for_in_a_line() {
        for row in rows() {
            assert!(!row.help.is_empty() && !row.help.contains('\n'), "{}", row.name());
        }
    }

    #[test]
    fn the_example_that_is_installed_says_the_defaults() {
        let example: toml::Table = include_str!("../../../../packaging/example.toml").parse().unwrap();
        assert!(!example.is_empty());
        for (name, value) in example {
            let default = find(&name).unwrap().default.split(';').next();
            assert_eq!(value.as_str(), default, "{name}");
        }
    }

    #[test]
    fn every_option_of_ours_is_a_key_unless_it_says_how_to_mount() {
        let ours = OPTIONS.iter().filter(|group| group.shown == Shown::InHelp).flat_map(|group| group.rows);
        let no_keys: Vec<_> = ours.filter(|row| matches!(row.key, Key::None)).map(Row::name).collect();
        assert_eq!(no_keys, ["mlimit", "require", "branches-timeout", "nonempty", "foreground"]);
    }

    #[test]
    fn a_default_is_read_and_shown_as_it_is_documented() {
        let defaults = RawOptions::default().options;
        for row in keys().filter(|row| !row.settled_later) {
            assert_eq!(row.get(&defaults).as_deref(), Some(row.default), "{}", row.name());
        }
    }

    #[test]
    fn every_word_that_is_documented_is_taken() {
        for row in rows() {
            let (Takes::Choice(words), Effect::Set(_)) = (row.takes, row.effect) else { continue };
            for word in words {
                let value = Some(OsStr::new(word));
                let typed = Typed { name: row.name(), value, origin: Origin::CommandLine };
                apply(&mut RawOptions::default(), row, &typed).unwrap();
            }
        }
    }

    #[test]
    fn dashes_and_underscores_are_the_same_and_stars_end_a_name() {
        assert_eq!(find("allow-other").unwrap().name(), "allow_other");
        assert_eq!(find("attr_timeout").unwrap().name(), "attr-timeout");
        assert!(find("x-systemd.requires-mounts-for").is_some());
        assert!(find("x").is_none());
    }
}
