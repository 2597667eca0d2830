//! Formats for other readers: results.json against its schema, the published CSV's columns, the help, the page in a
//! browser.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on ends there")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::started::{bench, results, run};
use expect_test::expect_file;
use fsstack_lab::browser::Window;
use fsstack_lab::needs;

/// A directory in memory: files are laid out in every round, and rates do not matter here.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// The report of a run on these targets.
fn report(home: &Path, name: &str, targets: &[&str], args: &[&str]) -> PathBuf {
    let out = home.join(name);
    let run = targets.iter().fold(bench(args), |run, target| {
        let dir = home.join(target);
        fs::create_dir_all(&dir).unwrap();
        run.arg("--target").arg(format!("{target}={}", dir.display()))
    });
    let output = run.arg("--out").arg(&out).limit(Duration::from_secs(150)).output().unwrap();
    assert_eq!(output.code, 0, "{name}: {}", output.stderr);
    out
}

/// The report of an experiment.
fn experiment(home: &Path, name: &str, targets: &[&str]) -> PathBuf {
    report(home, name, targets, &["experiment", name, "--quick", "--rounds", "1"])
}

/// Checks a report against the schema, for published series, and that its page needs nothing else.
fn is_whole(out: &Path, published: &[&str]) {
    assert_eq!(complaints(&schema(), &results(out)), Vec::<String>::new(), "{}", out.display());
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for outside in ["http://", "https://", "<script", "src=", "@import", "url(", "NaN"] {
        assert!(!page.contains(outside), "the page has {outside}");
    }
    for page in ["report.html", "report.md"] {
        let shown = fs::read_to_string(out.join(page)).unwrap();
        let missing: Vec<_> = published.iter().filter(|name| !shown.contains(**name)).collect();
        assert!(missing.is_empty(), "{}/{page} has no {missing:?}", out.display());
    }
}

fn schema() -> serde_json::Value {
    serde_json::from_str(include_str!("../../../../docs/bench-results.schema.json")).unwrap()
}

/// The schema's errors for a result.
fn complaints(schema: &serde_json::Value, result: &serde_json::Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).unwrap();
    validator.iter_errors(result).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

#[test]
fn results_are_as_the_schema_says_and_the_page_is_whole_in_a_browser() {
    let home = in_memory();
    let both = ["direct", "pool"];
    let sweep = ["compare", "--rounds", "5", "--file-size", "1M", "--block", "4K,64K,1M", "--tasks", "2"];
    let sweep = report(home.path(), "sweep", &both, &sweep);
    let names = ["compare", "--rounds", "1", "--op", "create,stat", "--entries", "20"];
    let names = report(home.path(), "names", &both, &names);
    let layers = experiment(home.path(), "double-fuse", &both);
    let volumes = experiment(home.path(), "gluster-volumes", &both);
    is_whole(&sweep, &[]);
    is_whole(&names, &[]);
    is_whole(&layers, &["mhddfs, remote", "mhddfs, local", "mhddfs 2012, local"]);
    is_whole(&volumes, &["nfs", "dt8", "dp8rd2", "dt4rp2", "dt2dp4rd1"]);
    let mut odd = results(&sweep);
    odd["made"]["colour"] = "blue".into();
    odd["measurements"][0]["rate"] = "fast".into();
    assert_eq!(complaints(&schema(), &odd).len(), 2, "the schema tells what is wrong");

    let csv = fs::read_to_string(volumes.join("results.csv")).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next().unwrap(), "logfile, volume_type, bs, bandwidth[Bytes/s]");
    assert!(lines.next().unwrap().starts_with("direct-1.log, direct, 1k, "), "{csv}");
    for page in ["report.md", "report.html"] {
        let shown = fs::read_to_string(layers.join(page)).unwrap();
        assert!(shown.contains("0.34") && shown.contains("what does a second FUSE layer cost?"), "{shown}");
    }
    // By their values: a page has coordinates and measured rates that may look the same.
    let published = results(&layers)["published"].to_string();
    assert!(published.contains("45900000") && published.contains("21900000"), "{published}");
    // Their mean, which nobody published.
    assert!(!published.contains("33900000"), "{published}");

    needs!(program("chromium"));
    [sweep, names, layers, volumes].iter().for_each(|out| in_a_browser(out));
}

#[test]
fn the_survey_is_as_the_schema_says_and_whole_in_a_browser() {
    let home = in_memory();
    let out = experiment(home.path(), "cluster-io", &["direct"]);
    is_whole(&out, &["Lustre", "GPFS", "published: several times"]);
    let measured = results(&out)["measurements"].clone();
    assert!(
        measured.as_array().unwrap().iter().all(|cell| cell["passes"] == 1),
        "each case once: {measured}"
    );
    needs!(program("chromium"));
    in_a_browser(&out);
}

#[test]
fn the_disks_are_as_the_schema_says_and_whole_in_a_browser() {
    let home = in_memory();
    let out = experiment(home.path(), "raid-compare", &["direct"]);
    is_whole(&out, &["lz4 to raidz", "RAID5 to raidz"]);
    needs!(program("chromium"));
    in_a_browser(&out);
}

/// Renders a page, light and dark, with a probe that reports its layout: the answer is on the first screen.
fn in_a_browser(out: &Path) {
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let plots = page.matches("<figure class=\"chart\">").count();
    assert!(0 < plots);
    // This copy has a script that reports its layout; the page itself has none.
    // Details are folded: they are opened to be looked at. A plot with one bar is 56 pixels high.
    let probe = "<script>const answer = document.querySelector('.answer').getBoundingClientRect();\n\
         const first = answer.bottom < window.innerHeight && document.querySelectorAll('details[open]').length === 0;\n\
         document.querySelectorAll('details').forEach(d => d.open = true);\n\
         const all = [...document.querySelectorAll('figure svg')];\n\
         const isBig = s => 40 < s.getBoundingClientRect().height && 200 < s.getBoundingClientRect().width;\n\
         const small = all.filter(s => !isBig(s)).map(s => s.outerHTML.slice(0, 2000)).join(' and ');\n\
         document.body.insertAdjacentHTML('beforeend', `<p id=output>plots ${all.filter(isBig).length} \
         sideways ${document.documentElement.scrollWidth - document.documentElement.clientWidth} \
         paper ${getComputedStyle(document.body).backgroundColor} first ${first}</p><p>${small.replaceAll('<', '[')}</p>`);</script></body>";
    let asked = out.join("asked.html");
    fs::write(&asked, page.replace("</body>", probe)).unwrap();
    for (size, dark) in [((1200, 1000), false), ((500, 900), true)] {
        let shot = out.join(format!("shot-{dark}.png"));
        let output = Window { size, dark }.render(&format!("file://{}", asked.display()), &shot).unwrap();
        let paper = if dark { "rgb(13, 17, 23)" } else { "rgb(255, 255, 255)" };
        let wanted = format!("plots {plots} sideways 0 paper {paper} first true");
        let said = output.rsplit_once("id=\"output\"").map_or("nothing", |(_, said)| said);
        assert!(output.contains(&wanted), "{} at {size:?}: {said}, not {wanted}", out.display());
        // A PNG starts with eight known bytes; a blank page would be smaller.
        let picture = fs::read(&shot).unwrap();
        assert!(picture.starts_with(b"\x89PNG") && 20_000 < picture.len(), "{}", picture.len());
    }
}

#[test]
fn the_help_is_as_it_was_read_last() {
    expect_file!["help/main.txt"].assert_eq(&run(&["--help"]).stdout);
    expect_file!["help/compare.txt"].assert_eq(&run(&["compare", "--help"]).stdout);
    expect_file!["help/experiment.txt"].assert_eq(&run(&["experiment", "--help"]).stdout);
    expect_file!["help/plan.txt"].assert_eq(&run(&["plan", "--help"]).stdout);
    expect_file!["help/crosscheck.txt"].assert_eq(&run(&["crosscheck", "--help"]).stdout);
    expect_file!["help/compare-runs.txt"].assert_eq(&run(&["compare-runs", "--help"]).stdout);
}
