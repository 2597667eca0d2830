//! `fsstack explain`: why a path is where it is, or where a new file would be put.

use super::args::Explain;
use super::show::{self, Style};
use super::table::{Side, Table, size};
use super::{Failed, pool, typed_dir};
use fsstack_control::api::{Explained, PlacementExplained};
use fsstack_pool::{Printable, Size};
use std::path::Path;

pub(crate) fn run(wish: &Explain, style: Style) -> Result<(), Failed> {
    match wish.words.as_slice() {
        [path] => {
            let (pool, inside) = pool::holding(path)?;
            show::answer(style, &pool.client().explain(&inside)?, explained)
        }
        [pool, verb, path] if verb == Path::new("create") => {
            let Size(bytes) =
                wish.size.parse().map_err(|error| Failed::Usage(format!("--size {}: {error}", wish.size)))?;
            let pool = pool::find(pool)?;
            let inside = typed_dir::or_from_root(&pool, path)?;
            show::answer(style, &pool.client().explain_create(inside.path(), bytes)?, placement)
        }
        words => {
            let words: Vec<String> = words.iter().map(|word| Printable::path(word).to_string()).collect();
            let text =
                format!("explain {}: write explain PATH, or explain POOL create PATH", words.join(" "));
            Err(Failed::Usage(text))
        }
    }
}

fn explained(result: &Explained) -> String {
    let mut text = format!("/{}: a {} on {}\n", result.path, result.kind, result.branch);
    for copy in &result.copies {
        text.push_str(&format!("  {copy}\n"));
    }
    if let Some(rule) = &result.rule {
        text.push_str(&format!("placement rule: {rule}\n"));
    }
    if let Some(path) = &result.write_path {
        let open = if path.open { "open now" } else { "not open" };
        text.push_str(&format!("write path ({open}): {}\n", path.reason));
    }
    result.notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
    text
}

fn placement(result: &PlacementExplained) -> String {
    use Side::{Left, Right};
    let mut table = Table::new(&[
        ("TURN", Right),
        ("BRANCH", Left),
        ("MODE", Left),
        ("FREE", Right),
        ("FLOOR", Right),
        ("HOLDS", Right),
        ("PARENT", Left),
        ("WHY", Left),
    ]);
    for branch in &result.ranking {
        let known = |bytes: u64| size(branch.reachable.then_some(bytes));
        let lacks_room =
            if branch.fits || !branch.reachable { "" } else { "; no room for that size and its floor" };
        table.row([
            branch.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            branch.branch.clone(),
            branch.mode.clone(),
            known(branch.available),
            known(branch.floor),
            branch.holds.to_string(),
            if branch.holds_parent { "yes" } else { "no" }.to_owned(),
            format!("{}{lacks_room}", branch.why),
        ]);
    }
    let rule = result.rule.as_ref().map(|rule| format!(" of the rule {rule}")).unwrap_or_default();
    format!("create /{} by {}{rule}\n\n{}\n{}\n", result.path, result.create, table.text(), result.verdict)
}
