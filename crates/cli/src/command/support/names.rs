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
        let mut rest = text.to_owned();
        for (name, instead) in known.iter().filter(|(name, _)| !name.is_empty() && name != "/") {
            rest = rest.replace(name.as_str(), instead);
        }
        // A name may hold blanks: where a path ends is not known.
        let mut shown = String::new();
        for word in rest.split_inclusive(char::is_whitespace) {
            let bare = word.trim_matches(|c: char| c.is_whitespace() || "'\"`(),;:.".contains(c));
            let harmless = !bare.contains('/')
                || bare.ends_with("/s")
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
        let parts = line.split('"').enumerate();
        let parts: Vec<String> =
            parts.map(|(at, part)| if at % 2 == 1 { self.text(part) } else { part.to_owned() }).collect();
        parts.join("\"")
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
        ] {
            assert_eq!(names.text(text), shown);
        }
        assert_eq!(
            names.labels("calls{branch=\"/srv/a\",dir=\"/x y\"} 7"),
            "calls{branch=\"<branch 1>\",dir=\"<path>\"} 7"
        );
    }

    #[test]
    fn names_in_json_are_known_by_their_keys() {
        let value =
            serde_json::json!({"path": "letter", "branch": "/srv/a", "stays": ["letter"], "state": "up"});
        let shown = serde_json::json!({"path": "<name>", "branch": "<branch 1>", "stays": "<1 names>", "state": "up"});
        assert_eq!(names().json(value), shown);
    }
}
