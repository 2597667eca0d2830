//! Commands that display: list, status, get, where, explain, metrics, doctor.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;

use fsstack_lab::browser::Window;
use fsstack_lab::{self as lab, MiB, needs};

use super::*;

#[test]
fn list_and_status_show_a_pool() {
    needs!(mounting());
    let pool = pool();
    let at = at(&pool);
    let list = json("list", &["list"]);
    let mine =
        list["pools"].as_array().unwrap().iter().find(|one| one["mount_point"] == at.as_str()).unwrap();
    assert_eq!(mine["branches"].as_array().unwrap().len(), 2);
    assert_eq!(mine["pid"], pool.daemon().pid);
    assert!(output_of(&["list"]).contains(&at));
    let _open = File::create(pool.at("file")).unwrap();
    let status = json("status", &["status", &at]);
    let status = &status["pools"][0];
    assert_eq!(status["create"], "ff");
    assert_eq!(status["branches"][0]["path"], branch(&pool, "a"));
    assert_eq!(status["branches"][0]["state"], "up");
    assert_eq!(status["branches"][0]["open_files"], 1);
    assert_eq!(status["branches"][1]["open_files"], 0);
    let ways = &status["open_files"];
    assert_eq!(ways["passthrough"].as_u64().unwrap() + ways["stacked"].as_u64().unwrap(), 1);
    let human = output_of(&["status", mine["id"].as_str().unwrap()]);
    assert!(human.contains("BRANCH") && human.contains(&branch(&pool, "b")), "{human}");
    // All pools: others may be mounted and unmounted meanwhile.
    checked("status", &run(&["status", "--json"]).stdout);
}

#[test]
fn get_shows_every_key_or_one() {
    needs!(mounting());
    let pool = pool();
    let keys = json("get", &["get", &at(&pool)]);
    let keys = keys["keys"].as_array().unwrap();
    let of = |name: &str| keys.iter().find(|key| key["key"] == name).unwrap();
    assert_eq!((&of("create")["value"], &of("create")["changes"]), (&"ff".into(), &"at-once".into()));
    assert_eq!(of("transport")["changes"], "at-mount");
    assert_eq!(output_of(&["get", &at(&pool), "category.create"]), "ff\n", "another spelling");
    assert!(output_of(&["get", &at(&pool)]).contains("passthrough-headroom"));
}

#[test]
fn where_tells_the_branch_of_files_directories_and_links() {
    needs!(mounting());
    let pool = pool();
    pool.write("file", b"x");
    fs::write(pool.branch("b").path().join("file"), "hidden").unwrap();
    symlink("file", pool.at("link")).unwrap();
    let path = |name: &str| pool.at(name).to_str().unwrap().to_owned();
    let on = |branch: &str, name: &str| pool.branch(branch).path().join(name).to_str().unwrap().to_owned();
    let places = json("where", &["where", &path("file"), &path("link"), &at(&pool)]);
    let places = places["places"].as_array().unwrap();
    assert_eq!(places[0]["at"], on("a", "file"));
    assert_eq!(places[0]["copies"], serde_json::json!([on("a", "file"), on("b", "file")]));
    assert_eq!(places[1]["at"], on("a", "link"));
    assert_eq!(places[2]["branch"], branch(&pool, "a"));
    assert_eq!(output_of(&["where", &path("link")]), format!("{}\n", on("a", "link")));
}

#[test]
fn explain_says_why_a_file_is_there_and_goes_so() {
    needs!(mounting());
    let pool = pool();
    pool.mkdir("dir");
    pool.write("dir/file", b"x");
    let path = pool.at("dir/file").to_str().unwrap().to_owned();
    let told_of = json("explain", &["explain", &path]);
    assert_eq!((&told_of["kind"], &told_of["branch"]), (&"file".into(), &branch(&pool, "a").into()));
    assert_eq!(told_of["write_path"]["decided_by"], "pool");
    // A directory's rule overrides the pool's setting, and the output says so.
    output_of(&["write-path", &at(&pool), "stacked", "--subtree", pool.at("dir").to_str().unwrap()]);
    let ruled = json("explain", &["explain", &path]);
    assert_eq!(ruled["write_path"]["decided_by"], "/dir");
    assert_eq!(
        (&ruled["write_path"]["setting"], &ruled["write_path"]["now"]),
        (&"stacked".into(), &"stacked".into())
    );
    let human = output_of(&["explain", &path]);
    assert!(human.contains("/dir") && human.contains("stacked"), "{human}");
}

#[test]
fn explain_create_ranks_the_branches() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").mode("NC").tmp_branch("b").option("create=ff").mount();
    let told_of = json("explain-create", &["explain", &at(&pool), "create", "new/file", "--size", "1M"]);
    assert_eq!(told_of["chosen"], branch(&pool, "b"));
    let ranking = told_of["ranking"].as_array().unwrap();
    assert_eq!((ranking[0]["rank"].as_u64(), ranking[1]["rank"].as_u64()), (Some(1), None));
    assert_eq!(ranking[1]["branch"], branch(&pool, "a"));
    assert!(ranking[1]["why"].as_str().unwrap().contains("NC"));
    pool.write("probe", b"x");
    assert_eq!(pool.holders("probe"), ["b"], "what was explained is what happens");
    let human = output_of(&["explain", &at(&pool), "create", pool.at("new/file").to_str().unwrap()]);
    assert!(human.contains(&branch(&pool, "a")), "{human}");
}

#[test]
fn metrics_are_openmetrics_at_the_socket_and_by_tcp() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("metrics=127.0.0.1:0").mount();
    pool.write("file", b"x");
    let page = output_of(&["metrics", &at(&pool)]);
    assert!(page.ends_with("# EOF\n"), "{page}");
    let branch = branch(&pool, "a");
    assert!(page.contains(&format!("fsstack_branch_size_bytes{{branch=\"{branch}\"}}")), "{page}");
    for family in [
        "fsstack_branch_calls_total",
        "fsstack_branch_call_duration_seconds_bucket",
        "fsstack_lookups_total",
        "fsstack_opens_total",
        "fsstack_table_entries{table=\"removed-objects\"} 0\n",
        "fsstack_table_limit_entries{table=\"removed-objects\"} 1024\n",
        "fsstack_branch_calls_queued{",
    ] {
        assert!(page.contains(family), "no {family} in {page}");
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    // The pool reports the port that the system chose.
    let address = output_of(&["get", &at(&pool), "metrics"]);
    let mut stream = TcpStream::connect(address.trim()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("# EOF\n"), "{answer}");
}

/// Two directories of one disk count once.
#[test]
fn the_status_has_the_size_that_df_shows() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").mount();
    let status = json("status", &["status", &at(&pool)]);
    let df = rustix::fs::statvfs(pool.path()).unwrap();
    assert_eq!(status["pools"][0]["total"].as_u64(), Some(df.f_blocks * df.f_frsize));
}

/// A page that shows `page` in a frame of the width of a small phone, and reports its layout: Chromium's windows are 500 pixels
/// wide or more.
fn in_a_narrow_frame(page: &str) -> String {
    let quoted = page.replace('&', "&amp;").replace('"', "&quot;");
    let script = "addEventListener('load', () => { const root = frames[0].document.documentElement; \
         document.body.insertAdjacentHTML('beforeend', `<p>sideways ${root.scrollWidth - root.clientWidth} \
         of ${frames[0].innerWidth}</p>`) })";
    format!(
        "<!doctype html><iframe width=360 height=900 srcdoc=\"{quoted}\"></iframe><script>{script}</script>"
    )
}

/// On the metrics port, on a desktop and on phones.
#[test]
fn the_status_page_shows_the_branches_in_a_browser() {
    needs!(mounting(), program("chromium"));
    let pool = lab::pool()
        .tmpfs_branch("a", MiB(64))
        .tmpfs_branch("a-branch-with-a-name-of-some-length-that-does-not-fit-on-a-phone", MiB(16))
        .option("metrics=127.0.0.1:0")
        .mount();
    let address = output_of(&["get", &at(&pool), "metrics"]);
    let url = format!("http://{}/", address.trim());
    let home = tempfile::tempdir().unwrap();
    let shot = home.path().join("shot.png");
    let screen = Window { size: (1200, 1000), dark: false };
    let page = screen.render(&url, &shot).unwrap();
    assert!(page.contains("all 2 branches are up") && page.contains(&branch(&pool, "a")), "{page}");
    assert!(page.contains("http-equiv=\"refresh\" content=\"5\""), "{page}");
    output_of(&["branch", "mode", &at(&pool), &branch(&pool, "a"), "RO"]);
    let page = screen.render(&url, &shot).unwrap();
    assert!(page.contains("<dd>RO</dd>"), "{page}");

    // A copy with a script reports its layout; the page itself may run no script.
    let probe = "<script>document.body.insertAdjacentHTML('beforeend', `<p>sideways ${\
         document.documentElement.scrollWidth - document.documentElement.clientWidth} paper ${\
         getComputedStyle(document.body).backgroundColor}</p>`)</script>";
    let copy = home.path().join("copy.html");
    let copied = page.replace("http-equiv", "data-was");
    let phone = Window { size: (500, 900), dark: true };
    let render = |page: &str| {
        fs::write(&copy, page).unwrap();
        phone.render(&format!("file://{}", copy.display()), &shot).unwrap()
    };
    let page = render(&format!("{copied}{probe}"));
    assert!(page.contains("sideways 0 paper rgb(13, 17, 23)"), "{page}");
    let page = render(&in_a_narrow_frame(&copied));
    assert!(page.contains("sideways 0 of 360"), "{page}");
}

#[test]
fn doctor_tells_of_a_daemon_that_stands_still() {
    needs!(mounting());
    let pool = lab::pool().tmp_branch("a").option("attr-timeout=0").mount();
    let daemon = pool.daemon();
    daemon.signal(rustix::process::Signal::STOP).unwrap();
    let Finished { code, stdout, .. } = run(&["doctor", &at(&pool)]);
    daemon.signal(rustix::process::Signal::CONT).unwrap();
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains(&format!("fail  {}: its daemon does not answer", at(&pool))), "{stdout}");
}

#[test]
fn doctor_finds_two_branches_on_one_file_system_and_a_floor_that_is_too_high() {
    needs!(mounting(), not_on_gluster("its branches are file systems of their own"));
    let pool = lab::pool().tmp_branch("a").tmp_branch("b").option("minfreespace=8000P").mount();
    let Finished { stdout, .. } = run(&["doctor", &at(&pool), "--json"]);
    let found = checked("doctor", &stdout);
    let says = |level: &str, about: &str, text: &str| {
        found["findings"].as_array().unwrap().iter().any(|finding| {
            finding["level"] == level
                && finding["about"] == about
                && finding["text"].as_str().unwrap().contains(text)
        })
    };
    assert!(says("warn", &branch(&pool, "b"), "same file system"), "{found:#}");
    assert!(says("warn", &branch(&pool, "a"), "floor"), "{found:#}");
    assert!(says("ok", &branch(&pool, "a"), "identity"), "{found:#}");
    assert!(says("ok", &at(&pool), "daemon answers"), "{found:#}");
    let human = run(&["doctor", &at(&pool)]).stdout;
    assert!(
        human.lines().all(|line| ["ok  ", "warn", "fail"].iter().any(|level| line.starts_with(level))),
        "{human}"
    );
}

/// The number of a daemon in another PID namespace means another process, which may be sent a signal by it.
#[test]
fn the_process_of_a_daemon_in_another_pid_namespace_is_not_named() {
    needs!(mounting(), root(), program("unshare"));
    let pool = pool();
    let elsewhere = |arguments: &[&str]| {
        let unshare = ["--mount", "--pid", "--fork", "--mount-proc"];
        command("unshare").args(unshare).arg(binary()).args(arguments).output().unwrap()
    };
    let listed = |text: &str| {
        let all = checked("list", text);
        let pools = all["pools"].as_array().unwrap();
        pools.iter().find(|listed| listed["mount_point"] == at(&pool)).unwrap()["pid"].clone()
    };
    assert_eq!(listed(&output_of(&["list", "--json"])), pool.daemon().pid);
    assert_eq!(listed(&elsewhere(&["list", "--json"]).stdout), Value::Null);
    for arguments in [&["check", &at(&pool), "--fix"][..], &["upgrade", &at(&pool)]] {
        let ended = elsewhere(arguments);
        assert_eq!(ended.code, 1, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("in another PID namespace"), "{arguments:?}: {}", ended.stderr);
    }
}
