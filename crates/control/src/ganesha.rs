//! nfs-ganesha's configuration, as far as it decides how late clients of a pool see changes and what a read costs.
//!
//! Grammar: ganesha-config(8). Names of blocks and parameters are the same in any case.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where Debian's and the server's own unit keep it.
pub const CONFIG: &str = "/etc/ganesha/ganesha.conf";
/// `Attr_Expiration_Time` of an export that names none.
const KEPT_BY_DEFAULT: i64 = 60;
/// Files that include one another.
const DEPTH: usize = 8;

/// Parameters of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GaneshaConfig {
    /// Exports, in their order.
    pub exports: Vec<GaneshaExport>,
    /// Whether each read asks for the file's attributes, too.
    pub attributes_after_reads: bool,
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GaneshaExport {
    /// Exported path.
    pub path: PathBuf,
    /// Seconds for which the server keeps attributes; below 0: for ever.
    pub attributes_kept: i64,
}

/// Reads the configuration in `file`, and what it includes.
///
/// # Errors
/// `file` cannot be read. An included file that cannot is left out, as its server would not run.
pub fn read(file: &Path) -> io::Result<GaneshaConfig> {
    let mut words = Vec::new();
    expand(file, &fs::read(file)?, DEPTH, &mut words);
    Ok(of(&words))
}

/// Appends the words of `text`, with the words of each `%include`d file in its place.
fn expand(file: &Path, text: &[u8], depth: usize, into: &mut Vec<String>) {
    let text = String::from_utf8_lossy(text);
    let mut words = words(&text).into_iter();
    while let Some(word) = words.next() {
        if !word.eq_ignore_ascii_case("%include") {
            into.push(word);
            continue;
        }
        let Some(included) = words.next().filter(|_| depth > 0) else { return };
        let included = file.with_file_name(included);
        if let Ok(text) = fs::read(&included) {
            expand(&included, &text, depth - 1, into);
        }
    }
}

/// Splits a text into words without quotes; `{`, `}`, `=`, `,` and `;` are words.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if first == '#' || rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if "{}=,;".contains(first) {
            words.push(first.to_string());
            1
        } else if first == '"' || first == '\'' {
            let (quoted, len) = quoted(&rest[1..], first);
            words.push(quoted);
            1 + len
        } else {
            let is_end = |c: char| c.is_whitespace() || "{}=,;#\"'".contains(c);
            let len = rest.find(is_end).unwrap_or(rest.len());
            words.push(rest[..len].to_owned());
            len
        };
        rest = rest[len..].trim_start();
    }
    words
}

/// The text before the closing quote, and its length in bytes with the quote.
fn quoted(text: &str, quote: char) -> (String, usize) {
    let mut plain = String::new();
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '\\' if !is_escaped => is_escaped = true,
            c if c == quote && !is_escaped => return (plain, at + 1),
            c => {
                plain.push(c);
                is_escaped = false;
            }
        }
    }
    (plain, text.len())
}

/// The configuration that the words describe.
fn of(words: &[String]) -> GaneshaConfig {
    let mut blocks: Vec<String> = Vec::new();
    let mut exports: Vec<(Option<PathBuf>, Option<i64>)> = Vec::new();
    let (mut default, mut after_reads) = (KEPT_BY_DEFAULT, true);
    for (at, word) in words.iter().enumerate() {
        match word.as_str() {
            "{" => {
                let name = at.checked_sub(1).map(|before| words[before].to_ascii_lowercase());
                if name.as_deref() == Some("export") && blocks.is_empty() {
                    exports.push((None, None));
                }
                blocks.push(name.unwrap_or_default());
            }
            "}" => drop(blocks.pop()),
            "=" => {
                let (Some(key), Some(value)) =
                    (at.checked_sub(1).and_then(|before| words.get(before)), words.get(at + 1))
                else {
                    continue;
                };
                let within: Vec<&str> = blocks.iter().map(String::as_str).collect();
                match (within.as_slice(), key.to_ascii_lowercase().as_str(), exports.last_mut()) {
                    (["export"], "path", Some(export)) => export.0 = Some(value.into()),
                    (["export"], "attr_expiration_time", Some(export)) => export.1 = value.parse().ok(),
                    (["export_defaults"], "attr_expiration_time", _) => {
                        default = value.parse().unwrap_or(default);
                    }
                    (["nfs_core_param"], "getattrs_in_complete_read", _) => {
                        after_reads = !["false", "no", "off"].contains(&value.to_ascii_lowercase().as_str());
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let exports = exports.into_iter().filter_map(|(path, kept)| {
        Some(GaneshaExport { path: path?, attributes_kept: kept.unwrap_or(default) })
    });
    GaneshaConfig { exports: exports.collect(), attributes_after_reads: after_reads }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> GaneshaConfig {
        of(&words(text))
    }

    fn export(path: &str, attributes_kept: i64) -> GaneshaExport {
        GaneshaExport { path: path.into(), attributes_kept }
    }

    #[test]
    fn exports_and_their_attributes_are_read() {
        let config = told(
            "# Path = /no;\nexport_defaults { Attr_Expiration_Time = 5; }\n// EXPORT { Path = /no; }\n\
             EXPORT{Export_Id=1;Path=\"/srv/my \\\"pool\\\"#\";Attr_Expiration_Time = 0; # others\n FSAL { Name = VFS; Path = /no; } }\n\
             Export { Path = /srv/b; Clients = a, b; CLIENT { Path = /no; } }",
        );
        assert_eq!(config.exports, [export("/srv/my \"pool\"#", 0), export("/srv/b", 5)]);
        assert!(config.attributes_after_reads);
    }

    #[test]
    fn defaults_are_the_servers_own() {
        let config = told("NFS_Core_Param { getattrs_in_complete_read = FALSE; } EXPORT { Path = /a; }");
        assert_eq!(config.exports, [export("/a", 60)]);
        assert!(!config.attributes_after_reads);
        assert!(told("LOG { Getattrs_In_Complete_Read = false; }").attributes_after_reads);
    }

    #[test]
    fn included_files_are_read_and_a_circle_ends() {
        let home = tempfile::tempdir().unwrap();
        let [main, more] = ["ganesha.conf", "more.conf"].map(|name| home.path().join(name));
        fs::write(&main, "%include \"more.conf\"\nEXPORT { Path = /b; }").unwrap();
        fs::write(&more, "EXPORT { Path = /a; Attr_Expiration_Time = -1; }\n%include none.conf").unwrap();
        assert_eq!(read(&main).unwrap().exports, [export("/a", -1), export("/b", 60)]);
        fs::write(&more, "%include ganesha.conf").unwrap();
        assert!(!read(&main).unwrap().exports.is_empty());
        assert!(read(&home.path().join("none")).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_odd(text in "[ -~\n{}=;\"'#/%]{0,200}") {
            told(&text);
        }
    }
}
