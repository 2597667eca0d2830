//! Gathers a mount's options: the config file first, then every `-o` list; reports all problems together.

use crate::cli::Invocation;
use crate::config_file;
use crate::options::{self, Origin, Typed};
use crate::optlist;
use crate::problem::Problems;
use crate::raw::RawOptions;
use fsstack_pool::Printable;
use fsstack_pool::suggestion;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use toml::Value;

/// Handles an unknown option: refused, or ignored with mount(8)'s `-s`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    Refused,
    Noticed,
}

/// An option as typed: its name, and the text after `=`.
pub(crate) type Named = (String, Option<OsString>);

/// Parses all options of an invocation.
pub(crate) fn gather(typed: &Invocation, problems: &mut Problems) -> RawOptions {
    let words: Vec<_> = typed.lists.iter().flat_map(|list| words_of(list, problems)).collect();
    gather_words(&words, typed.sloppy, problems)
}

/// Parses these options; `sloppy` ignores unknown ones.
pub(crate) fn gather_words(words: &[Named], sloppy: bool, problems: &mut Problems) -> RawOptions {
    let unknown = if sloppy { Unknown::Noticed } else { Unknown::Refused };
    // The command line is parsed twice: once to find config files, then over their values.
    let mut first = RawOptions::default();
    for (name, value) in words.iter().filter(|(name, _)| name == "config") {
        let row = options::find("config");
        let typed = Typed { name, value: value.as_deref(), origin: Origin::CommandLine };
        if let Some(row) = row {
            let _ = options::apply(&mut first, row, &typed); // reported below, with the rest
        }
    }
    let mut raw = RawOptions::default();
    for file in &first.options.config {
        read_config(&mut raw, file, unknown, problems);
    }
    for (name, value) in words {
        let typed = Typed { name, value: value.as_deref(), origin: Origin::CommandLine };
        if let Err(text) = take(&mut raw, &typed, unknown) {
            problems.usage(text);
        }
    }
    raw
}

/// Options that the config file would give with this text, without those of a command line.
pub(crate) fn gather_config(file: &Path, text: &str, problems: &mut Problems) -> RawOptions {
    let mut raw = RawOptions::default();
    read_config_text(&mut raw, file, text, Unknown::Refused, problems);
    raw
}

/// Splits one `-o` list into options.
pub(crate) fn words_of(list: &OsStr, problems: &mut Problems) -> Vec<Named> {
    let words = optlist::split(list).unwrap_or_else(|unclosed| {
        problems.usage(format!("-o {}: {unclosed}", Printable::os(list)));
        Vec::new()
    });
    let mut named = Vec::new();
    for word in words {
        match word.name.into_string() {
            Ok(name) => named.push((name, word.value)),
            Err(name) => problems.usage(format!("{}: unknown option", Printable::os(&name))),
        }
    }
    named
}

fn take(raw: &mut RawOptions, typed: &Typed<'_>, unknown: Unknown) -> Result<(), String> {
    match options::find(typed.name) {
        Some(row) => options::apply(raw, row, typed),
        None if unknown == Unknown::Noticed => {
            raw.notice(format!("{typed}: unknown option, passed over because of -s"));
            Ok(())
        }
        None => {
            let known = options::rows().flat_map(|row| row.names).filter(|name| !name.ends_with('*'));
            let near = suggestion(typed.name, known.copied());
            let way_out =
                if near.is_empty() { "; leave it out, or have mount -s pass over it" } else { &near };
            Err(format!("{typed}: unknown option{way_out}"))
        }
    }
}

fn read_config(raw: &mut RawOptions, file: &Path, unknown: Unknown, problems: &mut Problems) {
    let shown = Printable::path(file);
    let text = match config_file::read(file) {
        Ok(text) => text,
        Err(error) => return problems.usage(format!("config={shown}: cannot be read: {error}")),
    };
    read_config_text(raw, file, &text, unknown, problems);
}

fn read_config_text(
    raw: &mut RawOptions,
    file: &Path,
    text: &str,
    unknown: Unknown,
    problems: &mut Problems,
) {
    let shown = Printable::path(file);
    let options = match config_file::parse(text) {
        Ok(options) => options,
        Err(why) => return problems.usage(format!("config={shown}: {why}")),
    };
    for (name, value) in options {
        if let Err(text) = take_config(raw, &name, &value, unknown) {
            problems.usage(format!("config={shown}: {text}"));
        }
    }
}

fn take_config(raw: &mut RawOptions, name: &str, value: &Value, unknown: Unknown) -> Result<(), String> {
    let words: Option<OsString> = match value {
        Value::Boolean(true) => None,
        // A switch set to false is left out.
        Value::Boolean(false)
            if options::find(name).is_some_and(|row| matches!(row.takes, options::Takes::Nothing)) =>
        {
            return Ok(());
        }
        Value::Boolean(false) => Some("false".into()),
        Value::String(text) => Some(text.into()),
        Value::Integer(number) => Some(number.to_string().into()),
        Value::Float(number) => Some(number.to_string().into()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
            return Err(format!("{name}: neither text, a number, true nor false"));
        }
    };
    let takes_text = options::find(name).is_some_and(|row| matches!(row.takes, options::Takes::Value(_)));
    let words = if words.is_none() && takes_text { Some("true".into()) } else { words };
    if options::find(name).is_some_and(|row| row.name() == "config") {
        return Err("config: a config file cannot name another".to_owned());
    }
    take(raw, &Typed { name, value: words.as_deref(), origin: Origin::Config }, unknown)
}
