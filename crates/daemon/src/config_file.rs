//! The file that `config=` names: TOML, or lines of `key=value` as mergerfs has them.

use std::io;
use std::path::Path;

use toml::Value;

use crate::options;

/// Maximum size in bytes.
const AT_MOST: u64 = 1 << 20;

/// Text of a config file. A device or a pipe could block or never end, so only regular files are read.
pub(crate) fn read(file: &Path) -> io::Result<String> {
    let kind = std::fs::metadata(file)?;
    if !kind.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if AT_MOST < kind.len() {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    std::fs::read_to_string(file)
}

/// Options in the text of a config file, in its order, except that TOML sorts them.
///
/// # Errors
/// It is in neither format: the line and the reason.
pub(crate) fn parse(text: &str) -> Result<Vec<(String, Value)>, String> {
    let error = match text.parse::<toml::Table>() {
        Ok(table) => return Ok(flatten(table)),
        Err(error) => error,
    };
    if let Some(lines) = Lines::parse(text) {
        return Ok(lines.0.iter().filter_map(Line::option).collect());
    }
    let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
    let reason = error.message().replace('\n', " ");
    Err(format!(
        "line {line}: {reason}; write it as TOML, create = \"mfs\", or as mergerfs has it, create=mfs"
    ))
}

/// TOML parses `cache.files = "off"` as a table in a table; here it is one option.
fn flatten(table: toml::Table) -> Vec<(String, Value)> {
    let mut flat = Vec::new();
    for (name, value) in table {
        match value {
            Value::Table(inner) => {
                flat.extend(
                    flatten(inner).into_iter().map(|(rest, value)| (format!("{name}.{rest}"), value)),
                );
            }
            plain => flat.push((name, plain)),
        }
    }
    flat
}

/// A config file as mergerfs has it: `key=value` in each line, comments begin with `#`.
pub(crate) struct Lines<'t>(Vec<Line<'t>>);

enum Line<'t> {
    /// Empty, or a comment.
    Other(&'t str),
    Option {
        name: &'t str,
        value: Option<&'t str>,
    },
}

impl<'t> Lines<'t> {
    /// None: it has a line that mergerfs's format does not have, or that only TOML does (quotes, brackets).
    pub(crate) fn parse(text: &'t str) -> Option<Self> {
        text.lines().map(Line::parse).collect::<Option<_>>().map(Self)
    }

    /// Text with `value` for the option `name` in each line that sets it by any of its names, or in a new last line.
    pub(crate) fn set(&mut self, name: &'t str, value: &'t str) {
        let mut found = false;
        for line in &mut self.0 {
            if let Line::Option { name: spelled, value: held } = line
                && options::find(spelled).is_some_and(|row| row.name() == name)
            {
                *held = Some(value);
                found = true;
            }
        }
        if !found {
            self.0.push(Line::Option { name, value: Some(value) });
        }
    }
}

impl std::fmt::Display for Lines<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|line| match line {
            Line::Other(text) => writeln!(out, "{text}"),
            Line::Option { name, value: None } => writeln!(out, "{name}"),
            Line::Option { name, value: Some(value) } => writeln!(out, "{name}={value}"),
        })
    }
}

impl<'t> Line<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let line = text.trim();
        if line.is_empty() || line.starts_with('#') {
            return Some(Self::Other(text));
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
            None => (line, None),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_plain = value.is_none_or(|value| !value.starts_with(['"', '\'', '[', '{']));
        (!name.is_empty() && name.bytes().all(is_name) && is_plain).then_some(Self::Option { name, value })
    }

    fn option(&self) -> Option<(String, Value)> {
        let Self::Option { name, value } = self else { return None };
        let value = match *value {
            None | Some("true") => Value::Boolean(true),
            Some("false") => Value::Boolean(false),
            Some(text) => Value::String(text.to_owned()),
        };
        Some(((*name).to_owned(), value))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn shown(text: &str) -> String {
        match parse(text) {
            Ok(options) => {
                options.iter().map(|(name, value)| format!("{name}: {value}\n")).collect::<String>()
            }
            Err(why) => why,
        }
    }

    #[test]
    fn toml_and_the_lines_of_mergerfs_are_read() {
        expect![[r#"
            cache.files: "off"
            create: "mfs"
        "#]]
        .assert_eq(&shown("create = \"mfs\"\n[cache]\nfiles = \"off\"\n"));
        expect![[r#"
            category.create: "pfrd"
            minfreespace: "20G"
            allow_other: true
            moveonenospc: true
            noforget: true
            fsname: "my pool"
            log: ""
        "#]]
        .assert_eq(&shown(
            "# mergerfs\n\ncategory.create=pfrd\n  minfreespace = 20G  \nallow_other\nmoveonenospc=true\nnoforget=true\nfsname=my pool\nlog=\n",
        ));
    }

    #[test]
    fn what_is_in_neither_format_is_refused_by_its_line() {
        for text in ["create = \"mfs\n", "create=mfs\n[cache]\n", "create=mfs\n=x\n", "what is this\n"] {
            assert!(
                parse(text).is_err_and(|why| why.starts_with("line ") && why.contains("mergerfs")),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_line_is_replaced_under_any_of_its_names_and_the_rest_stays() {
        let mut lines = Lines::parse("# mine\ncategory.create=mfs\n\nallow_other\n").unwrap();
        lines.set("create", "ff");
        lines.set("write-path", "stacked");
        assert_eq!(lines.to_string(), "# mine\ncategory.create=ff\n\nallow_other\nwrite-path=stacked\n");
    }
}
