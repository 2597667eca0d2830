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
/// Longest pause between two requests: the daemon counts for ten seconds after it was asked.
const LONGEST_SAMPLE: Duration = Duration::from_secs(8);
/// Shortest `--interval`.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// Longest `--interval`.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);

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
    of: Option<String>,
    program: String,
    sums: Sums,
}

/// Calls in an interval, by subject.
#[derive(Default)]
struct Interval {
    micros: u64,
    subjects: BTreeMap<Subject, Known>,
}

/// A row in answers of the daemon: its number, process, user and directory. Older daemons do not number them.
type RowKey = (u64, u32, u32, Option<u64>);

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
    if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
        return Err(Failed::Usage(format!("--interval {}: from 10ms to 3600s", wish.interval)));
    }
    let client = pool::find(&wish.pool)?.client();
    let request = ProfileRequest { directories: by == By::Directory };
    let mut before = client.profile(&request)?;
    let goes_on = style == Style::Human && io::stdout().is_terminal();
    loop {
        let mut calls = Interval::default();
        let mut left = interval;
        while !left.is_zero() {
            let pause = left.min(LONGEST_SAMPLE);
            fsstack_sync::thread::sleep(pause);
            left -= pause;
            let now = client.profile(&request)?;
            calls.add(by, &before, &now);
            before = now;
        }
        let shown = calls.shown(by);
        if goes_on {
            show::text("\x1b[H\x1b[2J")?;
        }
        show::answer(style, &shown, human)?;
        if !goes_on {
            return Ok(());
        }
    }
}

impl Interval {
    /// Adds the calls between two answers.
    fn add(&mut self, by: By, before: &CallsByCaller, now: &CallsByCaller) {
        // After a pause the daemon has begun anew.
        let begun_anew = now.micros < before.micros;
        let nothing = CallsByCaller { micros: 0, callers: Vec::new() };
        let before = if begun_anew { &nothing } else { before };
        self.micros += now.micros - before.micros;
        let mut earlier: BTreeMap<RowKey, Sums> =
            before.callers.iter().map(|caller| (row_key(caller), Sums::of(caller))).collect();
        let mut callers: Vec<&CallerCalls> = now.callers.iter().collect();
        // The row that was added last has the present name of a program. Other callers come last.
        callers.sort_by_key(|caller| (is_others(caller), caller.row));
        for caller in callers {
            let mut past = earlier.remove(&row_key(caller)).unwrap_or_default();
            if is_others(caller) {
                // Rows that were dropped since are part of this one now: what they had before is not of this interval.
                for dropped in std::mem::take(&mut earlier).into_values() {
                    past.add(&dropped);
                }
            }
            self.count(by, caller, &Sums::of(caller).since(&past));
        }
    }

    /// Adds calls of a row to those of its subject.
    fn count(&mut self, by: By, caller: &CallerCalls, calls: &Sums) {
        if calls.calls == 0 {
            return;
        }
        let (subject, of) = match by {
            _ if is_others(caller) => (Subject::Others, Some("others".to_owned())),
            By::Process => (Subject::Process(caller.pid), Some(caller.pid.to_string())),
            By::User => (Subject::User(caller.uid), Some(caller.uid.to_string())),
            By::Directory => (Subject::Directory(caller.directory_number), caller.directory.clone()),
        };
        let known = self.subjects.entry(subject).or_default();
        if of.is_some() {
            known.of = of;
        }
        if !caller.program.is_empty() {
            known.program.clone_from(&caller.program);
        }
        known.sums.add(calls);
    }

    fn shown(self, by: By) -> ProfileShown {
        let seconds = self.micros as f64 / 1e6;
        let row = |Known { of, program, sums }: Known| {
            let Sums { calls, errors, micros, read, written } = sums;
            ProfileRow {
                of: of.unwrap_or_else(|| "?".to_owned()),
                program: (by == By::Process).then_some(program),
                calls,
                errors,
                mean_us: if calls == 0 { 0.0 } else { micros as f64 / calls as f64 },
                busy: if seconds > 0.0 { micros as f64 / 1e6 / seconds } else { 0.0 },
                read_bytes: read,
                written_bytes: written,
            }
        };
        let mut rows: Vec<ProfileRow> = self.subjects.into_values().map(row).collect();
        rows.sort_by(|a, b| b.busy.total_cmp(&a.busy).then_with(|| a.of.cmp(&b.of)));
        let by = match by {
            By::Process => "pid",
            By::User => "uid",
            By::Directory => "dir",
        };
        ProfileShown { by: by.to_owned(), seconds, rows }
    }
}

impl Sums {
    fn of(caller: &CallerCalls) -> Self {
        Self {
            calls: caller.calls,
            errors: caller.errors,
            micros: caller.micros,
            read: caller.read_bytes,
            written: caller.written_bytes,
        }
    }

    fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.errors += more.errors;
        self.micros += more.micros;
        self.read += more.read;
        self.written += more.written;
    }

    /// Returns them without those of `past`.
    fn since(&self, past: &Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(past.calls),
            errors: self.errors.saturating_sub(past.errors),
            micros: self.micros.saturating_sub(past.micros),
            read: self.read.saturating_sub(past.read),
            written: self.written.saturating_sub(past.written),
        }
    }
}

fn row_key(caller: &CallerCalls) -> RowKey {
    (caller.row, caller.pid, caller.uid, caller.directory_number)
}

/// Whether the row is that of callers that have none.
fn is_others(caller: &CallerCalls) -> bool {
    caller.pid == u32::MAX
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of a process with calls in a directory.
    fn caller(row: u64, pid: u32, directory: u64, calls: u64) -> CallerCalls {
        CallerCalls {
            pid,
            uid: 0,
            program: format!("program-{row}"),
            directory: Some(format!("/{directory}")),
            directory_number: Some(directory),
            calls,
            errors: 0,
            micros: calls * 10,
            read_bytes: calls,
            written_bytes: 0,
            row,
        }
    }

    /// Subjects, programs and numbers of calls between answers.
    fn shown(by: By, answers: &[(u64, &[CallerCalls])]) -> Vec<(String, Option<String>, u64)> {
        let answer = |(micros, callers): &(u64, &[CallerCalls])| CallsByCaller {
            micros: *micros,
            callers: callers.to_vec(),
        };
        let answers: Vec<CallsByCaller> = answers.iter().map(answer).collect();
        let mut calls = Interval::default();
        answers.windows(2).for_each(|pair| calls.add(by, &pair[0], &pair[1]));
        let rows = calls.shown(by).rows.into_iter();
        rows.map(|row| (row.of, row.program, row.calls)).collect()
    }

    fn row(of: &str, program: Option<&str>, calls: u64) -> (String, Option<String>, u64) {
        (of.to_owned(), program.map(str::to_owned), calls)
    }

    #[test]
    fn threads_of_a_process_are_one_row() {
        let before = [caller(1, 7, 1, 100), caller(2, 7, 1, 50), caller(3, 8, 2, 9)];
        let now = [caller(4, 7, 1, 1), caller(1, 7, 1, 110), caller(2, 7, 1, 55), caller(3, 8, 2, 9)];
        let answers: [(u64, &[CallerCalls]); 2] = [(10, &before), (20, &now)];
        assert_eq!(shown(By::Process, &answers), [row("7", Some("program-4"), 16)]);
        assert_eq!(shown(By::User, &answers), [row("0", None, 16)]);
        assert_eq!(shown(By::Directory, &answers), [row("/1", None, 16)]);
    }

    #[test]
    fn calls_of_rows_that_were_dropped_count_once() {
        const OTHERS: u32 = u32::MAX;
        let before = [caller(1, 7, 1, 1000), caller(2, 8, 1, 500), caller(0, OTHERS, 0, 10)];
        // Both were dropped, the first one after 3 further calls, and is back; another caller without a row had 2.
        let now = [caller(3, 7, 1, 40), caller(0, OTHERS, 0, 10 + 1003 + 500 + 2)];
        let answers: [(u64, &[CallerCalls]); 2] = [(10, &before), (20, &now)];
        let mut process = shown(By::Process, &answers);
        process.sort();
        assert_eq!(process[0], row("7", Some("program-3"), 40));
        assert_eq!((process[1].0.as_str(), process[1].2, process.len()), ("others", 5, 2));
    }

    #[test]
    fn a_daemon_that_begins_anew_is_not_subtracted() {
        let (first, second, anew) = ([caller(1, 7, 1, 100)], [caller(1, 7, 1, 130)], [caller(1, 7, 1, 4)]);
        let answers: [(u64, &[CallerCalls]); 3] = [(1000, &first), (2000, &second), (5, &anew)];
        assert_eq!(shown(By::Process, &answers), [row("7", Some("program-1"), 34)]);
    }
}
