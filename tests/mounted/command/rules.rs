//! Classes of branches and placement rules: where files of a directory go, and what lies against that.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use fsstack_lab::{self as lab, MiB, needs};

use super::drain::shown;
use super::*;
use crate::handles::forget;
use crate::relocate::mib;

/// Two fast branches and two slow ones, of which the first takes what no rule is for.
fn builder() -> lab::Builder {
    let branch = |pool: lab::Builder, name: &str, class: &str| {
        pool.tmp_branch(name).mode(&format!("RW,class={class}"))
    };
    let pool = branch(lab::pool(), "slow1", "slow");
    let pool = branch(branch(branch(pool, "slow2", "slow"), "fast1", "fast"), "fast2", "fast");
    pool.option("create=ff").option("minfreespace=0").no_others()
}

fn set(pool: &Pool, dir: &str, rule: &str) -> Value {
    json("rules", &["rule", "set", &at(pool), dir, rule])
}

fn misplaced(pool: &Pool) -> u64 {
    json("status", &["status", &at(pool)])["pools"][0]["misplaced"].as_u64().unwrap()
}

#[test]
fn files_and_directories_go_where_the_innermost_rule_says() {
    needs!(mounting());
    let pool = builder().option("place-rules=/media=@fast:/media/tmp=pool").mount();
    let slow2 = branch(&pool, "slow2");
    set(&pool, "/b", &format!("ff@{}", branch(&pool, "fast2")));
    pool.mkdir("media/tmp/deep");
    pool.mkdir("b/c");
    for (path, on) in [
        ("media/film", "fast1"),
        ("media/tmp/scratch", "slow1"),
        ("media/tmp/deep/scratch", "slow1"),
        ("b/c/file", "fast2"),
        ("other", "slow1"),
    ] {
        pool.write(path, b"x");
        assert_eq!(pool.holders(path), [on], "{path}");
    }
    // `media` itself is in the root, for which there is no rule; what is made in it is not.
    pool.mkdir("media/shows/one");
    assert_eq!(pool.holders("media/shows/one"), ["fast1"]);
    // A rule that is made later, for a branch by its path and a directory that is not there yet.
    set(&pool, "/later", &format!("@{slow2}"));
    pool.mkdir("later");
    pool.write("later/file", b"x");
    assert_eq!(pool.holders("later/file"), ["slow2"]);
    std::os::unix::fs::symlink("file", pool.at("later/link")).unwrap();
    assert_eq!(pool.holders("later/link"), ["slow2"]);
    // A renamed directory leaves the rule behind, with all below it.
    fs::rename(pool.at("b"), pool.at("d")).unwrap();
    pool.write("d/c/file2", b"x");
    assert_eq!(pool.holders("d/c/file2"), ["slow1"]);
    output_of(&["rule", "remove", &at(&pool), "/later"]);
    pool.write("later/file2", b"x");
    assert_eq!(pool.holders("later/file2"), ["slow1"]);
}

#[test]
fn a_full_target_is_followed_by_then_by_others_or_by_enospc() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("slow", MiB(300)).mode("RW,class=slow").xfs_branch("other", MiB(300));
    let pool = pool.xfs_branch("fast", MiB(300)).mode("RW,class=fast").option("create=ff").mount();
    for (dir, rule) in [("/then", "@fast;then=slow"), ("/any", "@fast"), ("/strict", "@fast;strict")] {
        set(&pool, dir, rule);
        pool.mkdir(&dir[1..]);
    }
    let make = |path: &str| fs::write(pool.at(path), "x");
    make("then/1").and_then(|()| make("any/1")).and_then(|()| make("strict/1")).unwrap();
    // A rule's floor alone decides.
    set(&pool, "/floor", "@fast;floor=99%;strict");
    pool.mkdir("floor");
    assert_eq!(make("floor/1").unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(fs::create_dir(pool.at("floor/dir")).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(misplaced(&pool), 0);
    pool.branch("fast").fill_until_free(MiB(3));
    std::thread::sleep(std::time::Duration::from_millis(1100)); // free space is asked for once a second
    make("then/2").and_then(|()| make("any/2")).unwrap();
    let holders = ["then/1", "any/1", "strict/1", "then/2", "any/2"].map(|path| pool.holders(path).concat());
    assert_eq!(holders, ["fast", "fast", "fast", "slow", "slow"]);
    assert_eq!(make("strict/2").unwrap_err().kind(), ErrorKind::StorageFull);
    // Only that one went where its rule does not say.
    assert_eq!(misplaced(&pool), 1);
    let explained = json("explain-create", &["explain", &at(&pool), "create", "strict/2"]);
    let why = |at: usize| explained["ranking"][at]["why"].as_str().unwrap().to_owned();
    assert_eq!((&explained["rule"], &explained["chosen"]), (&"/strict=@fast;strict".into(), &Value::Null));
    assert_eq!(why(0), "not named by the strict placement rule for the directory");
    assert!(why(2).contains("under its floor"), "{explained}");
    // A bulk copy asks the rule too.
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("copied"), "x").unwrap();
    let source = source.path().join("copied");
    let (code, line) = refused(&["copy", source.to_str().unwrap(), pool.at("strict").to_str().unwrap()]);
    assert!(code != 0 && line.contains("copied"), "{line}");
    output_of(&["copy", source.to_str().unwrap(), pool.at("then").to_str().unwrap()]);
    assert_eq!(pool.holders("then/copied"), ["slow"]);
}

#[test]
fn directories_are_spread_to_the_depth_and_stay_together_below() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).xfs_branch("c", MiB(300));
    let pool = pool.option("create=ff").option("place-rules=/shows=mfs;depth=1").mount();
    let on = |path: &str| pool.holders(path).concat();
    pool.mkdir("shows");
    for (show, full) in [("one", "a"), ("two", "b")] {
        pool.mkdir(format!("shows/{show}"));
        let here = on(&format!("shows/{show}"));
        pool.branch(full).fill_until_free(MiB(200));
        std::thread::sleep(std::time::Duration::from_millis(1100)); // free space is asked for once a second
        pool.mkdir(format!("shows/{show}/season"));
        pool.write(format!("shows/{show}/season/1"), b"x");
        assert_eq!(on(&format!("shows/{show}/season")), here, "{show}");
        assert_eq!(on(&format!("shows/{show}/season/1")), here, "{show}");
    }
    assert_ne!(on("shows/one"), on("shows/two"), "by the most free space");
}

#[test]
fn what_lies_against_the_rules_is_told_and_moved() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("slow", MiB(300)).mode("RW,class=slow");
    let pool = pool.xfs_branch("fast1", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("fast2", MiB(300)).mode("RW,class=fast").option("create=ff").mount();
    let at = at(&pool);
    pool.mkdir("in/below");
    (0..6_u64).for_each(|n| pool.write(format!("{n}"), &mib(n)));
    fs::hard_link(pool.at("0"), pool.at("other")).unwrap();
    pool.write("in/below/old", &mib(9));
    std::os::unix::fs::symlink("old", pool.at("in/below/link")).unwrap();
    let (code, none) = refused(&["balance", &at, "--rules"]);
    assert!(code == 3 && none.contains("no placement rule"), "{none}");
    set(&pool, "/in", "mfs@fast;strict");
    assert_eq!(misplaced(&pool), 0, "nothing came since the rule");
    // A rename into a directory with a rule leaves the file where it is.
    for n in 0..6 {
        fs::rename(pool.at(format!("{n}")), pool.at(format!("in/{n}"))).unwrap();
        assert_eq!(pool.holders(format!("in/{n}").as_str()), ["slow"]);
    }
    assert_eq!(misplaced(&pool), 6);
    fs::rename(pool.at("in/5"), pool.at("in/five")).unwrap();
    assert_eq!(misplaced(&pool), 6, "it lay so before");
    let explained = json("explain", &["explain", pool.at("in/1").to_str().unwrap()]);
    assert_eq!(explained["rule"], "/in=mfs@fast;strict");
    assert!(explained["notes"][0].as_str().unwrap().contains("balance POOL --rules"), "{explained}");

    let before = shown(&pool);
    let plan = json("job", &["balance", &at, "--rules", "--dry-run"]);
    assert_eq!((&plan["state"], &plan["kind"]), (&"planned".into(), &"rules".into()), "{plan}");
    let moves: Vec<(String, String)> = plan["plan"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            assert_eq!(one["from"], branch(&pool, "slow").as_str());
            (one["path"].as_str().unwrap().to_owned(), one["to"].as_str().unwrap().to_owned())
        })
        .collect();
    // Seven in `in` and `in/below`, one of which has another name without a rule, and the link.
    assert_eq!(moves.len(), 8, "{plan}");
    assert_eq!(misplaced(&pool), moves.len() as u64, "counted by a walk");
    let done = json("job", &["balance", &at, "--rules"]);
    assert_eq!((&done["state"], &done["moved_files"]), (&"done".into(), &moves.len().into()), "{done}");
    for (path, to) in &moves {
        let held = pool.holders(path.as_str()).concat();
        assert_eq!(&branch(&pool, &held), to, "{path}: the run did what the dry run said");
    }
    let on: std::collections::HashSet<String> = moves.iter().map(|(_, to)| to.clone()).collect();
    assert_eq!(on.len(), 2, "by the most free space");
    forget();
    super::drain::assert_shown(&pool, &before);
    assert_eq!(misplaced(&pool), 0);
    let again = json("job", &["balance", &at, "--rules"]);
    assert_eq!((&again["state"], &again["files"]), (&"done".into(), &0.into()), "{again}");
}

#[test]
fn jobs_move_nothing_against_a_rule() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("fast1", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("fast2", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("slow", MiB(300)).mode("RW,class=slow").option("create=ff").mount();
    let (at, slow) = (at(&pool), branch(&pool, "slow"));
    set(&pool, "/hot", "ff@fast;strict");
    set(&pool, "/warm", "ff@fast");
    ["hot", "warm", "cold"].iter().for_each(|dir| pool.mkdir(*dir));
    for dir in ["hot", "warm", "cold"] {
        (0..20_u64).for_each(|n| pool.write(format!("{dir}/{n}"), &mib(n)));
    }
    let is_on = |dir: &str, branch: &str| {
        (0..20).filter(|n| pool.holders(format!("{dir}/{n}").as_str()) == [branch]).count()
    };
    assert_eq!((is_on("hot", "fast1"), is_on("warm", "fast1"), is_on("cold", "fast1")), (20, 20, 20));
    let done = json("job", &["balance", &at, "--by", "free", "--until", "1%"]);
    assert_eq!(done["state"], "done", "{done}");
    assert_eq!((is_on("hot", "slow"), is_on("warm", "slow")), (0, 0), "{done}");
    assert!(is_on("cold", "slow") > 0, "{done}");
    assert_eq!(misplaced(&pool), 0);
    // A directory is not gathered where a strict rule does not want it.
    let (code, why) = refused(&["consolidate", &at, "hot", "--to", &slow]);
    assert!(code == 1 && why.contains("objects that stay where they are: 20"), "{why}");
    assert_eq!(is_on("hot", "slow"), 0);
    // Emptied: the files of the strict rule stay in its class, the others as long as there is room.
    let drained = json("job", &["branch", "drain", &at, &branch(&pool, "fast1")]);
    assert_eq!(drained["state"], "done", "{drained}");
    assert_eq!((is_on("hot", "fast2"), is_on("warm", "fast2")), (20, 20));
    // Now no other branch of the class is left.
    let (code, why) = refused(&["branch", "drain", &at, &branch(&pool, "fast2")]);
    assert!(code == 1 && why.contains("strict placement rules keep 20 of its files"), "{why}");
}

#[test]
fn a_full_branch_sends_its_open_files_where_the_rule_says() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("fast1", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("slow", MiB(400)).mode("RW,class=slow");
    let pool = pool.xfs_branch("fast2", MiB(300)).mode("RW,class=fast");
    let pool = pool.option("create=ff").option("write-path=stacked").option("place-rules=/hot=@fast").mount();
    pool.mkdir("hot");
    pool.write("hot/file", &mib(1));
    assert_eq!(pool.holders("hot/file"), ["fast1"]);
    pool.branch("fast1").fill_until_free(MiB(2));
    let file = crate::relocate::writer(pool.at("hot/file"));
    let more = mib(7).repeat(8);
    std::os::unix::fs::FileExt::write_all_at(&file, &more, 1 << 20).unwrap();
    assert_eq!(pool.holders("hot/file"), ["fast2"], "not to the roomiest");
    assert_eq!(pool.read("hot/file")[1 << 20..], more);
    assert_eq!(misplaced(&pool), 0);
}

#[test]
fn rules_and_classes_outlive_the_mount_and_the_daemon() {
    needs!(mounting());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pool.toml");
    fs::write(&file, "# ours\nplace-rules = \"/media=@slow\" # by class\n").unwrap();
    let pool = builder().option(&format!("config={}", file.display())).option("transport=dev");
    let mut pool = pool.mount();
    let at = at(&pool);
    pool.mkdir("a:b");
    let rule = "mspmfs@fast;then=slow;floor=1%;depth=2;strict";
    let rules = json("rules", &["rule", "set", &at, pool.at("a:b").to_str().unwrap(), rule, "--persist"]);
    assert_eq!(rules["persisted"], file.to_str().unwrap());
    let text = format!(r"/a\:b={rule}:/media=@slow");
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("# ours\nplace-rules = '{text}' # by class\n"));
    let check = |pool: &Pool| {
        assert_eq!(output_of(&["get", &at, "place-rules"]), format!("{text}\n"));
        let status = json("status", &["status", &at]);
        let first = &status["pools"][0]["placement_rules"][0];
        assert_eq!((&first["dir"], &first["rule"]), (&r"/a\:b".into(), &rule.into()), "{status}");
        assert_eq!(first["branches"].as_array().unwrap().len(), 4, "{status}");
        let classes: Vec<&Value> = status["pools"][0]["branches"]
            .as_array()
            .unwrap()
            .iter()
            .map(|branch| &branch["class"])
            .collect();
        assert_eq!(classes, ["slow", "slow", "fast", "fast"]);
        let name =
            format!("a:b/{}", pool.holders("a:b").len() + fs::read_dir(pool.at("a:b")).unwrap().count());
        pool.write(name.as_str(), b"x");
        assert!(pool.holders(name.as_str()).concat().starts_with("fast"), "{name}");
    };
    check(&pool);
    let upgraded = output_of(&["upgrade", &at]);
    assert!(upgraded.contains(" -> "), "{upgraded}");
    check(&pool);
    pool.remount();
    check(&pool);
    // A branch that comes later is one of its class.
    let more = tempfile::tempdir().unwrap();
    output_of(&["branch", "add", &at, &format!("{}=RW,class=fast", more.path().display())]);
    let rules = json("rules", &["rule", "list", &at]);
    assert_eq!(rules["rules"][0]["branches"].as_array().unwrap().len(), 5, "{rules}");
    let listed = output_of(&["rule", "list", &at]);
    assert!(listed.contains(r"/a\:b ") && listed.contains(more.path().to_str().unwrap()), "{listed}");
    output_of(&["rule", "remove", &at, "/a:b", "--persist"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "# ours\nplace-rules = \"/media=@slow\" # by class\n");
}

#[test]
fn a_bad_rule_is_refused_in_one_line() {
    needs!(mounting());
    let pool = builder().mount();
    let said = |dir: &str, rule: &str| {
        let (code, line) = refused(&["rule", "set", &at(&pool), dir, rule]);
        format!("{code}: {line}")
    };
    assert_eq!(
        said("/a", "@fats"),
        "3: @fats: no branch of this pool has that class; there are fast, slow; did you mean \"fast\"?"
    );
    assert!(said("/a", "@/nowhere").starts_with("3: /nowhere: no branch of this pool; there are /"));
    assert!(said("/a", "mfss@fast").contains("did you mean `mfs`"));
    assert_eq!(
        said("/a", "@fast;strickt"),
        "2: /a: `strickt` is no word of a rule: write then=, floor=, depth= or strict; did you mean \"strict\"?"
    );
    assert!(said("/a/../b", "@fast").contains("without . and .."));
    let (code, line) = refused(&["rule", "remove", &at(&pool), "/a"]);
    assert_eq!((code, line.as_str()), (3, "/a: no placement rule for this directory"));
    let (code, line) = refused(&["rule", "set", &at(&pool), "/a", "@fast", "--persist"]);
    assert!(code == 2 && line.contains("no config file"), "{line}");
    assert_eq!(json("rules", &["rule", "list", &at(&pool)])["rules"].as_array().unwrap().len(), 0);
    let refusal = builder().option("place-rules=/a:b=@fast").try_mount().unwrap_err();
    assert!(
        refusal.code == 1 && refusal.said.contains("place-rules=/a:b=@fast: `/a` is not a rule"),
        "{refusal}"
    );
    let refusal = lab::pool().tmp_branch("a").mode("RW,class=").try_mount().unwrap_err();
    assert!(refusal.said.contains("not a class"), "{refusal}");
    // A class that no branch has yet: the branch may come later.
    let pool = builder().option("place-rules=/a=@fats").mount();
    pool.mkdir("a");
    pool.write("a/file", b"x");
    assert_eq!(pool.holders("a/file"), ["slow1"]);
}

#[test]
fn a_strict_rule_holds_for_a_file_by_any_of_its_names() {
    needs!(mounting(), loops());
    let pool = lab::pool().xfs_branch("fast1", MiB(300)).mode("RW,class=fast");
    let pool = pool.xfs_branch("slow", MiB(400)).mode("RW,class=slow");
    let pool = pool.xfs_branch("fast2", MiB(300)).mode("RW,class=fast").option("create=ff").mount();
    let (at, slow, fast1) = (at(&pool), branch(&pool, "slow"), branch(&pool, "fast1"));
    ["db", "free", "zz"].iter().for_each(|dir| pool.mkdir(*dir));
    for name in ["db", "zz"] {
        pool.write(format!("free/{name}"), &mib(1));
        fs::hard_link(pool.at(format!("free/{name}")), pool.at(format!("{name}/f"))).unwrap();
        set(&pool, &format!("/{name}"), "@fast;strict");
    }
    let on = |what: &str| ["db/f", "zz/f"].map(|path| pool.holders(path).concat()) == [what, what];
    assert!(on("fast1"));
    // Neither gathered elsewhere nor taken for a balance, whichever of its names a walk meets first.
    for dir in ["free", "db", "zz"] {
        let (code, why) = refused(&["consolidate", &at, dir, "--to", &slow]);
        assert!(code == 1 && why.contains("objects that stay where they are"), "{dir}: {why}");
    }
    assert!(on("fast1"));
    // Emptied where the rule's class has another branch: there, though the other one is roomier.
    assert_eq!(json("job", &["branch", "drain", &at, &fast1])["state"], "done");
    assert!(on("fast2"));
    let (code, why) = refused(&["branch", "drain", &at, &branch(&pool, "fast2")]);
    assert!(code == 1 && why.contains("strict placement rules keep 2 of its files"), "{why}");
    // Two strict rules without a branch in common keep a file where it is.
    set(&pool, "/free", "@slow;strict");
    let (code, why) = refused(&["balance", &at, "--rules"]);
    assert!(code == 1 && why.contains("objects that stay where they are: 2"), "{why}");
    assert!(on("fast2"));
    // Against the rule by one name alone, and with the other it may go anywhere: moved to where that rule says.
    output_of(&["rule", "remove", &at, "/free"]);
    ["/db", "/zz"].iter().for_each(|dir| _ = set(&pool, dir, "@slow;strict"));
    let done = json("job", &["balance", &at, "--rules"]);
    assert_eq!((&done["state"], &done["moved_files"]), (&"done".into(), &2.into()), "{done}");
    assert!(on("slow"));
}

/// The directories of the rules that `fsstack rule set` makes for `dir`, typed in the directory `from`.
fn made_in(pool: &Pool, from: &Path, dir: &str) -> Vec<String> {
    let typed = ["rule", "set", &at(pool), dir, "@fast"];
    let made = command(binary()).dir(from).args(typed).output().unwrap();
    assert_eq!(made.code, 0, "{dir}: {}", made.stderr);
    let rules = json("rules", &["rule", "list", &at(pool)]);
    let dirs: Vec<String> = rules["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["dir"].as_str().unwrap().to_owned())
        .collect();
    // What is printed reads back as the same directory.
    dirs.iter().for_each(|dir| _ = output_of(&["rule", "remove", &at(pool), dir]));
    dirs
}

#[test]
fn a_rule_is_for_the_directory_that_was_typed() {
    needs!(mounting());
    let pool = builder().mount();
    pool.mkdir("inbox/below");
    pool.mkdir("tab\tand\\");
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("lnk");
    std::os::unix::fs::symlink(pool.path(), &link).unwrap();
    std::os::unix::fs::symlink("inbox", pool.at("short")).unwrap();
    let (inbox, link) = (pool.at("inbox"), link.to_str().unwrap());
    for (from, dir, made) in [
        (&*inbox, "newdir", "/inbox/newdir"),
        (&*inbox, "newdir/deep/", "/inbox/newdir/deep"),
        (&*inbox, ".", "/inbox"),
        (&*inbox, "../new", "/new"),
        (&*inbox, "../short/new", "/inbox/new"),
        (&*inbox, "/inbox/new", "/inbox/new"),
        (elsewhere.path(), "lnk/notyet", "/notyet"),
        (elsewhere.path(), &format!("{link}/notyet/deep"), "/notyet/deep"),
        (elsewhere.path(), &format!("{link}/short"), "/inbox"),
        (elsewhere.path(), "/", "/"),
        (elsewhere.path(), link, "/"),
        (&*inbox, r"../tab\011and\\", r"/tab\011and\134"),
        (elsewhere.path(), r"/a\:b\377,", r"/a\:b\377\054"),
    ] {
        assert_eq!(made_in(&pool, from, dir), [made], "{dir} in {}", from.display());
    }
    let said = |from: &Path, arguments: &[&str]| {
        let said = command(binary()).dir(from).args(arguments).output().unwrap();
        assert_eq!((said.code, said.stderr.lines().count()), (2, 1), "{arguments:?}: {}", said.stderr);
        said.stderr
    };
    let at = at(&pool);
    for dir in ["inbox", "../x", "newdir/../lnk"] {
        let line = said(elsewhere.path(), &["rule", "set", &at, dir, "@fast"]);
        assert!(line.contains("a relative path is taken from the working directory"), "{line}");
        let line = said(elsewhere.path(), &["write-path", &at, "stacked", "--subtree", dir]);
        assert!(line.contains("--subtree") && line.contains("the working directory"), "{line}");
    }
    assert!(said(&inbox, &["rule", "set", &at, "/new/../other", "@fast"]).contains("without . and .."));
    assert!(said(&inbox, &["rule", "remove", &at, r"\x"]).contains("not an escape"));
    // Nothing is cut or filled without a bound.
    let long = "x".repeat(5000);
    assert!(said(&inbox, &["rule", "set", &at, &format!("/{long}"), "@fast"]).contains("4096 at most"));
    assert!(said(&inbox, &["rule", "set", &at, "/a", &format!("@/{long}")]).contains("4096 at most"));
    assert_eq!(json("rules", &["rule", "list", &at])["rules"].as_array().unwrap().len(), 0);
}

#[test]
fn the_last_branch_of_a_strict_rule_does_not_go_silently() {
    needs!(mounting());
    let pool = builder().option("place-rules=/db=@fast;strict:/soft=@fast").mount();
    let (at, fast1, fast2) = (at(&pool), branch(&pool, "fast1"), branch(&pool, "fast2"));
    let note = "placement rule /db=@fast;strict: no branch is left that takes anything new there: ENOSPC";
    let notes = |action: &[&str]| json("branch", &[&["branch"], action].concat())["notes"].clone();
    let warns = || {
        // It exits with 1 for anything wrong with the machine, as the dead mount of a test beside.
        let found = checked("doctor", &run(&["doctor", &at, "--json"]).stdout);
        let all = found["findings"].as_array().unwrap().iter();
        all.filter(|one| one["level"] == "warn" && one["text"] == note).count()
    };
    let none = Value::Array(Vec::new());
    assert_eq!((notes(&["mode", &at, &fast1, "NC"]), warns()), (none.clone(), 0));
    assert_eq!((notes(&["mode", &at, &fast2, "NC"]), warns()), (vec![note].into(), 1));
    assert_eq!((notes(&["mode", &at, &fast2, "RW"]), warns()), (none.clone(), 0));
    assert_eq!((notes(&["remove", &at, &fast1]), warns()), (none, 0));
    let said = output_of(&["branch", "remove", &at, &fast2]);
    assert!(said.ends_with(&format!("\nnote: {note}\n")), "{said}");
    assert_eq!(warns(), 1);
}
