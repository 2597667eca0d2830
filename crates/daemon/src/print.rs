//! The pages printed from the option table: help, docs/options.md, the man page, completions.

use crate::options::{CREATE, Effect, Group, OPTIONS, Row, Shown, Takes, WRITE_PATH};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fmt::Write as _;
use std::io;

/// A page generated from the option table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// `--help`.
    Help,
    /// docs/options.md.
    OptionsMarkdown,
    /// The most common options, for README.md.
    ReadmeOptions,
    /// mount.fsstack(8).
    Man,
    /// Completions for bash.
    Bash,
    /// Completions for zsh.
    Zsh,
    /// Completions for fish.
    Fish,
}

impl Page {
    /// Pages by their names in `--print`.
    pub const NAMES: [(&str, Self); 7] = [
        ("help", Self::Help),
        ("options-md", Self::OptionsMarkdown),
        ("readme-options", Self::ReadmeOptions),
        ("man", Self::Man),
        ("completions-bash", Self::Bash),
        ("completions-zsh", Self::Zsh),
        ("completions-fish", Self::Fish),
    ];

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, page)| *page)
    }

    /// Renders the page.
    pub fn render(self) -> io::Result<Vec<u8>> {
        Ok(match self {
            Self::Help => help().into_bytes(),
            Self::OptionsMarkdown => markdown().into_bytes(),
            Self::ReadmeOptions => most_asked_for().into_bytes(),
            Self::Man => man()?,
            Self::Bash => completions(Shell::Bash),
            Self::Zsh => completions(Shell::Zsh),
            Self::Fish => completions(Shell::Fish),
        })
    }
}

const PROGRAM: &str = "mount.fsstack";
const ABOUT: &str = "Mounts several file systems (branches) as one tree.";
const SOURCE_HELP: &str = "The branches in order, separated by \":\" or \",\"; each a directory or a pattern, with a mode and a floor behind \"=\": /a=RW,50G:/b=NC:/c=RO";
const FSTAB: &str = "/srv/pair0*  /srv/storage01  fsstack  defaults,nofail,_netdev  0  0";

/// The command line for clap, used for pages only; the parser is `cli`.
fn command() -> Command {
    let flag = |letter: char, help: &'static str| {
        Arg::new(letter.to_string()).short(letter).action(ArgAction::SetTrue).help(help)
    };
    let pages = PossibleValuesParser::new(Page::NAMES.map(|(name, _)| name));
    Command::new(PROGRAM)
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .term_width(100)
        .arg(Arg::new("SOURCE").required(true).help(SOURCE_HELP).value_hint(ValueHint::DirPath))
        .arg(
            Arg::new("TARGET")
                .required(true)
                .help("The directory to mount on.")
                .value_hint(ValueHint::DirPath),
        )
        .arg(
            Arg::new("OPTIONS")
                .short('o')
                .long("options")
                .action(ArgAction::Append)
                .value_delimiter(',')
                .value_parser(PossibleValuesParser::new(completable()))
                .hide_possible_values(true)
                .help("The options, separated by commas; may be repeated, a later one wins."),
        )
        .arg(flag('f', "Fake: check everything, mount nothing.").long("fake"))
        .arg(flag('n', "Accepted: there is no mtab to write."))
        .arg(flag('s', "Sloppy: pass over unknown options with a notice."))
        .arg(flag('v', "Say what is done.").long("verbose"))
        .arg(
            Arg::new("PAGE")
                .long("print")
                .value_parser(pages)
                .help("Print a page made from the option table."),
        )
}

fn completable() -> Vec<PossibleValue> {
    let own = OPTIONS.iter().filter(|group| group.shown == Shown::InHelp).flat_map(|group| group.rows);
    own.map(|row| PossibleValue::new(completed(row)).help(row.help)).collect()
}

/// Completion of the name, up to the value if one is required.
fn completed(row: &Row) -> String {
    match row.takes {
        Takes::Value(_) | Takes::Choice(_) => format!("{}=", row.name()),
        Takes::Nothing | Takes::Switch | Takes::SwitchOr(_) | Takes::Anything => row.name().to_owned(),
    }
}

fn help() -> String {
    let mut text = command().render_help().to_string();
    for group in OPTIONS.iter().filter(|group| group.shown == Shown::InHelp) {
        let _ = write!(text, "\n{} (-o):\n", group.title);
        for row in group.rows {
            let _ = writeln!(text, "  {}", row.usage());
            for line in wrapped(&explained(row), 90) {
                let _ = writeln!(text, "          {line}");
            }
        }
    }
    text.push_str(
        "\nThe options of mount(8), mhddfs and mergerfs are accepted where they mean something here:\n",
    );
    text.push_str("see --print options-md. An fstab line:\n");
    let _ = writeln!(text, "  {FSTAB}");
    text
}

fn explained(row: &Row) -> String {
    let spellings = match row.names {
        [_, others @ ..] if !others.is_empty() => format!(" Also: {}.", others.join(", ")),
        _ => String::new(),
    };
    let default = if row.default.is_empty() { String::new() } else { format!(" [default: {}]", row.default) };
    format!("{}{spellings}{default}", row.help)
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn markdown() -> String {
    let mut text = format!(
        "# Mount options\n\nPrinted by `{PROGRAM} --print options-md` from the option table; do not edit.\n\n\
         `{PROGRAM} SOURCE TARGET [-sfnv] [-o OPTIONS]`, or a line in /etc/fstab:\n\n```\n{FSTAB}\n```\n\n\
         Commas separate options; a value that holds one stands in double quotes or has a backslash before it.\n\
         `-` and `_` in names are the same. `config=FILE` names a TOML file of the same options; `-o` goes before it.\n"
    );
    for Group { title, rows, .. } in OPTIONS {
        let _ = write!(text, "\n## {title}\n\n");
        let defaults = rows.iter().any(|row| !row.default.is_empty());
        text.push_str(if defaults { HEADED } else { "| option | |\n|---|---|\n" });
        for row in *rows {
            let names = spelled(row).map(|name| format!("`{}`", cell(&name))).collect::<Vec<_>>().join(", ");
            let help = cell(&accepted(row));
            let _ = if defaults {
                writeln!(text, "| {names} | {} | {help} |", default_of(row))
            } else {
                writeln!(text, "| {names} | {help} |")
            };
        }
    }
    text
}

/// Head of a table with defaults.
const HEADED: &str = "| option | default | |\n|---|---|---|\n";

/// Options shown in README.md.
const MOST_ASKED_FOR: [&str; 6] =
    [CREATE, "minfreespace", WRITE_PATH, "page-cache", "passthrough-headroom", "require"];

fn most_asked_for() -> String {
    let mut text = HEADED.to_owned();
    for row in MOST_ASKED_FOR.iter().filter_map(|name| crate::options::find(name)) {
        let help = cell(&accepted(row));
        let _ = writeln!(text, "| `{}` | {} | {help} |", cell(&row.usage()), default_of(row));
    }
    text
}

fn default_of(row: &Row) -> String {
    match row.default {
        "" => String::new(),
        told if told.contains(' ') => cell(told),
        told => format!("`{}`", cell(told)),
    }
}

/// The name with its value, then the other spellings.
fn spelled(row: &Row) -> impl Iterator<Item = String> {
    std::iter::once(row.usage()).chain(row.names.iter().skip(1).map(|name| (*name).to_owned()))
}

fn accepted(row: &Row) -> String {
    match row.effect {
        Effect::Only(values) => format!("Only `{}`: {}.", values.join("` or `"), row.help),
        Effect::NoMeaning | Effect::Refuse(_) => format!("{}.", capital(row.help)),
        Effect::Set(_) | Effect::Quiet => row.help.to_owned(),
    }
}

/// The text as a sentence; an option's name at the start keeps its spelling.
fn capital(text: &str) -> String {
    let first = text.split(' ').next().unwrap_or_default();
    if first.contains(['=', '_']) {
        return text.to_owned();
    }
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn man() -> io::Result<Vec<u8>> {
    let man = Man::new(command()).section("8").manual("fsstack").date("");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut roff = Roff::new();
    roff.control("SH", ["MOUNT OPTIONS"]);
    for Group { title, rows, .. } in OPTIONS {
        roff.control("SS", [*title]);
        for row in *rows {
            roff.control("TP", []);
            roff.text([bold(spelled(row).collect::<Vec<_>>().join(", "))]);
            let default =
                if row.default.is_empty() { String::new() } else { format!(" Default: {}.", row.default) };
            roff.text([roman(accepted(row).replace('`', "\"") + &default)]);
        }
    }
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(
        "0: mounted, and the mount answers. 1: usage error. 2: system error. 32: the mount failed.",
    )]);
    roff.control("SH", ["FSTAB"]);
    roff.text([roman(FSTAB)]);
    roff.to_writer(&mut page)?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut command(), PROGRAM, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_the_command_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_man_page_and_the_manual_name_every_option() {
        let manual = markdown();
        let man = String::from_utf8(Page::Man.render().unwrap()).unwrap().replace("\\-", "-");
        for row in crate::options::rows() {
            for name in row.names {
                assert!(manual.contains(&format!("`{name}")), "options.md lacks {name}");
                assert!(man.contains(name), "the man page lacks {name}");
            }
        }
    }

    #[test]
    fn completions_offer_our_options() {
        for (name, page) in Page::NAMES.iter().filter(|(name, _)| name.starts_with("completions")) {
            let script = String::from_utf8(page.render().unwrap()).unwrap();
            assert!(script.contains("branches-timeout="), "{name}");
        }
    }

    #[test]
    fn the_manual_in_docs_is_current() {
        expect_test::expect_file!["../../../docs/options.md"].assert_eq(&markdown());
    }

    #[test]
    fn the_readme_is_current() {
        let shown = most_asked_for();
        assert_eq!(shown.lines().count(), MOST_ASKED_FOR.len() + 2, "{shown}");
        assert!(include_str!("../../../README.md").contains(&shown), "run `cargo xtask docs`: {shown}");
    }

    #[test]
    fn help_fits_a_terminal() {
        let help = help();
        expect_test::expect_file!["../tests/help.txt"].assert_eq(&help);
        assert!(help.lines().all(|line| line.len() <= 110), "{help}");
    }
}
