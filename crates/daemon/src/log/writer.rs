//! A thread that writes lines to a file or to stderr, so that nobody else waits for either.
//!
//! A log file may lie on a disk that is slow or on a server that hangs, and stderr may be a pipe that nobody reads. A
//! logging thread puts its line into a bounded queue and goes on; the queue's lock is never held during a write. A line that
//! finds the queue full is dropped and counted, and the count is the next line that is written.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fsstack_sync::time::{Duration, Instant};
use fsstack_sync::{Condvar, Mutex};

/// Maximum number of queued lines.
const ROOM: usize = 4096;

/// Destination of the thread.
enum Output {
    File { path: PathBuf, open: File },
    Stderr,
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File { open, .. } => open.write_all(bytes),
            Self::Stderr => io::stderr().write_all(bytes),
        }
    }

    /// Opens the file by its name again, after it was renamed.
    fn reopen(&mut self) -> io::Result<()> {
        if let Self::File { path, open } = self {
            *open = append_to(path)?;
        }
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

/// Sender of the queue; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Writer(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    state: Mutex<WriterState>,
    /// Signals that there is work for the thread.
    filled: Condvar,
    /// Signals that all lines are written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct WriterState {
    lines: VecDeque<String>,
    dropped: u64,
    reopen: bool,
    /// The thread is writing lines already taken from the queue.
    writing: bool,
}

impl WriterState {
    fn waits(&self) -> bool {
        !self.lines.is_empty() || 0 < self.dropped || self.reopen
    }

    fn is_behind(&self) -> bool {
        self.writing || self.waits()
    }
}

/// Formats a line of the writer's own like the log's lines; the argument is the message.
pub(super) type Format = fn(&str) -> String;

impl Writer {
    /// Opens the file and starts its thread.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or the thread cannot be started.
    pub(super) fn to_file(path: &Path, format: Format) -> io::Result<Self> {
        Self::start(Output::File { path: path.to_owned(), open: append_to(path)? }, format)
    }

    /// Starts the thread that writes to stderr.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn to_stderr(format: Format) -> io::Result<Self> {
        Self::start(Output::Stderr, format)
    }

    fn start(output: Output, format: Format) -> io::Result<Self> {
        let queue =
            Arc::new(Queue { state: Mutex::default(), filled: Condvar::new(), emptied: Condvar::new() });
        let read = queue.clone();
        fsstack_sync::thread::Builder::new()
            .name("log".into())
            .spawn(move || read.write_out(output, format))?;
        Ok(Self(queue))
    }

    /// Queues a line, which ends with a newline; drops and counts it if the queue is full.
    pub(super) fn write(&self, line: String) {
        let mut state = self.0.state.lock();
        if state.lines.len() < ROOM {
            state.lines.push_back(line);
        } else {
            state.dropped += 1;
        }
        drop(state);
        self.0.filled.notify_one();
    }

    /// Opens the file by its name again, after the lines that are queued now.
    pub(super) fn reopen(&self) {
        self.0.state.lock().reopen = true;
        self.0.filled.notify_one();
    }

    /// Waits until all lines are written, at most `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = self.0.state.lock();
        while state.is_behind() {
            if self.0.emptied.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}

impl Queue {
    /// Writes queued lines for the lifetime of the process.
    fn write_out(&self, mut output: Output, format: Format) {
        // Number of lines that could not be written, as on a full disk.
        let mut lost = 0;
        loop {
            let mut state = self.state.lock();
            while !state.waits() {
                state.writing = false;
                self.emptied.notify_all();
                self.filled.wait(&mut state);
            }
            state.writing = true;
            let lines = std::mem::take(&mut state.lines);
            lost += std::mem::take(&mut state.dropped);
            let reopen = std::mem::take(&mut state.reopen);
            drop(state);
            for line in lines {
                lost += u64::from(output.write(line.as_bytes()).is_err());
            }
            if reopen && let Err(error) = output.reopen() {
                let told =
                    format!("log: cannot be opened again: {error}; lines go to the file that was open");
                lost += u64::from(output.write(format(&told).as_bytes()).is_err());
            }
            if 0 < lost {
                let told = format(&format!(
                    "log: {lost} lines were dropped: they came faster than they were written, or the disk was full"
                ));
                if output.write(told.as_bytes()).is_ok() {
                    lost = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Generous; no test waits for it to pass.
    const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

    fn plain(message: &str) -> String {
        format!("{message}\n")
    }

    #[test]
    fn logging_does_not_wait_for_a_stuck_reader_and_dropped_lines_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let writer = Writer::to_file(&path, plain).unwrap();
        // Many times the capacity of the pipe and the queue, so it would never end if it waited.
        let line = format!("{}\n", "x".repeat(255));
        (0..4 * ROOM).for_each(|_| writer.write(line.clone()));
        let mut told = Vec::new();
        let mut piece = vec![0; 1 << 16];
        let wanted = b" lines were dropped";
        while !told.windows(wanted.len()).any(|found| found == wanted) {
            let count = reader.read(&mut piece).unwrap();
            told.extend_from_slice(&piece[..count]);
        }
        writer.flush(WRITE_TIMEOUT);
        assert!(writer.0.state.lock().lines.is_empty());
    }

    #[test]
    fn a_file_that_was_renamed_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let writer = Writer::to_file(&path, plain).unwrap();
        writer.write("before\n".to_owned());
        writer.flush(WRITE_TIMEOUT);
        std::fs::rename(&path, &old).unwrap();
        writer.write("between\n".to_owned());
        writer.reopen();
        writer.flush(WRITE_TIMEOUT);
        writer.write("after\n".to_owned());
        writer.flush(WRITE_TIMEOUT);
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&old).as_str(), read(&path).as_str()), ("before\nbetween\n", "after\n"));
    }

    #[test]
    fn where_no_new_file_can_be_made_the_old_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, moved) = (dir.path().join("logs"), dir.path().join("moved"));
        std::fs::create_dir(&folder).unwrap();
        let writer = Writer::to_file(&folder.join("log"), plain).unwrap();
        std::fs::rename(&folder, &moved).unwrap();
        writer.reopen();
        writer.flush(WRITE_TIMEOUT);
        writer.write("after\n".to_owned());
        writer.flush(WRITE_TIMEOUT);
        let told = std::fs::read_to_string(moved.join("log")).unwrap();
        assert!(told.starts_with("log: cannot be opened again"), "{told}");
        assert!(told.ends_with("\nafter\n"), "{told}");
    }
}
