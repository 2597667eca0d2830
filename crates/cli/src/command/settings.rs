//! `fsstack get` and `set`.

use super::args::Set;
use super::show::{self, Style};
use super::table::{Side, Table};
use super::{Failed, pool};
use fsstack_control::api::{Assignment, Changed, Key, Keys, SettingsRequest, When};
use fsstack_pool::Printable;
use fsstack_pool::suggestion;
use std::ffi::OsStr;

pub(crate) fn get(word: &OsStr, key: Option<&str>, style: Style) -> Result<(), Failed> {
    let mut keys = pool::find(word)?.client().keys()?;
    if let Some(key) = key {
        let found = keys.keys.iter().find(|known| known.is_called(key)).cloned();
        let known = keys.keys.iter().map(|known| known.key.as_str());
        keys.keys = vec![found.ok_or_else(|| {
            Failed::Usage(format!("{}: unknown key{}", Printable(key.as_bytes()), suggestion(key, known)))
        })?];
        // A single value, for scripts.
        return show::answer(style, &keys, values);
    }
    show::answer(style, &keys, table)
}

fn values(keys: &Keys) -> String {
    keys.keys.iter().map(|key| format!("{}\n", key.value)).collect()
}

fn table(keys: &Keys) -> String {
    let mut table = Table::new(&[("KEY", Side::Left), ("VALUE", Side::Left), ("CHANGES", Side::Left)]);
    for Key { key, value, changes, .. } in &keys.keys {
        let changes = match changes {
            When::AtOnce => "at once",
            When::AtMount => "at the next mount",
        };
        table.row([key.clone(), value.clone(), changes.to_owned()]);
    }
    table.text()
}

pub(crate) fn set(wish: &Set, style: Style) -> Result<(), Failed> {
    let changes = wish.changes.iter().map(|text| match text.split_once('=') {
        Some((key, value)) => Assignment { key: key.to_owned(), value: Some(value.to_owned()) },
        None => Assignment { key: text.clone(), value: None },
    });
    let request = SettingsRequest {
        changes: changes.collect(),
        dry_run: wish.dry_run,
        persist: wish.persist,
        remount: false,
    };
    let changed = pool::find(&wish.pool)?.client().change(&request)?;
    show::answer(style, &changed, difference)
}

fn difference(changed: &Changed) -> String {
    let mut text: String = changed
        .changes
        .iter()
        .map(|change| format!("{}: {} -> {}\n", change.key, shown(&change.from), shown(&change.to)))
        .collect();
    if changed.changes.is_empty() {
        text.push_str("nothing changes: all of it holds already\n");
    } else if changed.dry_run {
        text.push_str("not changed: --dry-run\n");
    }
    if let Some(file) = &changed.persisted {
        let verb = if changed.dry_run { "would be written" } else { "written" };
        text.push_str(&format!("{verb} to {file}\n"));
    }
    changed.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "(none)" } else { value }
}
