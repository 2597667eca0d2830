//! A mount option is one row of the table, one field, and the code that acts on it; no other file names it.

use super::Source;

/// Maximum number of files that name an option.
const MOST: usize = 4;
/// The table of our own options.
const TABLE: &str = "/src/options/pool.rs";
/// Crates between the command line and the code that acts on an option.
const CARRIERS: [&str; 3] = ["crates/pool/src/", "crates/engine/src/", "crates/daemon/src/"];

/// Options named in more than four files: the word alone in quotes, or a field of the settings.
pub(super) fn few_files(sources: &[Source]) -> Vec<String> {
    let Some(table) = sources.iter().find(|source| source.path.ends_with(TABLE)) else {
        return vec![format!("there is no table of options at crates/*{TABLE}")];
    };
    let carriers: Vec<&Source> = sources
        .iter()
        .filter(|source| source.is_rust() && CARRIERS.iter().any(|path| source.path.starts_with(path)))
        .collect();
    let complaint = |option: &str| {
        let files: Vec<&str> =
            carriers.iter().filter(|file| names(file, option)).map(|file| file.path.as_str()).collect();
        (MOST < files.len()).then(|| format!("`{option}` is named in {}: {}", files.len(), files.join(", ")))
    };
    options(&table.text).into_iter().filter_map(complaint).collect()
}

/// First spellings of all options in the table: in their rows, or as constants above them.
fn options(table: &str) -> Vec<&str> {
    let mut found: Vec<&str> = table
        .lines()
        .filter_map(|line| quoted(line.split_once("const ")?.1.split_once(": &str = ")?.1))
        .collect();
    let rows = table.split("option(").skip(1);
    found.extend(rows.filter_map(|row| quoted(row.trim_start().strip_prefix("&[")?)));
    found
}

/// The text in quotes that this begins with.
fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.split('"').next()
}

fn names(file: &Source, option: &str) -> bool {
    let code = file.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let (word, field) = (format!("\"{option}\""), format!("pub {}:", option.replace('-', "_")));
    let is_settings = file.path.ends_with("/src/settings.rs");
    let mut lines = code.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    lines.any(|line| line.contains(&word) || is_settings && line.starts_with(&field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    #[test]
    fn an_option_in_five_files_is_reported() {
        let table = "pub(crate) const FAR: &str = \"far-away\";\nrow: option(\n    &[\"near\", \"close\"],\n    \"\",\n), option(&[FAR])";
        let at = |name: &str, text: &str| source(&format!("crates/daemon/src/{name}.rs"), text);
        let mut files = vec![
            at("options/pool", table),
            at("settings", "    /// Near.\n    pub near: u64,\n    pub far_away: u64,\n"),
            at("one", "given(\"near\"); given(\"far-away\")"),
            at("two", "given(\"near\"); // \"far-away\""),
            at(
                "other",
                "pub near: u64,\n/// \"near\"\n\"near=4: too small\"\n#[cfg(test)]\nmod tests { \"near\" }",
            ),
            source("crates/control/src/near.rs", "\"near\""),
        ];
        assert_eq!(options(table), ["far-away", "near"]);
        assert_eq!(few_files(&files), [""; 0]);
        files.push(at("three", "given(\"near\")"));
        let answer = few_files(&files);
        assert!(answer[0].starts_with("`near` is named in 5: ") && answer.len() == 1, "{answer:?}");
        assert_eq!(few_files(&[]).len(), 1, "a table that moved is not an empty one");
    }
}
