//! Status page for browsers: `GET /` at the metrics address.
//!
//! One document without scripts or external resources, which reloads itself every few seconds.

use std::fmt::{self, Write as _};

use fsstack_pool::Size;

use crate::api::{BranchStatus, JobStatus, Status, TierStatus};

/// Reload interval in seconds.
const REFRESH: u32 = 5;

/// Headers that stop browsers from running or loading anything.
pub(crate) const HEADERS: [(&str, &str); 3] = [
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
];

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--paper:#fff;--line:#d1d9e0;--soft:#59636e;--ok:#1a7f37;--warn:#9a6700;--bad:#d1242f}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--line:#30363d;--soft:#9198a1;--ok:#3fb950;--warn:#d29922;--bad:#f85149}}\
body{margin:0 auto;max-width:64rem;padding:1rem;font:1rem/1.4 system-ui,sans-serif;color:var(--ink);background:var(--paper)}\
h1{font-size:1.3rem;overflow-wrap:anywhere;margin:.5rem 0}\
.sum{font-weight:600}.ok{color:var(--ok)}.warn{color:var(--warn)}.bad{color:var(--bad)}\
section{border:1px solid var(--line);border-radius:.5rem;padding:.7rem 1rem;margin:.8rem 0}\
h2{font-size:1rem;margin:0;overflow-wrap:anywhere}h2 span{float:right;margin-left:1rem}\
meter{width:100%;height:1rem}\
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.4rem 1rem;margin:.4rem 0 0}\
dt{color:var(--soft);font-size:.8rem}dd{margin:0;overflow-wrap:anywhere}\
footer{color:var(--soft);font-size:.8rem}";

/// Urgency of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Concern {
    Ok,
    Warn,
    Bad,
}

impl Concern {
    fn of(branch: &BranchStatus) -> Self {
        match branch.state.as_str() {
            "up" => Self::Ok,
            "read-only" if branch.mode == "RO" => Self::Ok,
            "suspect" | "leaving" => Self::Warn,
            _ => Self::Bad,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// Renders the document.
pub(crate) fn page(status: &Status) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut page, status);
    page
}

fn write_page(page: &mut String, status: &Status) -> fmt::Result {
    let name = Escaped(&status.mount_point);
    write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=refresh content={REFRESH}><title>{name}: {}</title><style>{STYLE}</style>\n<h1>{name}</h1>\n",
        summary(status)
    )?;
    let worst = status.branches.iter().map(Concern::of).max().unwrap_or(Concern::Ok);
    writeln!(page, "<p class=\"sum {}\">{}</p>", worst.class(), summary(status))?;
    page.push_str("<dl>");
    write_free(page, status.total, status.available)?;
    term(page, "mounted for", Age(status.uptime_seconds))?;
    let open = &status.open_files;
    term(page, "open files", format_args!("{} passthrough, {} stacked", open.passthrough, open.stacked))?;
    if let Some(used) = status.descriptors.open {
        term(page, "descriptors", format_args!("{used} of {}", status.descriptors.limit))?;
    }
    term(page, "create", Escaped(&status.create))?;
    term(page, "write path", Escaped(&status.write_path))?;
    term(page, "transport", Escaped(&status.transport))?;
    page.push_str("</dl>\n");
    status.jobs.iter().try_for_each(|job| write_job(page, job))?;
    status.tiers.iter().try_for_each(|tier| write_tier(page, tier))?;
    status.branches.iter().try_for_each(|branch| write_branch(page, branch))?;
    writeln!(
        page,
        "<footer>fsstack {}, process {}; refreshed every {REFRESH} s. <a href=\"/metrics\">metrics</a></footer></html>",
        Escaped(&status.version),
        status.pid
    )
}

fn write_job(page: &mut String, job: &JobStatus) -> fmt::Result {
    let (kind, subject, state) = (Escaped(&job.kind), Escaped(&job.branch), Escaped(&job.state));
    writeln!(page, "<section><h2><span>{state}</span>job {}: {kind} of {subject}</h2><dl>", job.id)?;
    term(page, "files moved", format_args!("{} of {}", job.moved_files, job.files))?;
    let (moved, all) = (Size(job.moved_bytes).approx(), Size(job.bytes).approx());
    term(page, "moved", format_args!("{moved} of {all}"))?;
    term(page, "staying", job.staying)?;
    if let Some(window) = &job.window {
        term(page, "window", Escaped(window))?;
    }
    page.push_str("</dl></section>\n");
    Ok(())
}

fn write_tier(page: &mut String, tier: &TierStatus) -> fmt::Result {
    let (fast, slow) = (Escaped(&tier.fast), Escaped(&tier.slow));
    writeln!(page, "<section><h2>tier {fast} to {slow}</h2><dl>")?;
    let used = |used: u64, total: u64| format!("{} of {}", Size(used).approx(), Size(total).approx());
    term(page, "used, faster class", used(tier.fast_used, tier.fast_total))?;
    term(page, "used, slower class", used(tier.slow_used, tier.slow_total))?;
    term(page, "moves", format_args!("above {}, to {}", Escaped(&tier.start), Escaped(&tier.stop)))?;
    term(page, "now", Escaped(&tier.why))?;
    page.push_str("</dl></section>\n");
    Ok(())
}

fn write_branch(page: &mut String, branch: &BranchStatus) -> fmt::Result {
    let (path, state) = (Escaped(&branch.path), Escaped(&branch.state));
    writeln!(page, "<section><h2><span class={}>{state}</span>{path}</h2>", Concern::of(branch).class())?;
    if let (Some(total), Some(available)) = (branch.total, branch.available) {
        let used = total.saturating_sub(available);
        let full = total.saturating_sub(branch.floor);
        writeln!(
            page,
            "<meter min=0 max={total} high={full} value={used} aria-label=\"used space\"></meter>"
        )?;
    }
    page.push_str("<dl>");
    write_free(page, branch.total, branch.available)?;
    term(page, "kept free", Size(branch.floor).approx())?;
    term(page, "mode", Escaped(&branch.mode))?;
    if let (Some(p50), Some(p99)) = (branch.p50_us, branch.p99_us) {
        term(page, "latency, p50 and p99", format_args!("{} and {}", Micros(p50), Micros(p99)))?;
    }
    term(page, "open files", branch.open_files)?;
    term(page, "calls in flight", branch.in_flight)?;
    term(page, "failed calls", format_args!("{} of {}", branch.faults, branch.calls))?;
    if 0 < branch.moved_away + branch.moved_here {
        term(page, "files moved", format_args!("{} off, {} here", branch.moved_away, branch.moved_here))?;
    }
    page.push_str("</dl></section>\n");
    Ok(())
}

fn write_free(page: &mut String, total: Option<u64>, available: Option<u64>) -> fmt::Result {
    match (total, available) {
        (Some(total), Some(available)) => {
            term(page, "free", format_args!("{} of {}", Size(available).approx(), Size(total).approx()))
        }
        _ => term(page, "free", "not known"),
    }
}

fn term(page: &mut String, name: &str, value: impl fmt::Display) -> fmt::Result {
    // The end tags may be left out.
    write!(page, "<div><dt>{name}<dd>{value}</div>")
}

/// One sentence about all branches.
fn summary(status: &Status) -> String {
    let all = status.branches.len();
    let not_up: Vec<&str> = status
        .branches
        .iter()
        .filter(|branch| Concern::of(branch) != Concern::Ok)
        .map(|branch| branch.state.as_str())
        .collect();
    match (not_up.as_slice(), all) {
        ([], 1) => "the branch is up".to_owned(),
        ([], _) => format!("all {all} branches are up"),
        (states, _) => format!("{} of {all} branches: {}", states.len(), Escaped(&states.join(", "))),
    }
}

/// HTML-escaped text; a path may contain anything.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '<' => out.write_str("&lt;"),
            '>' => out.write_str("&gt;"),
            '&' => out.write_str("&amp;"),
            '"' => out.write_str("&quot;"),
            '\'' => out.write_str("&#39;"),
            c => out.write_char(c),
        })
    }
}

/// Seconds in the two largest units.
struct Age(u64);

impl fmt::Display for Age {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds @ 0..60 => write!(out, "{seconds} s"),
            seconds @ 60..3600 => write!(out, "{} min", seconds / 60),
            seconds @ 3600..86_400 => write!(out, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            seconds => write!(out, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

/// Microseconds, rounded; a call's time is known to a factor of two.
struct Micros(f64);

impl fmt::Display for Micros {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            micros @ ..1e3 => write!(out, "{micros:.0} us"),
            micros @ ..1e6 => write!(out, "{:.0} ms", micros / 1e3),
            micros => write!(out, "{:.1} s", micros / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(path: &str, mode: &str, state: &str) -> BranchStatus {
        let value = serde_json::json!({
            "path": path, "id": 1, "mode": mode, "state": state, "local": true, "total": 1u64 << 40,
            "available": 1u64 << 39, "floor": 1u64 << 30, "inodes_free": 1000, "reserved": 0,
            "refuses_passthrough": false, "open_files": 3, "in_flight": 1, "calls": 100, "faults": 2,
            "p50_us": 16.0, "p99_us": 4096.0, "read_bytes": 0, "written_bytes": 0, "moved_away": 0, "moved_here": 5,
        });
        serde_json::from_value(value).unwrap()
    }

    fn status(branches: Vec<BranchStatus>) -> Status {
        let value = serde_json::json!({
            "id": "srv-pool", "mount_point": "/srv/pool", "pid": 7, "version": "0.1.0", "uptime_seconds": 93_784,
            "transport": "ring", "passthrough": true, "create": "mfs", "write_path": "auto", "write_rules": [],
            "branches": [], "open_files": {"passthrough": 1, "stacked": 2, "other_way": 0},
            "tables": {"inodes": 0, "files": 0, "dirs": 0, "dir_fds": 0, "listing_entries": 0, "lookups_known": 0,
                       "lookups_asked": 0, "opens_passthrough": 0, "opens_stacked": 0},
            "descriptors": {"open": 20, "limit": 1024},
        });
        Status { branches, ..serde_json::from_value(value).unwrap() }
    }

    #[test]
    fn a_branch_is_shown_with_what_it_has_and_does() {
        let page = page(&status(vec![branch("/srv/a", "RW", "up"), branch("/srv/b", "RO", "read-only")]));
        for part in [
            "all 2 branches are up",
            "/srv/a",
            "512 GiB of 1 TiB",
            "16 us and 4 ms",
            "2 of 100",
            "0 off, 5 here",
            "1 d 2 h",
            "1 passthrough, 2 stacked",
            "20 of 1024",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn a_running_job_is_shown_with_its_progress() {
        let job = serde_json::json!({
            "id": 3, "kind": "drain", "branch": "/srv/<a>", "state": "moving", "over": false, "dry_run": false,
            "window": "01:00-06:00", "at_work_percent": 100, "refusal": null, "files": 200, "bytes": 1u64 << 40,
            "moved_files": 50, "moved_bytes": 1u64 << 38, "moved_directories": 4, "targets": [], "staying": 2,
            "stays": [], "seconds": 60,
        });
        let job: JobStatus = serde_json::from_value(job).unwrap();
        let pool = status(vec![branch("/srv/<a>", "RW", "up"), branch("/srv/b", "RW", "up")]);
        let page = page(&Status { jobs: vec![job], ..pool });
        for part in [
            "<span>moving</span>job 3: drain of /srv/&lt;a&gt;</h2>",
            "<dt>files moved<dd>50 of 200</div>",
            "<dt>moved<dd>256 GiB of 1 TiB</div>",
            "<dt>staying<dd>2</div>",
            "<dt>window<dd>01:00-06:00</div>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn the_page_is_loaded_anew_by_itself() {
        let page = page(&status(vec![branch("/srv/a", "RW", "up")]));
        assert!(page.contains("<meta http-equiv=refresh content=5>"), "{page}");
        assert!(!page.contains("job "), "no job runs: {page}");
    }

    /// Two directories of one disk.
    #[test]
    fn the_pools_space_is_that_of_statfs_and_not_the_sum_of_the_branches() {
        let branches = || vec![branch("/srv/disk/a", "RW", "up"), branch("/srv/disk/b", "RW", "up")];
        let known = Status { total: Some(1 << 40), available: Some(1 << 39), ..status(branches()) };
        let shown = page(&known);
        assert_eq!(shown.matches("<dd>512 GiB of 1 TiB</div>").count(), 3, "{shown}");
        let shown = page(&status(branches()));
        assert!(shown.contains("<dt>free<dd>not known</div>"), "no branch answers: {shown}");
    }

    #[test]
    fn a_branch_that_is_not_up_is_in_the_first_sentence() {
        let down =
            BranchStatus { total: None, available: None, p50_us: None, ..branch("/srv/b", "RW", "down") };
        let page = page(&status(vec![branch("/srv/a", "RW", "up"), down]));
        assert!(page.contains("<p class=\"sum bad\">1 of 2 branches: down</p>"), "{page}");
        assert!(page.contains("<dd>not known</div>"), "{page}");
        assert_eq!(page.matches("latency").count(), 1, "only of the branch that was asked: {page}");
        let said = |mode: &str, state: &str| summary(&status(vec![branch("/a", mode, state)]));
        assert_eq!(said("RW", "read-only"), "1 of 1 branches: read-only");
        assert_eq!(said("RO", "read-only"), "the branch is up");
        assert_eq!(said("RW", "leaving"), "1 of 1 branches: leaving");
    }

    #[test]
    fn hostile_names_stay_text() {
        let name = "/srv/<script>alert(\"1\")</script>&'";
        let page = page(&Status { mount_point: name.to_owned(), ..status(vec![branch(name, "RW", "up")]) });
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert(&quot;1&quot;)"), "{page}");
    }

    #[test]
    fn the_page_is_small() {
        let one = page(&status(vec![branch("/srv/a", "RW", "up")])).len();
        let many = page(&status(vec![branch("/srv/a", "RW", "up"); 24])).len();
        assert!(one < 4 << 10 && many < 30 << 10, "{one} and {many} bytes");
    }
}
