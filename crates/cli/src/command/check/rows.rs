//! Rows of the index of numbers whose objects no longer exist. The daemon has the index open, so it looks for them.

use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::output::CheckOutput;
use crate::command::Failed;
use fsstack_control::Client;
use fsstack_control::api::{CheckFinding, CheckKind, StaleRow, StaleRowsRequest};

/// Reports these rows; with `remove` they are removed. False: `stop` was set before the end.
pub(super) fn check(
    client: &Client,
    remove: bool,
    output: &mut CheckOutput,
    stop: &AtomicBool,
) -> Result<bool, Failed> {
    let mut next = Some(0);
    while let Some(from) = next {
        if stop.load(Relaxed) {
            return Ok(false);
        }
        let found = match client.stale_rows(&StaleRowsRequest { from, remove }) {
            Ok(found) => found,
            Err(error) => {
                output.not_checked(b"/", &format!("rows of the index: {error}"))?;
                return Ok(true);
            }
        };
        found.rows.iter().try_for_each(|row| output.add(&finding(row, remove)))?;
        next = found.next;
    }
    Ok(true)
}

fn finding(row: &StaleRow, removed: bool) -> CheckFinding {
    let on = if row.branches.is_empty() { "its branch".to_owned() } else { row.branches.join(", ") };
    let StaleRow { handle, .. } = row;
    let text = format!(
        "the index has a row of object {:x}, generation {:x}, that is no longer on {on}",
        handle.number, handle.generation
    );
    let finding = CheckFinding::new(b"/", CheckKind::StaleRow, text, "it takes space only");
    CheckFinding { fix: Some("the row is removed".to_owned()), fixed: removed.then_some(true), ..finding }
}
