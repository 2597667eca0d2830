//! `fsstack doctor`: finds problems of a pool and its machine.

mod branches;
mod machine;
mod options;

pub(crate) use branches::path_of;

use super::show::{self, Style};
use super::{Failed, pool};
use fsstack_control::api::{Finding, Findings, Level};
use std::ffi::OsStr;

/// Findings so far.
#[derive(Debug, Default)]
pub(crate) struct DoctorReport(Vec<Finding>);

impl DoctorReport {
    fn add(&mut self, level: Level, about: &str, text: impl Into<String>) {
        self.0.push(Finding { level, about: about.to_owned(), text: text.into() });
    }

    fn ok(&mut self, about: &str, text: impl Into<String>) {
        self.add(Level::Ok, about, text);
    }

    fn warn(&mut self, about: &str, text: impl Into<String>) {
        self.add(Level::Warn, about, text);
    }

    fn fail(&mut self, about: &str, text: impl Into<String>) {
        self.add(Level::Fail, about, text);
    }
}

/// Findings about one pool and its machine.
pub(crate) fn findings(pool: &pool::Pool) -> Findings {
    let mut report = DoctorReport::default();
    machine::kernel(&mut report);
    machine::limits(&mut report);
    check(pool, &mut report);
    Findings { findings: report.0 }
}

pub(crate) fn run(word: Option<&OsStr>, style: Style) -> Result<(), Failed> {
    let mut report = DoctorReport::default();
    let named = word.map(pool::find).transpose()?;
    let pool::Pools { live, swept } = pool::all();
    for id in swept {
        report.warn("leftovers", format!("{id}: its daemon was killed; what it left in /run was cleaned up"));
    }
    machine::kernel(&mut report);
    machine::idle(&mut report);
    machine::limits(&mut report);
    machine::dead_mounts(&live, &mut report);
    for pool in named.as_ref().map_or(&live[..], std::slice::from_ref) {
        check(pool, &mut report);
    }
    let findings = Findings { findings: report.0 };
    show::answer(style, &findings, human)?;
    match findings.findings.iter().filter(|finding| finding.level == Level::Fail).count() {
        0 => Ok(()),
        count => Err(Failed::Refused(format!("doctor: checks that failed: {count}"))),
    }
}

fn check(pool: &pool::Pool, report: &mut DoctorReport) {
    let shown = pool.shown();
    let asked = pool.client().status().and_then(|status| Ok((status, pool.client().keys()?)));
    match asked {
        Ok((status, keys)) => {
            report.ok(
                &shown,
                format!("its daemon answers (fsstack {}, process {})", status.version, status.pid),
            );
            machine::descriptors(status.descriptors, &shown, report);
            machine::keeper(&status.restart, &shown, report);
            options::advise(&status, &keys, report);
            branches::check(pool, &status, report);
        }
        Err(error) => report.fail(&shown, format!("its daemon does not answer: {error}")),
    }
}

pub(crate) fn human(findings: &Findings) -> String {
    let line = |finding: &Finding| {
        let level = match finding.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "fail",
        };
        format!("{level}  {}: {}\n", finding.about, finding.text)
    };
    findings.findings.iter().map(line).collect()
}
