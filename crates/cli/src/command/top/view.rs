//! One screen of `fsstack top`.

use crate::command::status::{job_line, tier_line};
use crate::command::table::{age, latency, size};
use fsstack_control::api::{BranchLoad, BranchStatus, Moment, ProcessLoad, Status};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};

pub(super) fn draw(frame: &mut Frame<'_>, moment: &Moment) {
    let heading = heading(&moment.status);
    let rows = |count: usize, more: u16| u16::try_from(count).unwrap_or(u16::MAX).saturating_add(more);
    let [head, table, processes, foot] = Layout::vertical([
        Constraint::Max(rows(heading.len(), 1)),
        Constraint::Max(rows(moment.branches.len(), 3)),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading), head);
    frame.render_widget(branch_table(moment), table);
    frame.render_widget(process_table(&moment.processes), processes);
    frame.render_widget(Paragraph::new("q: quit").style(Style::new().fg(Color::DarkGray)), foot);
}

/// Lines about the pool as a whole, with its tiers and the jobs at work.
fn heading(status: &Status) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![
        Line::from(vec![
            Span::styled(status.mount_point.clone(), bold),
            Span::raw(format!(
                "  fsstack {}  up {}  create={}  write-path={}  transport={}",
                status.version,
                age(status.uptime_seconds),
                status.create,
                status.write_path,
                status.transport
            )),
        ]),
        Line::from(format!(
            "open: {} passthrough, {} stacked ({} would go the other way); {} inodes, {} directories",
            status.open_files.passthrough,
            status.open_files.stacked,
            status.open_files.other_way,
            status.tables.inodes,
            status.tables.dirs
        )),
    ];
    lines.extend(status.tiers.iter().map(|tier| Line::from(tier_line(tier))));
    lines.extend(status.jobs.iter().map(|job| Line::from(job_line(job))));
    lines
}

fn branch_table(moment: &Moment) -> Table<'static> {
    let rows =
        moment.status.branches.iter().zip(&moment.branches).map(|(branch, load)| branch_row(branch, load));
    let widths = [
        Constraint::Min(20),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(6),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(5),
    ];
    Table::new(rows, widths)
        .header(head([
            "BRANCH",
            "STATE",
            "FREE",
            "OPEN",
            "READ/s",
            "WRITTEN/s",
            "READS/s",
            "WRITES/s",
            "LATENCY",
            "BUSY",
        ]))
        .block(Block::new().borders(Borders::TOP).title(" branches (their disks, by the kernel's account) "))
}

fn branch_row(branch: &BranchStatus, load: &BranchLoad) -> Row<'static> {
    let colour = match branch.state.as_str() {
        "up" => Color::Green,
        "leaving" | "suspect" => Color::Yellow,
        _ => Color::Red,
    };
    let mut cells = vec![
        Cell::from(branch.path.clone()),
        Cell::from(branch.state.clone()).style(Style::new().fg(colour)),
        Cell::from(size(branch.available)),
        Cell::from(branch.open_files.to_string()),
    ];
    match load.disk {
        Some(disk) => cells.extend([
            Cell::from(size(Some(rounded(disk.read_bytes)))),
            Cell::from(size(Some(rounded(disk.written_bytes)))),
            Cell::from(format!("{:.0}", disk.reads)),
            Cell::from(format!("{:.0}", disk.writes)),
            Cell::from(latency(disk.latency_us)),
            Cell::from(format!("{:.0}%", disk.busy * 100.0)),
        ]),
        None => cells.extend(["-"; 6].map(Cell::from)),
    }
    Row::new(cells)
}

fn process_table(processes: &[ProcessLoad]) -> Table<'static> {
    let rows = processes.iter().map(|process| {
        Row::new([
            process.pid.to_string(),
            process.name.clone(),
            process.role.clone(),
            format!("{:.1}%", process.cpus * 100.0),
            size(Some(process.resident_bytes)),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Min(18),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(11),
    ];
    Table::new(rows, widths)
        .header(head(["PID", "PROCESS", "ROLE", "CPU", "MEMORY"]))
        .block(Block::new().borders(Borders::TOP).title(" processes in the stack "))
}

fn head<const COLUMNS: usize>(titles: [&'static str; COLUMNS]) -> Row<'static> {
    Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD))
}

/// Rates are never negative, and far from the end of 64 bits.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as casts saturate")]
fn rounded(rate: f64) -> u64 {
    rate as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use fsstack_control::api::{Descriptors, DiskLoad, JobStatus, OpenFiles, Tables, TierStatus};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn branch(path: &str, state: &str) -> BranchStatus {
        BranchStatus {
            path: path.into(),
            id: 1,
            class: None,
            mode: "RW".into(),
            state: state.into(),
            local: true,
            cross_mounts: false,
            total: Some(10 << 30),
            available: Some(3 << 30),
            floor: 0,
            inodes_free: Some(9),
            reserved: 0,
            refuses_passthrough: false,
            open_files: 2,
            in_flight: 0,
            calls: 1000,
            faults: 0,
            p50_us: Some(2.0),
            p99_us: Some(130.0),
            read_bytes: 0,
            written_bytes: 0,
            moved_away: 0,
            moved_here: 0,
        }
    }

    fn moment() -> Moment {
        let disk = DiskLoad {
            read_bytes: 2_097_152.0,
            reads: 512.0,
            latency_us: Some(250.0),
            busy: 0.5,
            ..DiskLoad::default()
        };
        Moment {
            status: Status {
                read_only: false,
                pool_id: None,
                index: String::new(),
                id: "mnt".into(),
                mount_point: "/mnt".into(),
                pid: 5,
                version: "0.1.0".into(),
                uptime_seconds: 61,
                transport: "ring".into(),
                restart: "off".into(),
                passthrough: true,
                create: "mfs".into(),
                write_path: "auto".into(),
                write_rules: Vec::new(),
                placement_rules: Vec::new(),
                tiers: Vec::new(),
                misplaced: 0,
                total: None,
                available: None,
                branches: vec![branch("/srv/a", "up"), branch("/srv/b", "down")],
                open_files: OpenFiles { passthrough: 2, stacked: 0, other_way: 0 },
                tables: Tables::default(),
                jobs: Vec::new(),
                descriptors: Descriptors::default(),
            },
            branches: vec![
                BranchLoad { branch: "/srv/a".into(), disk: Some(disk) },
                BranchLoad { branch: "/srv/b".into(), disk: None },
            ],
            processes: vec![ProcessLoad {
                pid: 5,
                name: "mount.fsstack".into(),
                role: "daemon".into(),
                cpus: 0.25,
                resident_bytes: 5 << 20,
            }],
        }
    }

    #[test]
    fn the_screen_has_branches_and_processes() {
        let mut terminal = Terminal::new(TestBackend::new(110, 14)).unwrap();
        terminal.draw(|frame| draw(frame, &moment())).unwrap();
        expect_test::expect_file!["../../../tests/top.txt"].assert_eq(&terminal.backend().to_string());
    }

    fn tier() -> TierStatus {
        TierStatus {
            fast: "fast".into(),
            slow: "slow".into(),
            tier: "fast>slow".into(),
            start: "80%".into(),
            stop: "60%".into(),
            order: "atime".into(),
            min_age_seconds: 0,
            window: None,
            fast_used: 7 << 30,
            fast_total: 10 << 30,
            slow_used: 0,
            slow_total: 0,
            state: "waiting".into(),
            job: Some(3),
            why: "waits for the end of job 3".into(),
        }
    }

    fn job() -> JobStatus {
        JobStatus {
            id: 3,
            kind: "drain".into(),
            branch: "/srv/b".into(),
            state: "moving".into(),
            over: false,
            dry_run: false,
            window: None,
            at_work_percent: 100,
            refusal: None,
            files: 1200,
            bytes: 3 << 30,
            moved_files: 400,
            moved_bytes: 1 << 30,
            moved_directories: 0,
            targets: Vec::new(),
            staying: 2,
            untried: 0,
            stays: Vec::new(),
            seconds: 60,
            plan: Vec::new(),
        }
    }

    #[test]
    fn tiers_and_jobs_at_work_are_above_the_branches() {
        let mut moment = moment();
        moment.status.tiers.push(tier());
        moment.status.jobs.push(job());
        let mut terminal = Terminal::new(TestBackend::new(110, 16)).unwrap();
        terminal.draw(|frame| draw(frame, &moment)).unwrap();
        expect_test::expect_file!["../../../tests/top-jobs.txt"].assert_eq(&terminal.backend().to_string());
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 90)] {
            Terminal::new(TestBackend::new(width, height))
                .unwrap()
                .draw(|frame| draw(frame, &moment()))
                .unwrap();
        }
    }
}
