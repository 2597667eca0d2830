//! `fsstack write-path`: changes the write path.

use super::args::WritePathArguments;
use super::show::{self, Style};
use super::{Failed, pool, typed_dir};
use fsstack_control::api::{WritePathChanged, WritePathRequest};
use std::time::Duration;

/// Interval of counting open files with `--wait`.
const OPEN_FILES_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn run(wish: &WritePathArguments, style: Style) -> Result<(), Failed> {
    let pool = pool::find(&wish.pool)?;
    let subtree = wish.subtree.as_deref().map(|dir| {
        let dir = typed_dir::inside(&pool, dir);
        dir.map(|dir| dir.to_string()).map_err(|why| Failed::Usage(format!("--subtree: {why}")))
    });
    let subtree = subtree.transpose()?;
    let client = pool.client();
    let request =
        WritePathRequest { write_path: wish.path.clone(), subtree, only_count: false, persist: wish.persist };
    let mut changed = client.write_path(&request)?;
    while wish.wait && changed.other_way != 0 {
        fsstack_sync::thread::sleep(OPEN_FILES_INTERVAL);
        let counted = client.write_path(&WritePathRequest { only_count: true, ..request.clone() })?;
        changed.other_way = counted.other_way;
    }
    show::answer(style, &changed, human)
}

fn human(changed: &WritePathChanged) -> String {
    let WritePathChanged { from, to, subtree, other_way, persisted, .. } = changed;
    let place = subtree.as_ref().map(|dir| format!(" below {dir}")).unwrap_or_default();
    let mut text = if from == to {
        format!("write-path{place}: {to} already\n")
    } else {
        format!("write-path{place}: {from} -> {to}\n")
    };
    match other_way {
        0 => text.push_str("no open file goes another way\n"),
        count => text.push_str(&format!("open files that go another way until their last close: {count}\n")),
    }
    if let Some(file) = persisted {
        text.push_str(&format!("written to {file}\n"));
    }
    text
}
