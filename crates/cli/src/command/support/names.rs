//! Leaves names out of a text: paths that are known become placeholders, and what may be another path is cut off.

use crate::command::pool::Pool;
use fsstack_pool::Printable;
use serde_json::Value;

/// Beginnings of paths that are the same on each machine.
const OF_THE_SYSTEM: &[&str] =
    &["/proc/", "/sys/", "/dev/fuse", "/run/fsstack/<", "/etc/os-release", "/etc/fuse.conf"];
/// Keys of JSON whose values are names.
const NAMED: &[&str] = &[
    "path",
    "subtree",
    "at",
    "dir",
    "directory",
    "program",
    "file",
    "stays",
    "plan",
    "refusal",
    "targets",
    "moving",
];

/// Options whose values are free text.
const FREE_TEXT: &[&str] = &["fsname", "subtype"];
/// Options that name a file; some have words of their own too.
const FILES: &[&str] = &["config", "state-dir", "log"];
/// Values of `log=` that are no file.
const LOG_WORDS: &[&str] = &["syslog", "stderr"];
/// Characters that may follow a known path; before any other, it is the beginning of another name.
const ENDS: &str = "/:,'\"";
/// A branch's mode ends its path too.
const MODES: &[&str] = &["=RW", "=RO", "=NC"];
/// Units of a rate, which have a slash and are no path.
const RATES: &[&str] = &["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s", "kB/s", "MB/s", "GB/s", "files/s"];

/// Names to leave out.
pub(super) struct Names {
    /// Known texts and what stands for them, the longest first; `None` leaves nothing out.
    known: Option<Vec<(String, String)>>,
}

impl Names {
    pub(super) fn new(pool: &Pool, keep: bool) -> Self {
        if keep {
            return Self { known: None };
        }
        let branches = pool.entry.branches.iter().enumerate();
        let mut known: Vec<(String, String)> = branches
            .map(|(index, branch)| {
                (Printable::path(&branch.path()).to_string(), format!("<branch {}>", index + 1))
            })
            .collect();
        known.push((pool.shown(), "<pool>".to_owned()));
        known.push((pool.entry.id.clone(), "<pool>".to_owned()));
        known.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Self { known: Some(known) }
    }

    pub(super) fn are_kept(&self) -> bool {
        self.known.is_none()
    }

    /// A text without names.
    pub(super) fn text(&self, text: &str) -> String {
        let Some(known) = &self.known else { return text.to_owned() };
        let rest = replaced(known, text);
        // A name may hold blanks: where a path ends is not known.
        let mut shown = String::new();
        for word in rest.split_inclusive(char::is_whitespace) {
            let bare = word.trim_matches(|c: char| c.is_whitespace() || "'\"`(),;:.".contains(c));
            let harmless = !bare.contains('/')
                || is_rate(bare)
                || OF_THE_SYSTEM.iter().any(|beginning| bare.starts_with(beginning));
            if !harmless {
                shown.push_str("<path>");
                break;
            }
            shown.push_str(word);
        }
        shown
    }

    /// A line of metrics: names stand in the values of labels.
    pub(super) fn labels(&self, line: &str) -> String {
        if self.are_kept() || line.starts_with('#') {
            return line.to_owned();
        }
        let mut shown = String::new();
        let mut rest = line;
        while let Some((before, value)) = rest.split_once('"') {
            let (value, after) = label_value(value);
            let value = self.text(&value).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            shown.push_str(&format!("{before}\"{value}\""));
            rest = after;
        }
        shown + rest
    }

    /// The value of a mount option.
    pub(super) fn option(&self, key: &str, value: &str) -> String {
        let is_file = FILES.contains(&key) && !value.starts_with('/') && !LOG_WORDS.contains(&value);
        if !self.are_kept() && !value.is_empty() && (FREE_TEXT.contains(&key) || is_file) {
            return "<name>".to_owned();
        }
        self.text(value)
    }

    /// JSON without names.
    pub(super) fn json(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(all) => all.into_iter().map(|one| self.json(one)).collect(),
            Value::Object(all) => all.into_iter().map(|(key, value)| self.field(key, value)).collect(),
            other => other,
        }
    }

    fn field(&self, key: String, value: Value) -> (String, Value) {
        let is_name = !self.are_kept() && NAMED.contains(&key.as_str());
        let value = match &value {
            // The path of a branch is known.
            Value::String(text) if is_name && !self.is_known(text) => Value::String("<name>".to_owned()),
            Value::Array(all) if is_name => Value::String(format!("<{} names>", all.len())),
            _ => self.json(value),
        };
        (key, value)
    }

    fn is_known(&self, text: &str) -> bool {
        self.known.iter().flatten().any(|(name, _)| name == text)
    }
}

/// Puts placeholders where known names are whole; cuts the text off at the word in which one is a part of a name.
fn replaced(known: &[(String, String)], text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_here = |(name, _): &&(String, String)| {
            !name.is_empty() && name != "/" && rest.starts_with(name.as_str())
        };
        let Some((name, instead)) = known.iter().find(is_here) else {
            shown.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        // Names of pools have no slash; in the middle of a word a path is the end of another one.
        let begins =
            !name.starts_with('/') || !shown.ends_with(|c: char| c.is_alphanumeric() || "_-.~".contains(c));
        rest = &rest[name.len()..];
        if !begins || !ends_name(rest) {
            let word = shown.rfind(char::is_whitespace).map_or(0, |blank| blank + 1);
            shown.truncate(word);
            return shown + "<path>";
        }
        shown.push_str(instead);
    }
    shown
}

fn ends_name(rest: &str) -> bool {
    rest.chars().next().is_none_or(|next| next.is_whitespace() || ENDS.contains(next))
        || MODES.iter().any(|mode| {
            let after = rest.strip_prefix(mode);
            after.is_some_and(|after| after.chars().next().is_none_or(|next| !next.is_alphanumeric()))
        })
}

fn is_rate(word: &str) -> bool {
    RATES.contains(&word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.'))
}

/// The value of a label up to the quote that ends it, without its escapes, and what follows.
fn label_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => match characters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped)) => value.push(escaped),
                None => {}
            },
            plain => value.push(plain),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let known = [("/srv/pool/in/it", "<branch 2>"), ("/srv/a", "<branch 1>"), ("/mnt/pool", "<pool>")];
        Names { known: Some(known.map(|(name, instead)| (name.to_owned(), instead.to_owned())).to_vec()) }
    }

    #[test]
    fn known_paths_get_placeholders_and_others_are_cut_off() {
        let names = names();
        for (text, shown) in [
            ("branch /srv/a: 3 files", "branch <branch 1>: 3 files"),
            ("/mnt/pool/tax return 2025.pdf: EIO", "<path>"),
            ("set /proc/sys/fs/fuse/max_pages_limit", "set /proc/sys/fs/fuse/max_pages_limit"),
            ("100 MiB/s", "100 MiB/s"),
            ("open 'my/own file': EIO", "open <path>"),
            // A path that only begins like a known one.
            ("/mnt/pool-secret.toml", "<path>"),
            ("read /mnt/pool.secret now", "read <path>"),
            ("x/srv/a", "<path>"),
            ("secret/srv/a", "<path>"),
            ("'/srv/a', \"/mnt/pool\"", "'<branch 1>', \"<pool>\""),
            ("/srv/a=RW:/srv/pool/in/it=RO", "<branch 1>=RW:<branch 2>=RO"),
            ("/srv/a=RWsecret", "<path>"),
            // No rates.
            ("docs/s", "<path>"),
            ("12.5MiB/s secret/s", "12.5MiB/s <path>"),
        ] {
            assert_eq!(names.text(text), shown);
        }
        assert_eq!(
            names.labels("calls{branch=\"/srv/a\",dir=\"/x y\"} 7"),
            "calls{branch=\"<branch 1>\",dir=\"<path>\"} 7"
        );
    }

    #[test]
    fn escaped_quotes_do_not_end_a_label() {
        assert_eq!(
            names().labels(r#"calls{dir="/x\"secret y",branch="/srv/a",of="a\\b"} 7"#),
            r#"calls{dir="<path>",branch="<branch 1>",of="a\\b"} 7"#
        );
    }

    #[test]
    fn free_text_of_options_is_left_out() {
        let names = names();
        for (key, value, shown) in [
            ("fsname", "secret", "<name>"),
            ("subtype", "secret", "<name>"),
            ("config", "secret.toml", "<name>"),
            ("config", "/mnt/pool-secret.toml", "<path>"),
            ("config", "", ""),
            ("log", "syslog", "syslog"),
            ("create", "mfs", "mfs"),
        ] {
            assert_eq!(names.option(key, value), shown, "{key}={value}");
        }
        assert_eq!(Names { known: None }.option("fsname", "secret"), "secret");
    }

    #[test]
    fn names_in_json_are_known_by_their_keys() {
        let value =
            serde_json::json!({"path": "letter", "branch": "/srv/a", "stays": ["letter"], "state": "up"});
        let shown = serde_json::json!({"path": "<name>", "branch": "<branch 1>", "stays": "<1 names>", "state": "up"});
        assert_eq!(names().json(value), shown);
    }
}
