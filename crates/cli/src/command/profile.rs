//! `fsstack profile`: calls by program, user or directory.

use super::args::Profile;
use super::log::micros;
use super::show::{self, Style};
use super::table::{self, Side, Table};
use super::{Failed, pool};
use fsstack_control::api::{CallerCalls, CallsByCaller, ProfileRequest, ProfileRow, ProfileShown};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

/// Rows that are shown to people; JSON has all.
const SHOWN: usize = 20;
/// The daemon counts for ten seconds after it was asked.
const LONGEST: Duration = Duration::from_secs(8);
const SHORTEST: Duration = Duration::from_millis(10);

/// Subject of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Process,
    User,
    Directory,
}

/// The subject itself. A directory is its inode number: its path may change, or become unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Process(u32),
    User(u32),
    Directory(Option<u64>),
    Others,
}

/// Text and sums of a subject.
#[derive(Clone, Default)]
struct Known {
    of: String,
    program: String,
    sums: Sums,
}

/// Calls of one row: since the beginning, or in an interval.
#[derive(Clone, Copy, Default)]
struct Sums {
    calls: u64,
    errors: u64,
    micros: u64,
    read: u64,
    written: u64,
}

pub(crate) fn run(wish: &Profile, style: Style) -> Result<(), Failed> {
    let by = match (wish.uid, wish.dir) {
        (true, _) => By::User,
        (_, true) => By::Directory,
        _ => By::Process,
    };
    let interval = Duration::from_micros(micros("--interval", &wish.interval)?);
    if !(SHORTEST..=Duration::from_secs(3600)).contains(&interval) {
        return Err(Failed::Usage(format!("--interval {}: from 10ms to 3600s", wish.interval)));
    }
    let client = pool::find(&wish.pool)?.client();
    let request = ProfileRequest { directories: by == By::Directory };
    let mut before = client.profile(&request)?;
    let goes_on = style == Style::Human && io::stdout().is_terminal();
    loop {
        let mut left = interval;
        while left > LONGEST {
            std::thread::sleep(LONGEST);
            left -= LONGEST;
            client.profile(&request)?;
        }
        std::thread::sleep(left);
        let now = client.profile(&request)?;
        let shown = difference(by, &before, &now);
        if goes_on {
            show::text("\x1b[H\x1b[2J")?;
        }
        show::answer(style, &shown, human)?;
        if !goes_on {
            return Ok(());
        }
        before = now;
    }
}

/// Calls between two answers.
fn difference(by: By, before: &CallsByCaller, now: &CallsByCaller) -> ProfileShown {
    // After a pause the daemon has begun anew.
    let begun_anew = now.micros < before.micros;
    let nothing = CallsByCaller { micros: 0, callers: Vec::new() };
    let before = if begun_anew { &nothing } else { before };
    let earlier = sums(by, &before.callers);
    let seconds = (now.micros - before.micros) as f64 / 1e6;
    let row = |(subject, Known { of, program, sums: now }): (Subject, Known)| {
        let past = earlier.get(&subject).map_or_else(Sums::default, |past| past.sums);
        let calls = now.calls.saturating_sub(past.calls);
        let micros = now.micros.saturating_sub(past.micros);
        ProfileRow {
            of,
            program: (by == By::Process).then_some(program),
            calls,
            errors: now.errors.saturating_sub(past.errors),
            mean_us: if calls == 0 { 0.0 } else { micros as f64 / calls as f64 },
            busy: if seconds > 0.0 { micros as f64 / 1e6 / seconds } else { 0.0 },
            read_bytes: now.read.saturating_sub(past.read),
            written_bytes: now.written.saturating_sub(past.written),
        }
    };
    let mut rows: Vec<ProfileRow> =
        sums(by, &now.callers).into_iter().map(row).filter(|row| row.calls > 0).collect();
    rows.sort_by(|a, b| b.busy.total_cmp(&a.busy).then_with(|| a.of.cmp(&b.of)));
    let by = match by {
        By::Process => "pid",
        By::User => "uid",
        By::Directory => "dir",
    };
    ProfileShown { by: by.to_owned(), seconds, rows }
}

/// Adds up callers that share a row.
fn sums(by: By, callers: &[CallerCalls]) -> BTreeMap<Subject, Known> {
    let mut all: BTreeMap<Subject, Known> = BTreeMap::new();
    for caller in callers {
        let (subject, of) = match by {
            _ if caller.pid == u32::MAX => (Subject::Others, "others".to_owned()),
            By::Process => (Subject::Process(caller.pid), caller.pid.to_string()),
            By::User => (Subject::User(caller.uid), caller.uid.to_string()),
            By::Directory => {
                let of = caller.directory.clone().unwrap_or_else(|| "?".to_owned());
                (Subject::Directory(caller.directory_number), of)
            }
        };
        let known = all.entry(subject).or_default();
        known.of = of;
        known.program.clone_from(&caller.program);
        let sum = &mut known.sums;
        sum.calls += caller.calls;
        sum.errors += caller.errors;
        sum.micros += caller.micros;
        sum.read += caller.read_bytes;
        sum.written += caller.written_bytes;
    }
    all
}

fn human(shown: &ProfileShown) -> String {
    use Side::{Left, Right};
    let (title, named) = match shown.by.as_str() {
        "pid" => ("PROCESS", true),
        "uid" => ("USER", false),
        _ => ("DIRECTORY", false),
    };
    let mut head = vec![(title, Left)];
    if named {
        head.push(("PROGRAM", Left));
    }
    head.extend([
        ("CALLS/S", Right),
        ("ERRORS/S", Right),
        ("MEAN", Right),
        ("BUSY", Right),
        ("READ/S", Right),
        ("WRITTEN/S", Right),
    ]);
    let mut table = Table::new(&head);
    let a_second = |count: u64| if shown.seconds > 0.0 { count as f64 / shown.seconds } else { 0.0 };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of bytes is positive and fits"
    )]
    let bytes = |count: u64| table::size(Some(a_second(count) as u64));
    for row in shown.rows.iter().take(SHOWN) {
        let mut cells = vec![row.of.clone()];
        if named {
            cells.push(row.program.clone().unwrap_or_default());
        }
        cells.extend([
            format!("{:.1}", a_second(row.calls)),
            format!("{:.1}", a_second(row.errors)),
            table::latency(Some(row.mean_us)),
            format!("{:.3}", row.busy),
            bytes(row.read_bytes),
            bytes(row.written_bytes),
        ]);
        table.row(cells);
    }
    let mut text = table.text();
    if shown.rows.is_empty() {
        text.push_str("no call in the interval\n");
    } else if shown.rows.len() > SHOWN {
        text.push_str(&format!("and {} more\n", shown.rows.len() - SHOWN));
    }
    text
}
