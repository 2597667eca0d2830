//! Writes keys to the pool's config file atomically; other content and comments stay.

use crate::config_file::{self, Lines};
use crate::options;
use std::io;
use std::path::Path;
use toml_edit::{DocumentMut, Item, Table, Value};

/// Returns the file's text with these values.
///
/// # Errors
///
/// It cannot be read or parsed.
pub(super) fn edited(file: &Path, values: &[(&str, String)]) -> Result<String, String> {
    let text = match config_file::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|error| format!("cannot be read: {error}"))?,
    };
    let mut document: DocumentMut = match text.parse::<DocumentMut>() {
        Ok(document) => document,
        Err(error) => {
            let not_toml = || format!("not TOML: {}", error.message().replace('\n', " "));
            let mut lines = Lines::parse(&text).ok_or_else(not_toml)?;
            values.iter().for_each(|(name, value)| lines.set(name, value));
            return Ok(lines.to_string());
        }
    };
    for (name, value) in values {
        if !replace_in(document.as_table_mut(), "", name, value) {
            document.as_table_mut().insert(name, Item::Value(typed(value)));
        }
    }
    Ok(document.to_string())
}

/// Replaces the value of the option `name`, however the file spells it: TOML parses `category.create` as a table.
fn replace_in(table: &mut Table, prefix: &str, name: &str, value: &str) -> bool {
    let spellings: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
    let mut found = false;
    for key in spellings {
        let full = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match table.get_mut(&key) {
            Some(Item::Table(inner)) => found |= replace_in(inner, &full, name, value),
            Some(Item::Value(held)) if options::find(&full).is_some_and(|row| row.name() == name) => {
                let decor = held.decor().clone();
                *held = typed(value);
                *held.decor_mut() = decor;
                found = true;
            }
            _ => {}
        }
    }
    found
}

/// Converts to a number or boolean if possible, else text.
fn typed(value: &str) -> Value {
    match (value.parse::<i64>(), value.parse::<bool>()) {
        (Ok(number), _) => number.into(),
        (_, Ok(truth)) => truth.into(),
        _ => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use fsstack_sys::whole_file::replace;
    use std::fs;

    #[test]
    fn comments_stay_and_other_spellings_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pool.toml");
        let text = "# my pool\ncreate = \"mfs\" # roomiest\nmin_inodes = 5\n\n[cache]\nattr = 1 # short\n";
        fs::write(&file, text).unwrap();
        let values = [
            ("create", "ff".to_owned()),
            ("min-inodes", "7".to_owned()),
            ("attr-timeout", "2.5".to_owned()),
            ("write-path", "stacked".to_owned()),
        ];
        replace(&file, &edited(&file, &values).unwrap()).unwrap();
        expect![[r#"
            # my pool
            create = "ff" # roomiest
            min_inodes = 7
            write-path = "stacked"

            [cache]
            attr = "2.5" # short
        "#]]
        .assert_eq(&fs::read_to_string(&file).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_config_file_of_mergerfs_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mergerfs.conf");
        fs::write(&file, "# pool\ncategory.create=epmfs\nminfreespace=20G\n").unwrap();
        let edited = edited(&file, &[("create", "ff".to_owned()), ("attr-timeout", "2.5".to_owned())]);
        assert_eq!(edited.unwrap(), "# pool\ncategory.create=ff\nminfreespace=20G\nattr-timeout=2.5\n");
    }

    #[test]
    fn a_file_that_is_no_toml_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pool.toml");
        fs::write(&file, "create = \"mfs\n").unwrap();
        assert!(edited(&file, &[("create", "ff".to_owned())]).unwrap_err().starts_with("not TOML"));
        assert_eq!(
            edited(&dir.path().join("none"), &[("create", "ff".into())]).unwrap(),
            "create = \"ff\"\n"
        );
    }
}
