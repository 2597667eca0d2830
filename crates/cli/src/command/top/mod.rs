//! `fsstack top`: the pool, its branches' disks and the processes of the stack, once a second.

mod disks;
mod processes;
mod view;

use fsstack_sync::time::{Duration, Instant};

use super::show::{self, Style};
use super::{Failed, pool};
use disks::Disks;
use fsstack_control::Client;
use fsstack_control::api::Moment;
use processes::Processes;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::ffi::OsStr;
use std::io::{self, IsTerminal};

/// Interval of the samples of `fsstack top`.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(word: &OsStr, style: Style) -> Result<(), Failed> {
    let pool = pool::find(word)?;
    let mut watch = Watch::new(pool.client(), pool.entry.is_visible().then_some(pool.entry.pid));
    match style {
        Style::Json => {
            watch.look()?;
            fsstack_sync::thread::sleep(SAMPLE_INTERVAL);
            show::answer(style, &watch.look()?, |_| String::new())
        }
        Style::Human if !io::stdout().is_terminal() => {
            Err(Failed::Usage("top: needs a terminal; --json prints one second's figures".to_owned()))
        }
        Style::Human => {
            // One sample before the terminal changes mode, so that a dead daemon is reported as usual.
            watch.look()?;
            let mut terminal = ratatui::try_init().map_err(|error| Failed::system("the terminal", &error))?;
            let watched = show_until_quit(&mut terminal, &mut watch);
            ratatui::restore();
            watched
        }
    }
}

fn show_until_quit(terminal: &mut ratatui::DefaultTerminal, watch: &mut Watch) -> Result<(), Failed> {
    let failed = |error: io::Error| Failed::system("the terminal", &error);
    loop {
        let moment = watch.look()?;
        terminal.draw(|frame| view::draw(frame, &moment)).map_err(failed)?;
        let next = Instant::now() + SAMPLE_INTERVAL;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left).map_err(failed)? {
                break;
            }
            match event::read().map_err(failed)? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    _ => {}
                },
                Event::Resize(..) => {
                    terminal.draw(|frame| view::draw(frame, &moment)).map_err(failed)?;
                }
                _ => {}
            }
        }
    }
}

/// Last sample, for the difference to the next.
struct Watch {
    client: Client,
    disks: Disks,
    processes: Processes,
}

impl Watch {
    fn new(client: Client, daemon: Option<u32>) -> Self {
        Self { client, disks: Disks::default(), processes: Processes::of(daemon) }
    }

    fn look(&mut self) -> Result<Moment, Failed> {
        let status = self.client.status()?;
        let branches = self.disks.look(&status.branches);
        let processes = self.processes.look(&status.branches);
        Ok(Moment { status, branches, processes })
    }
}
