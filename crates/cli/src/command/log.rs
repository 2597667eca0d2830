//! `fsstack log`: calls that took long.

use super::args::Log;
use super::show::{self, Style};
use super::table::latency;
use super::{Failed, pool};
use fsstack_control::api::{SlowCallShown, SlowCalls, SlowRequest, SlowThreshold};
use fsstack_control::{Client, ClientError};
use fsstack_pool::Printable;
use std::fmt::Write as _;
use std::time::Duration;

/// Interval of asking for further calls with `--follow`.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) fn run(wish: &Log, style: Style) -> Result<(), Failed> {
    let threshold = wish.slow.as_deref().map(threshold).transpose()?;
    let client = pool::find(&wish.pool)?.client();
    let slow = client.slow_calls(&SlowRequest { threshold, after: 0 })?;
    if !wish.follow {
        return show::answer(style, &slow, human);
    }
    if slow.threshold == SlowThreshold::Off {
        return Err(Failed::Usage(
            "log: slow calls are not logged: set a threshold with --slow 100ms".to_owned(),
        ));
    }
    follow(&client, slow, style)
}

/// Prints calls as they end.
fn follow(client: &Client, mut slow: SlowCalls, style: Style) -> Result<(), Failed> {
    let mut after = 0;
    let ask = |after| client.slow_calls(&SlowRequest { threshold: None, after });
    loop {
        if slow.lost > 0 && style == Style::Human {
            show::text(&lost(slow.lost))?;
        }
        for call in &slow.calls {
            let text = match style {
                Style::Human => line(call),
                Style::Json => {
                    serde_json::to_string(call).map_err(|error| Failed::Refused(error.to_string()))? + "\n"
                }
            };
            show::live(&text)?;
        }
        if slow.threshold == SlowThreshold::Off {
            return Err(Failed::Refused(
                "log: slow calls are no longer logged: --slow off was set, or the daemon was upgraded or restarted; --slow 100ms --follow \
                 begins anew"
                    .to_owned(),
            ));
        }
        after = slow.last.or_else(|| slow.calls.last().map(|call| call.number)).unwrap_or(after);
        fsstack_sync::thread::sleep(FOLLOW_INTERVAL);
        slow = further(ask, after)?;
    }
}

/// Returns calls after number `after`, or all of a daemon that has counted from 1 again.
fn further(
    ask: impl Fn(u64) -> Result<SlowCalls, ClientError>,
    after: u64,
) -> Result<SlowCalls, ClientError> {
    let slow = ask(after)?;
    if slow.last.is_some_and(|last| last < after) { ask(0) } else { Ok(slow) }
}

fn human(slow: &SlowCalls) -> String {
    let mut text = String::new();
    if slow.lost > 0 {
        text.push_str(&lost(slow.lost));
    }
    text.extend(slow.calls.iter().map(line));
    match slow.threshold {
        SlowThreshold::Off if slow.calls.is_empty() => {
            text.push_str("slow calls are not logged: --slow 100ms begins\n");
        }
        SlowThreshold::Micros(_) if slow.calls.is_empty() => text.push_str("no slow call yet\n"),
        _ => {}
    }
    text
}

fn lost(count: u64) -> String {
    format!("calls overwritten by later ones: {count}\n")
}

fn line(call: &SlowCallShown) -> String {
    let SlowCallShown { ended, operation, pid, uid, program, .. } = call;
    let path = call.path.as_deref().unwrap_or("?");
    let mut text = format!("{ended}  {}  {operation} {path}", latency(Some(call.micros as f64)));
    if let Some(branch) = &call.branch {
        let _ = write!(text, "  on {branch}");
    }
    let _ = write!(text, "  by {program} (process {pid}, user {uid})");
    if let Some(error) = &call.error {
        let _ = write!(text, "  {error}");
    }
    text + "\n"
}

fn threshold(typed: &str) -> Result<SlowThreshold, Failed> {
    match typed {
        "off" => Ok(SlowThreshold::Off),
        typed => Ok(SlowThreshold::Micros(micros("--slow", typed)?)),
    }
}

/// Microseconds of a duration such as `500us`, `100ms`, `2s`.
pub(super) fn micros(option: &str, typed: &str) -> Result<u64, Failed> {
    let bad = || {
        let shown = Printable(typed.as_bytes());
        Failed::Usage(format!("{option} {shown}: a number and us, ms or s, such as 100ms"))
    };
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    let (digits, unit) =
        units.iter().find_map(|(unit, micros)| Some((typed.strip_suffix(unit)?, micros))).ok_or_else(bad)?;
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit)).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of a daemon that has logged `last` calls, the last two of which it still has.
    fn answers(last: u64) -> impl Fn(u64) -> Result<SlowCalls, ClientError> {
        let call = |number| SlowCallShown {
            number,
            ended: String::new(),
            micros: 1,
            operation: "read".to_owned(),
            path: None,
            branch: None,
            error: None,
            pid: 1,
            uid: 0,
            program: String::new(),
        };
        move |after| {
            let kept = (1..=last).rev().take(2).filter(|number| after < *number);
            let calls: Vec<SlowCallShown> = kept.map(call).collect();
            Ok(SlowCalls {
                threshold: SlowThreshold::Micros(1),
                calls: calls.into_iter().rev().collect(),
                lost: 0,
                last: Some(last),
            })
        }
    }

    #[test]
    fn calls_of_a_daemon_that_counts_from_one_again_are_all_shown() {
        let shown = |last, after| {
            let slow = further(answers(last), after).unwrap();
            slow.calls.iter().map(|call| call.number).collect::<Vec<_>>()
        };
        assert_eq!([shown(7, 6), shown(7, 7)], [vec![7], Vec::new()]);
        assert_eq!([shown(2, 7), shown(0, 7)], [vec![1, 2], Vec::new()]);
    }

    #[test]
    fn durations_are_read_with_their_unit() {
        let read = |typed: &str| micros("--slow", typed).ok();
        assert_eq!([read("500us"), read("100ms"), read("2s")], [Some(500), Some(100_000), Some(2_000_000)]);
        assert_eq!([read("2"), read("-1s"), read("ms"), read("1h")], [None; 4]);
        assert!(threshold("off").is_ok_and(|slow| slow == SlowThreshold::Off));
    }
}
