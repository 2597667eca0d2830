//! The pages printed from the command's own tables: help, man page, docs/commands.md, completions.

use super::{Arguments, EXIT_CODES, Failed, show};
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fmt::Write as _;
use std::io;

const PAGES: [&str; 6] =
    ["help", "commands-md", "man", "completions-bash", "completions-zsh", "completions-fish"];

pub(crate) fn print(page: &str) -> Result<(), Failed> {
    let made = match page {
        "help" => Ok(help().into_bytes()),
        "commands-md" => Ok(markdown().into_bytes()),
        "man" => man(),
        "completions-bash" => Ok(completions(Shell::Bash)),
        "completions-zsh" => Ok(completions(Shell::Zsh)),
        "completions-fish" => Ok(completions(Shell::Fish)),
        other => {
            return Err(Failed::Usage(format!(
                "print {other}: no such page; there are {}",
                PAGES.join(", ")
            )));
        }
    };
    let made = made.map_err(|error| Failed::Refused(error.to_string()))?;
    show::text(&String::from_utf8_lossy(&made))
}

/// Every command's help, one after the other.
fn help() -> String {
    let mut text = String::new();
    each(&mut Arguments::command().term_width(100), &mut |command, _| {
        let _ = writeln!(text, "{}", command.render_help());
    });
    text
}

fn markdown() -> String {
    let mut text = "# The operator's command\n\nPrinted by `fsstack print commands-md` from the table that clap reads; do not edit.\n".to_owned();
    each(&mut Arguments::command().term_width(100), &mut |command, path| {
        let _ = write!(text, "\n## {path}\n\n```\n{}```\n", command.render_help());
    });
    text.push_str("\n## Exit status\n\n| code | |\n|---|---|\n");
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "| {code} | {meaning} |");
    }
    text
}

/// Calls `act` for the command and all its visible subcommands, with their full names.
fn each(command: &mut Command, act: &mut impl FnMut(&mut Command, &str)) {
    command.build();
    walk(command, "fsstack", act);
}

fn walk(command: &mut Command, path: &str, act: &mut impl FnMut(&mut Command, &str)) {
    act(command, path);
    for below in command.get_subcommands_mut().filter(|below| !below.is_hide_set()) {
        let path = format!("{path} {}", below.get_name());
        walk(below, &path, act);
    }
}

fn man() -> io::Result<Vec<u8>> {
    let man = Man::new(Arguments::command()).section("8").manual("fsstack").date("");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    each(&mut Arguments::command(), &mut |command, path| {
        if path == "fsstack" {
            return;
        }
        roff.control("TP", []);
        let usage = command.render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).replace("       ", "");
        roff.text([bold(usage.replace('\n', ", "))]);
        let mut answer = command.get_about().map(ToString::to_string).unwrap_or_default();
        for argument in command.get_arguments().filter(|argument| argument.get_help().is_some()) {
            let name = argument
                .get_long()
                .map_or_else(|| argument.get_id().to_string().to_uppercase(), |long| format!("--{long}"));
            if !matches!(name.as_str(), "--help" | "--json" | "--version") {
                let _ = write!(
                    answer,
                    " {name}: {}",
                    argument.get_help().map(ToString::to_string).unwrap_or_default()
                );
            }
        }
        roff.text([roman(answer)]);
    });
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        roff.control("TP", []);
        roff.text([bold(code.to_string())]);
        roff.text([roman(*meaning)]);
    }
    roff.to_writer(&mut page)?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), "fsstack", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_the_command_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_is_as_it_was_and_fits_a_terminal() {
        let help = help();
        expect_test::expect_file!["../../tests/command_help.txt"].assert_eq(&help);
        assert!(help.lines().all(|line| line.chars().count() <= 110), "{help}");
    }

    #[test]
    fn the_manual_in_docs_is_current() {
        expect_test::expect_file!["../../../../docs/commands.md"].assert_eq(&markdown());
    }

    #[test]
    fn the_man_page_names_every_command() {
        let man = String::from_utf8(man().unwrap()).unwrap().replace("\\-", "-");
        each(&mut Arguments::command(), &mut |_, path| assert!(man.contains(path), "{path}"));
    }
}
